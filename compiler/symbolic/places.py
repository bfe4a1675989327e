"""What sizes and strides say about the places of elements in memory. Sizes and strides are ints or Exprs."""

from __future__ import annotations

from typing import Any, Sequence

__all__ = ["disjoint", "coincide"]


def disjoint(shape: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Whether plain sizes and strides show that no two elements lie at one place."""
    dims = [(st, size) for size, st in zip(shape, stride) if not (type(size) is int and size == 1)]
    if not all(type(x) is int for dim in dims for x in dim):
        return False
    reach = 0
    for st, n in sorted(dims):
        if st <= reach:
            return False
        reach += st * (n - 1)
    return True


def coincide(shape: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Whether elements seem to share memory: plain sizes and strides don't show the opposite, or two axes have the same
    symbolic stride.
    """
    dims = [(size, st) for size, st in zip(shape, stride) if not (type(size) is int and size == 1)]
    if all(type(x) is int for dim in dims for x in dim):
        return not disjoint(shape, stride)
    strides = [st for _, st in dims]
    return any(a is b or type(a) is type(b) is int and a == b for k, a in enumerate(strides) for b in strides[:k])
