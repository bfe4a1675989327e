"""Operators that autograd's formulas call: softmax, losses, norms, views and activations in backward.

Each is written as reductions and element-wise operators over the same tensors, so that fusion reads a gradient and its
activation once for all that is computed of them. They compute in float32 where eager's kernels do.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..meta.core import numel
from ..meta.types import opmath
from .table import Builder, Node, decomposition, dtype_of, has_no_elements, shape_of
from .nn_forms import norms_fit
from .pointwise_forms import upcast

__all__: list[str] = []

aten = torch.ops.aten


def _sum(builder: Builder, x: Node, dims: list[int], keepdim: bool = False) -> Node:
    return builder.emit(aten.sum.dim_IntList, x, dims, keepdim) if dims else x


# ---- softmax and losses over classes
@decomposition(aten._softmax_backward_data.default)
def softmax_backward(builder: Builder, grad: Node, out: Node, dim: int, input_dtype: torch.dtype) -> Any:
    if has_no_elements(out) or not shape_of(out):
        return NotImplemented
    d = dim % len(shape_of(out))
    y, u = upcast(builder, out), upcast(builder, grad)
    gy = builder.mul(u, y)
    return builder.cast(builder.sub(gy, builder.mul(y, _sum(builder, gy, [d], True))), input_dtype)


@decomposition(aten._log_softmax_backward_data.default)
def log_softmax_backward(builder: Builder, grad: Node, out: Node, dim: int, input_dtype: torch.dtype) -> Any:
    if has_no_elements(out) or not shape_of(out):
        return NotImplemented
    d = dim % len(shape_of(out))
    p = builder.unary("exp", upcast(builder, out))
    one = builder.one_hot.get(grad)
    if one is not None and one[0] == d:
        hit, value = one[1], builder.cast(one[2], dtype_of(p))
        pv = builder.mul(p, value)
        return builder.cast(builder.where(hit, builder.sub(value, pv), builder.unary("neg", pv)), input_dtype)
    u = upcast(builder, grad)
    return builder.cast(builder.sub(u, builder.mul(p, _sum(builder, u, [d], True))), input_dtype)


@decomposition(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    builder: Builder,
    grad: Node,
    x: Node,
    target: Node,
    weight: Node | None,
    reduction: int,
    ignore_index: Any,
    total_weight: Node,
) -> Any:
    shape = shape_of(x)
    if has_no_elements(x):
        return NotImplemented
    dtype, c = dtype_of(x), 1 if len(shape) > 1 else 0
    up, device = opmath(dtype), x.meta["val"].device
    value = builder.unary("neg", builder.cast(grad, up))
    if reduction == 1:
        value = builder.div(value, builder.cast(total_weight, up))
    keep = builder.compare("ne", target, ignore_index)
    target = builder.cast(target, torch.int64)
    if weight is not None:
        value = builder.mul(
            value, builder.emit(aten.index.Tensor, builder.cast(weight, up), [builder.where(keep, target, 0)])
        )
    value = builder.where(keep, value, 0.0)
    if shape_of(value) != shape_of(target):
        value = builder.expand(value, shape_of(target))
    # classes are compared as int32, which takes half the room of a vector register
    value, target = (
        builder.emit(aten.unsqueeze.default, value, c),
        builder.emit(aten.unsqueeze.default, builder.cast(target, torch.int32), c),
    )
    classes = builder.iota(shape[c], torch.int32, device)
    if len(shape) > 2:
        classes = builder.unsqueeze(classes, *range(1, len(shape) - 1))
    hit = builder.compare("eq", target, classes)
    r = builder.cast(builder.where(hit, value, 0.0), dtype)
    builder.one_hot[r] = (c, hit, value)
    return r


@decomposition(aten.mse_loss_backward.default)
def mse_loss_backward(builder: Builder, grad: Node, x: Node, target: Node, reduction: int) -> Any:
    u, factor = _of_one_element(builder, grad, x, reduction)
    diff = builder.mul(builder.sub(upcast(builder, x), upcast(builder, target)), 2.0 * factor)
    return builder.cast(builder.mul(diff, u), dtype_of(x))


def _of_one_element(builder: Builder, grad: Node, x: Node, reduction: int) -> tuple[Node, float]:
    """The gradient of a loss, and the factor that its reduction (0 none, 1 mean, 2 sum) gives each element of it."""
    u, n = upcast(builder, grad), numel(shape_of(x)) if reduction == 1 else 1
    return (u, 1.0 / n if n else 1.0) if isinstance(n, int) else (builder.div(u, n), 1.0)


def _clipped_difference(
    builder: Builder, grad: Node, x: Node, target: Node, reduction: int, edge: float, inner: float, outer: float
) -> Node:
    """g times `inner` * (x - target) where that difference is less than `edge`, `outer` with its sign where not."""
    u, factor = _of_one_element(builder, grad, x, reduction)
    diff = builder.sub(upcast(builder, x), upcast(builder, target))
    slope = builder.where(
        builder.compare("le", diff, -edge),
        -outer * factor,
        builder.where(builder.compare("ge", diff, edge), outer * factor, builder.mul(diff, inner * factor)),
    )
    return builder.cast(builder.mul(slope, u), dtype_of(x))


@decomposition(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(builder: Builder, grad: Node, x: Node, target: Node, reduction: int, beta: float) -> Any:
    return _clipped_difference(builder, grad, x, target, reduction, beta, 1.0 / beta, 1.0) if beta else NotImplemented


@decomposition(aten.huber_loss_backward.default)
def huber_loss_backward(builder: Builder, grad: Node, x: Node, target: Node, reduction: int, delta: float) -> Any:
    return _clipped_difference(builder, grad, x, target, reduction, delta, 1.0, delta)


@decomposition(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    builder: Builder, grad: Node, x: Node, target: Node, weight: Node | None = None, reduction: int = 1
) -> Any:
    u, factor = _of_one_element(builder, grad, x, reduction)
    v = upcast(builder, x)
    smallest = builder.full((), 1e-12, dtype_of(v), x.meta["val"].device)
    spread = builder.emit(aten.maximum.default, builder.mul(builder.add(builder.unary("neg", v), 1.0), v), smallest)
    r = builder.div(builder.mul(u, builder.sub(v, upcast(builder, target))), spread)
    if weight is not None:
        r = builder.mul(r, upcast(builder, weight))
    return builder.cast(builder.mul(r, factor), dtype_of(x))


# ---- normalisation
@decomposition(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    builder: Builder,
    grad: Node,
    x: Node,
    normalized_shape: Any,
    mean: Node,
    rstd: Node,
    weight: Node | None,
    bias: Node | None,
    mask: Any,
) -> Any:
    if has_no_elements(x):
        return NotImplemented
    ndim, k = len(shape_of(x)), len(normalized_shape)
    inner, outer = list(range(ndim - k, ndim)), list(range(ndim - k))
    size = numel([shape_of(x)[axis] for axis in inner])
    if not isinstance(size, int):
        return NotImplemented
    u, v = upcast(builder, grad), upcast(builder, x)
    up = dtype_of(v)
    rstd = builder.cast(rstd, up)
    xhat = builder.mul(builder.sub(v, builder.cast(mean, up)), rstd)
    dx = dw = db = None
    if mask[0]:
        gw = u if weight is None else builder.mul(u, builder.cast(weight, up))
        a, c = _sum(builder, gw, inner, True), _sum(builder, builder.mul(gw, xhat), inner, True)
        dx = builder.cast(
            builder.mul(
                builder.mul(builder.sub(builder.sub(builder.mul(gw, float(size)), a), builder.mul(xhat, c)), rstd),
                1.0 / size,
            ),
            dtype_of(x),
        )
    if mask[1] and weight is not None:
        dw = builder.cast(_sum(builder, builder.mul(u, xhat), outer), dtype_of(weight))
    if mask[2] and bias is not None:
        db = builder.cast(_sum(builder, u, outer), dtype_of(bias))
    return dx, dw, db


@decomposition(aten._fused_rms_norm_backward.default)
def rms_norm_backward(
    builder: Builder, grad: Node, x: Node, normalized_shape: Any, rstd: Node, weight: Node | None, mask: Any
) -> Any:
    if has_no_elements(x):
        return NotImplemented
    ndim, k = len(shape_of(x)), len(normalized_shape)
    inner, outer = list(range(ndim - k, ndim)), list(range(ndim - k))
    u, v = upcast(builder, grad), upcast(builder, x)
    up = dtype_of(v)
    rstd = builder.cast(rstd, up)
    xhat = builder.mul(v, rstd)
    dx = dw = None
    if mask[0]:
        gw = u if weight is None else builder.mul(u, builder.cast(weight, up))
        along = builder.div(
            _sum(builder, builder.mul(gw, xhat), inner, True), numel([shape_of(x)[axis] for axis in inner])
        )
        dx = builder.cast(builder.mul(builder.sub(gw, builder.mul(xhat, along)), rstd), dtype_of(x))
    if mask[1] and weight is not None:
        dw = builder.cast(_sum(builder, builder.mul(u, xhat), outer), dtype_of(weight))
    return dx, dw


@decomposition(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    builder: Builder,
    grad: Node,
    x: Node,
    weight: Node | None,
    running_mean: Node | None,
    running_var: Node | None,
    save_mean: Node | None,
    save_invstd: Node | None,
    train: bool,
    eps: float,
    mask: Any,
) -> Any:
    if has_no_elements(x):
        return NotImplemented
    shape = shape_of(x)
    dims = [0, *range(2, len(shape))]
    count = numel([shape[dim] for dim in dims])
    u, v = upcast(builder, grad), upcast(builder, x)
    up = dtype_of(v)

    def channels(t: Node) -> Node:
        t = builder.cast(t, up)
        return builder.unsqueeze(t, *range(1, len(shape) - 1)) if len(shape) > 2 else t

    def averaged(t: Node) -> Node:
        return builder.mul(t, 1.0 / count) if isinstance(count, int) else builder.div(t, count)

    mean = builder.cast(save_mean if train else running_mean, up)
    invstd = (
        builder.cast(save_invstd, up)
        if train
        else builder.unary("rsqrt", builder.add(builder.cast(running_var, up), eps))
    )
    centred = builder.sub(v, channels(mean))
    total, dot = _sum(builder, u, dims), _sum(builder, builder.mul(u, centred), dims)
    dx = dw = db = None
    scale = invstd if weight is None else builder.mul(invstd, builder.cast(weight, up))
    stat = dtype_of(weight) if weight is not None else dtype_of(x)
    if mask[0] and train:
        k = builder.mul(averaged(dot), builder.mul(invstd, invstd))
        dx = builder.mul(
            builder.sub(builder.sub(u, channels(averaged(total))), builder.mul(centred, channels(k))), channels(scale)
        )
        dx = builder.cast(dx, dtype_of(x))
    elif mask[0]:
        dx = builder.cast(builder.mul(u, channels(scale)), dtype_of(x))
    if mask[1]:
        dw = builder.cast(builder.mul(dot, invstd), stat)
    if mask[2]:
        db = builder.cast(total, stat)
    return dx, dw, db


@decomposition(aten.native_group_norm_backward.default)
def group_norm_backward(
    builder: Builder,
    grad: Node,
    x: Node,
    mean: Node,
    rstd: Node,
    weight: Node | None,
    n: Any,
    c: Any,
    hxw: Any,
    group: int,
    mask: Any,
) -> Any:
    if has_no_elements(x) or not all(isinstance(s, int) for s in (c, hxw)):
        return NotImplemented
    per = c // group
    size = per * hxw
    u, view = (
        builder.view(upcast(builder, grad), [n, group, per, hxw]),
        builder.view(upcast(builder, x), [n, group, per, hxw]),
    )
    up = dtype_of(view)
    m, r = (builder.unsqueeze(builder.cast(builder.view(t, [n, group]), up), 2, 3) for t in (mean, rstd))
    xhat = builder.mul(builder.sub(view, m), r)
    dx = dw = db = None
    if mask[0]:
        gw = u if weight is None else builder.mul(u, builder.cast(builder.view(weight, [1, group, per, 1]), up))
        a, d = _sum(builder, gw, [2, 3], True), _sum(builder, builder.mul(gw, xhat), [2, 3], True)
        dx = builder.mul(
            builder.mul(builder.sub(builder.sub(builder.mul(gw, float(size)), a), builder.mul(xhat, d)), r), 1.0 / size
        )
        dx = builder.cast(builder.view(dx, shape_of(x)), dtype_of(x))
    if mask[1]:
        dw = builder.cast(builder.view(_sum(builder, builder.mul(u, xhat), [0, 3]), [c]), dtype_of(x))
    if mask[2]:
        db = builder.cast(builder.view(_sum(builder, u, [0, 3]), [c]), dtype_of(x))
    return dx, dw, db


# ---- views: zeros with the gradient in the place that the view shows
@decomposition(aten.slice_backward.default)
def slice_backward(builder: Builder, grad: Node, sizes: Any, dim: int, start: Any, end: Any, step: int) -> Any:
    meta = grad.meta["val"]
    return builder.call(
        aten.slice_scatter.default, builder.full(sizes, 0, meta.dtype, meta.device), grad, dim, start, end, step
    )


@decomposition(aten.select_backward.default)
def select_backward(builder: Builder, grad: Node, sizes: Any, dim: int, index: Any) -> Any:
    meta = grad.meta["val"]
    return builder.call(aten.select_scatter.default, builder.full(sizes, 0, meta.dtype, meta.device), grad, dim, index)


@decomposition(aten.diagonal_backward.default)
def diagonal_backward(builder: Builder, grad: Node, sizes: Any, offset: int, dim1: int, dim2: int) -> Any:
    meta = grad.meta["val"]
    zeros = builder.full(sizes, 0, meta.dtype, meta.device)
    return builder.call(aten.diagonal_scatter.default, zeros, grad, offset, dim1, dim2)


# ---- activations
@decomposition(aten.leaky_relu_backward.default)
def leaky_relu_backward(builder: Builder, grad: Node, x: Node, slope: float, self_is_result: bool) -> Any:
    u = upcast(builder, grad)
    return builder.cast(
        builder.where(builder.compare("gt", upcast(builder, x), 0.0), u, builder.mul(u, slope)), dtype_of(x)
    )


@decomposition(aten.hardtanh_backward.default)
def hardtanh_backward(builder: Builder, grad: Node, x: Node, low: float, high: float) -> Any:
    u, v = upcast(builder, grad), upcast(builder, x)
    inner = builder.where(builder.compare("ge", v, high), 0.0, u)
    return builder.cast(builder.where(builder.compare("le", v, low), 0.0, inner), dtype_of(x))


@decomposition(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(builder: Builder, grad: Node, x: Node) -> Any:
    u, v = upcast(builder, grad), upcast(builder, x)
    inner = builder.where(builder.compare("lt", v, 3.0), builder.mul(u, 1.0 / 6.0), 0.0)
    return builder.cast(builder.where(builder.compare("gt", v, -3.0), inner, 0.0), dtype_of(x))


@decomposition(aten.hardswish_backward.default)
def hardswish_backward(builder: Builder, grad: Node, x: Node) -> Any:
    u, v = upcast(builder, grad), upcast(builder, x)
    inner = builder.where(builder.compare("lt", v, 3.0), builder.mul(u, builder.add(builder.div(v, 3.0), 0.5)), u)
    return builder.cast(builder.where(builder.compare("le", v, -3.0), 0.0, inner), dtype_of(x))


@decomposition(aten.elu_backward.default)
def elu_backward(
    builder: Builder, grad: Node, alpha: float, scale: float, input_scale: float, is_result: bool, x: Node
) -> Any:
    u, v = upcast(builder, grad), upcast(builder, x)
    negative = alpha * scale
    if is_result:
        low = builder.mul(builder.mul(u, input_scale), builder.add(v, negative))
    else:
        low = builder.mul(builder.mul(u, input_scale * negative), builder.unary("exp", builder.mul(v, input_scale)))
    return builder.cast(builder.where(builder.compare("le", v, 0.0), low, builder.mul(u, scale)), dtype_of(x))


@decomposition(aten.softplus_backward.default)
def softplus_backward(builder: Builder, grad: Node, x: Node, beta: float, threshold: float) -> Any:
    u, v = upcast(builder, grad), builder.mul(upcast(builder, x), beta)
    z = builder.unary("exp", v)
    return builder.cast(
        builder.where(builder.compare("gt", v, threshold), u, builder.div(builder.mul(u, z), builder.add(z, 1.0))),
        dtype_of(x),
    )


@decomposition(aten.mish_backward.default)
def mish_backward(builder: Builder, grad: Node, x: Node) -> Any:
    u, v = upcast(builder, grad), upcast(builder, x)
    s = builder.unary("sigmoid", v)
    t = builder.unary("tanh", builder.unary("log1p", builder.unary("exp", v)))
    return builder.cast(
        builder.mul(
            u,
            builder.add(
                t,
                builder.mul(
                    builder.mul(v, s),
                    builder.sub(builder.full((), 1.0, dtype_of(v), v.meta["val"].device), builder.mul(t, t)),
                ),
            ),
        ),
        dtype_of(x),
    )


@decomposition(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(builder: Builder, grad: Node, x: Node, buffer: Node) -> Any:
    u, v = upcast(builder, grad), upcast(builder, x)
    z = builder.unary("exp", builder.unary("neg", builder.unary("abs", v)))
    part = builder.div(z, builder.add(z, 1.0))
    return builder.cast(
        builder.mul(
            u, builder.where(builder.compare("lt", v, 0.0), builder.add(builder.unary("neg", part), 1.0), part)
        ),
        dtype_of(x),
    )


@decomposition(aten.logit_backward.default)
def logit_backward(builder: Builder, grad: Node, x: Node, eps: float | None = None) -> Any:
    u, v = upcast(builder, grad), upcast(builder, x)
    bounded = eps is not None and eps >= 0
    outside, low = (0.0 if bounded else math.nan), torch.tensor(eps if bounded else 0.0, dtype=dtype_of(x))
    below = builder.compare("lt", v, low.item())
    above = builder.compare("gt", v, (1 - low).item())  # (as eager rounds them)
    slope = builder.div(u, builder.mul(v, builder.sub(1.0, v)))
    return builder.cast(builder.where(below, outside, builder.where(above, outside, slope)), dtype_of(x))


@decomposition(aten.glu_backward.default)
def glu_backward(builder: Builder, grad: Node, x: Node, dim: int) -> Any:
    d = dim % len(shape_of(x))
    half = shape_of(x)[d] // 2
    u, low, high = (
        upcast(builder, grad),
        *(upcast(builder, builder.emit(aten.slice.Tensor, x, d, k * half, (k + 1) * half, 1)) for k in (0, 1)),
    )
    s = builder.unary("sigmoid", high)
    us = builder.mul(u, s)
    parts = [us, builder.mul(builder.mul(us, builder.add(builder.unary("neg", s), 1.0)), low)]
    return builder.emit(aten.cat.default, [builder.cast(part, dtype_of(x)) for part in parts], d)


@decomposition(aten._prelu_kernel_backward.default)
def prelu_backward(builder: Builder, grad: Node, x: Node, weight: Node) -> Any:
    u, v = upcast(builder, grad), upcast(builder, x)
    above = builder.compare("gt", v, 0.0)
    return (
        builder.cast(builder.where(above, u, builder.mul(u, upcast(builder, weight))), dtype_of(x)),
        builder.cast(builder.where(above, 0.0, builder.mul(u, v)), dtype_of(x)),
    )


@decomposition(aten._weight_norm_interface_backward.default)
def weight_norm_backward(builder: Builder, grad: Node, v: Node, g: Node, norms: Node, dim: int) -> Any:
    dims = norms_fit(v, g, dim)
    if dims is None or shape_of(norms) != shape_of(g):
        return NotImplemented
    kept = dtype_of(norms)
    up, direction, magnitude = builder.cast(grad, kept), builder.cast(v, kept), builder.cast(g, kept)
    along = _sum(builder, builder.mul(up, direction), dims, True)
    across = builder.sub(up, builder.mul(direction, builder.div(along, builder.mul(norms, norms))))
    return builder.cast(builder.mul(builder.div(magnitude, norms), across), dtype_of(v)), builder.cast(
        builder.div(along, norms), dtype_of(g)
    )
