"""Composites that torch has kernels of its own for: turns, rounding to decimals, scaling by powers of two, angles,
norms that are clipped, distances. Written out as those kernels compute them."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..meta.types import is_float
from .table import Builder, Node, decomposition, dtype_of
from .pointwise_forms import upcast

__all__: list[str] = []

aten = torch.ops.aten


@decomposition(aten.rot90.default)
def rot90(builder: Builder, x: Node, k: int = 1, dims: Any = (0, 1)) -> Any:
    n = len(x.meta["val"].shape)
    if len(dims) != 2 or n < 2 or not all(-n <= dim < n for dim in dims) or dims[0] % n == dims[1] % n:
        return NotImplemented
    first, second = (dim % n for dim in dims)
    turned = list(range(n))
    turned[first], turned[second] = second, first
    k %= 4
    if k == 0:
        return builder.emit(aten.clone.default, x, memory_format=torch.contiguous_format)
    if k == 2:
        return builder.call(aten.flip.default, x, [first, second])
    return builder.emit(aten.permute.default, builder.call(aten.flip.default, x, [second if k == 1 else first]), turned)


@decomposition(aten.round.decimals)
def round_decimals(builder: Builder, x: Node, *, decimals: int) -> Any:
    dtype = dtype_of(x)
    if not is_float(dtype) or decimals == 0:
        return builder.call(aten.round.default, x) if decimals == 0 else NotImplemented
    u = upcast(builder, x)
    power = 10.0 ** abs(decimals)
    if not math.isfinite(power) or dtype_of(u) is torch.float32 and power > torch.finfo(torch.float32).max:
        return NotImplemented
    if decimals > 0:
        return builder.cast(builder.div(builder.unary("round", builder.mul(u, power)), power), dtype)
    return builder.cast(builder.mul(builder.unary("round", builder.div(u, power)), power), dtype)


@decomposition(aten.ldexp.Tensor)
def ldexp(builder: Builder, x: Node, other: Node) -> Any:
    if is_float(dtype_of(x)) and not is_float(dtype_of(other)):
        return NotImplemented  # (C's ldexp, which overflows at the end alone)
    return builder.call(aten.mul.Tensor, x, builder.call(aten.pow.Scalar, 2.0, other))


@decomposition(aten.addbmm.default)
def addbmm(builder: Builder, x: Node, left: Node, right: Node, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if {dtype_of(n) for n in (x, left, right)} not in ({torch.float32}, {torch.float64}):
        return NotImplemented
    total = builder.call(aten.sum.dim_IntList, builder.call(aten.bmm.default, left, right), [0], False)
    total = total if alpha == 1 else builder.mul(total, alpha)
    return total if beta == 0 else builder.add(total, x if beta == 1 else builder.mul(x, beta))


@decomposition(aten.angle.default)
def angle(builder: Builder, x: Node) -> Any:
    dtype = dtype_of(x)
    if dtype.is_complex:
        return NotImplemented
    if not is_float(dtype):
        x = builder.cast(x, torch.get_default_dtype())
    u = upcast(builder, x)
    turned = builder.where(
        builder.compare("lt", u, 0.0), builder.full((), math.pi, dtype_of(u), u.meta["val"].device), 0.0
    )
    return builder.cast(builder.where(builder.unary("isnan", u), u, turned), dtype_of(x))


@decomposition(aten.renorm.default)
def renorm(builder: Builder, x: Node, p: Any, dim: int, maxnorm: Any) -> Any:
    meta = x.meta["val"]
    ndim = len(meta.shape)
    if (
        not is_float(meta.dtype)
        or not isinstance(p, (int, float))
        or any(isinstance(size, int) and size == 0 for size in meta.shape)
    ):
        return NotImplemented
    wide = (
        torch.float64
        if meta.device.type == "cpu" and meta.dtype is torch.float32
        else torch.float32
        if meta.dtype in (torch.float16, torch.bfloat16)
        else meta.dtype
    )
    norm = builder.call(
        aten.linalg_vector_norm.default, x, p, [d for d in range(ndim) if d != dim % ndim], True, dtype=wide
    )
    factor = builder.where(
        builder.compare("gt", norm, float(maxnorm)),
        builder.div(builder.full((), float(maxnorm), wide, meta.device), builder.add(norm, 1e-7)),
        1.0,
    )
    return builder.call(aten.mul.Tensor, x, builder.cast(factor, meta.dtype))


@decomposition(aten._cdist_forward.default)
def cdist(builder: Builder, x: Node, y: Node, p: float, mode: int | None) -> Any:
    meta, tensor = x.meta["val"], y.meta["val"]
    if (
        not is_float(meta.dtype)
        or meta.dtype is not tensor.dtype
        or any(isinstance(size, int) and size == 0 for size in (*meta.shape, *tensor.shape))
    ):
        return NotImplemented
    rows, columns = meta.shape[-2], tensor.shape[-2]
    few = isinstance(rows, int) and isinstance(columns, int) and rows <= 25 and columns <= 25
    if p == 2 and not (mode == 2 or mode in (None, 0) and few):
        return NotImplemented  # (eager goes by a matrix product)
    ndim, k = len(meta.shape), len(tensor.shape)
    d = builder.unary("abs", builder.sub(builder.unsqueeze(x, ndim - 1), builder.unsqueeze(y, k - 2)))
    dims = [max(ndim, k)]
    if p == math.inf:
        return builder.call(aten.amax.default, d, dims, False)
    if p == 0:
        return builder.call(aten.sum.dim_IntList, builder.cast(builder.compare("ne", d, 0.0), meta.dtype), dims, False)
    if p == 1:
        return builder.call(aten.sum.dim_IntList, d, dims, False)
    total = builder.call(aten.sum.dim_IntList, builder.mul(d, d) if p == 2 else builder.pow(d, float(p)), dims, False)
    return builder.unary("sqrt", total) if p == 2 else builder.pow(total, 1.0 / p)


@decomposition(aten._cdist_backward.default)
def cdist_backward(builder: Builder, grad: Node, x: Node, y: Node, p: float, distances: Node) -> Any:
    meta, other = x.meta["val"], y.meta["val"]
    if p not in (1, 2) or meta.dtype not in (torch.float32, torch.float64) or meta.shape[:-2] != other.shape[:-2]:
        return NotImplemented
    ndim = len(meta.shape)
    d = builder.sub(builder.unsqueeze(x, ndim - 1), builder.unsqueeze(y, ndim - 2))
    if p == 1:
        slope = builder.mul(builder.unsqueeze(grad, ndim), builder.unary("sign", d))
    else:
        far = builder.unsqueeze(distances, ndim)
        slope = builder.div(builder.mul(builder.unsqueeze(grad, ndim), d), far)
        slope = builder.where(builder.compare("eq", far, 0.0), 0.0, slope)
    return builder.call(aten.sum.dim_IntList, slope, [ndim - 1], False)
