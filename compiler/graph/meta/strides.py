"""The strides of element-wise results: what TensorIterator gives to an output that it allocates."""

from __future__ import annotations

from typing import Sequence

import torch

from ...symbolic.expr import IntLike
from .core import TensorMeta, contiguous_strides, fold, is_channels_last, is_contiguous, is_dense, is_zero, less, same
from .core import channels_last_strides

__all__ = ["elementwise_strides", "like", "preserve_strides"]


def like(meta: TensorMeta, dtype: torch.dtype | None = None) -> TensorMeta:
    """That of `empty_like(m, dtype=dtype)`."""
    return TensorMeta(meta.shape, preserve_strides(meta), dtype or meta.dtype, meta.device)


def elementwise_strides(shape: tuple, operands: Sequence[TensorMeta]) -> tuple:
    """Strides of the output of an element-wise operator over `operands`, whose shapes broadcast to `shape`."""
    first = operands[0]
    if all(operand.shape == shape for operand in operands):
        cs = contiguous_strides(shape)
        if all(operand.stride == cs for operand in operands):
            return cs
        if all(is_contiguous(operand.shape, operand.stride) for operand in operands):
            return cs
        if len(shape) == 4 and all(is_channels_last(operand.shape, operand.stride) for operand in operands):
            return channels_last_strides(shape)
        if all(
            operand is first or all(same(stride, b) for stride, b in zip(operand.stride, first.stride))
            for operand in operands
        ) and is_dense(first.shape, first.stride):
            return first.stride
    elif len(shape) <= 1:
        return (1,) * len(shape)
    return _ordered_strides(shape, [_expanded(operand, shape) for operand in operands])


def preserve_strides(meta: TensorMeta) -> tuple:
    """Strides of `empty_like(m)` and `clone(m)` under torch.preserve_format."""
    cs = contiguous_strides(meta.shape)
    if meta.stride == cs:
        return cs
    if is_dense(meta.shape, meta.stride):
        return meta.stride
    return _ordered_strides(meta.shape, [meta.stride])


def _expanded(meta: TensorMeta, shape: tuple) -> list[IntLike]:
    """Strides of m seen as `shape`: 0 where it is broadcast."""
    lead = len(shape) - len(meta.shape)
    out: list[IntLike] = [0] * lead
    for i, (size, stride) in enumerate(zip(meta.shape, meta.stride)):
        o = shape[lead + i]
        out.append(0 if size.__class__ is int and size == 1 and not (o.__class__ is int and o == 1) else stride)
    return out


def _ordered_strides(shape: tuple, strides: Sequence[Sequence[IntLike]]) -> tuple:
    """Packed strides whose order of dimensions follows the operands', the first operand that tells deciding."""
    ndim = len(shape)
    perm = list(range(ndim - 1, -1, -1))  # innermost first

    def order(a: int, b: int) -> int:
        """-1: a is more inner than b; 1: the other way; 0: nothing says."""
        for st in strides:
            x, y = st[a], st[b]
            if is_zero(x) or is_zero(y):
                continue
            if x is y or same(x, y):
                if less(shape[b], shape[a]):
                    return 1
                continue
            return -1 if less(x, y) else 1
        return 0

    for i in range(1, ndim):
        k = i
        for j in range(i - 1, -1, -1):
            c = order(perm[j], perm[k])
            if c > 0:
                perm[j], perm[k] = perm[k], perm[j]
                k = j
            elif c < 0:
                break
    out: list[IntLike] = [0] * ndim
    acc: IntLike = 1
    for d in perm:
        out[d] = acc
        s = shape[d]
        if s.__class__ is not int or s > 1:
            acc = fold(acc * s)
    return tuple(out)
