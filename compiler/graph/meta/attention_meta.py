"""Attention kernels of CUDA: what they give, as the kernels lay it out. (A result that turns out to lie otherwise is
copied by the plan.)
"""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ...symbolic.expr import IntLike
from .core import TensorMeta, new, rule
from .strides import preserve_strides

__all__: list[str] = []


def _like(x: TensorMeta) -> TensorMeta:
    return TensorMeta(x.shape, preserve_strides(x), x.dtype, x.device)


def _as_query(q: TensorMeta, shape: Sequence[IntLike]) -> TensorMeta:
    """A result of this shape whose dimensions lie in memory in the order of the query's."""
    if tuple(shape) == tuple(q.shape):
        return _like(q)
    strides = preserve_strides(q)
    order = sorted(range(4), key=lambda d: -strides[d] if isinstance(strides[d], int) else -(4 - d) * 2**40)
    out: list[IntLike] = [0] * 4
    n: IntLike = 1
    for d in reversed(order):
        out[d] = n
        n = n * shape[d]
    return TensorMeta(tuple(shape), tuple(out), q.dtype, q.device)


@rule("_scaled_dot_product_flash_attention")
def flash(
    q: TensorMeta,
    k: TensorMeta,
    v: TensorMeta,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Any = None,
) -> tuple:
    b, h, n, _ = q.shape
    return (
        _like(q),
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
def cudnn(
    q: TensorMeta,
    k: TensorMeta,
    v: TensorMeta,
    bias: Any,
    compute_lse: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Any = None,
) -> tuple:
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
def backward(g: TensorMeta, q: TensorMeta, k: TensorMeta, v: TensorMeta, *_: Any, **__: Any) -> tuple:
    return _like(q), _like(k), _like(v)


@rule("tcompile::dropout_attention")
def dropout_attention(q: TensorMeta, k: TensorMeta, v: TensorMeta, *others: Any) -> tuple:
    b, h, n, _ = q.shape
    return _as_query(q, (b, h, n, v.shape[3])), new((b, h, n), torch.float32, q.device)


@rule("tcompile::dropout_attention_backward")
def dropout_attention_backward(g: TensorMeta, q: TensorMeta, k: TensorMeta, v: TensorMeta, *others: Any) -> tuple:
    return _like(q), _like(k), _like(v)


@rule("_scaled_dot_product_efficient_attention_backward")
def efficient_backward(
    g: TensorMeta,
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
    def t(m: TensorMeta) -> TensorMeta:  # made as (batch, length, head, dim), handed out transposed
        b, h, n, d = m.shape
        o = new((b, n, h, d), m.dtype, m.device)
        return TensorMeta(m.shape, (o.stride[0], o.stride[2], o.stride[1], o.stride[3]), m.dtype, m.device)

    return t(q), t(k), t(v), _like(bias) if bias is not None and mask[3] else None
