"""Strides of tensors in memory, and the order of loops that follows from them."""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch

from ..symbolic.expr import ZERO
from .ir import Axis, Value, loads, symbols_of
from .ref import Ref, contiguous_strides, dim_symbol, is_one, same, shape_of, strided


__all__ = [
    "rows_in_place",
    "rows_apart",
    "matrix_in_place",
    "narrowed",
    "aligned_rows",
    "strides_of",
    "same_strides",
    "memory_order",
    "order_of_loads",
]


def rows_in_place(a: Ref) -> bool:
    """Whether this is a batch of matrices in half precision whose rows lie in memory in one piece each, at multiples of
    16 bytes.
    """
    v = strided(a) if a.ndim == 4 and a.dtype in (torch.float16, torch.bfloat16) else None
    return (
        v is not None
        and rows_apart(a.shape, v[1], v[2])
        and all(type(st) is not int or st > 0 or is_one(size) for size, st in zip(a.shape, v[1]))
    )


def rows_apart(shape: Sequence[Any], strides: Sequence[Any], offset: Any) -> bool:
    """Whether rows lie in one piece each, and begin at multiples of 8 elements. What is expanded counts, too."""
    return (
        (is_one(shape[-1]) or strides[-1] == 1)
        and type(offset) is int
        and offset % 8 == 0
        and all(is_one(size) or type(st) is int and st % 8 == 0 for size, st in zip(shape[:-1], strides[:-1]))
    )


def matrix_in_place(a: Ref) -> bool:
    """Whether this is a matrix, or a batch of them, that the library reads where it lies: rows or columns in one piece
    each, at multiples of 16 bytes."""
    v = strided(a) if a.ndim in (2, 3) and a.dtype in (torch.float16, torch.bfloat16, torch.float32) else None
    if v is None or 1 not in v[1][-2:] or type(v[2]) is not int or v[2] * a.dtype.itemsize % 16:
        return False
    at = a.ndim - 1 if v[1][-1] == 1 else a.ndim - 2
    return all(d == at or type(st) is int and st > 0 and st * a.dtype.itemsize % 16 == 0 for d, st in enumerate(v[1]))


def narrowed(value: Value, shape: tuple) -> tuple:
    """The shape with 1 for each dimension that `value` does not vary over: what repeats itself is kept once."""
    if len(shape) < 2 or not all(type(size) is int for size in shape) or math.prod(shape) < 2:
        return shape
    names, ndim = symbols_of([value]), len(shape)
    return tuple(size if dim_symbol(ndim, dim).name in names else 1 for dim, size in enumerate(shape))


def aligned_rows(dtype: torch.dtype, shape: Sequence[Any], stride: Sequence[Any]) -> tuple | None:
    """Strides for a matrix in half precision whose rows would begin at odd addresses: the library's kernels for those
    take several times as long. None where the rows are short, or aligned already."""
    if dtype not in (torch.float16, torch.bfloat16) or len(shape) != 2:
        return None
    n = shape[1]
    if type(n) is not int or n % 8 == 0 or n < 1024 or stride[0] != n or stride[1] != 1:
        return None
    return ((n + 7) // 8 * 8, 1)


def strides_of(m: Any) -> tuple:
    """The strides of a TensorMeta (a tuple) or a tensor (a method)."""
    return shape_of(m.stride() if callable(m.stride) else m.stride)


def same_strides(shape: Sequence[Any], a: Sequence[Any], b: Sequence[Any]) -> bool:
    return all(is_one(size) or (type(size) is int and size == 0) or same(x, y) for size, x, y in zip(shape, a, b))


def memory_order(shape: Sequence[Any], stride: Sequence[Any]) -> tuple[Axis, ...]:
    """Axes of all dimensions that are not of size 1, largest stride first."""
    ndim = len(shape)
    dims = [dim for dim in range(ndim) if not is_one(shape[dim])]
    if any(type(stride[dim]) is not int for dim in dims):
        exact = list(stride) == list(contiguous_strides(shape))
        if not exact:
            dims.sort(key=lambda d: -_rank(stride[d]))
    elif any(stride[dim] < stride[b] for dim, b in zip(dims, dims[1:])):
        dims.sort(key=lambda d: -stride[d])
    return tuple(Axis(dim_symbol(ndim, dim), shape[dim]) for dim in dims)


def _rank(stride: Any) -> int:
    """An order for strides with symbols: symbols stand for large numbers. Where these divide by zero, which sizes do
    not, so does the stride.
    """
    if type(stride) is int:
        return stride
    try:
        return stride.eval({name: 8191 for name in stride.symbol_names()})
    except ZeroDivisionError:
        return 8191


def order_of_loads(value: Value, shape: Sequence[Any]) -> list[int]:
    """Dimensions in the order of the memory of the largest thing that `value` reads."""
    ndim = len(shape)
    best: list[int] | None = None
    best_seen = -1
    for v in loads([value]):
        if v.args:
            continue
        cs = [v.attr[1].coeff(f"j{ndim - 1 - dim}") for dim in range(ndim)]
        seen = sum(1 for c, size in zip(cs, shape) if not is_one(size) and c is not None and c is not ZERO)
        if any(c is None for c in cs) or seen <= best_seen:
            continue
        best_seen = seen
        ranks = [_rank(c.value if c.is_const else c) for c in cs]
        # a dimension that is not read (broadcast) keeps its place
        best = list(range(ndim))
        if all(rank > 0 or is_one(size) for rank, size in zip(ranks, shape)):
            best.sort(key=lambda d: -ranks[d])
    return best if best is not None else list(range(ndim))
