"""Reductions and what is built of them: sums in the accumulation dtype, softmax, variance, norms."""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence

import torch

from ...symbolic.expr import Expr
from ..meta.core import norm_dims, numel
from ..meta.types import category, is_float, is_int, opmath
from .table import Builder, Node, decomposition, dtype_of, has_no_elements
from .pointwise_forms import upcast

__all__ = ["sum_dims", "mean_dims", "amax_dims", "softmax_parts"]

aten = torch.ops.aten


def _dims(x: Node, dim: Any) -> list[int]:
    m = x.meta["val"]
    return list(norm_dims(dim, len(m.shape)))


def sum_dims(b: Builder, x: Node, dims: list[int], keepdim: bool) -> Node:
    """Sum in x's dtype; no dims: x itself."""
    if not dims or not x.meta["val"].shape:
        return b.emit(aten.clone.default, x)
    return b.emit(aten.sum.dim_IntList, x, dims, keepdim)


def _count(x: Node, dims: list[int]) -> int | Expr:
    shape = x.meta["val"].shape
    return numel([shape[d] for d in dims]) if shape else 1


@decomposition(aten.sum.default, aten.sum.dim_IntList)
def sum_(b: Builder, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    d = dtype_of(x)
    out = dtype or (torch.int64 if is_int(d) else d)
    if category(out) > 2:
        return NotImplemented
    u = b.cast(x, opmath(out))
    return b.cast(sum_dims(b, u, _dims(x, dim), keepdim), out)


def mean_dims(b: Builder, x: Node, dims: list[int], keepdim: bool) -> Node:
    return b.div(sum_dims(b, x, dims, keepdim), _count(x, dims))


@decomposition(aten.mean.default, aten.mean.dim)
def mean(b: Builder, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    out = dtype or dtype_of(x)
    if category(out) > 2:
        return NotImplemented
    u = b.cast(x, opmath(out))
    return b.cast(mean_dims(b, u, _dims(x, dim), keepdim), out)


@decomposition(aten.prod.default, aten.prod.dim_int)
def prod(b: Builder, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    d = dtype_of(x)
    out = dtype or (torch.int64 if is_int(d) else d)
    if category(out) > 2:
        return NotImplemented
    u = b.cast(x, opmath(out))
    if not x.meta["val"].shape:
        return b.cast(b.emit(aten.clone.default, u), out)
    for i in sorted(_dims(x, dim), reverse=True):
        u = b.emit(aten.prod.dim_int, u, i, keepdim)
    return b.cast(u, out)


def amax_dims(b: Builder, x: Node, dims: list[int], keepdim: bool, op: Any = aten.amax.default) -> Node:
    if not dims or not x.meta["val"].shape:
        return b.emit(aten.clone.default, x)
    return b.emit(op, x, dims, keepdim)


@decomposition(aten.amax.default)
def amax(b: Builder, x: Node, dim: Any = (), keepdim: bool = False) -> Any:
    return amax_dims(b, x, _dims(x, dim), keepdim)


@decomposition(aten.amin.default)
def amin(b: Builder, x: Node, dim: Any = (), keepdim: bool = False) -> Any:
    return amax_dims(b, x, _dims(x, dim), keepdim, aten.amin.default)


@decomposition(aten.max.default)
def max_(b: Builder, x: Node) -> Any:
    return amax_dims(b, x, _dims(x, None), False)


@decomposition(aten.min.default)
def min_(b: Builder, x: Node) -> Any:
    return amax_dims(b, x, _dims(x, None), False, aten.amin.default)


def _extreme_dim(b: Builder, x: Node, dim: int, keepdim: bool, value: Any, index: Any) -> Any:
    m = x.meta["val"]
    if not m.shape:
        return b.emit(aten.clone.default, x), b.full((), 0, torch.int64, m.device)
    d = dim % len(m.shape)
    at = b.cast(x, torch.uint8) if m.dtype is torch.bool else x
    return b.emit(value, x, [d], keepdim), b.emit(index, at, d, keepdim)


@decomposition(aten.max.dim)
def max_dim(b: Builder, x: Node, dim: int, keepdim: bool = False) -> Any:
    return _extreme_dim(b, x, dim, keepdim, aten.amax.default, aten.argmax.default)


@decomposition(aten.min.dim)
def min_dim(b: Builder, x: Node, dim: int, keepdim: bool = False) -> Any:
    return _extreme_dim(b, x, dim, keepdim, aten.amin.default, aten.argmin.default)


@decomposition(aten.aminmax.default)
def aminmax(b: Builder, x: Node, *, dim: int | None = None, keepdim: bool = False) -> Any:
    ds = _dims(x, dim)
    if dim is None and keepdim:
        ds = list(range(len(x.meta["val"].shape)))
    return amax_dims(b, x, ds, keepdim, aten.amin.default), amax_dims(b, x, ds, keepdim)


def _arg(op: Any) -> Any:
    def f(b: Builder, x: Node, dim: int | None = None, keepdim: bool = False) -> Any:
        m = x.meta["val"]
        if not m.shape:
            return b.full((), 0, torch.int64, m.device)
        if dim is not None:
            return b.emit(op, x, dim % len(m.shape), keepdim)
        r = b.emit(op, b.view(x, [numel(m.shape)]) if len(m.shape) != 1 else x, 0, False)
        return b.view(r, [1] * len(m.shape)) if keepdim else r

    return f


decomposition(aten.argmax.default)(_arg(aten.argmax.default))
decomposition(aten.argmin.default)(_arg(aten.argmin.default))


def _truth_reduction(op: Any) -> Any:
    def f(b: Builder, x: Node, dim: Any = None, keepdim: bool = False) -> Any:
        d = dtype_of(x)
        out = torch.uint8 if d is torch.uint8 else torch.bool
        u = b.cast(x, torch.bool)
        m = x.meta["val"]
        if m.shape and not (isinstance(dim, (list, tuple)) and not dim):
            for i in sorted(_dims(x, dim), reverse=True):
                u = b.emit(op, u, i, keepdim)
        if u is x or u.op != "call_function":
            u = b.emit(aten.clone.default, u)
        return b.cast(u, out)

    return f


decomposition(aten.any.default, aten.any.dim, aten.any.dims, aten._is_any_true.default)(_truth_reduction(aten.any.dim))
decomposition(aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default)(_truth_reduction(aten.all.dim))


@decomposition(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(b: Builder, x: Node, dim: Any = None) -> Any:
    u = b.cast(b.cast(x, torch.bool), torch.int64)
    return sum_dims(b, u, _dims(x, dim), False)


# ---- variance
def _in_float64(x: Node) -> bool:
    return x.meta["val"].device.type == "cpu"


def _var_mean(b: Builder, x: Node, dim: Any, correction: Any, keepdim: bool) -> tuple[Node, Node]:
    """(var, mean) in the dtype that eager's kernels compute in: on a CPU always float64, so that squares of numbers
    above 1e19 or below 1e-19 count."""
    u = b.cast(x, torch.float64) if _in_float64(x) else upcast(b, x)
    dims = _dims(x, dim)
    m = u.meta["val"]
    correction = 1 if correction is None else correction
    if not m.shape:
        nan = math.nan if correction >= 1 else 0.0
        return b.mul(u, nan) if nan != nan else b.sub(u, u), b.emit(aten.clone.default, u)
    r = b.emit(aten.var_mean.correction, u, dims, correction=correction, keepdim=keepdim)
    return b.item(r, 0), b.item(r, 1)


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
        b: Builder, x: Node, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
    ) -> Any:
        if not is_float(dtype_of(x)):
            return NotImplemented
        v, m = _var_mean(b, x, *_correction(dim, unbiased, correction), keepdim)
        v = b.cast(b.unary("sqrt", v) if root else v, dtype_of(x))
        return (v, b.cast(m, dtype_of(x))) if mean else v

    return f


for _name in ("var", "std", "var_mean", "std_mean"):
    _packet = getattr(aten, _name)
    decomposition(_packet.default, _packet.dim, _packet.correction)(_moments("std" in _name, "mean" in _name))


# ---- softmax
def softmax_parts(b: Builder, x: Node, dim: int) -> tuple[Node, Node, Node]:
    """x in float32 less its maximum, exp of that, and the sum of it."""
    u = upcast(b, x)
    ndim = len(u.meta["val"].shape)
    d = [dim % ndim] if ndim else []
    shifted = b.sub(u, amax_dims(b, u, d, True))
    e = b.unary("exp", shifted)
    return shifted, e, sum_dims(b, e, d, True)


@decomposition(aten._softmax.default)
def softmax(b: Builder, x: Node, dim: int, half_to_float: bool) -> Any:
    out = torch.float32 if half_to_float else dtype_of(x)
    if has_no_elements(x):
        return _filled(b, x, 0, out)
    _, e, s = softmax_parts(b, x, dim)
    return b.cast(b.div(e, s), out)


@decomposition(aten._log_softmax.default)
def log_softmax(b: Builder, x: Node, dim: int, half_to_float: bool) -> Any:
    out = torch.float32 if half_to_float else dtype_of(x)
    if has_no_elements(x):
        return _filled(b, x, 0, out)
    shifted, _, s = softmax_parts(b, x, dim)
    return b.cast(b.sub(shifted, b.unary("log", s)), out)


@decomposition(aten._safe_softmax.default)
def safe_softmax(b: Builder, x: Node, dim: int, dtype: torch.dtype | None = None) -> Any:
    out = dtype or dtype_of(x)
    if has_no_elements(x):
        return _filled(b, x, 0, out)
    x = b.cast(x, out)
    _, e, s = softmax_parts(b, x, dim)
    u = upcast(b, x)
    d = dim % len(u.meta["val"].shape)
    masked = b.emit(aten.all.dim, b.compare("eq", u, -math.inf), d, True)
    return b.cast(b.where(masked, 0.0, b.div(e, s)), out)


def _filled(
    b: Builder, x: Node, value: Any, dtype: torch.dtype, dims: Sequence[int] = (), keepdim: bool = False
) -> Node:
    """What a reduction of x over `dims` gives where it has `value` alone, or no elements."""
    m = x.meta["val"]
    sizes = [1 if d in dims else s for d, s in enumerate(m.shape) if keepdim or d not in dims]
    return b.full(sizes, value, dtype, m.device)


@decomposition(aten.logsumexp.default)
def logsumexp(b: Builder, x: Node, dim: Any, keepdim: bool = False) -> Any:
    if is_int(dtype_of(x)):
        x = b.cast(x, torch.get_default_dtype())
    d = dtype_of(x)
    if not is_float(d):
        return NotImplemented
    dims = _dims(x, dim)
    if has_no_elements(x):  # no maximum; the sum of nothing is 0
        return _filled(b, x, -math.inf, d, dims, keepdim)
    u = upcast(b, x)
    top = amax_dims(b, u, dims, True)
    top = b.where(b.compare("eq", b.unary("abs", top), math.inf), 0.0, top)
    s = b.add(b.unary("log", sum_dims(b, b.unary("exp", b.sub(u, top)), dims, True)), top)
    if not keepdim and u.meta["val"].shape:
        s = b.emit(aten.squeeze.dims, s, dims)
        s = b.emit(aten.clone.default, s)
    return b.cast(s, d)


# ---- norms
@decomposition(aten.linalg_vector_norm.default)
def vector_norm(
    b: Builder, x: Node, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    d = dtype or dtype_of(x)
    if not is_float(d) or not is_float(dtype_of(x)):
        return NotImplemented
    dims = _dims(x, dim)
    if has_no_elements(x):
        return _filled(b, x, 0, d, dims, keepdim)
    u = b.cast(x, opmath(d))
    if ord != 0 and all(
        type(n) is int and n == 1 for n in (x.meta["val"].shape[d] for d in dims if x.meta["val"].shape)
    ):
        r = sum_dims(b, b.unary("abs", u), dims, keepdim)  # as eager does: no square that may not fit
    elif ord == 2:
        r = b.unary("sqrt", sum_dims(b, b.mul(u, u), dims, keepdim))
    elif ord == 1:
        r = sum_dims(b, b.unary("abs", u), dims, keepdim)
    elif ord in (math.inf, -math.inf):
        r = amax_dims(b, b.unary("abs", u), dims, keepdim, aten.amax.default if ord > 0 else aten.amin.default)
    elif ord == 0:
        r = sum_dims(b, b.cast(b.compare("ne", u, 0), dtype_of(u)), dims, keepdim)
    else:
        r = b.pow(sum_dims(b, b.pow(b.unary("abs", u), float(ord)), dims, keepdim), 1.0 / float(ord))
    return b.cast(r, d)


@decomposition(aten.norm.Scalar, aten.norm.ScalarOpt_dim)
def norm(b: Builder, x: Node, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    return vector_norm(b, x, 2 if p is None else p, dim or None, keepdim)
