"""Operators that autograd's formulas call: softmax, losses, norms, views and activations in backward.

Each is written as reductions and element-wise operators over the same tensors, so that fusion reads a gradient and its
activation once for all that is computed of them. They compute in float32 where eager's kernels do.
"""

from __future__ import annotations

from typing import Any

import torch

from ..meta.core import numel
from ..meta.types import opmath
from .table import Builder, Node, decomposition, dtype_of, has_no_elements, shape_of
from .nn_forms import norms_fit
from .pointwise_forms import upcast

__all__: list[str] = []

aten = torch.ops.aten


def _sum(b: Builder, x: Node, dims: list[int], keepdim: bool = False) -> Node:
    return b.emit(aten.sum.dim_IntList, x, dims, keepdim) if dims else x


# ---- softmax and losses over classes
@decomposition(aten._softmax_backward_data.default)
def softmax_backward(b: Builder, g: Node, out: Node, dim: int, input_dtype: torch.dtype) -> Any:
    if has_no_elements(out) or not shape_of(out):
        return NotImplemented
    d = dim % len(shape_of(out))
    y, u = upcast(b, out), upcast(b, g)
    gy = b.mul(u, y)
    return b.cast(b.sub(gy, b.mul(y, _sum(b, gy, [d], True))), input_dtype)


@decomposition(aten._log_softmax_backward_data.default)
def log_softmax_backward(b: Builder, g: Node, out: Node, dim: int, input_dtype: torch.dtype) -> Any:
    if has_no_elements(out) or not shape_of(out):
        return NotImplemented
    d = dim % len(shape_of(out))
    p = b.unary("exp", upcast(b, out))
    one = g.meta.get("one_hot")  # of nll_loss_backward: one element in a row is not zero
    if one is not None and one[0] == d:
        hit, value = one[1], b.cast(one[2], dtype_of(p))
        pv = b.mul(p, value)
        return b.cast(b.where(hit, b.sub(value, pv), b.unary("neg", pv)), input_dtype)
    u = upcast(b, g)
    return b.cast(b.sub(u, b.mul(p, _sum(b, u, [d], True))), input_dtype)


@decomposition(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: Builder,
    g: Node,
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
    d, c = dtype_of(x), 1 if len(shape) > 1 else 0
    up, device = opmath(d), x.meta["val"].device
    value = b.unary("neg", b.cast(g, up))
    if reduction == 1:
        value = b.div(value, b.cast(total_weight, up))
    keep = b.compare("ne", target, ignore_index)
    target = b.cast(target, torch.int64)
    if weight is not None:
        value = b.mul(value, b.emit(aten.index.Tensor, b.cast(weight, up), [b.where(keep, target, 0)]))
    value = b.where(keep, value, 0.0)
    if shape_of(value) != shape_of(target):
        value = b.expand(value, shape_of(target))
    # classes are compared as int32, which takes half the room of a vector register
    value, target = (
        b.emit(aten.unsqueeze.default, value, c),
        b.emit(aten.unsqueeze.default, b.cast(target, torch.int32), c),
    )
    classes = b.iota(shape[c], torch.int32, device)
    if len(shape) > 2:
        classes = b.unsqueeze(classes, *range(1, len(shape) - 1))
    hit = b.compare("eq", target, classes)
    r = b.cast(b.where(hit, value, 0.0), d)
    r.meta["one_hot"] = (c, hit, value)
    return r


@decomposition(aten.mse_loss_backward.default)
def mse_loss_backward(b: Builder, g: Node, x: Node, target: Node, reduction: int) -> Any:
    u, factor = _of_one_element(b, g, x, reduction)
    diff = b.mul(b.sub(upcast(b, x), upcast(b, target)), 2.0 * factor)
    return b.cast(b.mul(diff, u), dtype_of(x))


def _of_one_element(b: Builder, g: Node, x: Node, reduction: int) -> tuple[Node, float]:
    """The gradient of a loss, and the factor that its reduction (0 none, 1 mean, 2 sum) gives each element of it."""
    u, n = upcast(b, g), numel(shape_of(x)) if reduction == 1 else 1
    return (u, 1.0 / n if n else 1.0) if isinstance(n, int) else (b.div(u, n), 1.0)


def _clipped_difference(
    b: Builder, g: Node, x: Node, target: Node, reduction: int, edge: float, inner: float, outer: float
) -> Node:
    """g times `inner` * (x - target) where that difference is less than `edge`, `outer` with its sign where not."""
    u, factor = _of_one_element(b, g, x, reduction)
    diff = b.sub(upcast(b, x), upcast(b, target))
    slope = b.where(
        b.compare("le", diff, -edge),
        -outer * factor,
        b.where(b.compare("ge", diff, edge), outer * factor, b.mul(diff, inner * factor)),
    )
    return b.cast(b.mul(slope, u), dtype_of(x))


@decomposition(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(b: Builder, g: Node, x: Node, target: Node, reduction: int, beta: float) -> Any:
    return _clipped_difference(b, g, x, target, reduction, beta, 1.0 / beta, 1.0) if beta else NotImplemented


@decomposition(aten.huber_loss_backward.default)
def huber_loss_backward(b: Builder, g: Node, x: Node, target: Node, reduction: int, delta: float) -> Any:
    return _clipped_difference(b, g, x, target, reduction, delta, 1.0, delta)


@decomposition(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    b: Builder, g: Node, x: Node, target: Node, weight: Node | None = None, reduction: int = 1
) -> Any:
    u, factor = _of_one_element(b, g, x, reduction)
    v = upcast(b, x)
    smallest = b.full((), 1e-12, dtype_of(v), x.meta["val"].device)
    spread = b.emit(aten.maximum.default, b.mul(b.add(b.unary("neg", v), 1.0), v), smallest)
    r = b.div(b.mul(u, b.sub(v, upcast(b, target))), spread)
    if weight is not None:
        r = b.mul(r, upcast(b, weight))
    return b.cast(b.mul(r, factor), dtype_of(x))


# ---- normalisation
@decomposition(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    b: Builder,
    g: Node,
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
    n, k = len(shape_of(x)), len(normalized_shape)
    inner, outer = list(range(n - k, n)), list(range(n - k))
    size = numel([shape_of(x)[d] for d in inner])
    if not isinstance(size, int):
        return NotImplemented
    u, v = upcast(b, g), upcast(b, x)
    up = dtype_of(v)
    rstd = b.cast(rstd, up)
    xhat = b.mul(b.sub(v, b.cast(mean, up)), rstd)
    dx = dw = db = None
    if mask[0]:
        gw = u if weight is None else b.mul(u, b.cast(weight, up))
        a, c = _sum(b, gw, inner, True), _sum(b, b.mul(gw, xhat), inner, True)
        dx = b.cast(
            b.mul(b.mul(b.sub(b.sub(b.mul(gw, float(size)), a), b.mul(xhat, c)), rstd), 1.0 / size), dtype_of(x)
        )
    if mask[1] and weight is not None:
        dw = b.cast(_sum(b, b.mul(u, xhat), outer), dtype_of(weight))
    if mask[2] and bias is not None:
        db = b.cast(_sum(b, u, outer), dtype_of(bias))
    return dx, dw, db


@decomposition(aten._fused_rms_norm_backward.default)
def rms_norm_backward(
    b: Builder, g: Node, x: Node, normalized_shape: Any, rstd: Node, weight: Node | None, mask: Any
) -> Any:
    if has_no_elements(x):
        return NotImplemented
    n, k = len(shape_of(x)), len(normalized_shape)
    inner, outer = list(range(n - k, n)), list(range(n - k))
    u, v = upcast(b, g), upcast(b, x)
    up = dtype_of(v)
    rstd = b.cast(rstd, up)
    xhat = b.mul(v, rstd)
    dx = dw = None
    if mask[0]:
        gw = u if weight is None else b.mul(u, b.cast(weight, up))
        along = b.div(_sum(b, b.mul(gw, xhat), inner, True), numel([shape_of(x)[d] for d in inner]))
        dx = b.cast(b.mul(b.sub(gw, b.mul(xhat, along)), rstd), dtype_of(x))
    if mask[1] and weight is not None:
        dw = b.cast(_sum(b, b.mul(u, xhat), outer), dtype_of(weight))
    return dx, dw


@decomposition(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    b: Builder,
    g: Node,
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
    count = numel([shape[d] for d in dims])
    u, v = upcast(b, g), upcast(b, x)
    up = dtype_of(v)

    def channels(t: Node) -> Node:
        t = b.cast(t, up)
        return b.unsqueeze(t, *range(1, len(shape) - 1)) if len(shape) > 2 else t

    def averaged(t: Node) -> Node:
        return b.mul(t, 1.0 / count) if isinstance(count, int) else b.div(t, count)

    mean = b.cast(save_mean if train else running_mean, up)
    invstd = b.cast(save_invstd, up) if train else b.unary("rsqrt", b.add(b.cast(running_var, up), eps))
    centred = b.sub(v, channels(mean))
    total, dot = _sum(b, u, dims), _sum(b, b.mul(u, centred), dims)
    dx = dw = db = None
    scale = invstd if weight is None else b.mul(invstd, b.cast(weight, up))
    stat = dtype_of(weight) if weight is not None else dtype_of(x)
    if mask[0] and train:
        k = b.mul(averaged(dot), b.mul(invstd, invstd))
        dx = b.mul(b.sub(b.sub(u, channels(averaged(total))), b.mul(centred, channels(k))), channels(scale))
        dx = b.cast(dx, dtype_of(x))
    elif mask[0]:
        dx = b.cast(b.mul(u, channels(scale)), dtype_of(x))
    if mask[1]:
        dw = b.cast(b.mul(dot, invstd), stat)
    if mask[2]:
        db = b.cast(total, stat)
    return dx, dw, db


@decomposition(aten.native_group_norm_backward.default)
def group_norm_backward(
    b: Builder,
    g: Node,
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
    u, v = b.view(upcast(b, g), [n, group, per, hxw]), b.view(upcast(b, x), [n, group, per, hxw])
    up = dtype_of(v)
    m, r = (b.unsqueeze(b.cast(b.view(t, [n, group]), up), 2, 3) for t in (mean, rstd))
    xhat = b.mul(b.sub(v, m), r)
    dx = dw = db = None
    if mask[0]:
        gw = u if weight is None else b.mul(u, b.cast(b.view(weight, [1, group, per, 1]), up))
        a, d = _sum(b, gw, [2, 3], True), _sum(b, b.mul(gw, xhat), [2, 3], True)
        dx = b.mul(b.mul(b.sub(b.sub(b.mul(gw, float(size)), a), b.mul(xhat, d)), r), 1.0 / size)
        dx = b.cast(b.view(dx, shape_of(x)), dtype_of(x))
    if mask[1]:
        dw = b.cast(b.view(_sum(b, b.mul(u, xhat), [0, 3]), [c]), dtype_of(x))
    if mask[2]:
        db = b.cast(b.view(_sum(b, u, [0, 3]), [c]), dtype_of(x))
    return dx, dw, db


# ---- views: zeros with the gradient in the place that the view shows
@decomposition(aten.slice_backward.default)
def slice_backward(b: Builder, g: Node, sizes: Any, dim: int, start: Any, end: Any, step: int) -> Any:
    m = g.meta["val"]
    return b.call(aten.slice_scatter.default, b.full(sizes, 0, m.dtype, m.device), g, dim, start, end, step)


@decomposition(aten.select_backward.default)
def select_backward(b: Builder, g: Node, sizes: Any, dim: int, index: Any) -> Any:
    m = g.meta["val"]
    return b.call(aten.select_scatter.default, b.full(sizes, 0, m.dtype, m.device), g, dim, index)


# ---- activations
@decomposition(aten.leaky_relu_backward.default)
def leaky_relu_backward(b: Builder, g: Node, x: Node, slope: float, self_is_result: bool) -> Any:
    u = upcast(b, g)
    return b.cast(b.where(b.compare("gt", upcast(b, x), 0.0), u, b.mul(u, slope)), dtype_of(x))


@decomposition(aten.hardtanh_backward.default)
def hardtanh_backward(b: Builder, g: Node, x: Node, low: float, high: float) -> Any:
    u, v = upcast(b, g), upcast(b, x)
    inner = b.where(b.compare("ge", v, high), 0.0, u)
    return b.cast(b.where(b.compare("le", v, low), 0.0, inner), dtype_of(x))


@decomposition(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(b: Builder, g: Node, x: Node) -> Any:
    u, v = upcast(b, g), upcast(b, x)
    inner = b.where(b.compare("lt", v, 3.0), b.mul(u, 1.0 / 6.0), 0.0)
    return b.cast(b.where(b.compare("gt", v, -3.0), inner, 0.0), dtype_of(x))


@decomposition(aten.hardswish_backward.default)
def hardswish_backward(b: Builder, g: Node, x: Node) -> Any:
    u, v = upcast(b, g), upcast(b, x)
    inner = b.where(b.compare("lt", v, 3.0), b.mul(u, b.add(b.div(v, 3.0), 0.5)), u)
    return b.cast(b.where(b.compare("le", v, -3.0), 0.0, inner), dtype_of(x))


@decomposition(aten.elu_backward.default)
def elu_backward(b: Builder, g: Node, alpha: float, scale: float, input_scale: float, is_result: bool, x: Node) -> Any:
    u, v = upcast(b, g), upcast(b, x)
    negative = alpha * scale
    if is_result:
        low = b.mul(b.mul(u, input_scale), b.add(v, negative))
    else:
        low = b.mul(b.mul(u, input_scale * negative), b.unary("exp", b.mul(v, input_scale)))
    return b.cast(b.where(b.compare("le", v, 0.0), low, b.mul(u, scale)), dtype_of(x))


@decomposition(aten.softplus_backward.default)
def softplus_backward(b: Builder, g: Node, x: Node, beta: float, threshold: float) -> Any:
    u, v = upcast(b, g), b.mul(upcast(b, x), beta)
    z = b.unary("exp", v)
    return b.cast(b.where(b.compare("gt", v, threshold), u, b.div(b.mul(u, z), b.add(z, 1.0))), dtype_of(x))


@decomposition(aten.mish_backward.default)
def mish_backward(b: Builder, g: Node, x: Node) -> Any:
    u, v = upcast(b, g), upcast(b, x)
    s = b.unary("sigmoid", v)
    t = b.unary("tanh", b.unary("log1p", b.unary("exp", v)))
    return b.cast(
        b.mul(u, b.add(t, b.mul(b.mul(v, s), b.sub(b.full((), 1.0, dtype_of(v), v.meta["val"].device), b.mul(t, t))))),
        dtype_of(x),
    )


@decomposition(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(b: Builder, g: Node, x: Node, buffer: Node) -> Any:
    u, v = upcast(b, g), upcast(b, x)
    z = b.unary("exp", b.unary("neg", b.unary("abs", v)))
    part = b.div(z, b.add(z, 1.0))
    return b.cast(b.mul(u, b.where(b.compare("lt", v, 0.0), b.add(b.unary("neg", part), 1.0), part)), dtype_of(x))


@decomposition(aten.glu_backward.default)
def glu_backward(b: Builder, g: Node, x: Node, dim: int) -> Any:
    d = dim % len(shape_of(x))
    half = shape_of(x)[d] // 2
    u, low, high = (
        upcast(b, g),
        *(upcast(b, b.emit(aten.slice.Tensor, x, d, k * half, (k + 1) * half, 1)) for k in (0, 1)),
    )
    s = b.unary("sigmoid", high)
    us = b.mul(u, s)
    parts = [us, b.mul(b.mul(us, b.add(b.unary("neg", s), 1.0)), low)]
    return b.emit(aten.cat.default, [b.cast(t, dtype_of(x)) for t in parts], d)


@decomposition(aten._prelu_kernel_backward.default)
def prelu_backward(b: Builder, g: Node, x: Node, weight: Node) -> Any:
    u, v = upcast(b, g), upcast(b, x)
    above = b.compare("gt", v, 0.0)
    return (
        b.cast(b.where(above, u, b.mul(u, upcast(b, weight))), dtype_of(x)),
        b.cast(b.where(above, 0.0, b.mul(u, v)), dtype_of(x)),
    )


@decomposition(aten._weight_norm_interface_backward.default)
def weight_norm_backward(b: Builder, grad: Node, v: Node, g: Node, norms: Node, dim: int) -> Any:
    dims = norms_fit(v, g, dim)
    if dims is None or shape_of(norms) != shape_of(g):
        return NotImplemented
    kept = dtype_of(norms)
    up, direction, magnitude = b.cast(grad, kept), b.cast(v, kept), b.cast(g, kept)
    along = _sum(b, b.mul(up, direction), dims, True)
    across = b.sub(up, b.mul(direction, b.div(along, b.mul(norms, norms))))
    return b.cast(b.mul(b.div(magnitude, norms), across), dtype_of(v)), b.cast(b.div(along, norms), dtype_of(g))
