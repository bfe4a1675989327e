"""Element-wise composites, written out as eager's kernels compute them (float16 and bfloat16 in float32)."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch

from ..meta.core import numel
from ..meta.types import category, is_float, is_int, opmath, result_type
from .table import Builder, Node, decomposition, dtype_of

__all__ = ["upcast", "in_opmath"]

aten = torch.ops.aten


def upcast(b: Builder, x: Node) -> Node:
    """x in the dtype that kernels compute in."""
    return b.cast(x, opmath(dtype_of(x)))


def in_opmath(f: Callable) -> Callable:
    """Wrap a decomposition: tensor operands in, computed in opmath, result cast back to the first operand's dtype."""

    def g(b: Builder, *args: Any, **kwargs: Any) -> Any:
        d = result_type([a.meta["val"] for a in args if isinstance(a, Node)])
        if category(d) > 2:
            return NotImplemented
        up = opmath(d)
        return b.cast(f(b, *[b.cast(a, up) if isinstance(a, Node) else a for a in args], **kwargs), d)

    g.__name__ = f.__name__
    return g


# ---- activations
@decomposition(aten.gelu.default)
@in_opmath
def gelu(b: Builder, x: Node, *, approximate: str = "none") -> Node:
    if approximate == "tanh":
        inner = b.mul(b.add(x, b.mul(b.mul(b.mul(x, x), x), 0.044715)), math.sqrt(2 / math.pi))
        return b.mul(b.mul(x, 0.5), b.add(b.unary("tanh", inner), 1.0))
    return b.mul(b.mul(x, 0.5), b.add(b.unary("erf", b.mul(x, math.sqrt(0.5))), 1.0))


@decomposition(aten.silu.default)
@in_opmath
def silu(b: Builder, x: Node) -> Node:
    return b.div(x, b.add(b.unary("exp", b.unary("neg", x)), 1.0))


@decomposition(aten.hardswish.default)
@in_opmath
def hardswish(b: Builder, x: Node) -> Node:
    return b.div(b.mul(x, _clamp(b, b.add(x, 3.0), 0.0, 6.0)), 6.0)


@decomposition(aten.hardsigmoid.default)
@in_opmath
def hardsigmoid(b: Builder, x: Node) -> Node:
    return b.div(_clamp(b, b.add(x, 3.0), 0.0, 6.0), 6.0)


@decomposition(aten.mish.default)
@in_opmath
def mish(b: Builder, x: Node) -> Node:
    return b.mul(x, b.unary("tanh", b.unary("log1p", b.unary("exp", x))))


@decomposition(aten.softplus.default)
@in_opmath
def softplus(b: Builder, x: Node, beta: Any = 1, threshold: Any = 20) -> Node:
    xb = b.mul(x, float(beta))
    return b.where(b.compare("gt", xb, float(threshold)), x, b.div(b.unary("log1p", b.unary("exp", xb)), float(beta)))


@decomposition(aten.elu.default)
@in_opmath
def elu(b: Builder, x: Node, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Node:
    neg = b.mul(b.unary("expm1", b.mul(x, float(input_scale))), float(alpha) * float(scale))
    return b.where(b.compare("le", x, 0.0), neg, b.mul(x, float(scale)) if scale != 1 else x)


@decomposition(aten.celu.default)
@in_opmath
def celu(b: Builder, x: Node, alpha: Any = 1.0) -> Node:
    alpha = float(alpha)
    return b.where(b.compare("le", x, 0.0), b.mul(b.unary("expm1", b.div(x, alpha)), alpha), x)


@decomposition(aten.selu.default)
@in_opmath
def selu(b: Builder, x: Node) -> Node:
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return b.where(b.compare("le", x, 0.0), b.mul(b.unary("expm1", x), alpha * scale), b.mul(x, scale))


@decomposition(aten.leaky_relu.default)
def leaky_relu(b: Builder, x: Node, slope: Any = 0.01) -> Any:
    return b.where(b.compare("gt", x, 0), x, b.mul(x, slope))


@decomposition(aten._prelu_kernel.default)
def prelu(b: Builder, x: Node, w: Node) -> Any:
    return b.where(b.compare("gt", x, 0), x, b.mul(x, w))


@decomposition(aten.relu6.default)
def relu6(b: Builder, x: Node) -> Any:
    return _clamp(b, x, 0, 6)


@decomposition(aten.hardtanh.default)
def hardtanh(b: Builder, x: Node, lo: Any = -1, hi: Any = 1) -> Any:
    return _clamp(b, x, lo, hi)


@decomposition(aten.threshold.default)
def threshold(b: Builder, x: Node, t: Any, value: Any) -> Any:
    return b.where(b.compare("le", x, t), value, x)


@decomposition(aten.hardshrink.default)
def hardshrink(b: Builder, x: Node, lambd: Any = 0.5) -> Any:
    inside = b.emit(aten.logical_and.default, b.compare("ge", x, -lambd), b.compare("le", x, lambd))
    return b.where(inside, 0, x)


@decomposition(aten.softshrink.default)
@in_opmath
def softshrink(b: Builder, x: Node, lambd: Any = 0.5) -> Node:
    zero = b.add(b.mul(x, 0.0), 0.0)  # without a sign; NaN stays
    return b.where(
        b.compare("gt", x, lambd),
        b.sub(x, float(lambd)),
        b.where(b.compare("lt", x, -lambd), b.add(x, float(lambd)), zero),
    )


@decomposition(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(b: Builder, x: Node) -> Any:
    d = dtype_of(x)
    u = upcast(b, x)
    z = b.unary("exp", b.unary("neg", b.unary("abs", u)))
    low = b.emit(aten.minimum.default, u, b.full((), 0.0, dtype_of(u), u.meta["val"].device))
    out = b.cast(b.sub(low, b.unary("log1p", z)), d)
    if x.meta["val"].device.type == "cpu":
        return out, b.cast(z, d)
    return out, b.full((0,), 0, d, x.meta["val"].device)


@decomposition(aten.glu.default)
def glu(b: Builder, x: Node, dim: int = -1) -> Any:
    m = x.meta["val"]
    d = dim % len(m.shape)
    half = m.shape[d] // 2
    d0 = dtype_of(x)
    lo = upcast(b, b.emit(aten.slice.Tensor, x, d, 0, half, 1))
    hi = upcast(b, b.emit(aten.slice.Tensor, x, d, half, half * 2, 1))
    return b.cast(b.mul(lo, b.emit(aten.sigmoid.default, hi)), d0)


# ---- arithmetic composites
def _clamp(b: Builder, x: Node, lo: Any, hi: Any) -> Node:
    """Bounds as numbers or nodes of x's dtype; NaN stays NaN, and hi wins where lo > hi."""
    m = x.meta["val"]
    for op, v in ((aten.maximum.default, lo), (aten.minimum.default, hi)):
        if v is not None:
            if not isinstance(v, Node):
                v = b.full((), v, m.dtype, m.device)
            x = b.emit(op, v, x) if v.meta["val"].shape == () else b.emit(op, x, v)  # of -0.0 and 0.0, x stays
    return x


@decomposition(aten.clamp.default, aten.clamp.Tensor)
def clamp(b: Builder, x: Node, min: Any = None, max: Any = None) -> Any:
    if any(isinstance(v, float) and math.isnan(v) for v in (min, max)):
        return NotImplemented  # what it means depends on torch's version
    vs = [v for v in (x, min, max) if v is not None]
    d = result_type([v.meta["val"] if isinstance(v, Node) else v for v in vs])
    x, min, max = (b.cast(v, d) if isinstance(v, Node) else v for v in (x, min, max))
    return _clamp(b, x, min, max)


@decomposition(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(b: Builder, x: Node, lo: Any) -> Any:
    return clamp(b, x, lo, None)


@decomposition(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(b: Builder, x: Node, hi: Any) -> Any:
    return clamp(b, x, None, hi)


@decomposition(aten.addcmul.default)
def addcmul(b: Builder, x: Node, y: Node, z: Node, *, value: Any = 1) -> Any:
    d = result_type([n.meta["val"] for n in (x, y, z)])
    up = opmath(d)
    x, y, z = (b.cast(n, up) for n in (x, y, z))
    p = b.mul(y, z) if value == 1 else b.mul(b.mul(y, value), z)
    return b.cast(b.add(x, p), d)


@decomposition(aten.addcdiv.default)
def addcdiv(b: Builder, x: Node, y: Node, z: Node, *, value: Any = 1) -> Any:
    d = result_type([n.meta["val"] for n in (x, y, z)])
    if not is_float(d):
        return NotImplemented
    up = opmath(d)
    x, y, z = (b.cast(n, up) for n in (x, y, z))
    return b.cast(b.add(x, b.div(y if value == 1 else b.mul(y, value), z)), d)


@decomposition(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(b: Builder, x: Node, end: Node, w: Any) -> Any:
    d = dtype_of(x)
    if category(d) > 2:
        return NotImplemented
    up = opmath(d)
    x, end = b.cast(x, up), b.cast(end, up)
    diff = b.sub(end, x)
    if not isinstance(w, Node):
        near = b.add(x, b.mul(diff, w)) if abs(w) < 0.5 else b.sub(end, b.mul(diff, 1 - w))
        return b.cast(near, d)
    w = b.cast(w, up)
    small = b.compare("lt", b.unary("abs", w), 0.5)
    far = b.sub(end, b.mul(diff, b.sub(1, w)))
    return b.cast(b.where(small, b.add(x, b.mul(diff, w)), far), d)


@decomposition(aten.square.default)
def square(b: Builder, x: Node) -> Any:
    return b.mul(x, x)


@decomposition(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(b: Builder, x: Node, mask: Node, value: Any) -> Any:
    value = b.cast(value, dtype_of(x)) if isinstance(value, Node) else value
    return (
        b.where(mask, value, x)
        if isinstance(value, Node)
        else b.emit(aten.where.self, mask, b.full((), value, dtype_of(x), x.meta["val"].device), x)
    )


@decomposition(aten.fill.Scalar, aten.fill.Tensor)
def fill(b: Builder, x: Node, value: Any) -> Any:
    m = x.meta["val"]
    if isinstance(value, Node):
        return b.emit(aten.clone.default, b.expand(b.cast(value, m.dtype), m.shape))
    return b.full(m.shape, value, m.dtype, m.device)


@decomposition(aten.zero.default)
def zero(b: Builder, x: Node) -> Any:
    m = x.meta["val"]
    return b.full(m.shape, 0, m.dtype, m.device)


@decomposition(aten.sgn.default)
def sgn(b: Builder, x: Node) -> Any:
    return NotImplemented if dtype_of(x).is_complex else b.emit(aten.sign.default, x)


@decomposition(aten.positive.default)
def positive(b: Builder, x: Node) -> Any:
    return b.emit(aten.clone.default, x)


@decomposition(aten.conj_physical.default)
def conj_physical(b: Builder, x: Node) -> Any:
    return NotImplemented if dtype_of(x).is_complex else positive(b, x)


@decomposition(aten.nan_to_num.default)
def nan_to_num(b: Builder, x: Node, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    d = dtype_of(x)
    if is_int(d):
        return b.emit(aten.clone.default, x)
    if not is_float(d):
        return NotImplemented
    info = torch.finfo(d)
    out = b.where(b.unary("isnan", x), 0.0 if nan is None else nan, x)
    out = b.where(b.compare("eq", x, math.inf), info.max if posinf is None else posinf, out)
    return b.where(b.compare("eq", x, -math.inf), info.min if neginf is None else neginf, out)


@decomposition(aten.isinf.default, aten.isnan.default)
def isinf(b: Builder, x: Node) -> Any:
    m = x.meta["val"]
    if is_int(m.dtype):
        return b.full(m.shape, False, torch.bool, m.device)
    return NotImplemented


@decomposition(aten.ceil.default, aten.floor.default, aten.round.default, aten.trunc.default)
def rounding(b: Builder, x: Node) -> Any:
    return b.emit(aten.clone.default, x) if is_int(dtype_of(x)) else NotImplemented


@decomposition(aten.logaddexp.default)
def logaddexp(b: Builder, x: Node, y: Node) -> Any:
    d = result_type([x.meta["val"], y.meta["val"]])
    if not is_float(d):
        return NotImplemented
    up = opmath(d)
    x, y = b.cast(x, up), b.cast(y, up)
    top = b.emit(aten.maximum.default, x, y)
    low = b.emit(aten.minimum.default, x, y)
    # equal infinities would give inf - inf
    same = b.emit(aten.logical_and.default, b.compare("eq", x, y), b.unary("isinf", x))
    soft = b.add(top, b.unary("log1p", b.unary("exp", b.sub(low, top))))
    return b.cast(b.where(same, x, soft), d)


@decomposition(aten.logit.default)
def logit(b: Builder, x: Node, eps: float | None = None) -> Any:
    d = dtype_of(x)
    if not is_float(d):
        return NotImplemented
    u = upcast(b, x)
    if eps is not None:
        least, most = eps, 1 - eps
        if least <= most:
            u = _clamp(b, u, least, most)
        else:  # eager asks for the lower bound first
            u = b.where(b.compare("lt", u, least), least, b.where(b.compare("gt", u, most), most, u))
    return b.cast(b.unary("log", b.div(u, b.sub(1, u))), d)


# ---- element-wise losses, unreduced: reduction is applied by `_reduce`
def _reduce(b: Builder, x: Node, reduction: int) -> Node:
    if reduction == 0:
        return x
    return b.call(aten.mean.default if reduction == 1 else aten.sum.default, x)


def _loss(f: Callable) -> Callable:
    def g(b: Builder, x: Node, y: Node, *args: Any, **kwargs: Any) -> Any:
        d = result_type([x.meta["val"], y.meta["val"]])
        if not is_float(d):
            return NotImplemented
        reduction = kwargs.pop("reduction", None)
        if reduction is None:
            reduction, args = (args[0] if args else 1), args[1:]
        up = opmath(d)
        # kernels round the element-wise loss to the tensor's dtype before it is reduced
        return _reduce(b, b.cast(f(b, b.cast(x, up), b.cast(y, up), *args, **kwargs), d), reduction)

    return g


@decomposition(aten.mse_loss.default)
@_loss
def mse_loss(b: Builder, x: Node, y: Node) -> Node:
    d = b.sub(x, y)
    return b.mul(d, d)


@decomposition(aten.smooth_l1_loss.default)
@_loss
def smooth_l1_loss(b: Builder, x: Node, y: Node, beta: float = 1.0) -> Node:
    z = b.unary("abs", b.sub(x, y))
    if beta == 0:
        return z
    return b.where(b.compare("lt", z, beta), b.div(b.mul(b.mul(z, 0.5), z), beta), b.sub(z, 0.5 * beta))


@decomposition(aten.huber_loss.default)
@_loss
def huber_loss(b: Builder, x: Node, y: Node, delta: float = 1.0) -> Node:
    z = b.unary("abs", b.sub(x, y))
    return b.where(b.compare("le", z, delta), b.mul(b.mul(z, 0.5), z), b.mul(b.sub(z, 0.5 * delta), delta))


@decomposition(aten.binary_cross_entropy.default)
def binary_cross_entropy(b: Builder, x: Node, y: Node, weight: Node | None = None, reduction: int = 1) -> Any:
    d = dtype_of(x)
    u, t = upcast(b, x), upcast(b, y)
    m = u.meta["val"]
    if m.device.type == "cpu":  # eager's kernel looks at each element: an index out of range where one is wrong
        right = b.emit(aten.logical_and.default, b.compare("ge", u, 0.0), b.compare("le", u, 1.0))
        wrong = b.unary("logical_not", right)
        found = b.emit(aten.any.dim, b.view(wrong, [numel(m.shape)]), 0, False)
        b.emit(aten.index.Tensor, b.full((1,), False, torch.bool, m.device), [b.cast(found, torch.int64)])
    floor = b.full((), -100.0, m.dtype, m.device)
    lo = b.emit(aten.maximum.default, b.unary("log1p", b.unary("neg", u)), floor)
    hi = b.emit(aten.maximum.default, b.unary("log", u), floor)
    loss = b.sub(b.mul(b.sub(t, 1.0), lo), b.mul(t, hi))
    loss = b.cast(loss, d)
    if weight is not None:
        loss = b.mul(loss, b.cast(weight, d))
    return _reduce(b, loss, reduction)
