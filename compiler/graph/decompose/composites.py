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
def rot90(b: Builder, x: Node, k: int = 1, dims: Any = (0, 1)) -> Any:
    n = len(x.meta["val"].shape)
    if len(dims) != 2 or n < 2 or not all(-n <= d < n for d in dims) or dims[0] % n == dims[1] % n:
        return NotImplemented
    first, second = (d % n for d in dims)
    turned = list(range(n))
    turned[first], turned[second] = second, first
    k %= 4
    if k == 0:
        return b.emit(aten.clone.default, x, memory_format=torch.contiguous_format)
    if k == 2:
        return b.call(aten.flip.default, x, [first, second])
    return b.emit(aten.permute.default, b.call(aten.flip.default, x, [second if k == 1 else first]), turned)


@decomposition(aten.round.decimals)
def round_decimals(b: Builder, x: Node, *, decimals: int) -> Any:
    d = dtype_of(x)
    if not is_float(d) or decimals == 0:
        return b.call(aten.round.default, x) if decimals == 0 else NotImplemented
    u = upcast(b, x)
    power = 10.0 ** abs(decimals)
    if not math.isfinite(power) or dtype_of(u) is torch.float32 and power > torch.finfo(torch.float32).max:
        return NotImplemented
    if decimals > 0:
        return b.cast(b.div(b.unary("round", b.mul(u, power)), power), d)
    return b.cast(b.mul(b.unary("round", b.div(u, power)), power), d)


@decomposition(aten.ldexp.Tensor)
def ldexp(b: Builder, x: Node, other: Node) -> Any:
    if is_float(dtype_of(x)) and not is_float(dtype_of(other)):
        return NotImplemented  # (C's ldexp, which overflows at the end alone)
    return b.call(aten.mul.Tensor, x, b.call(aten.pow.Scalar, 2.0, other))


@decomposition(aten.addbmm.default)
def addbmm(b: Builder, x: Node, left: Node, right: Node, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if {dtype_of(n) for n in (x, left, right)} not in ({torch.float32}, {torch.float64}):
        return NotImplemented
    total = b.call(aten.sum.dim_IntList, b.call(aten.bmm.default, left, right), [0], False)
    total = total if alpha == 1 else b.mul(total, alpha)
    return total if beta == 0 else b.add(total, x if beta == 1 else b.mul(x, beta))


@decomposition(aten.angle.default)
def angle(b: Builder, x: Node) -> Any:
    d = dtype_of(x)
    if d.is_complex:
        return NotImplemented
    if not is_float(d):
        x = b.cast(x, torch.get_default_dtype())
    u = upcast(b, x)
    turned = b.where(b.compare("lt", u, 0.0), b.full((), math.pi, dtype_of(u), u.meta["val"].device), 0.0)
    return b.cast(b.where(b.unary("isnan", u), u, turned), dtype_of(x))


@decomposition(aten.renorm.default)
def renorm(b: Builder, x: Node, p: Any, dim: int, maxnorm: Any) -> Any:
    m = x.meta["val"]
    n = len(m.shape)
    if not is_float(m.dtype) or not isinstance(p, (int, float)) or any(isinstance(s, int) and s == 0 for s in m.shape):
        return NotImplemented
    wide = (
        torch.float64
        if m.device.type == "cpu" and m.dtype is torch.float32
        else torch.float32
        if m.dtype in (torch.float16, torch.bfloat16)
        else m.dtype
    )
    norm = b.call(aten.linalg_vector_norm.default, x, p, [d for d in range(n) if d != dim % n], True, dtype=wide)
    factor = b.where(
        b.compare("gt", norm, float(maxnorm)), b.div(b.full((), float(maxnorm), wide, m.device), b.add(norm, 1e-7)), 1.0
    )
    return b.call(aten.mul.Tensor, x, b.cast(factor, m.dtype))


@decomposition(aten._cdist_forward.default)
def cdist(b: Builder, x: Node, y: Node, p: float, mode: int | None) -> Any:
    s, t = x.meta["val"], y.meta["val"]
    if (
        not is_float(s.dtype)
        or s.dtype is not t.dtype
        or any(isinstance(k, int) and k == 0 for k in (*s.shape, *t.shape))
    ):
        return NotImplemented
    rows, columns = s.shape[-2], t.shape[-2]
    few = isinstance(rows, int) and isinstance(columns, int) and rows <= 25 and columns <= 25
    if p == 2 and not (mode == 2 or mode in (None, 0) and few):
        return NotImplemented  # (eager goes by a matrix product)
    n, k = len(s.shape), len(t.shape)
    d = b.unary("abs", b.sub(b.unsqueeze(x, n - 1), b.unsqueeze(y, k - 2)))
    dims = [max(n, k)]
    if p == math.inf:
        return b.call(aten.amax.default, d, dims, False)
    if p == 0:
        return b.call(aten.sum.dim_IntList, b.cast(b.compare("ne", d, 0.0), s.dtype), dims, False)
    if p == 1:
        return b.call(aten.sum.dim_IntList, d, dims, False)
    total = b.call(aten.sum.dim_IntList, b.mul(d, d) if p == 2 else b.pow(d, float(p)), dims, False)
    return b.unary("sqrt", total) if p == 2 else b.pow(total, 1.0 / p)
