"""Reductions and what is built of them: sums in the accumulation dtype, softmax, variance, norms."""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence

import torch

from ...base.fx_nodes import is_call
from ...symbolic.expr import Expr
from ..meta.core import norm_dims, numel
from ..meta.types import category, is_float, is_int, opmath
from .table import Builder, Node, decomposition, dtype_of, has_no_elements
from .pointwise_forms import upcast

__all__ = ["sum_dims", "mean_dims", "amax_dims", "softmax_parts"]

aten = torch.ops.aten


def _dims(x: Node, dim: Any) -> list[int]:
    meta = x.meta["val"]
    return list(norm_dims(dim, len(meta.shape)))


def sum_dims(builder: Builder, x: Node, dims: list[int], keepdim: bool) -> Node:
    """Sum in x's dtype; no dims: x itself."""
    if not dims or not x.meta["val"].shape:
        return builder.emit(aten.clone.default, x)
    return builder.emit(aten.sum.dim_IntList, x, dims, keepdim)


def _count(x: Node, dims: list[int]) -> int | Expr:
    shape = x.meta["val"].shape
    return numel([shape[dim] for dim in dims]) if shape else 1


@decomposition(aten.sum.default, aten.sum.dim_IntList)
def sum_(builder: Builder, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    d = dtype_of(x)
    out = dtype or (torch.int64 if is_int(d) else d)
    if category(out) > 2:
        return NotImplemented
    u = builder.cast(x, opmath(out))
    return builder.cast(sum_dims(builder, u, _dims(x, dim), keepdim), out)


def mean_dims(builder: Builder, x: Node, dims: list[int], keepdim: bool) -> Node:
    return builder.div(sum_dims(builder, x, dims, keepdim), _count(x, dims))


@decomposition(aten.mean.default, aten.mean.dim)
def mean(builder: Builder, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    out = dtype or dtype_of(x)
    if category(out) > 2:
        return NotImplemented
    u = builder.cast(x, opmath(out))
    return builder.cast(mean_dims(builder, u, _dims(x, dim), keepdim), out)


@decomposition(aten.prod.default, aten.prod.dim_int)
def prod(builder: Builder, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    d = dtype_of(x)
    out = dtype or (torch.int64 if is_int(d) else d)
    if category(out) > 2:
        return NotImplemented
    u = builder.cast(x, opmath(out))
    if not x.meta["val"].shape:
        return builder.cast(builder.emit(aten.clone.default, u), out)
    for i in sorted(_dims(x, dim), reverse=True):
        u = builder.emit(aten.prod.dim_int, u, i, keepdim)
    return builder.cast(u, out)


def amax_dims(builder: Builder, x: Node, dims: list[int], keepdim: bool, op: Any = aten.amax.default) -> Node:
    if not dims or not x.meta["val"].shape:
        return builder.emit(aten.clone.default, x)
    return builder.emit(op, x, dims, keepdim)


@decomposition(aten.amax.default)
def amax(builder: Builder, x: Node, dim: Any = (), keepdim: bool = False) -> Any:
    return amax_dims(builder, x, _dims(x, dim), keepdim)


@decomposition(aten.amin.default)
def amin(builder: Builder, x: Node, dim: Any = (), keepdim: bool = False) -> Any:
    return amax_dims(builder, x, _dims(x, dim), keepdim, aten.amin.default)


@decomposition(aten.max.default)
def max_(builder: Builder, x: Node) -> Any:
    return amax_dims(builder, x, _dims(x, None), False)


@decomposition(aten.min.default)
def min_(builder: Builder, x: Node) -> Any:
    return amax_dims(builder, x, _dims(x, None), False, aten.amin.default)


def _extreme_dim(builder: Builder, x: Node, dim: int, keepdim: bool, value: Any, index: Any) -> Any:
    meta = x.meta["val"]
    if not meta.shape:
        return builder.emit(aten.clone.default, x), builder.full((), 0, torch.int64, meta.device)
    d = dim % len(meta.shape)
    at = builder.cast(x, torch.uint8) if meta.dtype is torch.bool else x
    return builder.emit(value, x, [d], keepdim), builder.emit(index, at, d, keepdim)


@decomposition(aten.max.dim)
def max_dim(builder: Builder, x: Node, dim: int, keepdim: bool = False) -> Any:
    return _extreme_dim(builder, x, dim, keepdim, aten.amax.default, aten.argmax.default)


@decomposition(aten.min.dim)
def min_dim(builder: Builder, x: Node, dim: int, keepdim: bool = False) -> Any:
    return _extreme_dim(builder, x, dim, keepdim, aten.amin.default, aten.argmin.default)


@decomposition(aten.aminmax.default)
def aminmax(builder: Builder, x: Node, *, dim: int | None = None, keepdim: bool = False) -> Any:
    ds = _dims(x, dim)
    if dim is None and keepdim:
        ds = list(range(len(x.meta["val"].shape)))
    return amax_dims(builder, x, ds, keepdim, aten.amin.default), amax_dims(builder, x, ds, keepdim)


def _arg(op: Any) -> Any:
    def f(builder: Builder, x: Node, dim: int | None = None, keepdim: bool = False) -> Any:
        meta = x.meta["val"]
        if not meta.shape:
            return builder.full((), 0, torch.int64, meta.device)
        if dim is not None:
            return builder.emit(op, x, dim % len(meta.shape), keepdim)
        r = builder.emit(op, builder.view(x, [numel(meta.shape)]) if len(meta.shape) != 1 else x, 0, False)
        return builder.view(r, [1] * len(meta.shape)) if keepdim else r

    return f


decomposition(aten.argmax.default)(_arg(aten.argmax.default))
decomposition(aten.argmin.default)(_arg(aten.argmin.default))


def _truth_reduction(op: Any) -> Any:
    def f(builder: Builder, x: Node, dim: Any = None, keepdim: bool = False) -> Any:
        dtype = dtype_of(x)
        out = torch.uint8 if dtype is torch.uint8 else torch.bool
        u = builder.cast(x, torch.bool)
        meta = x.meta["val"]
        if meta.shape and not (isinstance(dim, (list, tuple)) and not dim):
            for i in sorted(_dims(x, dim), reverse=True):
                u = builder.emit(op, u, i, keepdim)
        if u is x or not is_call(u):
            u = builder.emit(aten.clone.default, u)
        return builder.cast(u, out)

    return f


decomposition(aten.any.default, aten.any.dim, aten.any.dims, aten._is_any_true.default)(_truth_reduction(aten.any.dim))
decomposition(aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default)(_truth_reduction(aten.all.dim))


@decomposition(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(builder: Builder, x: Node, dim: Any = None) -> Any:
    u = builder.cast(builder.cast(x, torch.bool), torch.int64)
    return sum_dims(builder, u, _dims(x, dim), False)


# ---- variance
def _in_float64(x: Node) -> bool:
    return x.meta["val"].device.type == "cpu"


def _var_mean(builder: Builder, x: Node, dim: Any, correction: Any, keepdim: bool) -> tuple[Node, Node]:
    """(var, mean) in the dtype that eager's kernels compute in: on a CPU always float64, so that squares of numbers
    above 1e19 or below 1e-19 count."""
    u = builder.cast(x, torch.float64) if _in_float64(x) else upcast(builder, x)
    dims = _dims(x, dim)
    meta = u.meta["val"]
    correction = 1 if correction is None else correction
    if not meta.shape:
        nan = math.nan if correction >= 1 else 0.0
        return builder.mul(u, nan) if nan != nan else builder.sub(u, u), builder.emit(aten.clone.default, u)
    r = builder.emit(aten.var_mean.correction, u, dims, correction=correction, keepdim=keepdim)
    return builder.item(r, 0), builder.item(r, 1)


def _correction(dim: Any, unbiased: Any, correction: Any) -> tuple[Any, Any]:
    """The overloads (x, unbiased), (x, dim, unbiased) and (x, dim, correction=) as (dim, correction)."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = 1 if unbiased else 0
    return dim, 1 if correction is None else correction


def _moments(root: bool, mean: bool) -> Callable:
    """The decomposition of the variance, or of its `root`, alone or with the `mean`."""

    def f(
        builder: Builder,
        x: Node,
        dim: Any = None,
        unbiased: Any = None,
        keepdim: bool = False,
        *,
        correction: Any = None,
    ) -> Any:
        if not is_float(dtype_of(x)):
            return NotImplemented
        v, m = _var_mean(builder, x, *_correction(dim, unbiased, correction), keepdim)
        v = builder.cast(builder.unary("sqrt", v) if root else v, dtype_of(x))
        return (v, builder.cast(m, dtype_of(x))) if mean else v

    return f


for _name in ("var", "std", "var_mean", "std_mean"):
    _packet = getattr(aten, _name)
    decomposition(_packet.default, _packet.dim, _packet.correction)(_moments("std" in _name, "mean" in _name))


# ---- softmax
def softmax_parts(builder: Builder, x: Node, dim: int) -> tuple[Node, Node, Node]:
    """x in float32 less its maximum, exp of that, and the sum of it."""
    u = upcast(builder, x)
    ndim = len(u.meta["val"].shape)
    d = [dim % ndim] if ndim else []
    shifted = builder.sub(u, amax_dims(builder, u, d, True))
    e = builder.unary("exp", shifted)
    return shifted, e, sum_dims(builder, e, d, True)


@decomposition(aten._softmax.default)
def softmax(builder: Builder, x: Node, dim: int, half_to_float: bool) -> Any:
    out = torch.float32 if half_to_float else dtype_of(x)
    if has_no_elements(x):
        return _filled(builder, x, 0, out)
    _, e, s = softmax_parts(builder, x, dim)
    return builder.cast(builder.div(e, s), out)


@decomposition(aten._log_softmax.default)
def log_softmax(builder: Builder, x: Node, dim: int, half_to_float: bool) -> Any:
    out = torch.float32 if half_to_float else dtype_of(x)
    if has_no_elements(x):
        return _filled(builder, x, 0, out)
    shifted, _, s = softmax_parts(builder, x, dim)
    return builder.cast(builder.sub(shifted, builder.unary("log", s)), out)


@decomposition(aten._safe_softmax.default)
def safe_softmax(builder: Builder, x: Node, dim: int, dtype: torch.dtype | None = None) -> Any:
    out = dtype or dtype_of(x)
    if has_no_elements(x):
        return _filled(builder, x, 0, out)
    x = builder.cast(x, out)
    _, e, s = softmax_parts(builder, x, dim)
    u = upcast(builder, x)
    d = dim % len(u.meta["val"].shape)
    masked = builder.emit(aten.all.dim, builder.compare("eq", u, -math.inf), d, True)
    return builder.cast(builder.where(masked, 0.0, builder.div(e, s)), out)


def _filled(
    builder: Builder, x: Node, value: Any, dtype: torch.dtype, dims: Sequence[int] = (), keepdim: bool = False
) -> Node:
    """What a reduction of x over `dims` gives where it has `value` alone, or no elements."""
    meta = x.meta["val"]
    sizes = [1 if dim in dims else size for dim, size in enumerate(meta.shape) if keepdim or dim not in dims]
    return builder.full(sizes, value, dtype, meta.device)


@decomposition(aten.logsumexp.default)
def logsumexp(builder: Builder, x: Node, dim: Any, keepdim: bool = False) -> Any:
    if is_int(dtype_of(x)):
        x = builder.cast(x, torch.get_default_dtype())
    dtype = dtype_of(x)
    if not is_float(dtype):
        return NotImplemented
    dims = _dims(x, dim)
    if has_no_elements(x):  # no maximum; the sum of nothing is 0
        return _filled(builder, x, -math.inf, dtype, dims, keepdim)
    u = upcast(builder, x)
    top = amax_dims(builder, u, dims, True)
    top = builder.where(builder.compare("eq", builder.unary("abs", top), math.inf), 0.0, top)
    s = builder.add(builder.unary("log", sum_dims(builder, builder.unary("exp", builder.sub(u, top)), dims, True)), top)
    if not keepdim and u.meta["val"].shape:
        s = builder.emit(aten.squeeze.dims, s, dims)
        s = builder.emit(aten.clone.default, s)
    return builder.cast(s, dtype)


# ---- norms
@decomposition(aten.linalg_vector_norm.default)
def vector_norm(
    builder: Builder, x: Node, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    d = dtype or dtype_of(x)
    if not is_float(d) or not is_float(dtype_of(x)):
        return NotImplemented
    dims = _dims(x, dim)
    if has_no_elements(x):
        return _filled(builder, x, 0, d, dims, keepdim)
    u = builder.cast(x, opmath(d))
    if ord != 0 and all(
        type(n) is int and n == 1 for n in (x.meta["val"].shape[dim] for dim in dims if x.meta["val"].shape)
    ):
        r = sum_dims(builder, builder.unary("abs", u), dims, keepdim)  # as eager does: no square that may not fit
    elif ord == 2:
        r = builder.unary("sqrt", sum_dims(builder, builder.mul(u, u), dims, keepdim))
    elif ord == 1:
        r = sum_dims(builder, builder.unary("abs", u), dims, keepdim)
    elif ord in (math.inf, -math.inf):
        r = amax_dims(
            builder, builder.unary("abs", u), dims, keepdim, aten.amax.default if ord > 0 else aten.amin.default
        )
    elif ord == 0:
        r = sum_dims(builder, builder.cast(builder.compare("ne", u, 0), dtype_of(u)), dims, keepdim)
    else:
        r = builder.pow(
            sum_dims(builder, builder.pow(builder.unary("abs", u), float(ord)), dims, keepdim), 1.0 / float(ord)
        )
    return builder.cast(r, d)


@decomposition(aten.norm.Scalar, aten.norm.ScalarOpt_dim)
def norm(builder: Builder, x: Node, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    return vector_norm(builder, x, 2 if p is None else p, dim or None, keepdim)
