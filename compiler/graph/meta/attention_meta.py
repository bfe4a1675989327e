"""Attention kernels: what they give, as the kernels lay it out. (A result that turns out to lie otherwise is
copied by the plan.)
"""

from __future__ import annotations

import functools
from typing import Any, Sequence

import torch

from ...symbolic.expr import IntLike
from .core import TensorMeta, fold, new, rule
from .strides import like, preserve_strides
from .types import opmath

__all__: list[str] = []


def _as_query(q: TensorMeta, shape: Sequence[IntLike]) -> TensorMeta:
    """A result of this shape whose dimensions lie in memory in the order of the query's."""
    if tuple(shape) == tuple(q.shape):
        return like(q)
    strides = preserve_strides(q)
    order = sorted(range(4), key=lambda d: -strides[d] if isinstance(strides[d], int) else -(4 - d) * 2**40)
    out: list[IntLike] = [0] * 4
    n: IntLike = 1
    for dim in reversed(order):
        out[dim] = n
        n = n * shape[dim]
    return TensorMeta(tuple(shape), tuple(out), q.dtype, q.device)


def _by_length(shape: Sequence[IntLike], like: TensorMeta) -> TensorMeta:
    """Made as (batch, length, head, dim), handed out as (batch, head, length, dim)."""
    b, h, n, d = shape
    made = new((b, n, h, d), like.dtype, like.device)
    return TensorMeta(
        tuple(shape), (made.stride[0], made.stride[2], made.stride[1], made.stride[3]), like.dtype, like.device
    )


# ---- the CPU's, and those that both have
@rule("_scaled_dot_product_flash_attention_for_cpu")
def sdpa_flash_cpu(q: TensorMeta, k: TensorMeta, v: TensorMeta, *_: Any, **__: Any) -> tuple[TensorMeta, TensorMeta]:
    b, h, n, d = q.shape
    if _flash_cpu_is_like_query():
        out = like(q)
    else:
        out = _by_length((b, h, n, v.shape[3]), q)
    lse = new((b, n, h), opmath(q.dtype), q.device)
    return out, TensorMeta((b, h, n), (lse.stride[0], lse.stride[2], lse.stride[1]), lse.dtype, q.device)


@functools.cache
def _flash_cpu_is_like_query() -> bool:
    """Which of its two layouts this torch gives the result: asked of the kernel itself, once."""
    x = torch.zeros(1, 2, 3, 4)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x)[0].is_contiguous()


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def sdpa_flash_cpu_backward(grad: TensorMeta, q: TensorMeta, k: TensorMeta, v: TensorMeta, *_: Any, **__: Any) -> tuple:
    return tuple(_by_length(m.shape, m) for m in (q, k, v))


@rule("_fused_sdp_choice")
def sdp_choice(*_: Any, **__: Any) -> int:
    return 0


@rule("_scaled_dot_product_efficient_attention")
def sdpa_efficient(
    q: TensorMeta, k: TensorMeta, v: TensorMeta, bias: Any, compute_lse: bool, *_: Any, **__: Any
) -> tuple:
    b, h, n, d = q.shape
    res = _by_length((b, h, n, v.shape[3]), q)
    lse = new((b, h, fold((n + 31) // 32 * 32) if compute_lse else 0), torch.float32, q.device)
    return res, lse, new((), torch.int64, q.device), new((), torch.int64, q.device)


# ---- CUDA's
@rule("_scaled_dot_product_flash_attention")
def flash(q: TensorMeta, k: TensorMeta, *_: Any, **__: Any) -> tuple:
    b, h, n, _ = q.shape
    return (
        like(q),
        new((b, h, n), torch.float32, q.device),
        None,
        None,
        n,
        k.shape[2],
        new((2,), torch.uint64, q.device),
        new((), torch.uint64, q.device),
        new((0,), q.dtype, q.device),
    )


@rule("_scaled_dot_product_cudnn_attention")
def cudnn(q: TensorMeta, k: TensorMeta, v: TensorMeta, bias: Any, compute_lse: bool, *_: Any, **__: Any) -> tuple:
    b, h, n, _ = q.shape
    lse = new((b, h, n, 1), torch.float32, q.device) if compute_lse else None
    return (
        _as_query(q, (b, h, n, v.shape[3])),
        lse,
        None,
        None,
        n,
        k.shape[2],
        new((), torch.int64, q.device),
        new((), torch.int64, q.device),
        None,
    )


@rule("_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_cudnn_attention_backward")
def backward(grad: TensorMeta, q: TensorMeta, k: TensorMeta, v: TensorMeta, *_: Any, **__: Any) -> tuple:
    return like(q), like(k), like(v)


@rule("tcompile::dropout_attention")
def dropout_attention(q: TensorMeta, k: TensorMeta, v: TensorMeta, *others: Any) -> tuple:
    b, h, n, _ = q.shape
    return _as_query(q, (b, h, n, v.shape[3])), new((b, h, n), torch.float32, q.device)


@rule("tcompile::dropout_attention_backward")
def dropout_attention_backward(grad: TensorMeta, q: TensorMeta, k: TensorMeta, v: TensorMeta, *others: Any) -> tuple:
    return like(q), like(k), like(v)


@rule("_scaled_dot_product_efficient_attention_backward")
def efficient_backward(
    grad: TensorMeta,
    q: TensorMeta,
    k: TensorMeta,
    v: TensorMeta,
    bias: Any,
    out: TensorMeta,
    lse: Any,
    seed: Any,
    offset: Any,
    dropout_p: float,
    mask: Sequence[bool],
    *_: Any,
    **__: Any,
) -> tuple:
    return *(_by_length(m.shape, m) for m in (q, k, v)), like(bias) if bias is not None and mask[3] else None
