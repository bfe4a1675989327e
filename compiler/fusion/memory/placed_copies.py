"""On a GPU, results are written where their copies would lie.

What the library reads in another order than it was made in (heads of an attention module, its batch in the second
place, pieces joined by a cat) lowering copies. Where all that a buffer is for can be found in such a copy, what makes
the buffer's elements writes the copy instead. Rows stay rows: elements that were neighbours still are.

Axes that indices take apart by divisions are split first, so that a copy is seen as the order of axes that it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterable, Mapping, Sequence

from ...lowering.ir import Axis, Buffer, LoopNest, Value, is_plain_load, load, loaded, loads, walk
from ...lowering.lowered import LoweredStep
from ...lowering.rewrite import Rewriter, positions, tidy
from ...symbolic.expr import ONE, ZERO, Expr, as_expr, integer, symbol
from ..inline import buffers_read

__all__ = ["without_copies", "whole_source", "is_copy", "split_axes"]

_ANY_ORDER = (None, "sum", "prod", "max", "min", "any", "all")  # reductions that ask for no order of elements


def without_copies(steps: Sequence[LoweredStep], needed: Iterable[Buffer]) -> list[LoweredStep]:
    out: list[LoweredStep] = [
        split_axes(step) if isinstance(step, LoopNest) and step.on_gpu else step for step in steps
    ]
    made: dict[Buffer, list[int]] = {}  # buffer -> nests that write it, by their places
    read: dict[Buffer, list[int]] = {}  # buffer -> nests that read it
    fixed = set(needed)  # buffers that something else than a nest reads, or makes
    for k, s in enumerate(out):
        if not isinstance(s, LoopNest):
            fixed.update(buffers_read(s))
            fixed.update([s.buffer] if hasattr(s, "base") else [output for output in s.outputs if output is not None])
            continue
        made.setdefault(s.buffer, []).append(k)
        for b in loaded([s.value]):
            read.setdefault(b, []).append(k)
        if s.alone or s.product:
            fixed.update(value.attr[0] for value in loads([s.value]))
            fixed.add(s.buffer)
    gone: set[int] = set()
    for k, s in enumerate(out):
        if not isinstance(s, LoopNest) or not is_copy(s) or len(made[s.buffer]) > 1:
            continue
        source = s.value.attr[0]
        if (
            source in fixed
            or source.kind != "temp"
            or source.dtype != s.buffer.dtype
            or not made.get(source)
            or max(made[source]) > k
        ):
            continue
        new = _moved(s, {n: out[n] for n in {*made[source], *read[source]} if n != k and n not in gone})
        if new is None:
            continue
        for key, nest in new.items():
            out[key] = nest
        gone.add(k)
        made[s.buffer] = made.pop(source)
        read.setdefault(s.buffer, []).extend(n for n in read.pop(source) if n != k)
    return [s for k, s in enumerate(out) if k not in gone]


def is_copy(nest: LoopNest) -> bool:
    return nest.on_gpu and is_plain_load(nest.value) and nest.reduce_op is None and not nest.alone and not nest.product


def _moved(copy: LoopNest, nests: Mapping[int, Any]) -> dict[int, LoopNest] | None:
    """The nests with the copy's source replaced by the copy; None where the copy is not all of its source in another
    order of rows.
    """
    source, e = copy.value.attr
    axes = whole_source(copy.axes, copy.index, e, source)
    if axes is None:
        return None

    def there(at: Expr, nest: LoopNest) -> Expr | None:
        """A position in the source as one in the copy."""
        ranges = {axis.symbol.name: (0, axis.size) for axis in nest.domain}
        if not at.symbol_names() <= ranges.keys():
            return None
        found = tidy(copy.index.subs(positions(axes, e, at, ranges)), ranges)
        fast = [axis.symbol.name for axis in nest.domain if at.coeff(axis.symbol.name) is ONE]
        return found if found.is_affine and all(found.coeff(n) is ONE for n in fast) else None

    out: dict[int, LoopNest] = {}
    for key, nest in nests.items():
        at = there(nest.index, nest) if nest.buffer is source else nest.index
        reads = {item.attr[1]: there(item.attr[1], nest) for item in loads([nest.value]) if item.attr[0] is source}
        if at is None or any(read is None for read in reads.values()):
            return None

        def on_load(buffer: Buffer, x: Expr, reads: dict = reads) -> Value | None:
            return load(copy.buffer, reads[x]) if buffer is source else None

        value = Rewriter(on_load=on_load)(nest.value) if reads else nest.value
        origins = tuple(dict.fromkeys((*nest.origins, *copy.origins))) if nest.buffer is source else nest.origins
        out[key] = replace(
            nest, buffer=copy.buffer if nest.buffer is source else nest.buffer, index=at, value=value, origins=origins
        )
    return out


def whole_source(axes: Sequence[Axis], index: Expr, expr: Expr, source: Buffer) -> list[Axis] | None:
    """The axes of a nest in the order of its source's memory, where it reads (at e) each of the source's elements once
    and stores each in a place of its own.
    """
    found = sorted(
        axes, key=lambda a: -coeff.value if (coeff := expr.coeff(a.symbol.name)) is not None and coeff.is_const else 0
    )
    count = integer(1)
    for a in reversed(found):
        if (
            type(a.size) is not int
            or expr.coeff(a.symbol.name) is not count
            or index.coeff(a.symbol.name) in (None, ZERO)
        ):
            return None
        count = count * a.size
    total, last = integer(1), integer(1)
    for size, stride in zip(source.shape, source.stride):
        total, last = total * as_expr(size), last + (as_expr(size) - 1) * stride
    if (
        total is not count
        or last is not count
        or expr.subs({axis.symbol.name: integer(0) for axis in axes}) is not ZERO
    ):
        return None  # (each element is in memory of its own, without gaps)
    return found


def split_axes(nest: LoopNest) -> LoopNest:
    """The nest with axes split where its indices divide them, if no division is left then."""
    if nest.reduce_op not in _ANY_ORDER or nest.alone or nest.product:
        return nest
    indices = [nest.index, *(e for value in walk([nest.value]) if (e := value.position) is not None)]
    hard = [index for index in indices if not index.is_affine]
    if not hard or any(value.args for value in loads([nest.value])):
        return nest
    cuts: dict[str, set[int]] = {}
    if not all(_cuts(e, cuts) for e in hard):
        return nest
    domain: list[Axis] = []
    new: dict[str, Expr] = {}
    parts_of: dict[str, list[Axis]] = {}
    for axis in nest.domain:
        at = sorted(n for n in cuts.get(axis.symbol.name, ()) if n > 1 and n != axis.size)
        if not at:
            domain.append(axis)
            continue
        if type(axis.size) is not int or any(y % x for x, y in zip([1, *at], [*at, axis.size])):
            return nest
        parts = [
            Axis(symbol(f"{axis.symbol.name}_{n}"), y // x) for n, (x, y) in enumerate(zip([1, *at], [*at, axis.size]))
        ]
        new[axis.symbol.name] = sum((part.symbol * x for part, x in zip(parts, [1, *at])), integer(0))
        parts_of[axis.symbol.name] = parts
        domain += reversed(parts)
    ranges = {axis.symbol.name: (0, axis.size) for axis in domain}

    found = {index: tidy(index.subs(new), ranges) for index in indices}
    if not all(expr.is_affine for expr in found.values()):
        return nest
    reduced = {p.symbol.name for axis in nest.reduce_axes for p in parts_of.get(axis.symbol.name, (axis,))}
    kept, rest = (tuple(axis for axis in domain if (axis.symbol.name in reduced) is r) for r in (False, True))
    return replace(
        nest,
        axes=kept,
        reduce_axes=rest,
        domain=tuple(domain),
        index=found[nest.index],
        value=Rewriter(on_index=found.__getitem__)(nest.value),
    )


def _cuts(expr: Expr, into: dict[str, set[int]]) -> bool:
    """The places at which an expression takes symbols apart: (a // 4) % 8 does at 4 and at 32. False where it divides
    anything else than symbols.
    """
    for atom in (x for _, atoms in expr.terms() for x in atoms):
        chain = []
        while atom.op in ("floordiv", "mod"):
            if not atom.args[1].is_const:
                return False
            chain.append((atom.op, atom.args[1].value))
            atom = atom.args[0]
        if not atom.is_symbol:
            return False
        scale = 1
        for op, by in reversed(chain):
            into.setdefault(atom.name, set()).add(scale * by)
            scale *= by if op == "floordiv" else 1
    return True
