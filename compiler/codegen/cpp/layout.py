"""The shape of a kernel's loops: which axis the vectors run along, how many lanes, what one work item is, what it
costs.

Two shapes cover everything:

    "inner"   each stage's vectors run along one of its own axes; an item is one point of the outer axes.
              A reduction ends in one number per item. (softmax over rows, layer norm, a full sum)
    "outer"   vectors run along an outer axis, which every stage then loops over innermost, a block of it per item.
              A reduction keeps one accumulator per position of the block. (pointwise kernels, sums over leading axes)

A kernel without outer axes is "split": each stage is a phase of its own whose items are chunks of its first axis. The
chunks depend on the sizes alone, never on the number of threads, so results do not either.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, NamedTuple


from ...lowering.ir import (
    Axis,
    Kernel,
    Stage,
    has_op,
    Store,
    Value,
    indirect_symbol,
    indirect_values,
    is_plain_load,
    loads,
    numel,
    symbols_of,
)
from ...lowering.rewrite import Rewriter
from ...symbolic.expr import ONE, ZERO, Expr, as_expr, ceildiv, integer, maximum, maybe_int, minimum, symbol
from .dtypes import ctype, storage_size
from .runs import run_directions
from .narrow_positions import is_short_index
from ...lowering.primitives import SPECIAL
from .support import Target
from .math.vecmath_special import SPECIAL_F64, WIDE

__all__ = ["Choices", "StageLoops", "Layout", "merge_axes", "plan_layout", "size_hint", "value_cost"]

MAX_CHUNKS = 64  # of a split reduction
CHUNK_ELEMENTS = 8192
TWO = integer(2)

# Cost of one operation on a full vector, in units of an addition.
_COST = {
    "div": 4,
    "sqrt": 5,
    "rsqrt": 8,
    "reciprocal": 4,
    "exp": 14,
    "sigmoid": 20,
    "tanh": 28,
    "erf": 30,
    "erf_rough": 18,
    "log": 20,
    "sin": 18,
    "cos": 18,
    **dict.fromkeys(
        ("exp2", "expm1", "log1p", "asin", "acos", "atan", "atan2", "hypot", "fmod", "remainder", "div_floor"), 30
    ),
    **dict.fromkeys(
        ("log2", "log10", "tan", "sinh", "cosh", "asinh", "acosh", "atanh", "pow", "erfc", "lgamma", *SPECIAL_F64), 80
    ),
    "const": 0,
    "param": 0,
    "acc": 0,
    "load": 1,
    "index": 1,
    "maximum": 2,
    "minimum": 2,
}
_LANE_BY_LANE = frozenset(SPECIAL) - SPECIAL_F64.keys()
_LANE_COST = 30
COLUMNS_AT_ONCE = 2048  # of a reduction over rows: their sums stay in the first-level cache
NEAR = 16  # elements that share cache lines, more or less
LONG_COLUMNS = 1 << 17  # elements from which such a reduction is shared among threads by rows
FOLD_COST, TAIL_COST = 60.0, 40.0  # per item, in units of one contiguous element
_NS_PER_OP = 0.15
_NS_PER_BYTE = 0.04


@dataclass(frozen=True)
class Choices:
    """What a search may vary; None leaves it to the rules below."""

    mode: str | None = None  # "inner" | "outer"
    vector: str | None = None  # symbol of the vector axis, mode "outer"
    unroll: int | None = None  # accumulators and vectors per turn of the innermost loop
    block: int | None = None  # elements of the vector axis per item, mode "outer"
    lanes: int | None = None
    serial: bool = False


@dataclass
class StageLoops:
    """Loops of one stage, outermost first, then the vector loop (None: the stage is a few scalar statements)."""

    scalar: tuple[Axis, ...]
    vector: Axis | None
    unroll: int = 1


@dataclass
class Layout:
    mode: str
    lanes: int
    items: tuple[Axis, ...]  # outer axes that count work items, slowest first
    stages: list[StageLoops]
    vector: Axis | None = None  # the outer axis of mode "outer"
    block: Any = None  # elements of `vector` per item; None: all of it
    block_first: bool = False  # blocks vary slowest (keeps strided reads in cache)
    split: bool = False  # without outer axes: the stages' own axes are shared among threads in chunks
    split_rows: bool = False  # mode "outer": so are the rows that a reduction goes over (columns.py)
    serial: bool = False  # items must run in order: they add to shared elements
    item_ns: Any = 1.0  # estimated time of one item: float, or (ns per element, elements Expr)
    stage_ns: list[float] = field(default_factory=list)  # per element of each stage
    tile: Axis | None = (
        None  # an outer axis that some loads run along while the vectors run along another: L x L tiles are
    )
    tiled: tuple[Value, ...] = ()  # read row by row and transposed in registers; these loads
    copies: int = 1  # vectors that go through the statements side by side (long dependent chains)


def _indices(stage: Stage) -> list[Expr]:
    return [store.index for store in stage.stores] + [
        e for value in stage.values() if (e := value.position) is not None
    ]


# ---- merging axes
def merge_axes(kernel: Kernel) -> Kernel:
    """The same kernel with neighbouring axes made one wherever every index allows: a contiguous 4-d loop becomes
    1-d.
    """
    per_stage = [_indices(stage) for stage in kernel.stages]
    # positions reported by argmax count along the stage's axes, which merging keeps in order
    mapping: dict[str, Expr] = {}
    outer = _merge(kernel.outer, [e for es in per_stage for e in es], mapping)
    stages = []
    for stage, es in zip(kernel.stages, per_stage):
        local: dict[str, Expr] = {}
        axes = _merge(stage.axes, es, local)
        rewrite = Rewriter(on_index=lambda e, m={**mapping, **local}: e.subs(m)) if mapping or local else None
        if rewrite is None:
            stages.append(stage)
            continue
        accs = [replace(acc, value=rewrite(acc.value)) for acc in stage.accs]
        stores = [
            Store(
                store.buffer, _store_index(store.index, rewrite, {**mapping, **local}), rewrite(store.value), store.mode
            )
            for store in stage.stores
        ]
        stages.append(Stage(axes, accs, stores))
    return replace(kernel, outer=outer, stages=stages)


def _store_index(expr: Expr, rewrite: Rewriter, mapping: dict[str, Expr]) -> Expr:
    known = indirect_values()
    changed = {name: indirect_symbol(rewrite(known[name])) for name in expr.symbol_names() if name in known}
    return expr.subs({**mapping, **changed})


def _merge(axes: tuple[Axis, ...], indices: list[Expr], mapping: dict[str, Expr]) -> tuple[Axis, ...]:
    out: list[Axis] = []
    for axis in axes:
        if out and _mergeable(out[-1], axis, indices):
            previous = out.pop()
            mapping[previous.symbol.name] = ZERO
            axis = Axis(axis.symbol, maybe_int(as_expr(previous.size) * as_expr(axis.size)))
        out.append(axis)
    return tuple(out)


def _mergeable(a: Axis, b: Axis, indices: list[Expr]) -> bool:
    na, nb, size = a.symbol.name, b.symbol.name, as_expr(b.size)
    for index in indices:
        ca, cb = index.coeff(na), index.coeff(nb)
        if ca is None or cb is None or ca is not cb * size:
            return False
    return True


# ---- choosing
def size_hint(size: Any, hints: dict) -> int:
    e = as_expr(size)
    try:
        return int(e.eval(hints))
    except KeyError:
        return 1024


class Place(NamedTuple):
    """Where a stage reads or writes: the index, the axes that the positions in it were computed from."""

    index: Expr
    behind: frozenset[str]
    written: bool


def _axis_cost(name: str, size: int, places: list[Place], lanes: int) -> float:
    """Relative cost per element of vectors along this axis."""
    cost = 0.25
    for expr, behind, written in places:
        coeff = expr.coeff(name)
        if name in behind:
            cost += 6.0
        elif coeff is ONE:
            cost += 1.0
        elif coeff is ZERO:
            cost += 0.4
        elif run_directions(expr, name):
            cost += 2.0
        elif coeff is TWO:
            cost += 2.5
        elif coeff is None:
            cost += 12.0
        else:
            cost += 9.0 if written else 8.0
    used = -(-size // lanes) * lanes / max(size, 1)  # lanes that a short axis leaves empty
    return cost * min(used, lanes)


def _places(stage: Stage) -> list[Place]:
    reads = [Place(value.attr[1], frozenset(symbols_of(value.args)), False) for value in loads(stage.roots())]
    return [Place(store.index, frozenset(symbols_of(store.positions)), True) for store in stage.stores] + reads


def _lane_by_lane(stage: Stage, along: Axis | None) -> int:
    """How many reads and writes of the stage take the lanes of a vector along this axis one by one."""
    name = along.symbol.name if along is not None else ""
    return (
        sum(name in behind or expr.coeff(name) not in (ZERO, ONE, TWO) for expr, behind, _ in _places(stage))
        if name
        else 0
    )


def _register_bytes(kernel: Kernel, vectors: list[Axis | None] | None = None, mode: str = "outer") -> int:
    """Bytes of the widest value that fills a vector: it decides the number of lanes. `vectors`: the axis that each
    stage's vectors run along, once that is known. A value that is the same in all lanes (a row's class, its statistics)
    is a scalar then."""
    widest = 1
    for k, stage in enumerate(kernel.stages):
        values = stage.values()
        axis = vectors[k] if vectors is not None else None
        if vectors is None:
            names = {axis.symbol.name for axis in (*kernel.outer, *stage.axes)}
        else:
            names = {axis.symbol.name} if axis is not None else set()
        varying = _varying(values, names, vectors is not None, mode == "outer")
        short = {item.args[0].id for item in values if is_short_index(item)} - {
            arg.id for item in values if not is_short_index(item) for arg in item.args
        }
        for value in values:
            if value.id in varying and value.id not in short and value.op not in ("const", "param", "acc"):
                widest = max(widest, _width(value))
        for acc in stage.accs:
            widest = max(widest, 8 if acc.is_position else ctype(acc.dtype).size)
        if axis is not None:
            widest = max([widest, *(storage_size(ctype(st.buffer.dtype)) for st in stage.stores)])
    return widest


def _varying(values: list[Value], names: set[str], known: bool, outer: bool) -> set[int]:
    """Ids of the values that differ from lane to lane of vectors along one of the axes `names`. Where the axis is not
    `known` yet, all that is read or computed may. `outer`: whether locals and accumulators are one a lane."""

    def differs(value: Value) -> bool:
        if value.is_load and (not known or outer and value.attr[0].scope == "local"):
            return True
        return bool(value.symbols & names) or value.op == "acc" and outer

    varying: set[int] = set()
    for value in values:
        if differs(value) or any(arg.id in varying for arg in value.args) or not known and value.args:
            varying.add(value.id)
    return varying


def _width(value: Value) -> int:
    """Bytes of a lane that computes the value. Masks take the width of the rest; complex numbers are in no vector."""
    if value.dtype.is_complex:
        return 1
    ct = ctype(value.dtype)
    return 8 if value.op in WIDE else 1 if ct.kind == "bool" else ct.size


def plan_layout(kernel: Kernel, target: Target, choices: Choices = Choices()) -> Layout:
    """Decide the loops of a kernel whose axes are merged already."""
    lanes = choices.lanes or max(1, target.width // _register_bytes(kernel))
    hints = kernel.hints
    has_inner = any(stage.axes for stage in kernel.stages)
    mode, vector = _choose_mode(kernel, lanes, hints, has_inner, choices)
    if choices.lanes is None:
        vectors = [_vector_axis(st, mode, vector, lanes, hints) for st in kernel.stages]
        lanes = max(1, target.width // _register_bytes(kernel, vectors, mode))
        lanes = _fitting(lanes, vectors)
    layout = Layout(mode, lanes, (), [], vector)
    layout.serial = choices.serial or _adds_to_shared(kernel)
    ops = [_stage_cost(st, lanes) for st in kernel.stages]
    bytes_ = [_stage_bytes(st) for st in kernel.stages]
    layout.stage_ns = [o / lanes * _NS_PER_OP + b * _NS_PER_BYTE for o, b in zip(ops, bytes_)]
    if mode == "outer" and not has_inner:
        layout.copies = _side_by_side(kernel, vector)
    for stage, cost in zip(kernel.stages, ops):
        along = _vector_axis(stage, mode, vector, lanes, hints)
        layout.stages.append(_stage_loops(stage, along, _unroll(stage, along, cost, layout, choices), mode))
    if mode == "outer":
        _plan_blocks(kernel, layout, hints, choices, has_inner)
    else:
        layout.items = kernel.outer
        layout.split = (
            not kernel.outer
            and has_inner
            and not any(store.shared for st in kernel.stages for store in st.stores)
            and not any(map(_runs, kernel.stages))
        )
        layout.item_ns = sum(
            (numel(st.axes) * integer(max(1, round(ns * 1000))) for st, ns in zip(kernel.stages, layout.stage_ns)), ZERO
        )
    return layout


def _vector_axis(stage: Stage, mode: str, vector: Axis | None, lanes: int, hints: dict) -> Axis | None:
    """The axis that the stage's vectors run along: `vector` in mode "outer"; None for a stage without axes."""
    if mode == "outer":
        return vector
    return _inner_axis(stage, lanes, hints) if stage.axes else None


def _adds_to_shared(kernel: Kernel) -> bool:
    """Whether several items add to one element."""
    shared = [store for st in kernel.stages for store in st.stores if store.shared]
    return any(s.index.coeff(axis.symbol.name) in (ZERO, None) for s in shared for axis in kernel.outer)


def _side_by_side(kernel: Kernel, vector: Axis | None) -> int:
    """How many vectors go through a pointwise kernel together: several where its statements are many."""
    n_values = sum(len(st.values()) for st in kernel.stages)
    if n_values <= 96 or not all(_cheap(st) and not _lane_by_lane(st, vector) for st in kernel.stages):
        return 1
    return 8 if n_values > 400 else 4


def _unroll(stage: Stage, along: Axis | None, cost: float, layout: Layout, choices: Choices) -> int:
    """How many vectors a loop takes at a time: the fewer, the more there is to compute in each."""
    if layout.copies > 1:
        return 1
    if along is not None:  # (lane by lane there is nothing to win, and the compiler takes seconds over it)
        cost += layout.lanes * _lane_by_lane(stage, along)
    unroll = choices.unroll or (4 if cost <= 8 else 2 if cost <= 24 else 1)
    if layout.mode == "inner" and along is not None and isinstance(along.size, int):
        unroll = min(unroll, max(1, along.size // layout.lanes))
    return unroll


def _stage_loops(stage: Stage, along: Axis | None, unroll: int, mode: str) -> StageLoops:
    """In mode "outer" vectors run along no axis of the stage's own; in mode "inner" a scan has no vector loop."""
    if mode == "outer":
        return StageLoops(stage.axes, along, unroll)
    if _runs(stage):
        return StageLoops(stage.axes, None)
    if stage.axes:
        return StageLoops(tuple(axis for axis in stage.axes if axis is not along), along, unroll)
    return StageLoops((), None)


def _choose_mode(kernel: Kernel, lanes: int, hints: dict, has_inner: bool, choices: Choices) -> tuple[str, Axis | None]:
    outer_best: tuple[float, Axis | None] = (float("inf"), None)
    total = 0.0
    per_stage = [(_places(st), size_hint(numel(st.axes), hints)) for st in kernel.stages]
    for axis in kernel.outer:
        size = size_hint(axis.size, hints)
        cost = sum(
            n * _axis_cost(axis.symbol.name, size, es, lanes) * (1.3 if has_inner else 1.0) for es, n in per_stage
        )
        if choices.vector == axis.symbol.name:
            return "outer", axis
        # the last axis wins a tie: items then run through memory in order
        if cost <= outer_best[0]:
            outer_best = (cost, axis)
    if any(map(_runs, kernel.stages)):  # along its axis a scan goes one by one; across it, whole vectors
        steps = sum(n * len(es) for es, n in per_stage)
        return ("outer", outer_best[1]) if outer_best[0] < 4.0 * steps and choices.mode != "inner" else ("inner", None)
    if not has_inner:
        return ("outer", outer_best[1]) if kernel.outer else ("inner", None)
    for (es, n), stage in zip(per_stage, kernel.stages):
        if stage.axes:
            v = _inner_axis(stage, lanes, hints)
            size = size_hint(v.size, hints)
            total += n * _axis_cost(v.symbol.name, size, es, lanes) + (TAIL_COST if size % lanes else 0.0)
        else:
            total += len(es)
    total += FOLD_COST * sum(len(st.accs) for st in kernel.stages)  # the lanes of each accumulator are folded per item
    if choices.mode == "inner" or not kernel.outer:
        return "inner", None
    if choices.mode == "outer" or outer_best[0] < total:
        return "outer", outer_best[1]
    return "inner", None


def _fitting(lanes: int, vectors: list[Axis | None]) -> int:
    """No more lanes than the longest of these axes fills: rows of 8 elements are whole vectors of 8."""
    sizes = [vector.size for vector in vectors if vector is not None]
    while lanes > 4 and sizes and all(isinstance(size, int) and size <= lanes // 2 for size in sizes):
        lanes //= 2
    return lanes


def _runs(stage: Stage) -> bool:
    return any(acc.running for acc in stage.accs)


def _inner_axis(stage: Stage, lanes: int, hints: dict) -> Axis:
    es = _places(stage)
    best = min(reversed(stage.axes), key=lambda a: _axis_cost(a.symbol.name, size_hint(a.size, hints), es, lanes))
    return best


def _stage_cost(stage: Stage, lanes: int) -> float:
    cost = 2.0 * len(stage.accs) + len(stage.stores)
    return cost + sum(value_cost(v, lanes) for v in stage.values())


def value_cost(value: Value, lanes: int) -> float:
    """Of a full vector, in units of an addition."""
    return lanes * _LANE_COST / 4 if value.op in _LANE_BY_LANE else _COST.get(value.op, 1)


def _stage_bytes(stage: Stage) -> int:
    n = sum(storage_size(ctype(value.dtype)) for value in loads(stage.roots()) if value.attr[0].scope == "global")
    return n + sum(storage_size(ctype(store.buffer.dtype)) for store in stage.stores if store.buffer.scope == "global")


def _cheap(stage: Stage) -> bool:
    return all(_COST.get(v.op, 1) <= 4 and v.op not in _LANE_BY_LANE for v in stage.values())


def _plan_blocks(kernel: Kernel, layout: Layout, hints: dict, choices: Choices, has_inner: bool) -> None:
    """Cut the vector axis into blocks: enough work per item to be worth a thread, few enough bytes to stay in cache."""
    vector = layout.vector
    if not has_inner and choices.block is None:
        _plan_tiles(kernel, layout, hints)
    layout.items = tuple(axis for axis in kernel.outer if axis is not vector and axis is not layout.tile)
    if layout.tile is not None:
        layout.block, layout.block_first = None, False
        layout.item_ns = (integer(layout.lanes * max(1, round(layout.stage_ns[0] * 1000)))) * as_expr(vector.size)
        return
    ns = sum(n * size_hint(numel(st.axes), hints) for st, n in zip(kernel.stages, layout.stage_ns))
    strided = any(_steps_over(e, vector.symbol.name) for st in kernel.stages for e, *_ in _places(st))
    group = layout.lanes * max(1, layout.copies)
    block = choices.block
    if block is None and has_inner and not strided and choices.mode is None and _long_columns(kernel, layout, hints):
        layout.split_rows = True
        block = COLUMNS_AT_ONCE
    if block is None:
        # rows of a strided walk: whole pieces of memory that the prefetcher can follow
        block = max(group, 128) if has_inner and not strided else group
        limit = group if strided and layout.items else 512 if has_inner else 32768
        while block < limit and block * ns < 4000:
            block *= 2
    size = as_expr(vector.size)
    layout.block = None if size.is_const and size.value <= block and not has_inner else block
    if layout.block is not None and size.is_const:
        layout.block = min(block, -(-size.value // layout.lanes) * layout.lanes)
    layout.block_first = strided and bool(layout.items)
    per_item = minimum(size, integer(layout.block)) if layout.block else size
    inner = sum(
        (numel(st.axes) * integer(max(1, round(n * 1000))) for st, n in zip(kernel.stages, layout.stage_ns)), ZERO
    )
    layout.item_ns = per_item * inner


def _long_columns(kernel: Kernel, layout: Layout, hints: dict) -> bool:
    """Whether a reduction over rows is long enough to share its rows among threads, see columns.py."""
    first, rest = kernel.stages[0], kernel.stages[1:]
    if (
        layout.serial
        or kernel.locals
        or kernel.checks
        or not first.axes
        or not first.accs
        or any(stage.axes or stage.accs for stage in rest)
    ):
        return False
    if any(
        acc.op not in ("sum", "prod", "max", "min") or acc.running or not acc.dtype.is_floating_point
        for acc in first.accs
    ):
        return False
    rows, columns = size_hint(numel(first.axes), hints), size_hint(layout.vector.size, hints)
    return rows >= 256 and rows * columns >= LONG_COLUMNS and size_hint(numel(layout.items), hints) <= 16


def _steps_over(expr: Expr, name: str) -> bool:
    """Whether neighbours along an axis lie far apart in memory: each in a cache line of its own, most of the time."""
    drift = _drift(expr, name)
    return drift is None or abs(drift) > NEAR


def _drift(expr: Expr, name: str) -> float | None:
    """Elements from one to the next along an axis, on average over what is close together; None where that is not
    known.
    """
    if name not in expr.symbol_names():
        return 0
    if expr is symbol(name):
        return 1
    return _DRIFTS[expr.op](expr, name) if expr.op in _DRIFTS else None


def _drift_of_sum(expr: Expr, name: str) -> float | None:
    total = 0.0
    for coeff, mono in expr.terms():
        varying = [atom for atom in mono if name in atom.symbol_names()]
        part = _drift(mono[0], name) if len(mono) == 1 else None
        if varying and part is None:
            return None
        total += coeff * (part or 0.0) if varying else 0.0
    return total


def _drift_of_extreme(expr: Expr, name: str) -> float | None:
    parts = [_drift(arg, name) for arg in expr.args]
    return None if None in parts else max(parts, key=abs)


def _drift_of_rest(expr: Expr, name: str) -> float | None:
    part, divisor = _drift(expr.args[0], name), expr.args[1]
    if not divisor.is_const or divisor.value <= 0 or part is None:
        return None
    return 0 if divisor.value <= NEAR else part


def _drift_of_quotient(expr: Expr, name: str) -> float | None:
    part, divisor = _drift(expr.args[0], name), expr.args[1]
    if not divisor.is_const or divisor.value <= 0 or part is None:
        return None
    return part / divisor.value if divisor.value < NEAR else 0  # (a step after so many is none between neighbours)


_DRIFTS: dict[str, Callable[[Expr, str], float | None]] = {
    "add": _drift_of_sum,
    "mul": _drift_of_sum,
    "min": _drift_of_extreme,
    "max": _drift_of_extreme,
    "mod": _drift_of_rest,
    "floordiv": _drift_of_quotient,
}


def _plan_tiles(kernel: Kernel, layout: Layout, hints: dict) -> None:
    """Whether to go through the kernel in square tiles: where elements lie along another axis than the vectors' own."""
    vector = layout.vector
    if (
        layout.serial
        or layout.copies > 1
        or kernel.checks
        or len(kernel.stages) != 1
        or layout.lanes not in (4, 8, 16, 32)
    ):
        return
    if any(store.index.coeff(vector.symbol.name) is not ONE for store in kernel.stages[0].stores):
        return
    values = kernel.stages[0].values()
    if has_op(kernel.stages[0].roots(), "masked"):  # (what is read under a condition is not read in whole rows)
        return
    strided = [
        value
        for value in values
        if is_plain_load(value)
        and value.attr[0].scope == "global"
        and storage_size(ctype(value.dtype)) in (2, 4, 8)
        and value.attr[1].coeff(vector.symbol.name) not in (ZERO, ONE, None)
    ]
    best = max(
        (axis for axis in kernel.outer if axis is not vector),
        key=lambda a: sum(x.attr[1].coeff(a.symbol.name) is ONE for x in strided),
        default=None,
    )
    if best is None or size_hint(best.size, hints) < layout.lanes or size_hint(vector.size, hints) < layout.lanes:
        return
    tiled = tuple(x for x in strided if x.attr[1].coeff(best.symbol.name) is ONE)
    if 1 <= len(tiled) <= 4:
        layout.tile, layout.tiled = best, tiled


def chunk_count(extent: Any, rest: Any = 1) -> Expr:
    """Chunks of a split stage: a function of the sizes alone. `extent`: of the axis that is split, `rest`: elements per
    step of it.
    """
    e = as_expr(extent)
    return maximum(
        integer(1), minimum(minimum(e, integer(MAX_CHUNKS)), ceildiv(e * as_expr(rest), integer(CHUNK_ELEMENTS)))
    )
