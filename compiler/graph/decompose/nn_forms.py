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
    b: Builder, x: Node, normalized_shape: Any, weight: Node | None, bias: Node | None, eps: float
) -> Any:
    n = len(shape_of(x))
    dims = list(range(n - len(normalized_shape), n))
    u = upcast(b, x)
    r = b.emit(aten.var_mean.correction, u, dims, correction=0, keepdim=True)
    var, mean = b.item(r, 0), b.item(r, 1)
    rstd = b.unary("rsqrt", b.add(var, eps))
    y = b.mul(b.sub(u, mean), rstd)
    y = _affine(b, y, weight, bias)
    stat = b.meta(aten.native_layer_norm.default, (x, list(normalized_shape), weight, bias, eps), {})[1].dtype
    return b.cast(y, dtype_of(x)), b.cast(mean, stat), b.cast(rstd, stat)


def _affine(b: Builder, y: Node, weight: Node | None, bias: Node | None) -> Node:
    d = dtype_of(y)
    if weight is not None:
        y = b.mul(y, b.cast(weight, d))
    if bias is not None:
        y = b.add(y, b.cast(bias, d))
    return y


@decomposition(aten._fused_rms_norm.default)
def fused_rms_norm(b: Builder, x: Node, normalized_shape: Any, weight: Node | None, eps: float | None) -> Any:
    n = len(shape_of(x))
    dims = list(range(n - len(normalized_shape), n))
    u = upcast(b, x)
    if eps is None:
        eps = torch.finfo(dtype_of(x)).eps
    ms = b.div(b.emit(aten.sum.dim_IntList, b.mul(u, u), dims, True), numel([shape_of(x)[d] for d in dims]))
    rstd = b.unary("rsqrt", b.add(ms, eps))
    y = b.mul(u, rstd)
    return b.cast(_affine(b, y, weight, None), dtype_of(x)), rstd


@decomposition(aten.native_group_norm.default)
def native_group_norm(
    b: Builder, x: Node, weight: Node | None, bias: Node | None, n: Any, c: Any, hxw: Any, group: int, eps: float
) -> Any:
    per, spatial = c // group, list(shape_of(x)[2:])
    u = upcast(b, x)
    ones = [1] * len(spatial)
    # (channels are parted and nothing is flattened: whatever order the memory has, it is read in that order)
    r = b.emit(
        aten.var_mean.correction,
        b.view(u, [n, group, per, *spatial]),
        list(range(2, 3 + len(spatial))),
        correction=0,
        keepdim=True,
    )
    var, mean = b.item(r, 0), b.item(r, 1)
    rstd = b.unary("rsqrt", b.add(var, eps))

    def channels(t: Node) -> Node:
        return b.view(b.expand(t, [n, group, per, *ones]), [n, c, *ones])

    y = b.mul(b.sub(u, channels(mean)), channels(rstd))
    spread = [1, c, *ones]
    y = _affine(
        b, y, None if weight is None else b.view(weight, spread), None if bias is None else b.view(bias, spread)
    )
    stat = b.meta(aten.native_group_norm.default, (x, weight, bias, n, c, hxw, group, eps), {})[1].dtype
    return (b.cast(y, dtype_of(x)), b.cast(b.view(mean, [n, group]), stat), b.cast(b.view(rstd, [n, group]), stat))


def _channels(b: Builder, v: Node, ndim: int, dtype: torch.dtype) -> Node:
    """A per-channel vector as [1, C, 1, ...]."""
    v = b.cast(v, dtype)
    return b.unsqueeze(v, *range(1, ndim - 1)) if ndim > 2 else v


def _normalise(b: Builder, x: Node, mean: Node, invstd: Node, weight: Node | None, bias: Node | None) -> Node:
    """As eager's inference kernel: x * alpha + beta with alpha = weight * invstd, beta = bias - mean * alpha."""
    n, up = len(shape_of(x)), opmath(dtype_of(x))
    alpha = invstd if weight is None else b.mul(invstd, b.cast(weight, up))
    shift = b.mul(mean, alpha)
    beta = b.unary("neg", shift) if bias is None else b.sub(b.cast(bias, up), shift)
    y = b.add(b.mul(b.cast(x, up), _channels(b, alpha, n, up)), _channels(b, beta, n, up))
    return b.cast(y, dtype_of(x))


def _batch_norm(
    b: Builder,
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
    metas = b.meta(op, args, {})
    stat = metas[1].dtype
    device = x.meta["val"].device
    if not training:
        invstd = b.unary("rsqrt", b.add(b.cast(running_var, up), eps))
        out = _normalise(b, x, b.cast(running_mean, up), invstd, weight, bias)
        empty = b.full((0,), 0, stat, device)
        return out, empty, b.full((0,), 0, stat, device), running_mean, running_var
    shape = shape_of(x)
    dims = [0, *range(2, len(shape))]
    u = upcast(b, x)
    r = b.emit(aten.var_mean.correction, u, dims, correction=0, keepdim=False)
    var, mean = b.item(r, 0), b.item(r, 1)
    invstd = b.unary("rsqrt", b.add(var, eps))
    out = _normalise(b, x, mean, invstd, weight, bias)
    new_mean, new_var = running_mean, running_var
    if running_mean is not None:
        n = numel([shape[d] for d in dims])
        # the running variance takes the unbiased estimate
        unbiased = b.mul(b.div(var, n - 1), n) if not isinstance(n, int) else b.mul(var, n / max(n - 1, 1))
        new_mean = _blend(b, running_mean, mean, momentum)
        new_var = _blend(b, running_var, unbiased, momentum)
    return out, b.cast(mean, stat), b.cast(invstd, stat), new_mean, new_var


def _blend(b: Builder, old: Node, new: Node, momentum: float) -> Node:
    up = dtype_of(new)
    return b.cast(b.add(b.mul(new, momentum), b.mul(b.cast(old, up), 1 - momentum)), dtype_of(old))


@decomposition(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    b: Builder,
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
        b,
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
    b: Builder, x: Node, weight: Any, bias: Any, mean: Node, var: Node, momentum: float, eps: float
) -> Any:
    op = aten._native_batch_norm_legit_no_training.default
    return _batch_norm(
        b, op, x, weight, bias, mean, var, False, momentum, eps, (x, weight, bias, mean, var, momentum, eps)
    )[:3]


@decomposition(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    b: Builder, x: Node, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    if has_no_elements(x):
        return NotImplemented
    op = aten._native_batch_norm_legit.no_stats
    return _batch_norm(
        b, op, x, weight, bias, None, None, True, momentum, eps, (x, weight, bias, training, momentum, eps)
    )[:3]


@decomposition(aten.native_batch_norm.default)
def native_batch_norm(
    b: Builder, x: Node, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    # in training it writes the running statistics: the recorder has turned that into the functional form
    if training and (mean is not None or has_no_elements(x)):
        return NotImplemented
    op = aten.native_batch_norm.default
    args = (x, weight, bias, mean, var, training, momentum, eps)
    return _batch_norm(b, op, x, weight, bias, mean, var, training, momentum, eps, args)[:3]


@decomposition(aten.native_dropout.default)
def native_dropout(b: Builder, x: Node, p: float, train: bool | None) -> Any:
    m = x.meta["val"]
    if train is False or p == 0:
        return b.emit(aten.clone.default, x), b.full(m.shape, True, torch.bool, m.device)
    return NotImplemented


# ---- losses over classes
@decomposition(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(b: Builder, x: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int) -> Any:
    shape = shape_of(x)
    d = dtype_of(x)
    c = 1 if len(shape) > 1 else 0
    keep = b.compare("ne", target, ignore_index)
    safe = b.where(keep, b.cast(target, torch.int64), 0)
    picked = b.emit(aten.gather.default, x, c, b.emit(aten.unsqueeze.default, safe, c))
    picked = b.emit(aten.squeeze.dims, picked, [c])
    up = opmath(d)
    loss = b.unary("neg", b.cast(picked, up))
    w = None
    if weight is not None:
        w = b.emit(aten.index.Tensor, b.cast(weight, up), [safe])
        loss = b.mul(loss, w)
    loss = b.where(keep, loss, 0.0)
    dims = list(range(len(shape_of(loss))))
    zero = b.full((), 0.0, d, x.meta["val"].device)
    if reduction == 0:
        return b.cast(loss, d), zero
    total = b.emit(aten.sum.dim_IntList, loss, dims, False) if dims else loss
    ones = b.cast(keep, up) if w is None else b.where(keep, w, 0.0)
    count = b.emit(aten.sum.dim_IntList, ones, dims, False) if dims else ones
    if reduction == 1:
        total = b.div(total, count)
    return b.cast(total, d), b.cast(count, d)


# ---- weights of a magnitude and a direction
def norms_fit(v: Node, g: Node, dim: int) -> list[int] | None:
    """The dims of `v` that its norms are over; None where `g` is not laid out as these norms are, or of other dtypes
    than torch's kernels take.
    """
    shape, n = shape_of(v), len(shape_of(v))
    dims = [d for d in range(n) if d != dim]
    if (
        dtype_of(v) is not dtype_of(g)
        or not dtype_of(v).is_floating_point
        or dtype_of(v) is torch.float16
        and v.meta["val"].device.type == "cpu"
        or tuple(shape_of(g)) != tuple(s if d == dim else 1 for d, s in enumerate(shape))
        or has_no_elements(v)
        or not dims
    ):
        return None
    return dims


@decomposition(aten._weight_norm_interface.default)
def weight_norm(b: Builder, v: Node, g: Node, dim: int = 0) -> Any:
    dims = norms_fit(v, g, dim)
    if dims is None:
        return NotImplemented
    kept = norm_dtype(g.meta["val"])
    up = b.cast(v, kept)
    norm = b.unary("sqrt", b.emit(aten.sum.dim_IntList, b.mul(up, up), dims, True))
    return b.cast(b.mul(up, b.div(b.cast(g, kept), norm)), dtype_of(v)), norm
