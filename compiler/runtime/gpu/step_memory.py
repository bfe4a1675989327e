"""What the forward of a training step keeps for its backward, left in the memory of its CUDA graph (`cuda_graphs.py`).

What is kept has a fixed place there. After a replay it is handed out as tensors over that memory, and the backward
graph reads it where it is. Whoever holds such a tensor (autograd's graph, a hook, the user) holds a reference to its
storage: while there are more of them than before anything was handed out, nothing that writes to the memory may run. So
one forward at a time has its results there, and others run plainly.

The graphs of a step have a pool of memory of their own. When the backward is captured and nobody else holds what was
kept, the allocator gets each place back after its last use, as in plain calls. What the backward makes then lies there.
Its replay destroys what it reads, and may only run where nobody else holds it. A backward that is captured while others
hold it (a graph that is retained, a second loss) is kept out of the pool: it destroys nothing. The pool lives as long
as a graph or a tensor over its memory does.

Gradients are lent in the same way: they stay where the backward graph made them, and nothing of the step is replayed
while anybody holds one. Who keeps gradients from step to step makes the step copy them from then on. They are no memory
of torch's allocator (`record_stream` does nothing): whatever reads them on another stream is waited for before the next
forward, as the parameters that it writes ask for anyway.
"""

from __future__ import annotations

import functools
import weakref
from array import array
from typing import Any, Sequence

import torch

from ...native import native

__all__ = ["Pool", "Held", "Step", "common_pool", "over", "own_copy", "held_bytes", "most_bytes"]

SHARE = 4  # one part in so many of a device's memory, at most, holds what forwards keep

_common: dict[int, Pool] = {}
_sides: dict[int, torch.cuda.Stream] = {}
_steps: weakref.WeakSet[Step] = weakref.WeakSet()

_uses = getattr(torch._C, "_storage_Use_Count", None)


class Pool:
    """Memory for graphs, and the stream that captures run on. torch forgets a pool with its last graph: `anchor` is one
    that stays.
    """

    def __init__(self, index: int):
        if index not in _sides:
            _sides[index] = torch.cuda.Stream(index)
        self.index, self.side, self.handle = index, _sides[index], torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(index)
        self.anchor = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.side):
            self.anchor.capture_begin(pool=self.handle, capture_error_mode="thread_local")
            self.memory = torch.empty(1, device=torch.device("cuda", index)).zero_()
            self.anchor.capture_end()


def common_pool(index: int) -> Pool:
    """The pool of all graphs of a device that leave nothing in their memory."""
    if index not in _common:
        _common[index] = Pool(index)
    return _common[index]


def over(tensor: torch.Tensor, pool: Any) -> torch.Tensor:
    """A tensor over the memory of `tensor`, which stays the allocator's: only the pool is kept."""
    kind, index = (2, tensor.device.index) if tensor.is_cuda else (1, 0)
    n = span(tensor) * tensor.element_size()
    memory = torch.from_dlpack(native.blob(tensor.data_ptr(), n, kind, index, pool))
    with torch.no_grad():
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            memory.untyped_storage(), 0, tensor.shape, tensor.stride()
        )


def span(tensor: torch.Tensor) -> int:
    """Elements from the first to the last that the strides reach."""
    return 1 + sum((size - 1) * st for size, st in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Memory of the same layout, gaps included, with the tensor's contents."""
    n = span(tensor)
    flat = torch.empty(n, dtype=tensor.dtype, device=tensor.device)
    with torch.no_grad():
        flat.copy_(tensor.detach().as_strided((n,), (1,), tensor.storage_offset()))
    return flat.as_strided(tensor.shape, tensor.stride())


def place_of(tensor: torch.Tensor) -> tuple:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


class Held:
    """What one forward graph keeps. `views`: place -> tensor over it; `own`: the same as tensors that own the memory,
    until a backward was captured that gives it back; `static`: addresses of the forward's inputs that do not move;
    `dropped`: the forward graph is no more.
    """

    def __init__(self, kept: Sequence[torch.Tensor], pool: Any, static: frozenset[int]):
        self.own = {place_of(t): t for t in kept}
        self.views = {place: over(value, pool) for place, value in self.own.items()}
        self.static, self.dropped = static, False
        self.storages = array("q", (view.untyped_storage()._cdata for view in self.views.values()))
        self.count = native.storage_uses if _counts_as_torch() else _sum_of_uses
        self.idle = self.count(self.storages)

    @property
    def alive(self) -> bool:
        """Whether anybody holds what was handed out."""
        return self.count(self.storages) > self.idle

    @property
    def bytes(self) -> int:
        return sum(span(view) * view.element_size() for view in self.views.values())


def _sum_of_uses(storages: Sequence[int]) -> int:
    assert _uses is not None
    return sum(map(_uses, storages))


@functools.cache
def _counts_as_torch() -> bool:
    """Whether this torch keeps a storage's count of references where native code looks for it: tried with storages that
    are held once, and more often.
    """
    if not hasattr(native, "storage_uses"):
        return False
    few = [torch.empty(n) for n in range(4)]
    more = [tensor.view(-1) for tensor in few for _ in range(tensor.numel())]
    addresses = array("q", (tensor.untyped_storage()._cdata for tensor in few))
    return all(
        native.storage_uses(array("q", [address])) == _sum_of_uses([address]) for address in addresses
    ) and native.storage_uses(addresses) == _sum_of_uses(addresses) > len(more)


class Step:
    """What the graphs of one forward and its backwards share. `first`: the forward's results from this position on are
    for the backward alone.
    """

    def __init__(self, first: int, index: int):
        self.first, self.index = first, index
        self.last: Held | None = None  # what the last replay of a forward graph handed out
        self.reason = ""  # why forward graphs were given up
        self.reserved = 0  # bytes that captures in the pool took from the device
        self.lends = True  # gradients stay in the graphs' memory
        self.lent: list[Held] = []
        self.waited = 0  # calls that ran plainly because of them
        self._pool: Pool | None = None
        self.family: list[Step] = [self]  # those of the same plan, for other parameters
        self._hint = 0
        _steps.add(self)

    def sibling(self) -> Step:
        """The step of the same forward for another set of parameters."""
        other = Step(self.first, self.index)
        other.family = self.family
        self.family.append(other)
        return other

    def holder(self, given: Sequence[Any]) -> Step | None:
        """Whose forward graph holds what a backward is given; None: no graph does."""
        for i in (self._hint, *range(len(given))):
            if i < len(given) and isinstance(given[i], torch.Tensor) and given[i].layout is torch.strided:
                place = place_of(given[i])
                for step in self.family:
                    if step.last is not None and place in step.last.views:
                        self._hint = i
                        return step
        return None

    @property
    def pool(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(self.index)
        return self._pool

    @property
    def busy(self) -> bool:
        """Whether something that a forward graph kept is still needed."""
        return self.last is not None and self.last.alive

    def leave(self) -> None:
        """The memory so far is left to those who hold some of it."""
        self.last, self.lent, self._pool, self.reserved = None, [], None, 0

    @property
    def still_lent(self) -> bool:
        """Whether somebody holds gradients in the graphs' memory."""
        return any(h.alive for h in self.lent)


def held_bytes(index: int) -> int:
    """Bytes of the device in pools of training steps."""
    return sum(step.reserved for step in list(_steps) if step.index == index)


def most_bytes(index: int) -> int:
    return torch.cuda.mem_get_info(index)[1] // SHARE


def can_hold() -> bool:
    return _uses is not None and native is not None and hasattr(native, "blob")
