"""A sum over rows and over what is in each of them is made in two steps, where a kernel reduces those rows anyway: that
kernel leaves the sum of each row, and a small one adds those up. What is summed is in no memory then. The gradients of
a group norm's weight and bias are such sums, over images and pixels: the kernel goes through each image's channel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

from ..lowering.ir import Axis, Buffer, LoopNest
from ..lowering.rewrite import Rewriter, tidy
from ..symbolic.expr import Expr, symbol
from .column_sums import added_up, count, row_major, same_elements
from .domain import factor_symbol

__all__ = ["row_sums"]

SHORTEST = 32  # elements of a row: of shorter ones the sums would be much of what is read


def row_sums(group: Any, nest: LoopNest, loads: Sequence[tuple[Buffer, Expr]]) -> tuple[LoopNest, LoopNest] | None:
    """(a nest that leaves the sum of each of group g's rows, the nest that adds those up), together what `nest`
    computes; None where it is no sum over whole rows of g and some of g's outer axes."""
    if (
        nest.reduce_op != "sum"
        or nest.alone
        or nest.product
        or group.extern is not None
        or group.product
        or group.alone
    ):
        return None
    if not group.has_reduction or not all(factor.size.is_const for factor in group.factors):
        return None
    axes = tuple(Axis(symbol(f"w{k}"), int(factor.size.value)) for k, factor in enumerate(group.factors))
    inner = tuple(axis for axis, factor in zip(axes, group.factors) if factor.reduced)
    outer = tuple(axis for axis, factor in zip(axes, group.factors) if not factor.reduced)
    if int(count(inner).value) < SHORTEST:
        return None
    ranges = {axis.symbol.name: (0, axis.size) for axis in axes}
    new = {factor_symbol(k).name: axis.symbol for k, axis in enumerate(axes)}
    m = same_elements(group, nest, loads, axes, new, ranges)
    if m is None:
        return None
    names = {name for axis in nest.axes for name in m[axis.symbol.name].symbol_names()}
    kept = tuple(axis for axis in outer if axis.symbol.name in names)
    rest = tuple(axis for axis in outer if axis.symbol.name not in names)
    if not kept or not rest or len(kept) != len(names) or count(kept) is not count(nest.axes):
        return None
    if any(name in names for axis in nest.reduce_axes for name in m[axis.symbol.name].symbol_names()):
        return None
    rows, width = int(count(rest).value), int(count(kept).value)
    row = row_major(nest.axes)
    parts, second = added_up(nest, nest.value.dtype, rows, width, row)
    index = tidy(row_major(rest) * width + row.subs(m), ranges)
    if not index.is_affine:
        return None
    value = Rewriter(on_index=lambda e: tidy(e.subs(m), ranges))(nest.value)
    # (of each row)
    first = LoopNest(parts, outer, index, value, inner, "sum", axes, origins=nest.origins, lines=nest.lines)
    return first, replace(second, mode="set")
