"""Tensors made from nothing: constants and index expressions. They cost no memory unless something needs them in
memory.
"""

from __future__ import annotations

from typing import Any

import torch

from ...ops.closed_set import contents_of_empty
from ...symbolic.expr import Expr, as_expr
from ..ir import cast, const, index, prim
from ..context import Lowering
from ..rule_table import NoRule, rule
from ..promote import compute_dtype, operand, rounded
from ..ref import Ref, Scalar, dim_symbol, is_one


def _filled(lo: Lowering, x: Any) -> Ref:
    meta = lo.meta()
    return Ref(lo.out_shape(), meta.dtype, operand(x, meta.dtype))


@rule("aten.full.default")
def full(lo: Lowering, node: Any, first: Any, *args: Any, **kw: Any) -> Ref:
    return _filled(lo, args[-1] if "fill_value" not in kw else kw["fill_value"])


# operators that give memory without contents, laid out in a way of their own (decomposition fills the others)
EMPTY = ("aten.empty_strided.default", "aten.new_empty_strided.default", "aten.empty_permuted.default")


@rule(*EMPTY)
def empty(lo: Lowering, node: Any, *args: Any, **kw: Any) -> Ref:
    return _filled(lo, contents_of_empty(lo.meta().dtype))


@rule("aten.arange.start_step")
def arange(lo: Lowering, node: Any, start: Any, end: Any, step: Any = 1, **kw: Any) -> Ref:
    return _ramp(lo, start, step)


@rule("prims.iota.default")
def iota(lo: Lowering, node: Any, length: Any, *, start: Any, step: Any, **kw: Any) -> Ref:
    return _ramp(lo, start, step)


def _ramp(lo: Lowering, start: Any, step: Any) -> Ref:
    meta = lo.meta()
    shape = lo.out_shape()
    i = as_expr(0) if is_one(shape[0]) else dim_symbol(1, 0)
    if all(isinstance(x, (int, Expr)) for x in (start, step)) and not meta.dtype.is_floating_point:
        return Ref(shape, meta.dtype, cast(index(as_expr(start) + i * step), meta.dtype))
    if isinstance(start, Scalar) or isinstance(step, Scalar):
        raise NoRule("arange of values that are known only at run time")
    # eager computes start + i * step in double for floats and rounds once
    wide = torch.float64 if meta.dtype.is_floating_point else torch.int64
    v = prim("add", operand(start, wide), prim("mul", operand(step, wide), cast(index(i), wide)))
    return lo.pointwise(cast(v, meta.dtype))


@rule("aten.linspace.default")
def linspace(lo: Lowering, node: Any, start: Any, end: Any, steps: Any, **kw: Any) -> Ref:
    meta = lo.meta()
    shape = lo.out_shape()
    if (
        not meta.dtype.is_floating_point
        or not all(isinstance(x, (int, float)) for x in (start, end))
        or not isinstance(steps, int)
    ):
        raise NoRule("linspace of ints, or of values that are known only at run time")
    dt = compute_dtype(meta.dtype)
    if steps <= 1:
        return lo.pointwise(const(start, meta.dtype))
    step = operand((end - start) / (steps - 1), dt)
    i = index(as_expr(0) if is_one(shape[0]) else dim_symbol(1, 0))
    up = prim("add", operand(start, dt), prim("mul", step, cast(i, dt)))
    down = prim("sub", operand(end, dt), prim("mul", step, cast(prim("sub", const(steps - 1, torch.int64), i), dt)))
    return lo.pointwise(rounded(prim("where", prim("lt", i, const(steps // 2, torch.int64)), up, down), meta.dtype))
