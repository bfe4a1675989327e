"""Softmax, normalisations and losses, as the reductions and element-wise steps that they are. Fusion makes one kernel
of each. Statistics are in float32 for low precision inputs, as in eager."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ..ir import Value, cast, const, prim
from ..context import Lowering
from ..rule_table import NoRule, rule
from ..promote import compute_dtype, operand, rounded
from ..ref import Ref, dim_symbol, is_one, remap, reshape
from .indexing import position
from .reductions import moments, operand_count

C = const


def _exp_parts(lo: Lowering, v: Value, shape: Sequence[Any], dim: int) -> tuple[Value, Ref, Ref]:
    """(v - max, its exp as a tensor, sum of exp) along dim."""
    m = lo.reduce("max", v, shape, [dim], True, suffix="_max")
    shifted = prim("sub", v, m.value)
    e = lo.store(prim("exp", shifted), shape, v.dtype, suffix="_exp")
    return shifted, e, lo.reduce("sum", e.value, shape, [dim], True, suffix="_sum")


@rule("aten._softmax.default")
def softmax(lo: Lowering, node: Any, x: Ref, dim: int, *args: Any, **kw: Any) -> Ref:
    out = lo.meta().dtype
    if x.ndim == 0:
        return lo.pointwise(rounded(_one_or_nan(cast(x.value, compute_dtype(out))), out))
    v = cast(x.value, compute_dtype(out))
    _, e, s = _exp_parts(lo, v, x.shape, dim % x.ndim)
    r = prim("div", e.value, s.value)
    return lo.pointwise(rounded(r, out))


def _one_or_nan(v: Value) -> Value:
    e = prim("exp", prim("sub", v, v))
    return prim("div", e, e)


@rule("aten._log_softmax.default")
def log_softmax(lo: Lowering, node: Any, x: Ref, dim: int, *args: Any, **kw: Any) -> Ref:
    out = lo.meta().dtype
    v = cast(x.value, compute_dtype(out))
    if x.ndim == 0:
        return lo.pointwise(rounded(prim("sub", v, v), out))
    dim %= x.ndim
    m = lo.reduce("max", v, x.shape, [dim], True, suffix="_max")
    shifted = prim("sub", v, m.value)
    s = lo.reduce("sum", prim("exp", shifted), x.shape, [dim], True, suffix="_sum")
    return lo.pointwise(rounded(prim("sub", shifted, prim("log", s.value)), out))


def _affine(v: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        v = prim("mul", v, cast(weight, v.dtype))
    return v if bias is None else prim("add", v, cast(bias, v.dtype))


def _rstd(lo: Lowering, m2: Ref, shape: Sequence[Any], dims: Sequence[int], eps: Any) -> Ref:
    variance = prim("div", m2.value, operand_count(shape, dims, m2.dtype))
    return lo.store(prim("rsqrt", prim("add", variance, operand(eps, m2.dtype))), m2.shape, m2.dtype, suffix="_rstd")


@rule("aten.native_layer_norm.default")
def native_layer_norm(
    lo: Lowering, node: Any, x: Ref, normalized: Sequence[Any], weight: Ref | None, bias: Ref | None, eps: float
) -> tuple:
    y, mean, rstd = _layer_norm(lo, x, normalized, weight, bias, eps)
    y = lo.pointwise(y, 0)
    return y, _as_meta(lo, mean, 1), _as_meta(lo, rstd, 2)


def _layer_norm(
    lo: Lowering, x: Ref, normalized: Sequence[Any], weight: Ref | None, bias: Ref | None, eps: float
) -> tuple[Value, Ref, Ref]:
    """The result's elements, the means, and one over the standard deviations."""
    dt = compute_dtype(x.dtype)
    n = x.ndim
    dims = list(range(n - len(normalized), n))
    mean, m2 = moments(lo, x, dims, dt)
    rstd = _rstd(lo, m2, x.shape, dims, eps)
    v = prim("mul", prim("sub", cast(x.value, dt), mean.value), rstd.value)
    return rounded(_affine(v, weight and weight.value, bias and bias.value), x.dtype), mean, rstd


def _as_meta(lo: Lowering, x: Ref, k: int) -> Ref:
    """A statistic in the dtype and shape that the operator returns it in."""
    m = lo.meta(k=k)
    shape = lo.out_shape(k=k)
    r = x if len(shape) == x.ndim else reshape(x, shape)
    return r if r.dtype == m.dtype else lo.store(rounded(r.value, m.dtype), shape, m.dtype, suffix=f"_{k}")


@rule("aten._fused_rms_norm.default")
def rms_norm(
    lo: Lowering, node: Any, x: Ref, normalized: Sequence[Any], weight: Ref | None = None, eps: float | None = None
) -> Any:
    dt = compute_dtype(x.dtype)
    n = x.ndim
    dims = list(range(n - len(normalized), n))
    v = cast(x.value, dt)
    s = lo.reduce("sum", prim("mul", v, v), x.shape, dims, True, suffix="_sum")
    rstd = _rstd(lo, s, x.shape, dims, torch.finfo(x.dtype).eps if eps is None else eps)
    r = _affine(prim("mul", v, rstd.value), weight and weight.value, None)
    if isinstance(lo.meta(), (tuple, list)):
        return lo.pointwise(rounded(r, x.dtype), 0), _as_meta(lo, rstd, 1)
    return lo.pointwise(rounded(r, x.dtype))


def _per_channel(x: Ref | None, ndim: int) -> Value | None:
    """A tensor over channels, broadcast over dimension 1."""
    return None if x is None else remap(x, (x.shape[0],) + (1,) * (ndim - 2), {0: dim_symbol(ndim - 1, 0)}).value


@rule("aten._native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    lo: Lowering,
    node: Any,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    mean: Ref,
    var: Ref,
    momentum: float,
    eps: float,
) -> tuple:
    y = _batch_norm(x, weight, bias, mean, var, eps)
    empty = tuple(Ref(lo.out_shape(k=k), lo.meta(k=k).dtype, C(0, lo.meta(k=k).dtype)) for k in (1, 2))
    return (lo.pointwise(y, 0), *empty)


@rule("aten._batch_norm_no_update.default")
def batch_norm_no_update(
    lo: Lowering,
    node: Any,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    mean: Ref,
    var: Ref,
    momentum: float,
    eps: float,
) -> tuple:
    y = _batch_norm(x, weight, bias, mean, var, eps)
    empty = tuple(Ref(lo.out_shape(k=k), lo.meta(k=k).dtype, C(0, lo.meta(k=k).dtype)) for k in (1, 2, 3))
    return (lo.pointwise(y, 0), *empty)


@rule("aten.native_batch_norm.default")
def native_batch_norm(
    lo: Lowering,
    node: Any,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    mean: Ref | None,
    var: Ref | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple:
    if training or mean is None or var is None:
        raise NoRule("batch norm in training mode")
    y = _batch_norm(x, weight, bias, mean, var, eps)
    empty = tuple(Ref(lo.out_shape(k=k), lo.meta(k=k).dtype, C(0, lo.meta(k=k).dtype)) for k in (1, 2))
    return (lo.pointwise(y, 0), *empty)


def _batch_norm(x: Ref, weight: Ref | None, bias: Ref | None, mean: Ref, var: Ref, eps: float) -> Value:
    """As eager's kernel: x * alpha + beta with alpha = weight / sqrt(var + eps), beta = bias - mean * alpha."""
    dt = compute_dtype(x.dtype)
    n = x.ndim
    m, v = (cast(_per_channel(t, n), dt) for t in (mean, var))
    alpha = prim("div", C(1, dt), prim("sqrt", prim("add", v, operand(eps, dt))))
    if weight is not None:
        alpha = prim("mul", alpha, cast(_per_channel(weight, n), dt))
    beta = (
        prim("neg", prim("mul", m, alpha))
        if bias is None
        else prim("sub", cast(_per_channel(bias, n), dt), prim("mul", m, alpha))
    )
    return rounded(prim("add", prim("mul", cast(x.value, dt), alpha), beta), x.dtype)


@rule("aten.native_group_norm.default")
def native_group_norm(
    lo: Lowering,
    node: Any,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    N: Any,
    Ch: Any,
    HxW: Any,
    groups: int,
    eps: float,
) -> tuple:
    dt = compute_dtype(x.dtype)
    g = reshape(x, (N, groups, Ch // groups, HxW))
    mean, m2 = moments(lo, g, [2, 3], dt)
    rstd = _rstd(lo, m2, g.shape, [2, 3], eps)
    v = Ref(g.shape, dt, prim("mul", prim("sub", cast(g.value, dt), mean.value), rstd.value))
    w, b = _per_channel(weight, x.ndim), _per_channel(bias, x.ndim)
    y = lo.pointwise(rounded(_affine(reshape(v, x.shape).value, w, b), x.dtype), 0)
    return y, _as_meta(lo, mean, 1), _as_meta(lo, rstd, 2)


@rule("aten.nll_loss_forward.default")
def nll_loss_forward(
    lo: Lowering, node: Any, logp: Ref, target: Ref, weight: Ref | None, reduction: int, ignore: Any
) -> tuple:
    """(loss, total weight); reduction 0 none, 1 mean, 2 sum."""
    if logp.ndim != 2 or is_one(logp.shape[1]) or is_one(logp.shape[0]):
        raise NoRule("nll_loss of one sample")
    out = lo.meta(k=0).dtype
    dt = compute_dtype(out)
    shape = (logp.shape[0],)
    skip = prim("eq", cast(target.value, torch.int64), operand(ignore, torch.int64))
    safe = Ref(shape, torch.int64, prim("where", skip, C(0, torch.int64), cast(target.value, torch.int64)))
    cls = position(safe.value, logp.shape[1], "IndexError: Target is out of bounds.", False)
    picked = cast(remap(logp, shape, {0: dim_symbol(1, 0), 1: cls}).value, dt)
    w = C(1, dt) if weight is None else cast(remap(weight, shape, {0: cls}).value, dt)
    zero = C(0, dt)
    loss = prim("where", skip, zero, prim("mul", prim("neg", picked), w))
    if reduction == 0:
        return lo.pointwise(rounded(loss, out), 0), Ref((), lo.meta(k=1).dtype, C(0, lo.meta(k=1).dtype))
    total = lo.reduce("sum", prim("where", skip, zero, w), shape, [0], False, suffix="_weight")
    s = lo.reduce("sum", loss, shape, [0], False, suffix="_sum")
    r = prim("div", s.value, total.value) if reduction == 1 else s.value
    return (
        lo.store(rounded(r, out), (), out, suffix="_0"),
        lo.store(rounded(total.value, lo.meta(k=1).dtype), (), lo.meta(k=1).dtype, suffix="_1"),
    )
