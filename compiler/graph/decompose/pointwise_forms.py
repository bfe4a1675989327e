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


def upcast(builder: Builder, x: Node) -> Node:
    """x in the dtype that kernels compute in."""
    return builder.cast(x, opmath(dtype_of(x)))


def in_opmath(fn: Callable) -> Callable:
    """Wrap a decomposition: tensor operands in, computed in opmath, result cast back to the first operand's dtype."""

    def g(builder: Builder, *args: Any, **kwargs: Any) -> Any:
        d = result_type([arg.meta["val"] for arg in args if isinstance(arg, Node)])
        if category(d) > 2:
            return NotImplemented
        up = opmath(d)
        return builder.cast(
            fn(builder, *[builder.cast(arg, up) if isinstance(arg, Node) else arg for arg in args], **kwargs), d
        )

    g.__name__ = fn.__name__
    return g


# ---- activations
@decomposition(aten.gelu.default)
@in_opmath
def gelu(builder: Builder, x: Node, *, approximate: str = "none") -> Node:
    if approximate == "tanh":
        inner = builder.mul(
            builder.add(x, builder.mul(builder.mul(builder.mul(x, x), x), 0.044715)), math.sqrt(2 / math.pi)
        )
        return builder.mul(builder.mul(x, 0.5), builder.add(builder.unary("tanh", inner), 1.0))
    return builder.mul(builder.mul(x, 0.5), builder.add(builder.unary("erf", builder.mul(x, math.sqrt(0.5))), 1.0))


@decomposition(aten.silu.default)
@in_opmath
def silu(builder: Builder, x: Node) -> Node:
    return builder.div(x, builder.add(builder.unary("exp", builder.unary("neg", x)), 1.0))


@decomposition(aten.hardswish.default)
@in_opmath
def hardswish(builder: Builder, x: Node) -> Node:
    return builder.div(builder.mul(x, _clamp(builder, builder.add(x, 3.0), 0.0, 6.0)), 6.0)


@decomposition(aten.hardsigmoid.default)
@in_opmath
def hardsigmoid(builder: Builder, x: Node) -> Node:
    return builder.div(_clamp(builder, builder.add(x, 3.0), 0.0, 6.0), 6.0)


@decomposition(aten.mish.default)
@in_opmath
def mish(builder: Builder, x: Node) -> Node:
    return builder.mul(x, builder.unary("tanh", builder.unary("log1p", builder.unary("exp", x))))


@decomposition(aten.softplus.default)
@in_opmath
def softplus(builder: Builder, x: Node, beta: Any = 1, threshold: Any = 20) -> Node:
    xb = builder.mul(x, float(beta))
    return builder.where(
        builder.compare("gt", xb, float(threshold)),
        x,
        builder.div(builder.unary("log1p", builder.unary("exp", xb)), float(beta)),
    )


@decomposition(aten.elu.default)
@in_opmath
def elu(builder: Builder, x: Node, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Node:
    neg = builder.mul(builder.unary("expm1", builder.mul(x, float(input_scale))), float(alpha) * float(scale))
    return builder.where(builder.compare("le", x, 0.0), neg, builder.mul(x, float(scale)) if scale != 1 else x)


@decomposition(aten.celu.default)
@in_opmath
def celu(builder: Builder, x: Node, alpha: Any = 1.0) -> Node:
    alpha = float(alpha)
    return builder.where(
        builder.compare("le", x, 0.0), builder.mul(builder.unary("expm1", builder.div(x, alpha)), alpha), x
    )


@decomposition(aten.selu.default)
@in_opmath
def selu(builder: Builder, x: Node) -> Node:
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return builder.where(
        builder.compare("le", x, 0.0), builder.mul(builder.unary("expm1", x), alpha * scale), builder.mul(x, scale)
    )


@decomposition(aten.leaky_relu.default)
def leaky_relu(builder: Builder, x: Node, slope: Any = 0.01) -> Any:
    return builder.where(builder.compare("gt", x, 0), x, builder.mul(x, slope))


@decomposition(aten._prelu_kernel.default)
def prelu(builder: Builder, x: Node, w: Node) -> Any:
    return builder.where(builder.compare("gt", x, 0), x, builder.mul(x, w))


@decomposition(aten.relu6.default)
def relu6(builder: Builder, x: Node) -> Any:
    return _clamp(builder, x, 0, 6)


@decomposition(aten.hardtanh.default)
def hardtanh(builder: Builder, x: Node, lo: Any = -1, hi: Any = 1) -> Any:
    return _clamp(builder, x, lo, hi)


@decomposition(aten.threshold.default)
def threshold(builder: Builder, x: Node, t: Any, value: Any) -> Any:
    return builder.where(builder.compare("le", x, t), value, x)


@decomposition(aten.hardshrink.default)
def hardshrink(builder: Builder, x: Node, lambd: Any = 0.5) -> Any:
    inside = builder.emit(aten.logical_and.default, builder.compare("ge", x, -lambd), builder.compare("le", x, lambd))
    return builder.where(inside, 0, x)


@decomposition(aten.softshrink.default)
@in_opmath
def softshrink(builder: Builder, x: Node, lambd: Any = 0.5) -> Node:
    zero = builder.add(builder.mul(x, 0.0), 0.0)  # without a sign; NaN stays
    return builder.where(
        builder.compare("gt", x, lambd),
        builder.sub(x, float(lambd)),
        builder.where(builder.compare("lt", x, -lambd), builder.add(x, float(lambd)), zero),
    )


@decomposition(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(builder: Builder, x: Node) -> Any:
    dtype = dtype_of(x)
    u = upcast(builder, x)
    z = builder.unary("exp", builder.unary("neg", builder.unary("abs", u)))
    low = builder.emit(aten.minimum.default, u, builder.full((), 0.0, dtype_of(u), u.meta["val"].device))
    out = builder.cast(builder.sub(low, builder.unary("log1p", z)), dtype)
    if x.meta["val"].device.type == "cpu":
        return out, builder.cast(z, dtype)
    return out, builder.full((0,), 0, dtype, x.meta["val"].device)


@decomposition(aten.glu.default)
def glu(builder: Builder, x: Node, dim: int = -1) -> Any:
    meta = x.meta["val"]
    d = dim % len(meta.shape)
    half = meta.shape[d] // 2
    d0 = dtype_of(x)
    lo = upcast(builder, builder.emit(aten.slice.Tensor, x, d, 0, half, 1))
    hi = upcast(builder, builder.emit(aten.slice.Tensor, x, d, half, half * 2, 1))
    return builder.cast(builder.mul(lo, builder.emit(aten.sigmoid.default, hi)), d0)


# ---- arithmetic composites
def _clamp(builder: Builder, x: Node, lo: Any, hi: Any) -> Node:
    """Bounds as numbers or nodes of x's dtype; NaN stays NaN, and hi wins where lo > hi."""
    meta = x.meta["val"]
    for op, v in ((aten.maximum.default, lo), (aten.minimum.default, hi)):
        if v is not None:
            if not isinstance(v, Node):
                v = builder.full((), v, meta.dtype, meta.device)
            # of -0.0 and 0.0, x stays
            x = builder.emit(op, v, x) if v.meta["val"].shape == () else builder.emit(op, x, v)
    return x


@decomposition(aten.clamp.default, aten.clamp.Tensor)
def clamp(builder: Builder, x: Node, min: Any = None, max: Any = None) -> Any:
    if any(isinstance(v, float) and math.isnan(v) for v in (min, max)):
        return NotImplemented  # what it means depends on torch's version
    vs = [v for v in (x, min, max) if v is not None]
    d = result_type([v.meta["val"] if isinstance(v, Node) else v for v in vs])
    x, min, max = (builder.cast(v, d) if isinstance(v, Node) else v for v in (x, min, max))
    return _clamp(builder, x, min, max)


@decomposition(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(builder: Builder, x: Node, lo: Any) -> Any:
    return clamp(builder, x, lo, None)


@decomposition(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(builder: Builder, x: Node, hi: Any) -> Any:
    return clamp(builder, x, None, hi)


@decomposition(aten.addcmul.default)
def addcmul(builder: Builder, x: Node, y: Node, z: Node, *, value: Any = 1) -> Any:
    d = result_type([node.meta["val"] for node in (x, y, z)])
    up = opmath(d)
    x, y, z = (builder.cast(n, up) for n in (x, y, z))
    p = builder.mul(y, z) if value == 1 else builder.mul(builder.mul(y, value), z)
    return builder.cast(builder.add(x, p), d)


@decomposition(aten.addcdiv.default)
def addcdiv(builder: Builder, x: Node, y: Node, z: Node, *, value: Any = 1) -> Any:
    d = result_type([node.meta["val"] for node in (x, y, z)])
    if not is_float(d):
        return NotImplemented
    up = opmath(d)
    x, y, z = (builder.cast(n, up) for n in (x, y, z))
    return builder.cast(builder.add(x, builder.div(y if value == 1 else builder.mul(y, value), z)), d)


@decomposition(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(builder: Builder, x: Node, end: Node, w: Any) -> Any:
    dtype = dtype_of(x)
    if category(dtype) > 2:
        return NotImplemented
    up = opmath(dtype)
    x, end = builder.cast(x, up), builder.cast(end, up)
    diff = builder.sub(end, x)
    if not isinstance(w, Node):
        near = builder.add(x, builder.mul(diff, w)) if abs(w) < 0.5 else builder.sub(end, builder.mul(diff, 1 - w))
        return builder.cast(near, dtype)
    w = builder.cast(w, up)
    small = builder.compare("lt", builder.unary("abs", w), 0.5)
    far = builder.sub(end, builder.mul(diff, builder.sub(1, w)))
    return builder.cast(builder.where(small, builder.add(x, builder.mul(diff, w)), far), dtype)


@decomposition(aten.square.default)
def square(builder: Builder, x: Node) -> Any:
    return builder.mul(x, x)


@decomposition(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(builder: Builder, x: Node, mask: Node, value: Any) -> Any:
    value = builder.cast(value, dtype_of(x)) if isinstance(value, Node) else value
    return (
        builder.where(mask, value, x)
        if isinstance(value, Node)
        else builder.emit(aten.where.self, mask, builder.full((), value, dtype_of(x), x.meta["val"].device), x)
    )


@decomposition(aten.fill.Scalar, aten.fill.Tensor)
def fill(builder: Builder, x: Node, value: Any) -> Any:
    meta = x.meta["val"]
    if isinstance(value, Node):
        return builder.emit(aten.clone.default, builder.expand(builder.cast(value, meta.dtype), meta.shape))
    return builder.full(meta.shape, value, meta.dtype, meta.device)


@decomposition(aten.zero.default)
def zero(builder: Builder, x: Node) -> Any:
    meta = x.meta["val"]
    return builder.full(meta.shape, 0, meta.dtype, meta.device)


@decomposition(aten.sgn.default)
def sgn(builder: Builder, x: Node) -> Any:
    return NotImplemented if dtype_of(x).is_complex else builder.emit(aten.sign.default, x)


@decomposition(aten.positive.default)
def positive(builder: Builder, x: Node) -> Any:
    return builder.emit(aten.clone.default, x)


@decomposition(aten.conj_physical.default)
def conj_physical(builder: Builder, x: Node) -> Any:
    return NotImplemented if dtype_of(x).is_complex else positive(builder, x)


@decomposition(aten.nan_to_num.default)
def nan_to_num(builder: Builder, x: Node, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    dtype = dtype_of(x)
    if is_int(dtype):
        return builder.emit(aten.clone.default, x)
    if not is_float(dtype):
        return NotImplemented
    info = torch.finfo(dtype)
    out = builder.where(builder.unary("isnan", x), 0.0 if nan is None else nan, x)
    out = builder.where(builder.compare("eq", x, math.inf), info.max if posinf is None else posinf, out)
    return builder.where(builder.compare("eq", x, -math.inf), info.min if neginf is None else neginf, out)


@decomposition(aten.isinf.default, aten.isnan.default)
def isinf(builder: Builder, x: Node) -> Any:
    meta = x.meta["val"]
    if is_int(meta.dtype):
        return builder.full(meta.shape, False, torch.bool, meta.device)
    return NotImplemented


@decomposition(aten.ceil.default, aten.floor.default, aten.round.default, aten.trunc.default)
def rounding(builder: Builder, x: Node) -> Any:
    return builder.emit(aten.clone.default, x) if is_int(dtype_of(x)) else NotImplemented


@decomposition(aten.logaddexp.default)
def logaddexp(builder: Builder, x: Node, y: Node) -> Any:
    d = result_type([x.meta["val"], y.meta["val"]])
    if not is_float(d):
        return NotImplemented
    up = opmath(d)
    x, y = builder.cast(x, up), builder.cast(y, up)
    top = builder.emit(aten.maximum.default, x, y)
    low = builder.emit(aten.minimum.default, x, y)
    # equal infinities would give inf - inf
    same = builder.emit(aten.logical_and.default, builder.compare("eq", x, y), builder.unary("isinf", x))
    soft = builder.add(top, builder.unary("log1p", builder.unary("exp", builder.sub(low, top))))
    return builder.cast(builder.where(same, x, soft), d)


@decomposition(aten.logit.default)
def logit(builder: Builder, x: Node, eps: float | None = None) -> Any:
    dtype = torch.get_default_dtype() if is_int(dtype_of(x)) else dtype_of(x)
    if not is_float(dtype):
        return NotImplemented
    u = upcast(builder, builder.cast(x, dtype))
    if eps is not None:
        least, most = eps, 1 - eps
        if least <= most:
            u = _clamp(builder, u, least, most)
        else:  # eager asks for the lower bound first
            u = builder.where(
                builder.compare("lt", u, least), least, builder.where(builder.compare("gt", u, most), most, u)
            )
    return builder.cast(builder.unary("log", builder.div(u, builder.sub(1, u))), dtype)


# ---- element-wise losses, unreduced: reduction is applied by `_reduce`
def _reduce(builder: Builder, x: Node, reduction: int) -> Node:
    if reduction == 0:
        return x
    return builder.call(aten.mean.default if reduction == 1 else aten.sum.default, x)


def _loss(fn: Callable) -> Callable:
    def g(builder: Builder, x: Node, y: Node, *args: Any, **kwargs: Any) -> Any:
        d = result_type([x.meta["val"], y.meta["val"]])
        if not is_float(d):
            return NotImplemented
        reduction = kwargs.pop("reduction", None)
        if reduction is None:
            reduction, args = (args[0] if args else 1), args[1:]
        up = opmath(d)
        # kernels round the element-wise loss to the tensor's dtype before it is reduced
        return _reduce(
            builder, builder.cast(fn(builder, builder.cast(x, up), builder.cast(y, up), *args, **kwargs), d), reduction
        )

    return g


@decomposition(aten.mse_loss.default)
@_loss
def mse_loss(builder: Builder, x: Node, y: Node) -> Node:
    d = builder.sub(x, y)
    return builder.mul(d, d)


@decomposition(aten.smooth_l1_loss.default)
@_loss
def smooth_l1_loss(builder: Builder, x: Node, y: Node, beta: float = 1.0) -> Node:
    z = builder.unary("abs", builder.sub(x, y))
    if beta == 0:
        return z
    return builder.where(
        builder.compare("lt", z, beta),
        builder.div(builder.mul(builder.mul(z, 0.5), z), beta),
        builder.sub(z, 0.5 * beta),
    )


@decomposition(aten.huber_loss.default)
@_loss
def huber_loss(builder: Builder, x: Node, y: Node, delta: float = 1.0) -> Node:
    z = builder.unary("abs", builder.sub(x, y))
    return builder.where(
        builder.compare("le", z, delta),
        builder.mul(builder.mul(z, 0.5), z),
        builder.mul(builder.sub(z, 0.5 * delta), delta),
    )


@decomposition(aten.binary_cross_entropy.default)
def binary_cross_entropy(builder: Builder, x: Node, y: Node, weight: Node | None = None, reduction: int = 1) -> Any:
    dtype = dtype_of(x)
    u, t = upcast(builder, x), upcast(builder, y)
    meta = u.meta["val"]
    if meta.device.type == "cpu":  # eager's kernel looks at each element: an index out of range where one is wrong
        right = builder.emit(aten.logical_and.default, builder.compare("ge", u, 0.0), builder.compare("le", u, 1.0))
        wrong = builder.unary("logical_not", right)
        found = builder.emit(aten.any.dim, builder.view(wrong, [numel(meta.shape)]), 0, False)
        builder.emit(
            aten.index.Tensor, builder.full((1,), False, torch.bool, meta.device), [builder.cast(found, torch.int64)]
        )
    floor = builder.full((), -100.0, meta.dtype, meta.device)
    lo = builder.emit(aten.maximum.default, builder.unary("log1p", builder.unary("neg", u)), floor)
    hi = builder.emit(aten.maximum.default, builder.unary("log", u), floor)
    loss = builder.sub(builder.mul(builder.sub(t, 1.0), lo), builder.mul(t, hi))
    loss = builder.cast(loss, dtype)
    if weight is not None:
        loss = builder.mul(loss, builder.cast(weight, dtype))
    return _reduce(builder, loss, reduction)
