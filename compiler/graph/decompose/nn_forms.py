"""Normalisation, losses over classes, dropout in inference."""

from __future__ import annotations

from typing import Any

import torch

from ..meta.core import numel
from ..meta.nn_meta import norm_dtype
from ..meta.types import opmath
from .table import Builder, Node, decomposition, dtype_of, has_no_elements, shape_of
from .pointwise_forms import upcast

__all__: list[str] = []

aten = torch.ops.aten


@decomposition(aten.native_layer_norm.default)
def native_layer_norm(
    builder: Builder, x: Node, normalized_shape: Any, weight: Node | None, bias: Node | None, eps: float
) -> Any:
    ndim = len(shape_of(x))
    dims = list(range(ndim - len(normalized_shape), ndim))
    u = upcast(builder, x)
    r = builder.emit(aten.var_mean.correction, u, dims, correction=0, keepdim=True)
    var, mean = builder.item(r, 0), builder.item(r, 1)
    rstd = builder.unary("rsqrt", builder.add(var, eps))
    y = builder.mul(builder.sub(u, mean), rstd)
    y = _affine(builder, y, weight, bias)
    stat = builder.meta(aten.native_layer_norm.default, (x, list(normalized_shape), weight, bias, eps), {})[1].dtype
    return builder.cast(y, dtype_of(x)), builder.cast(mean, stat), builder.cast(rstd, stat)


def _affine(builder: Builder, y: Node, weight: Node | None, bias: Node | None) -> Node:
    dtype = dtype_of(y)
    if weight is not None:
        y = builder.mul(y, builder.cast(weight, dtype))
    if bias is not None:
        y = builder.add(y, builder.cast(bias, dtype))
    return y


@decomposition(aten._fused_rms_norm.default)
def fused_rms_norm(builder: Builder, x: Node, normalized_shape: Any, weight: Node | None, eps: float | None) -> Any:
    ndim = len(shape_of(x))
    dims = list(range(ndim - len(normalized_shape), ndim))
    u = upcast(builder, x)
    if eps is None:
        eps = torch.finfo(dtype_of(x)).eps
    ms = builder.div(
        builder.emit(aten.sum.dim_IntList, builder.mul(u, u), dims, True), numel([shape_of(x)[dim] for dim in dims])
    )
    rstd = builder.unary("rsqrt", builder.add(ms, eps))
    y = builder.mul(u, rstd)
    return builder.cast(_affine(builder, y, weight, None), dtype_of(x)), rstd


@decomposition(aten.native_group_norm.default)
def native_group_norm(
    builder: Builder, x: Node, weight: Node | None, bias: Node | None, n: Any, c: Any, hxw: Any, group: int, eps: float
) -> Any:
    per, spatial = c // group, list(shape_of(x)[2:])
    u = upcast(builder, x)
    ones = [1] * len(spatial)
    # (channels are parted and nothing is flattened: whatever order the memory has, it is read in that order)
    r = builder.emit(
        aten.var_mean.correction,
        builder.view(u, [n, group, per, *spatial]),
        list(range(2, 3 + len(spatial))),
        correction=0,
        keepdim=True,
    )
    var, mean = builder.item(r, 0), builder.item(r, 1)
    rstd = builder.unary("rsqrt", builder.add(var, eps))

    def channels(t: Node) -> Node:
        return builder.view(builder.expand(t, [n, group, per, *ones]), [n, c, *ones])

    y = builder.mul(builder.sub(u, channels(mean)), channels(rstd))
    spread = [1, c, *ones]
    y = _affine(
        builder,
        y,
        None if weight is None else builder.view(weight, spread),
        None if bias is None else builder.view(bias, spread),
    )
    stat = builder.meta(aten.native_group_norm.default, (x, weight, bias, n, c, hxw, group, eps), {})[1].dtype
    return (
        builder.cast(y, dtype_of(x)),
        builder.cast(builder.view(mean, [n, group]), stat),
        builder.cast(builder.view(rstd, [n, group]), stat),
    )


def _channels(builder: Builder, v: Node, ndim: int, dtype: torch.dtype) -> Node:
    """A per-channel vector as [1, C, 1, ...]."""
    v = builder.cast(v, dtype)
    return builder.unsqueeze(v, *range(1, ndim - 1)) if ndim > 2 else v


def _normalise(builder: Builder, x: Node, mean: Node, invstd: Node, weight: Node | None, bias: Node | None) -> Node:
    """As eager's inference kernel: x * alpha + beta with alpha = weight * invstd, beta = bias - mean * alpha."""
    ndim, up = len(shape_of(x)), opmath(dtype_of(x))
    alpha = invstd if weight is None else builder.mul(invstd, builder.cast(weight, up))
    shift = builder.mul(mean, alpha)
    beta = builder.unary("neg", shift) if bias is None else builder.sub(builder.cast(bias, up), shift)
    y = builder.add(
        builder.mul(builder.cast(x, up), _channels(builder, alpha, ndim, up)), _channels(builder, beta, ndim, up)
    )
    return builder.cast(y, dtype_of(x))


def _batch_norm(
    builder: Builder,
    op: Any,
    x: Node,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    args: tuple,
) -> tuple:
    """(out, save_mean, save_invstd, new running_mean, new running_var)."""
    up = opmath(dtype_of(x))
    metas = builder.meta(op, args, {})
    stat = metas[1].dtype
    device = x.meta["val"].device
    if not training:
        invstd = builder.unary("rsqrt", builder.add(builder.cast(running_var, up), eps))
        out = _normalise(builder, x, builder.cast(running_mean, up), invstd, weight, bias)
        empty = builder.full((0,), 0, stat, device)
        return out, empty, builder.full((0,), 0, stat, device), running_mean, running_var
    shape = shape_of(x)
    dims = [0, *range(2, len(shape))]
    u = upcast(builder, x)
    r = builder.emit(aten.var_mean.correction, u, dims, correction=0, keepdim=False)
    var, mean = builder.item(r, 0), builder.item(r, 1)
    invstd = builder.unary("rsqrt", builder.add(var, eps))
    out = _normalise(builder, x, mean, invstd, weight, bias)
    new_mean, new_var = running_mean, running_var
    if running_mean is not None:
        n = numel([shape[dim] for dim in dims])
        # the running variance takes the unbiased estimate
        unbiased = (
            builder.mul(builder.div(var, n - 1), n) if not isinstance(n, int) else builder.mul(var, n / max(n - 1, 1))
        )
        new_mean = _blend(builder, running_mean, mean, momentum)
        new_var = _blend(builder, running_var, unbiased, momentum)
    return out, builder.cast(mean, stat), builder.cast(invstd, stat), new_mean, new_var


def _blend(builder: Builder, old: Node, new: Node, momentum: float) -> Node:
    up = dtype_of(new)
    return builder.cast(
        builder.add(builder.mul(new, momentum), builder.mul(builder.cast(old, up), 1 - momentum)), dtype_of(old)
    )


@decomposition(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    builder: Builder,
    x: Node,
    weight: Any,
    bias: Any,
    running_mean: Node,
    running_var: Node,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if has_no_elements(x):
        return NotImplemented
    op = aten._native_batch_norm_legit_functional.default
    return _batch_norm(
        builder,
        op,
        x,
        weight,
        bias,
        running_mean,
        running_var,
        training,
        momentum,
        eps,
        (x, weight, bias, running_mean, running_var, training, momentum, eps),
    )


@decomposition(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    builder: Builder, x: Node, weight: Any, bias: Any, mean: Node, var: Node, momentum: float, eps: float
) -> Any:
    op = aten._native_batch_norm_legit_no_training.default
    return _batch_norm(
        builder, op, x, weight, bias, mean, var, False, momentum, eps, (x, weight, bias, mean, var, momentum, eps)
    )[:3]


@decomposition(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    builder: Builder, x: Node, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    if has_no_elements(x):
        return NotImplemented
    op = aten._native_batch_norm_legit.no_stats
    return _batch_norm(
        builder, op, x, weight, bias, None, None, True, momentum, eps, (x, weight, bias, training, momentum, eps)
    )[:3]


@decomposition(aten.native_batch_norm.default)
def native_batch_norm(
    builder: Builder, x: Node, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    # in training it writes the running statistics: the recorder has turned that into the functional form
    if training and (mean is not None or has_no_elements(x)):
        return NotImplemented
    op = aten.native_batch_norm.default
    args = (x, weight, bias, mean, var, training, momentum, eps)
    return _batch_norm(builder, op, x, weight, bias, mean, var, training, momentum, eps, args)[:3]


# ---- losses over classes
@decomposition(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    builder: Builder, x: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int
) -> Any:
    shape = shape_of(x)
    dtype = dtype_of(x)
    c = 1 if len(shape) > 1 else 0
    keep = builder.compare("ne", target, ignore_index)
    safe = builder.where(keep, builder.cast(target, torch.int64), 0)
    picked = builder.emit(aten.gather.default, x, c, builder.emit(aten.unsqueeze.default, safe, c))
    picked = builder.emit(aten.squeeze.dims, picked, [c])
    up = opmath(dtype)
    loss = builder.unary("neg", builder.cast(picked, up))
    w = None
    if weight is not None:
        w = builder.emit(aten.index.Tensor, builder.cast(weight, up), [safe])
        loss = builder.mul(loss, w)
    loss = builder.where(keep, loss, 0.0)
    dims = list(range(len(shape_of(loss))))
    zero = builder.full((), 0.0, dtype, x.meta["val"].device)
    if reduction == 0:
        return builder.cast(loss, dtype), zero
    total = builder.emit(aten.sum.dim_IntList, loss, dims, False) if dims else loss
    ones = builder.cast(keep, up) if w is None else builder.where(keep, w, 0.0)
    count = builder.emit(aten.sum.dim_IntList, ones, dims, False) if dims else ones
    if reduction == 1:
        total = builder.div(total, count)
    return builder.cast(total, dtype), builder.cast(count, dtype)


# ---- weights of a magnitude and a direction
def norms_fit(v: Node, grad: Node, dim: int) -> list[int] | None:
    """The dims of `v` that its norms are over; None where `grad` is not laid out as these norms are, or of other dtypes
    than torch's kernels take.
    """
    shape, ndim = shape_of(v), len(shape_of(v))
    dims = [d for d in range(ndim) if d != dim]
    if (
        dtype_of(v) is not dtype_of(grad)
        or not dtype_of(v).is_floating_point
        or dtype_of(v) is torch.float16
        and v.meta["val"].device.type == "cpu"
        or tuple(shape_of(grad)) != tuple(size if d == dim else 1 for d, size in enumerate(shape))
        or has_no_elements(v)
        or not dims
    ):
        return None
    return dims


@decomposition(aten._weight_norm_interface.default)
def weight_norm(builder: Builder, v: Node, grad: Node, dim: int = 0) -> Any:
    dims = norms_fit(v, grad, dim)
    if dims is None:
        return NotImplemented
    kept = norm_dtype(grad.meta["val"])
    up = builder.cast(v, kept)
    norm = builder.unary("sqrt", builder.emit(aten.sum.dim_IntList, builder.mul(up, up), dims, True))
    return builder.cast(builder.mul(up, builder.div(builder.cast(grad, kept), norm)), dtype_of(v)), norm
