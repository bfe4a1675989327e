"""Reductions. Low precision accumulates in float32, small ints in int64; a mean is the sum divided by the count."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ...symbolic.expr import Expr, mul_all
from ..ir import Value, cast, const, index, prim
from ..context import Lowering
from ..rule_table import rule
from ..buffer_strides import order_of_loads
from ..promote import compute_dtype, operand, rounded
from ..ref import Ref, dim_symbol, is_one, remap

C = const
_MANY_BITS = 24  # of a number of elements that is not known
SHORT = 64  # elements of a piece of memory that is too short to be read alone


def dims_of(dim: Any, ndim: int) -> list[int]:
    """A dim argument as eager reads it: None or empty means all."""
    if dim is None:
        return list(range(ndim))
    ds = [dim] if isinstance(dim, int) else list(dim)
    return [d % ndim for d in ds] if ds and ndim else list(range(ndim))


def count(shape: Sequence[Any], dims: Sequence[int]) -> Expr:
    return mul_all(shape[dim] for dim in dims)


def _finish(lo: Lowering, acc: Ref, dtype: torch.dtype) -> Ref:
    """The accumulator as the node's result: the same buffer where the dtype is right already."""
    return acc if acc.dtype == dtype else lo.store(rounded(acc.value, dtype), acc.shape, dtype)


@rule("aten.sum.dim_IntList", "aten.nansum.default")
def sum_(lo: Lowering, node: Any, x: Ref, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Ref:
    out = lo.meta().dtype
    v = cast(x.value, compute_dtype(out))
    if "nansum" in node.target._schema.name:
        v = prim("where", prim("isnan", v), C(0, v.dtype), v) if v.dtype.is_floating_point else v
    return _finish(lo, lo.reduce("sum", v, x.shape, dims_of(dim, x.ndim), keepdim), out)


def operand_count(shape: Sequence[Any], dims: Sequence[int], dtype: torch.dtype) -> Value:
    n = count(shape, dims)
    return C(n.value, dtype) if n.is_const else cast(index(n), dtype)


@rule("aten.prod.dim_int")
def prod(lo: Lowering, node: Any, x: Ref, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Ref:
    out = lo.meta().dtype
    return _finish(
        lo, lo.reduce("prod", cast(x.value, compute_dtype(out)), x.shape, dims_of(dim, x.ndim), keepdim), out
    )


def _extreme(lo: Lowering, op: str, x: Ref, dims: Sequence[int], keepdim: bool, suffix: str = "") -> Ref:
    if x.dtype == torch.bool:
        return lo.reduce("any" if op == "max" else "all", x.value, x.shape, dims, keepdim, suffix=suffix)
    acc = lo.reduce(op, x.value, x.shape, dims, keepdim, suffix=suffix)  # exact in any dtype
    return acc


@rule("aten.amax.default")
def amax(lo: Lowering, node: Any, x: Ref, dim: Any = None, keepdim: bool = False) -> Ref:
    return _extreme(lo, "max", x, dims_of(dim, x.ndim), keepdim)


@rule("aten.amin.default")
def amin(lo: Lowering, node: Any, x: Ref, dim: Any = None, keepdim: bool = False) -> Ref:
    return _extreme(lo, "min", x, dims_of(dim, x.ndim), keepdim)


def _arg(lo: Lowering, op: str, x: Ref, dims: Sequence[int], keepdim: bool, suffix: str = "") -> Ref:
    value = x.value
    if x.dtype == torch.bool:
        value = cast(value, torch.int64)
    return lo.reduce(op, value, x.shape, dims, keepdim, suffix=suffix, logical_order=True)


@rule("aten.argmax.default", "aten.argmin.default")
def argmax(lo: Lowering, node: Any, x: Ref, dim: Any = None, keepdim: bool = False) -> Ref:
    return _arg(lo, "argmax" if "argmax" in node.target._schema.name else "argmin", x, dims_of(dim, x.ndim), keepdim)


@rule("aten.any.dim", "aten.all.dim")
def any_all(lo: Lowering, node: Any, x: Ref, dim: Any = None, keepdim: bool = False) -> Ref:
    op = node.target._schema.name.split("::")[1]
    acc = lo.reduce(op, cast(x.value, torch.bool), x.shape, dims_of(dim, x.ndim), keepdim)
    return _finish(lo, acc, lo.meta().dtype)


def moments(lo: Lowering, x: Ref, dims: Sequence[int], dtype: torch.dtype) -> tuple[Ref, Ref]:
    """(mean, sum of squared differences from it), keepdim, in dtype: two passes, as exact as Welford's method and
    cheaper on a row that is in the cache."""
    v = cast(x.value, dtype)
    last = _short_inside(lo, v, x.shape, dims)
    if last is not None:  # each column first, then what the columns of a group make together
        rest = [dim for dim in dims if dim != last]
        part, spread = moments(lo, x, rest, dtype)
        total = lo.reduce("sum", part.value, part.shape, [last], True, suffix="_sum")
        mean_ = lo.store(
            prim("div", total.value, operand_count(part.shape, [last], dtype)), total.shape, dtype, suffix="_mean"
        )
        d = prim("sub", part.value, mean_.value)
        between = prim("mul", operand_count(x.shape, rest, dtype), prim("mul", d, d))
        return mean_, lo.reduce("sum", prim("add", spread.value, between), part.shape, [last], True, suffix="_m2")
    mean_ = _safe_mean(lo, v, x.shape, dims)
    d = prim("sub", v, mean_.value)
    return mean_, lo.reduce("sum", prim("mul", d, d), x.shape, dims, True, suffix="_m2")


def _sums_first(lo: Lowering) -> bool:
    """Whether a mean is a sum first, which may overflow."""
    return torch.device(lo._device()).type == "cpu"


def _safe_mean(lo: Lowering, value: Value, shape: Sequence[Any], dims: Sequence[int]) -> Ref:
    """The mean. On a CPU its sum does not overflow where the mean does not: it is one of values times a power of two,
    which is exact. (A GPU's kernels find mean and squares in one pass, without a sum.)
    """
    n, small = count(shape, dims), 1.0
    if value.dtype == torch.float32 and _sums_first(lo):
        small = 2.0 ** -(n.value.bit_length() if n.is_const else _MANY_BITS)
    s = lo.reduce(
        "sum", prim("mul", value, C(small, value.dtype)) if small != 1 else value, shape, dims, True, suffix="_sum"
    )
    whole = operand_count(shape, dims, value.dtype)
    if small != 1:
        whole = C(whole.attr * small, value.dtype) if whole.is_const else prim("mul", whole, C(small, value.dtype))
    return lo.store(prim("div", s.value, whole), s.shape, value.dtype, suffix="_mean")


def _short_inside(lo: Lowering, value: Value, shape: Sequence[Any], dims: Sequence[int]) -> int | None:
    """The reduced dimension that memory runs along in short pieces, with dimensions that stay around it (groups of
    channels, channels last): a GPU reads whole lines where those are kept, too."""
    order = [d for d in order_of_loads(value, shape) if not is_one(shape[d])]
    if not lo.on_gpu or len(order) < 3 or order[-1] not in dims or order[-2] in dims:
        return None
    return (
        order[-1]
        if type(shape[order[-1]]) is int and shape[order[-1]] <= SHORT and any(dim in dims for dim in order[:-2])
        else None
    )


@rule("aten.var_mean.correction")
def var_mean(
    lo: Lowering, node: Any, x: Ref, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple:
    dims, dt = dims_of(dim, x.ndim), compute_dtype(x.dtype)
    mean, m2 = moments(lo, x, dims, dt)
    n = operand_count(x.shape, dims, dt)
    c = 1 if correction is None else correction
    if n.is_const:
        below = C(max(n.attr - c, 0.0), dt)
    else:
        below = prim("maximum", prim("sub", n, operand(c, dt)), C(0, dt))
    variance = Ref(m2.shape, dt, prim("div", m2.value, below))
    results = [r if keepdim else _squeezed(r, dims) for r in (variance, mean)]
    return tuple(
        lo.store(rounded(result.value, x.dtype), result.shape, x.dtype, suffix=f"_{k}")
        for k, result in enumerate(results)
    )


def _squeezed(x: Ref, dims: Sequence[int]) -> Ref:
    left = [dim for dim in range(x.ndim) if dim not in dims]
    return remap(x, tuple(x.shape[d] for d in left), {d: dim_symbol(len(left), k) for k, d in enumerate(left)})
