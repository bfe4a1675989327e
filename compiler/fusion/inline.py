"""Inlining: which element-wise results are computed again where they are read, and never stored.

Grouping (groups.py) shares values inside one kernel without computing anything twice. This pass comes before it and
takes what grouping cannot. These are producers that are read through a permutation, a slice or a broadcast, or from
several kernels, and are so cheap that reading memory would cost more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Sequence

from ..lowering.ir import Axis, Buffer, LoopNest, Value, has_op, is_plain_load, load, loads, walk
from ..lowering.lowered import LoweredStep, View
from ..lowering.rewrite import Rewriter, positions, still_checked, value_at
from ..ops.raising import may_raise
from ..symbolic.expr import Expr, as_expr, integer
from .value_cost import Costs, reads_rows
from .domain import numel_hint
from .forced_fusion import NOTHING_FORCED, ForcedFusion

__all__ = ["Uses", "find_uses", "inline", "buffers_read", "does_more", "checks_unread"]

CHEAP = 4  # computed again anywhere, as often as it is read: a conversion, a scaled or shifted load
CHEAP_INDEX = 16  # of what reads no memory at all: masks made of indices
FEW = 64  # a load of this many times fewer elements than the result costs nothing
GPU_CHEAP = 32  # ... on a GPU, of what reads but little memory: its processors wait for memory most of the time
GPU_TIMES = 8  # how often that may be computed again
GPU_MOVED = 1.25  # what a GPU may compute more often to save a result's way through memory (the frame of a pad)
MOVED = 96  # read through another index by one nest: moved there, up to this many nodes


class Uses:
    """Who reads a buffer: loads (nest, index) of nests, and whether anything else needs it in memory."""

    __slots__ = ("loads", "needed")

    def __init__(self) -> None:
        self.loads: list[tuple[LoopNest, Expr]] = []
        self.needed = False


def find_uses(steps: Sequence[LoweredStep], needed: Sequence[Buffer]) -> dict[Buffer, Uses]:
    uses: dict[Buffer, Uses] = {}

    def of(buffer: Buffer) -> Uses:
        u = uses.get(buffer)
        if u is None:
            u = uses[buffer] = Uses()
        return u

    for step in steps:
        if isinstance(step, LoopNest):
            for value in loads([step.value]):
                of(value.attr[0]).loads.append((step, value.attr[1]))
                if step.product:
                    of(value.attr[0]).needed = True  # it would be computed again for every element of the result
        else:
            for b in buffers_read(step):
                of(b).needed = True
    for b in needed:
        of(b).needed = True
    return uses


def buffers_read(step: Any) -> list[Buffer]:
    """The buffers that a View or an Extern reads."""
    if hasattr(step, "base"):
        return [step.base]
    out: list[Buffer] = []
    stack: list[Any] = [step.args, step.kwargs]
    while stack:
        x = stack.pop()
        if isinstance(x, Buffer):
            out.append(x)
        elif isinstance(x, (list, tuple)):
            stack.extend(x)
        elif isinstance(x, dict):
            stack.extend(x.values())
    return out


def inline(
    steps: Sequence[LoweredStep],
    needed: Sequence[Buffer],
    hints: dict[str, int],
    drop_rounding: bool,
    nothing: bool = False,
    forced: ForcedFusion = NOTHING_FORCED,
) -> list[LoweredStep]:
    """The steps with inlined producers gone and their values in the readers. Steps that nothing needs, and those that
    compute what an earlier one does, are dropped too. nothing: no inlining."""
    if nothing:
        return _without_dead(list(steps), needed)
    steps = _without_doubles(steps, needed)
    # What is inlined into a reader changes how the reader reads: a second round sees it. More rounds gain nothing worth
    # their time.
    narrow = _read_narrow(steps, needed)
    first = _round(steps, needed, hints, drop_rounding, forced, narrow)
    return first if len(first) == len(steps) else _round(first, needed, hints, drop_rounding, forced, narrow)


def _may_move(nest: LoopNest, uses: Uses) -> bool:
    """Whether a nest's value may be computed by its readers instead: nothing else needs it in memory."""
    return not uses.needed and nest.reduce_op is None and nest.mode == "set"


def _keeps_all(nest: LoopNest, uses: Uses) -> bool:
    """Whether indices stay affine in each reader, and one of them still makes every check of the nest."""
    return all(_keeps_affine(nest, n, expr) for n, expr in uses.loads) and (
        not _checks(nest) or any(_reads_all(nest, n, expr) for n, expr in uses.loads)
    )


def _round(
    steps: Sequence[LoweredStep],
    needed: Sequence[Buffer],
    hints: dict[str, int],
    drop_rounding: bool,
    forced: ForcedFusion,
    narrow: set[Buffer],
) -> list[LoweredStep]:
    uses = find_uses(steps, needed)
    writers: dict[Buffer, int] = {}
    for step in steps:
        if isinstance(step, LoopNest):
            writers[step.buffer] = writers.get(step.buffer, 0) + 1
    cost = Costs()
    inlined: dict[Buffer, LoopNest] = {}
    tiles: set[Buffer] = set()  # what a GPU's products make, and what follows them element by element
    out: list[LoweredStep] = []
    for step in steps:
        if not isinstance(step, LoopNest):
            out.append(step)
            continue
        if step.on_gpu and (
            step.product
            or tiles
            and step.reduce_op is None
            and any(value.attr[0] in tiles for value in loads([step.value]))
        ):
            tiles.add(step.buffer)
        u = uses.get(step.buffer)
        if u is None and not _checks(step) and not inlined:
            continue  # dead
        if inlined:
            step = _with_inlined(step, inlined, drop_rounding)
        if u is None:
            if _checks(step):
                out.append(step)
        elif (
            _may_move(step, u)
            and writers[step.buffer] == 1
            and not (step.buffer in tiles and _narrows(step) or step.buffer in narrow)
            and (_worth(step, u, cost, hints) if not forced else _wished(step, u, forced, cost, hints))
            and _keeps_all(step, u)
        ):
            inlined[step.buffer] = step
        else:
            out.append(step)
    return _without_dead(out, needed)


def _read_narrow(steps: Sequence[LoweredStep], needed: Sequence[Buffer]) -> set[Buffer]:
    """Behind a GPU's sums over windows, element by element: results in 16 bits that several nests read, where nobody
    reads them as wide as they are made (an activation under autocast). They stay nests, since what they are made of
    lies in no memory: moved into the readers, they would have the wide one stored."""
    uses = find_uses(steps, needed)
    behind: set[Buffer] = set()
    out: set[Buffer] = set()
    for step in steps:
        if not isinstance(step, LoopNest) or not step.on_gpu:
            continue
        follows = step.reduce_op is None and any(value.attr[0] in behind for value in loads([step.value]))
        if follows or step.product and len(step.reduce_axes) > 1:
            behind.add(step.buffer)
        if not follows or not step.value.is_float_cast:
            continue
        (source,) = step.value.args
        readers = {id(nest) for nest, _ in uses[step.buffer].loads} if step.buffer in uses else set()
        if source.is_load and source.dtype.itemsize > step.value.dtype.itemsize and len(readers) > 1:
            buffer = source.attr[0]
            if buffer in behind and not uses[buffer].needed and all(nest is step for nest, _ in uses[buffer].loads):
                out.add(step.buffer)
    return out


def _narrows(nest: LoopNest) -> bool:
    """Whether a nest converts what it reads to fewer bits. Behind a product of tiles it joins the product's kernel, and
    what a kernel of its reader's reads is the narrow result. Computed again there, it would be the wide one."""
    return nest.value.op == "cast" and any(
        value.dtype.is_floating_point and value.dtype.itemsize > nest.value.dtype.itemsize
        for value in loads([nest.value])
    )


def _wished(nest: LoopNest, uses: Uses, forced: ForcedFusion, cost: Costs, hints: dict[str, int]) -> bool:
    if any(forced.apart(nest.origins, n.origins) for n, _ in uses.loads):
        return False
    return all(forced.together(nest.origins, n.origins) for n, _ in uses.loads) or _worth(nest, uses, cost, hints)


def _checks(nest: LoopNest) -> bool:
    """Whether computing the nest may fail: it checks indices."""
    return has_op([nest.value], "check_index")


def _reads_all(nest: LoopNest, reader: LoopNest, expr: Expr) -> bool:
    """Whether a nest that reads p's buffer at e comes past every element of it: what p checks is checked there as
    well.
    """
    total, reached = _extent(nest.index, nest.axes), _extent(expr, reader.domain)
    return (
        total is not None
        and total is reached
        and all(type(axis.size) is not int or axis.size > 0 for axis in reader.domain)
    )


def _extent(index: Expr, axes: Sequence[Axis]) -> Expr | None:
    """n where an index over these axes takes each of the values 0 .. n-1; None where it does not."""
    names = index.symbol_names()
    strides = [(index.coeff(axis.symbol.name), as_expr(axis.size)) for axis in axes if axis.symbol.name in names]
    if (
        len(strides) != len(names)
        or any(c is None for c, _ in strides)
        or index
        is not sum(
            (c * a.symbol for (c, _), a in zip(strides, (axis for axis in axes if axis.symbol.name in names))),
            integer(0),
        )
    ):
        return None
    n = integer(1)
    while strides:
        k = next((k for k, (c, _) in enumerate(strides) if c is n), None)
        if k is None:
            return None
        n = n * strides.pop(k)[1]
    return n


def checks_unread(steps: Sequence[LoweredStep], needed: Sequence[Buffer]) -> list[Buffer]:
    """Buffers that are computed for the sake of their checks: nobody reads them, or only in part."""
    checking = {step.buffer: step for step in steps if isinstance(step, LoopNest) and _checks(step)}
    if not checking:
        return []
    uses = find_uses(steps, needed)
    return [
        key
        for key, value in checking.items()
        if key not in uses
        or not uses[key].needed
        and not any(_reads_all(value, nest, expr) for nest, expr in uses[key].loads)
    ]


def _worth(p: LoopNest, uses: Uses, cost: Costs, hints: dict[str, int]) -> bool:
    c = cost(p.value)
    if c > 4 * MOVED:
        return False
    values = walk([p.value])
    if any(value.op in ("philox", "keep_word") for value in values) and not all(
        expr is p.index for _, expr in uses.loads
    ):
        return False  # (neighbours share their words, as they lie)
    rows = {item.id for value in loads([p.value]) if value.args and reads_rows(value) for item in walk(value.args)}
    reads = sum(value.id not in rows for value in loads([p.value]))
    if c <= CHEAP and (reads <= 1 or _one_of_size(p, hints)):
        return True
    own = numel_hint([axis.size for axis in p.axes], hints)
    readers = {id(n): n for n, _ in uses.loads}
    nest, _ = uses.loads[0]
    if (
        p.on_gpu
        and c <= GPU_CHEAP
        and (not _large(p, hints) or (len(readers) > 1 or _as_made(p, uses, hints)) and _one_of_size(p, hints))
        and sum(numel_hint([axis.size for axis in reader.domain], hints) for reader in readers.values())
        <= GPU_TIMES * own
    ):
        return True
    if reads == 0:
        return c <= CHEAP_INDEX
    if len(values) > MOVED:
        return False
    if len(readers) == 1 and (nest.alone and nest.on_gpu or not all(expr is p.index for _, expr in uses.loads)):
        times = numel_hint([axis.size for axis in nest.domain], hints) / max(own, 1)
        if times * len({expr for _, expr in uses.loads}) <= (GPU_MOVED if p.on_gpu else 1):
            # moved through a permutation, or into tiles of a kernel that no group shares: computed as often as before
            return True
    # Broadcast along inner axes (statistics of channels), it is computed once per run of those, outside of the inner
    # loop.
    again = sum(c * _evaluations(n, expr, hints) for n, expr in uses.loads)
    return reads <= 8 and 2 * again <= sum(
        numel_hint([axis.size for axis in reader.domain], hints) for reader in readers.values()
    )


def _as_made(nest: LoopNest, uses: Uses, hints: dict[str, int]) -> bool:
    """Whether p's elements are read one by one as they are made, by element-wise nests: computed there, they are
    computed as often as before, and where a kernel ends between (at a product) they do not go through memory."""
    own = numel_hint([axis.size for axis in nest.axes], hints)
    return all(
        expr is nest.index
        and n.reduce_op is None
        and not n.alone
        and numel_hint([axis.size for axis in n.domain], hints) == own
        for n, expr in uses.loads
    )


def _one_of_size(nest: LoopNest, hints: dict[str, int]) -> bool:
    """Whether all but one of the loads are of far less memory than p's result (statistics of channels, a row's mean):
    what is read again is the one large operand, which holds no more bytes than the result."""
    large = _large(nest, hints)
    return (
        len(large) == 1
        and large[0].dtype.itemsize <= nest.buffer.dtype.itemsize
        and all(map(is_plain_load, loads([nest.value])))
    )


def _large(nest: LoopNest, hints: dict[str, int]) -> list[Value]:
    """The loads that go through memory of about p's own size."""
    return [
        value
        for value in loads([nest.value])
        if FEW * _extent_hint(nest, value, hints) > numel_hint([axis.size for axis in nest.axes], hints)
    ]


def _extent_hint(nest: LoopNest, value: Value, hints: dict[str, int]) -> int:
    """How many elements of memory a load goes through."""
    names = value.attr[1].symbol_names()
    return numel_hint([axis.size for axis in nest.axes if axis.symbol.name in names], hints)


def _evaluations(nest: LoopNest, expr: Expr, hints: dict[str, int]) -> int:
    """How often generated code computes a value that is read at e: once per iteration, but not again in inner axes that
    e lacks.
    """
    names = expr.symbol_names()
    axes = list(nest.domain)
    while axes and axes[-1].symbol.name not in names:
        axes.pop()
    return numel_hint([axis.size for axis in axes], hints)


def _with_inlined(nest: LoopNest, inlined: dict[Buffer, LoopNest], drop_rounding: bool) -> LoopNest:
    ranges = {axis.symbol.name: (0, axis.size) for axis in nest.domain}
    origins: list[str] = []

    def on_load(buffer: Buffer, expr: Expr) -> Value | None:
        producer = inlined.get(buffer)
        if producer is None:
            return None
        origins.extend(producer.origins)
        return still_checked(value_at(producer, expr, ranges), expr.symbol_names())

    value = Rewriter(on_load=on_load, drop_rounding=drop_rounding)(nest.value)
    if value is nest.value:
        return nest
    return replace(nest, value=value, origins=tuple(dict.fromkeys((*origins, *nest.origins))))


def _keeps_affine(nest: LoopNest, reader: LoopNest, expr: Expr) -> bool:
    """Whether the reader can compute p's value at e without divisions that were not there before."""
    if expr is nest.index or not expr.is_affine:
        return True
    ranges = {axis.symbol.name: (0, axis.size) for axis in reader.domain}
    return all(q.is_affine for q in positions(nest.axes, nest.index, expr, ranges).values())


def _without_doubles(steps: Sequence[LoweredStep], needed: Sequence[Buffer]) -> list[LoweredStep]:
    """Nests that compute the same value into the same layout are one. (What the graph stage sees as different may be
    equal here: constants have become values.)"""
    keep = set(needed)
    writers = Counter(
        b
        for step in steps
        for b in ([step.buffer] if isinstance(step, LoopNest) else getattr(step, "outputs", ()))
        if b is not None
    )
    seen: dict[tuple, Buffer] = {}
    same: dict[Buffer, Buffer] = {}
    out: list[LoweredStep] = []
    for s in steps:
        if isinstance(s, LoopNest) and writers[s.buffer] > 1:
            # a part of a buffer (cat): alike parts do not make the whole alike
            out.append(
                replace(s, value=Rewriter(on_load=lambda b, e: load(same[b], e) if b in same else None)(s.value))
                if same
                else s
            )
            continue
        if isinstance(s, LoopNest):
            if same:
                value = Rewriter(on_load=lambda b, e: load(same[b], e) if b in same else None)(s.value)
                if value is not s.value:
                    s = replace(s, value=value)
            k = (
                s.value,
                s.index,
                s.domain,
                s.reduce_axes,
                s.reduce_op,
                s.mode,
                s.buffer.dtype,
                s.buffer.shape,
                s.buffer.stride,
            )
            first = seen.setdefault(k, s.buffer)
            if first is not s.buffer and s.buffer not in keep:
                same[s.buffer] = first
                continue
        elif same:
            if isinstance(s, View):
                s = View(s.buffer, same.get(s.base, s.base), s.offset)
            else:
                s = replace(s, args=_renamed(s.args, same), kwargs=_renamed(s.kwargs, same))
        out.append(s)
    return out


def _renamed(x: Any, names: dict[Buffer, Buffer]) -> Any:
    if isinstance(x, Buffer):
        return names.get(x, x)
    if type(x) in (list, tuple):
        return type(x)(_renamed(y, names) for y in x)
    return {key: _renamed(value, names) for key, value in x.items()} if type(x) is dict else x


def _without_dead(steps: list[LoweredStep], needed: Sequence[Buffer]) -> list[LoweredStep]:
    """The steps whose results something needs, and those that do more than make results."""
    live = set(needed)
    kept: list[LoweredStep] = []
    for step in reversed(steps):
        if isinstance(step, LoopNest):
            if step.buffer not in live and not does_more(step):
                continue
            live.update(value.attr[0] for value in loads([step.value]))
            if step.onto:
                live.add(step.buffer)
        elif hasattr(step, "base"):
            if step.buffer not in live:
                continue
            live.add(step.base)
        else:
            if not any(output in live for output in step.outputs if output is not None) and not does_more(step):
                continue
            live.update(buffers_read(step))
        kept.append(step)
    kept.reverse()
    return kept


def does_more(s: Any) -> bool:
    """Whether a step does more than make its results: writes, random numbers, errors for some values (the graph stage
    has dropped those of no use that cannot fail)."""
    if isinstance(s, LoopNest):
        return _checks(s)
    if isinstance(s, View):
        return False
    schema = s.op._schema
    tags = getattr(s.op, "tags", ())
    return (
        any(arg.alias_info is not None and arg.alias_info.is_write for arg in schema.arguments)
        or "nondeterministic_seeded" in {str(tag).split(".")[-1] for tag in tags}
        or not schema.returns
        or may_raise(str(s.op))
    )
