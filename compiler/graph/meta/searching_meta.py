"""Metadata of look-ups in sorted rows, turns, clipped norms and distances. What eager may refuse is run on meta
tensors, for its words.
"""

from __future__ import annotations

from typing import Any

import torch

from .core import RULES, TensorMeta, broadcast_shapes, fix, new, norm_dim, rule, same

__all__: list[str] = []

aten = torch.ops.aten


def _by_running(op: Any, args: tuple, kwargs: dict) -> Any:
    from ..fallback import meta_by_running

    return meta_by_running(op, args, kwargs)


def _places(x: TensorMeta, out_int32: bool) -> TensorMeta:
    return new(x.shape, torch.int32 if out_int32 else torch.int64, x.device)


@rule("bucketize.Tensor")
def bucketize(x: TensorMeta, boundaries: TensorMeta, *, out_int32: bool = False, right: bool = False) -> TensorMeta:
    if boundaries.ndim != 1 or x.device != boundaries.device or x.dtype.is_complex or boundaries.dtype.is_complex:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return _places(x, out_int32)


@rule("searchsorted.Tensor")
def searchsorted(
    rows: TensorMeta,
    x: TensorMeta,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: TensorMeta | None = None,
) -> TensorMeta:
    fits = rows.ndim == 1 or rows.ndim == x.ndim and rows.ndim > 0 and all(map(same, rows.shape[:-1], x.shape[:-1]))
    plain = (
        rows.dtype is x.dtype
        and rows.device == x.device
        and not x.dtype.is_complex
        and (side is None or side == "right" or side == "left" and not right)
    )
    ordered = (
        sorter is None
        or sorter.dtype is torch.int64
        and sorter.device == x.device
        and sorter.ndim == rows.ndim
        and all(map(same, sorter.shape, rows.shape))
    )
    if not (fits and plain and ordered):
        raise RuntimeError("torch.searchsorted(): boundaries and values do not fit")
    return _places(x, out_int32)


@rule("rot90")
def rot90(x: TensorMeta, k: int = 1, dims: Any = (0, 1)) -> TensorMeta:
    if len(dims) != 2 or x.ndim < 2 or norm_dim(dims[0], x.ndim) == norm_dim(dims[1], x.ndim):
        return _by_running(aten.rot90.default, (x, k, list(dims)), {})
    first, second = (norm_dim(dim, x.ndim) for dim in dims)
    k %= 4
    if k == 0:
        return new(x.shape, x.dtype, x.device)
    if k == 2:
        return RULES["flip"](x, [first, second])
    meta = RULES["flip"](x, [second if k == 1 else first])
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return TensorMeta(
        tuple(meta.shape[dim] for dim in order), tuple(meta.stride[dim] for dim in order), x.dtype, x.device
    )


@rule("renorm")
def renorm(x: TensorMeta, p: Any, dim: int, maxnorm: Any) -> TensorMeta:
    if (
        x.ndim < 2
        or not isinstance(p, (int, float))
        or not isinstance(maxnorm, (int, float))
        or not p > 0
        or not maxnorm >= 0
        or not x.dtype.is_floating_point
    ):
        return _by_running(aten.renorm.default, (x, p, dim, maxnorm), {})
    norm_dim(dim, x.ndim)
    return new(x.shape, x.dtype, x.device)


@rule("_cdist_forward")
def cdist(x: TensorMeta, y: TensorMeta, p: float, mode: int | None) -> TensorMeta:
    found = _distances(x, y) if p >= 0 and mode in (None, 0, 1, 2) else None
    return found or _by_running(aten._cdist_forward.default, (x, y, p, mode), {})


def _distances(x: TensorMeta, y: TensorMeta) -> TensorMeta | None:
    """Of each row of x from each of y; None where a kernel is to say what is wrong with them."""
    if (
        min(x.ndim, y.ndim) < 2
        or not same(x.shape[-1], y.shape[-1])
        or not x.dtype.is_floating_point
        or x.dtype is not y.dtype
        or x.device != y.device
    ):
        return None
    return new((*broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-2]), x.dtype, x.device)


@rule("_cdist_backward")
def cdist_backward(grad: TensorMeta, x: TensorMeta, y: TensorMeta, p: float, distances: TensorMeta) -> TensorMeta:
    return new((*broadcast_shapes(x.shape[:-2], y.shape[:-2]), *x.shape[-2:]), x.dtype, x.device)


@rule("_euclidean_dist")
def euclidean_dist(x: TensorMeta, y: TensorMeta) -> TensorMeta:
    """What cdist calls where a matrix product gives the distances. (torch's own rule imports torch._dynamo, which
    exchanges functions of torch that programs call.)
    """
    found = _distances(x, y) if x.ndim == y.ndim else None
    return found or _by_running(aten._euclidean_dist.default, (x, y), {})


@rule("histc")
def histc(x: TensorMeta, bins: int = 100, min: Any = 0, max: Any = 0) -> TensorMeta:
    if fix(bins) <= 0:
        raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {bins} for dimension 0")
    if x.device.type == "cpu" and not x.dtype.is_floating_point:
        raise NotImplementedError(f"torch counts no {x.dtype} on a CPU")
    return new((fix(bins),), x.dtype, x.device)
