"""Memory of large results, kept for the next call.

A block beyond malloc's mmap threshold (32 MB in glibc) comes fresh from the kernel at every call and costs a page fault
for each 4 KB, several times what a simple kernel needs to fill it. The pool keeps a reference to the storage of such a
result. When nothing else holds one (no tensor, view, numpy array, saved tensor or storage object), the next result of
that size lies in it. What a result is made of cannot be told from eager's: a storage of torch's own allocator, version
0, no base, resizable.

The pool follows at most `output_pool_mb` bytes, whether in use or free; `held()` says how much is free, that is, held
by it alone.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import Sequence

import torch

from ..base import forks

__all__ = ["LEAST_BYTES", "Wanted", "take", "held", "clear"]

LEAST_BYTES = 16 << 20

_lock = forks.lock()
# address of the memory -> what is known of it, least recently handed out first
_kept: OrderedDict[int, "_Kept"] = OrderedDict()


@dataclass
class Wanted:
    """A result with static sizes: what `take` makes. `limit`: most bytes that the pool follows."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int
    limit: int


@dataclass
class _Kept:
    """`base`: a tensor of the pool's own over the storage; `alone`: what `_references` gives where nothing else holds
    the storage.
    """

    base: torch.Tensor
    nbytes: int
    address: int
    alone: tuple[int, int]

    def free(self) -> bool:
        """Whether only the pool holds it."""
        return _references(self.base) == self.alone

    def unchanged(self) -> bool:
        """Whether it is still the memory that was made: resize_ and share_memory_ exchange it."""
        return self.base.data_ptr() == self.address and self.base.untyped_storage().nbytes() == self.nbytes


def _references(base: torch.Tensor) -> tuple[int, int]:
    """References to the storage from C++ and from Python. Both count: the storage object that a user asked for is one
    with a life of its own, and holds the C++ storage whether anyone still holds it or not."""
    storage = base.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


def take(w: Wanted) -> torch.Tensor:
    """A tensor of uninitialised memory, from a free storage of exactly this size or from a new one."""
    with _lock:
        for key, value in list(_kept.items()):
            if value.nbytes == w.nbytes and value.free():
                if not value.unchanged():
                    del _kept[key]
                    continue
                _kept.move_to_end(key)
                return _tensor(value.base, w)
        base = torch.empty(w.nbytes, dtype=torch.uint8, device="cpu")
        _make_room(w)
        if sum(k.nbytes for k in _kept.values()) + w.nbytes <= w.limit:
            _kept[base.data_ptr()] = _Kept(base, w.nbytes, base.data_ptr(), _references(base))
        return _tensor(base, w)


def _tensor(base: torch.Tensor, w: Wanted) -> torch.Tensor:
    # .data: a version counter of its own that begins at 0, as a fresh result has
    return torch.empty(0, dtype=w.dtype, device="cpu").set_(base.untyped_storage(), 0, w.shape, w.stride).data


def _make_room(w: Wanted) -> None:
    """Let go of free blocks, the oldest first, until the new one fits."""
    total = sum(k.nbytes for k in _kept.values()) + w.nbytes
    for key, value in list(_kept.items()):
        if total <= w.limit:
            return
        if value.free():
            del _kept[key]
            total -= value.nbytes


def held() -> int:
    """Bytes that the pool alone keeps from being freed."""
    with _lock:
        return sum(k.nbytes for k in _kept.values() if k.free())


def clear() -> None:
    """Free what is free, and forget the rest."""
    with _lock:
        _kept.clear()


def strides_reach(shape: Sequence[int], stride: Sequence[int], itemsize: int) -> int:
    """Bytes from the first element to the end of the last."""
    return (1 + sum((size - 1) * s for size, s in zip(shape, stride))) * itemsize if 0 not in shape else 0
