"""Reductions. Low precision accumulates in float32, small ints in int64; a mean is the sum divided by the count."""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch

from ...symbolic.expr import Expr, mul_all
from ..ir import Value, cast, const, index, prim
from ..context import Lowering
from ..rule_table import NoRule, rule
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
    return mul_all(shape[d] for d in dims)


def _real(x: Ref) -> None:
    if x.dtype.is_complex:
        raise NoRule("complex numbers")


def _finish(lo: Lowering, acc: Ref, dtype: torch.dtype) -> Ref:
    """The accumulator as the node's result: the same buffer where the dtype is right already."""
    return acc if acc.dtype == dtype else lo.store(rounded(acc.value, dtype), acc.shape, dtype)


@rule("aten.sum.default", "aten.sum.dim_IntList", "aten.nansum.default")
def sum_(lo: Lowering, node: Any, x: Ref, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Ref:
    _real(x)
    out = lo.meta().dtype
    v = cast(x.value, compute_dtype(out))
    if "nansum" in node.target._schema.name:
        v = prim("where", prim("isnan", v), C(0, v.dtype), v) if v.dtype.is_floating_point else v
    return _finish(lo, lo.reduce("sum", v, x.shape, dims_of(dim, x.ndim), keepdim), out)


@rule("aten.mean.default", "aten.mean.dim")
def mean(lo: Lowering, node: Any, x: Ref, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Ref:
    _real(x)
    out = lo.meta().dtype
    dims = dims_of(dim, x.ndim)
    s = lo.reduce("sum", cast(x.value, compute_dtype(out)), x.shape, dims, keepdim, suffix="_sum")
    return lo.store(rounded(prim("div", s.value, operand_count(x.shape, dims, s.dtype)), out), s.shape, out)


def operand_count(shape: Sequence[Any], dims: Sequence[int], dtype: torch.dtype) -> Value:
    n = count(shape, dims)
    return C(n.value, dtype) if n.is_const else cast(index(n), dtype)


@rule("aten.prod.default", "aten.prod.dim_int")
def prod(lo: Lowering, node: Any, x: Ref, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Ref:
    _real(x)
    out = lo.meta().dtype
    return _finish(
        lo, lo.reduce("prod", cast(x.value, compute_dtype(out)), x.shape, dims_of(dim, x.ndim), keepdim), out
    )


def _extreme(lo: Lowering, op: str, x: Ref, dims: Sequence[int], keepdim: bool, suffix: str = "") -> Ref:
    _real(x)
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
    _real(x)
    v = x.value
    if x.dtype == torch.bool:
        v = cast(v, torch.int64)
    return lo.reduce(op, v, x.shape, dims, keepdim, suffix=suffix, logical_order=True)


@rule("aten.argmax.default", "aten.argmin.default")
def argmax(lo: Lowering, node: Any, x: Ref, dim: Any = None, keepdim: bool = False) -> Ref:
    return _arg(lo, "argmax" if "argmax" in node.target._schema.name else "argmin", x, dims_of(dim, x.ndim), keepdim)


@rule("aten.any.dim", "aten.all.dim")
def any_all(lo: Lowering, node: Any, x: Ref, dim: Any = None, keepdim: bool = False) -> Ref:
    _real(x)
    op = node.target._schema.name.split("::")[1]
    acc = lo.reduce(op, cast(x.value, torch.bool), x.shape, dims_of(dim, x.ndim), keepdim)
    return _finish(lo, acc, lo.meta().dtype)


def moments(lo: Lowering, x: Ref, dims: Sequence[int], dtype: torch.dtype) -> tuple[Ref, Ref]:
    """(mean, sum of squared differences from it), keepdim, in dtype: two passes, as exact as Welford's method and
    cheaper on a row that is in the cache."""
    v = cast(x.value, dtype)
    last = _short_inside(lo, v, x.shape, dims)
    if last is not None:  # each column first, then what the columns of a group make together
        rest = [d for d in dims if d != last]
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


def _safe_mean(lo: Lowering, v: Value, shape: Sequence[Any], dims: Sequence[int]) -> Ref:
    """The mean. On a CPU its sum does not overflow where the mean does not: it is one of values times a power of two,
    which is exact. (A GPU's kernels find mean and squares in one pass, without a sum.)
    """
    n, small = count(shape, dims), 1.0
    if v.dtype == torch.float32 and _sums_first(lo):
        small = 2.0 ** -(n.value.bit_length() if n.is_const else _MANY_BITS)
    s = lo.reduce("sum", prim("mul", v, C(small, v.dtype)) if small != 1 else v, shape, dims, True, suffix="_sum")
    whole = operand_count(shape, dims, v.dtype)
    if small != 1:
        whole = C(whole.attr * small, v.dtype) if whole.op == "const" else prim("mul", whole, C(small, v.dtype))
    return lo.store(prim("div", s.value, whole), s.shape, v.dtype, suffix="_mean")


def _short_inside(lo: Lowering, v: Value, shape: Sequence[Any], dims: Sequence[int]) -> int | None:
    """The reduced dimension that memory runs along in short pieces, with dimensions that stay around it (groups of
    channels, channels last): a GPU reads whole lines where those are kept, too."""
    order = [d for d in order_of_loads(v, shape) if not is_one(shape[d])]
    if torch.device(lo._device()).type != "cuda" or len(order) < 3 or order[-1] not in dims or order[-2] in dims:
        return None
    return (
        order[-1]
        if type(shape[order[-1]]) is int and shape[order[-1]] <= SHORT and any(d in dims for d in order[:-2])
        else None
    )


def _squeezed(x: Ref, dims: Sequence[int], keepdim: bool) -> Ref:
    if keepdim:
        return x
    gone = set(dims)
    left = [d for d in range(x.ndim) if d not in gone]
    return remap(x, tuple(x.shape[d] for d in left), {d: dim_symbol(len(left), k) for k, d in enumerate(left)})


def _variance(lo: Lowering, x: Ref, dims: Sequence[int], correction: Any, dtype: torch.dtype) -> tuple[Value, Ref, Ref]:
    mean_, m2 = moments(lo, x, dims, dtype)
    n = operand_count(x.shape, dims, dtype)
    c = 1 if correction is None else correction
    if n.op == "const":
        below = C(max(n.attr - c, 0.0), dtype)
    else:
        below = prim("maximum", prim("sub", n, operand(c, dtype)), C(0, dtype))
    return prim("div", m2.value, below), mean_, m2


def _correction(args: tuple, kw: dict) -> tuple[Any, Any, bool]:
    """(dim, correction, keepdim) of var.correction, var.dim and var.default alike."""
    dim = args[0] if args else kw.get("dim")
    if isinstance(dim, bool):  # var(x, unbiased)
        return None, int(dim), False
    unbiased = args[1] if len(args) > 1 else kw.get("unbiased")
    keepdim = args[2] if len(args) > 2 else kw.get("keepdim", False)
    correction = kw.get("correction", None if unbiased is None else int(unbiased))
    return dim, 1 if correction is None else correction, keepdim


@rule(
    "aten.var.correction", "aten.var.dim", "aten.var.default", "aten.std.correction", "aten.std.dim", "aten.std.default"
)
def var(lo: Lowering, node: Any, x: Ref, *args: Any, **kw: Any) -> Ref:
    spread, _ = _spread_and_mean(lo, node, x, args, kw)
    return lo.store(rounded(spread.value, x.dtype), spread.shape, x.dtype)


@rule(
    "aten.var_mean.correction",
    "aten.var_mean.dim",
    "aten.var_mean.default",
    "aten.std_mean.correction",
    "aten.std_mean.dim",
    "aten.std_mean.default",
)
def var_mean(lo: Lowering, node: Any, x: Ref, *args: Any, **kw: Any) -> tuple:
    return tuple(
        lo.store(rounded(r.value, x.dtype), r.shape, x.dtype, suffix=f"_{k}")
        for k, r in enumerate(_spread_and_mean(lo, node, x, args, kw))
    )


def _spread_and_mean(lo: Lowering, node: Any, x: Ref, args: tuple, kw: dict) -> tuple[Ref, Ref]:
    """Variance or standard deviation, as the operator's name says, and mean."""
    _real(x)
    dim, correction, keepdim = _correction(args, kw)
    dims = dims_of(dim, x.ndim)
    dt = compute_dtype(x.dtype)
    v, mean_, m2 = _variance(lo, x, dims, correction, dt)
    if "std" in node.target._schema.name:
        v = prim("sqrt", v)
    return _squeezed(Ref(m2.shape, dt, v), dims, keepdim), _squeezed(mean_, dims, keepdim)


@rule("aten.logsumexp.default")
def logsumexp(lo: Lowering, node: Any, x: Ref, dim: Any, keepdim: bool = False) -> Ref:
    _real(x)
    out = lo.meta().dtype
    dims = dims_of(dim, x.ndim)
    dt = compute_dtype(out)
    v = cast(x.value, dt)
    m = lo.reduce("max", v, x.shape, dims, True, suffix="_max")
    zero = C(0, dt)
    m = Ref(m.shape, dt, prim("where", prim("eq", prim("abs", m.value), C(math.inf, dt)), zero, m.value))
    s = lo.reduce("sum", prim("exp", prim("sub", v, m.value)), x.shape, dims, True, suffix="_sum")
    r = _squeezed(Ref(s.shape, dt, prim("add", prim("log", s.value), m.value)), dims, keepdim)
    return lo.store(rounded(r.value, out), r.shape, out)


@rule("aten.linalg_vector_norm.default", "aten.norm.ScalarOpt_dim", "aten.norm.Scalar")
def vector_norm(
    lo: Lowering, node: Any, x: Ref, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Ref:
    _real(x)
    out = lo.meta().dtype
    dims = dims_of(dim, x.ndim)
    dt = compute_dtype(out)
    v = prim("abs", cast(x.value, dt))
    ord = 2 if ord is None else ord
    if ord == math.inf or ord == -math.inf:
        return _finish(lo, lo.reduce("max" if ord > 0 else "min", v, x.shape, dims, keepdim), out)
    if ord == 0:
        v = cast(prim("ne", v, C(0, dt)), dt)
    elif ord == 2:
        v = prim("mul", v, v)
    elif ord != 1:
        v = prim("pow", v, operand(ord, dt))
    s = lo.reduce("sum", v, x.shape, dims, keepdim, suffix="_sum")
    r = s.value
    if ord == 2:
        r = prim("sqrt", r)
    elif ord not in (0, 1):
        r = prim("pow", r, operand(1.0 / ord, dt))
    return _finish(lo, s, out) if r is s.value else lo.store(rounded(r, out), s.shape, out)
