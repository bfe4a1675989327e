"""On a GPU, a sum over the rows that a kernel reduces one by one is made in that kernel. Each program goes through a
run of rows and leaves the sums of its columns, which a small kernel adds up. A norm's backward is such a kernel: it
makes the gradient of its input row by row, and those of weight and bias column by column.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Sequence

import torch

from ..lowering.ir import Axis, Buffer, LoopNest, load
from ..lowering.ref import contiguous_strides
from ..lowering.rewrite import Rewriter, positions, tidy
from ..symbolic.expr import ONE, ZERO, Expr, as_expr, integer, mul_all, symbol
from .domain import Factor, factor_symbol

__all__ = ["added_up", "column_sums", "count", "in_space_of", "row_major", "same_elements"]

RUNS = 256  # programs: about two for each multiprocessor
FEWEST_RUNS, MOST_RUNS = 128, 512
SHORTEST, LONGEST = 256, 2048  # rows that registers hold beside their sums
LEAST = 1 << 20  # elements: below, launches are what takes the time


def column_sums(group: Any, nest: LoopNest, loads: Sequence[tuple[Buffer, Expr]]) -> tuple[LoopNest, LoopNest] | None:
    """(a nest over the rows of group g that leaves sums of runs of them, the nest that adds those up), together what
    `nest` computes; None where it is no sum over g's rows."""
    if (
        not nest.on_gpu
        or nest.reduce_op != "sum"
        or nest.alone
        or nest.product
        or not nest.value.dtype == nest.buffer.dtype == torch.float32
    ):
        return None
    if group.extern is not None or not group.nests or group.product or group.alone or not group.has_reduction:
        return None
    split = _runs(group.factors, group.runs)
    if split is None:
        return None
    runs, rows, columns, new = split
    if count(nest.axes) is not count(columns) or count(nest.reduce_axes) is not count((*runs, *rows)):
        return None
    axes = (*runs, *rows, *columns)
    ranges = {axis.symbol.name: (0, axis.size) for axis in axes}
    m = same_elements(group, nest, loads, axes, new, ranges)
    if m is None:
        return None
    own, of_rows = ({axis.symbol.name for axis in part} for part in (columns, (*runs, *rows)))
    if not all(m[axis.symbol.name].symbol_names() <= own for axis in nest.axes) or not all(
        m[axis.symbol.name].symbol_names() <= of_rows for axis in nest.reduce_axes
    ):
        return None
    n, width = (int(count(part).value) for part in (runs, columns))
    column = row_major(nest.axes)
    parts, second = added_up(nest, nest.buffer.dtype, n, width, column)
    value = Rewriter(on_index=lambda e: tidy(e.subs(m), ranges))(nest.value)
    index = tidy(row_major(runs) * width + column.subs(m), ranges)
    if not index.is_affine:
        return None
    first = LoopNest(parts, axes, index, value, domain=axes, mode="rows", origins=nest.origins, lines=nest.lines)
    return first, second


def added_up(nest: LoopNest, dtype: torch.dtype, rows: int, width: int, at: Expr) -> tuple[Buffer, LoopNest]:
    """(a buffer of `rows` partial results, `width` elements each; the nest that adds those up to what `nest` computes).
    at: where an element stands in its row."""
    shape, whole = (rows, width), nest.buffer
    name, strides = f"{whole.name}_parts", contiguous_strides(shape)
    parts = Buffer(name, dtype, shape, strides, "global", whole.device, "temp", whole.origin)
    run = Axis(symbol("run"), rows)
    domain = (run, *(axis for axis in nest.domain if axis in nest.axes))
    return parts, replace(nest, value=load(parts, run.symbol * width + at), reduce_axes=(run,), domain=domain)


def in_space_of(group: Any, nest: LoopNest, loads: Sequence[tuple[Buffer, Expr]]) -> LoopNest | None:
    """An element-wise nest with an axis for each factor of the group's space, in its order; None where they meet no
    buffer's elements alike, or the innermost axis would move."""
    if (
        not nest.on_gpu
        or nest.reduce_op is not None
        or nest.alone
        or nest.product
        or not group.nests
        or not all(factor.size.is_const for factor in group.factors)
    ):
        return None
    axes = tuple(Axis(symbol(f"w{k}"), int(factor.size.value)) for k, factor in enumerate(group.factors))
    ranges = {axis.symbol.name: (0, axis.size) for axis in axes}
    m = same_elements(
        group, nest, loads, axes, {factor_symbol(k).name: axis.symbol for k, axis in enumerate(axes)}, ranges
    )
    if m is None:
        return None
    index = tidy(nest.index.subs(m), ranges)
    if (
        not index.is_affine
        or nest.index.coeff(nest.domain[-1].symbol.name) is ONE
        and index.coeff(axes[-1].symbol.name) is not ONE
    ):
        return None
    value = Rewriter(on_index=lambda e: tidy(e.subs(m), ranges))(nest.value)
    return replace(nest, axes=axes, domain=axes, index=index, value=value)


def count(axes: Sequence[Axis]) -> Expr:
    """How many elements there are."""
    return mul_all(as_expr(axis.size) for axis in axes)


def row_major(axes: Sequence[Axis]) -> Expr:
    e = integer(0)
    for axis in axes:
        e = e * axis.size + axis.symbol
    return e


def _runs(
    factors: Sequence[Factor], known: int
) -> tuple[tuple[Axis, ...], tuple[Axis, ...], tuple[Axis, ...], dict[str, Expr]] | None:
    """Axes for a group's space: those that count runs of rows, those within a run, the columns; and what each factor's
    symbol becomes. known: how many runs there have to be, 0 for any."""
    outer = [k for k, factor in enumerate(factors) if not factor.reduced]
    if outer != list(range(len(outer))) or not all(factor.size.is_const for factor in factors):
        return None
    sizes = [int(factor.size.value) for factor in factors]
    rows, width = _product(sizes[: len(outer)]), _product(sizes[len(outer) :])
    if not SHORTEST <= width <= LONGEST or rows * width < LEAST:
        return None
    best: tuple[int, int, int] | None = None  # distance from the number wanted, factor that is parted, its part
    for k in range(len(outer)):
        before = _product(sizes[:k])
        for d in (dim for dim in range(2, sizes[k] + 1) if sizes[k] % dim == 0):
            n = before * d
            if (
                (n == known if known else FEWEST_RUNS <= n <= MOST_RUNS)
                and rows // n >= 4
                and (best is None or abs(n - RUNS) < best[0])
            ):
                best = (abs(n - RUNS), k, d)
    if best is None:
        return None
    _, k, d = best
    axes = [Axis(symbol(f"w{n}"), size) for n, size in enumerate(sizes)]
    new = {factor_symbol(n).name: axis.symbol for n, axis in enumerate(axes)}
    if d == sizes[k]:
        return tuple(axes[: k + 1]), tuple(axes[k + 1 : len(outer)]), tuple(axes[len(outer) :]), new
    high, low = Axis(symbol(f"w{k}h"), d), Axis(symbol(f"w{k}l"), sizes[k] // d)
    new[factor_symbol(k).name] = high.symbol * low.size + low.symbol
    return (*axes[:k], high), (low, *axes[k + 1 : len(outer)]), tuple(axes[len(outer) :]), new


def _product(sizes: Sequence[int]) -> int:
    n = 1
    for size in sizes:
        n *= size
    return n


def same_elements(
    group: Any,
    nest: LoopNest,
    loads: Sequence[tuple[Buffer, Expr]],
    axes: Sequence[Axis],
    new: Mapping[str, Expr],
    ranges: Mapping[str, tuple],
) -> dict[str, Expr] | None:
    """The nest's axes over the group's, so that each element of some buffer that both touch is met where the group
    meets it.
    """
    for buffer, expr in loads:
        at = group.writes.get(buffer)
        if at is None and buffer in group.read_at:
            domain, level, other = group.read_at[buffer][0]
            m = group.map_of(domain, level, group.factors) if level == "full" else None
            at = None if m is None else other.subs(m)
        if at is None:
            continue
        at, order = tidy(at.subs(new), ranges), _dense(expr, nest.domain)
        if order is not None and _dense(at, axes) is not None and count(nest.domain) is count(axes):
            # (as many elements)
            m = positions(order, expr, at, ranges)
            if all(x.is_affine for x in m.values()):
                return m
    return None


def _dense(expr: Expr, axes: Sequence[Axis]) -> list[Axis] | None:
    """The axes by falling strides where e takes each of the values from 0 on exactly once."""
    if not expr.is_affine or any(
        (coeff := expr.coeff(axis.symbol.name)) is None or not coeff.is_const for axis in axes
    ):
        return None
    order = sorted(axes, key=lambda a: -expr.coeff(a.symbol.name).value)
    n = integer(1)
    for dim in reversed(order):
        if expr.coeff(dim.symbol.name) is not n:
            return None
        n = n * dim.size
    return order if expr.subs({axis.symbol.name: integer(0) for axis in axes}) is ZERO else None
