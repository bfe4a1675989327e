"""Exchanges between processes that torch has no operators for: messages from one to another, what one process alone
gets or gives, and barriers.

They begin as torch.distributed's own calls, so that a process which runs plainly meets one whose graph has them.
Like its functional collectives they give a tensor that is ready once `wait_tensor` was called for it.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["SPACE"]

SPACE = "tcompile_exchange"

_library = torch.library.Library(SPACE, "DEF")
# `peer`, `root`: ranks in the group; `mine`: whether this process is the root; `kept`: nobody writes to the tensor
# before its message has left
_library.define("send(Tensor tensor, bool kept, int peer, int tag, str group_name) -> Tensor")
_library.define("receive(Tensor like, int peer, int tag, str group_name) -> Tensor")
_library.define("gather_to(Tensor tensor, bool mine, int root, int size, str group_name) -> Tensor")
_library.define("scatter_from(Tensor given, bool mine, int root, str group_name) -> Tensor")
_library.define("reduce_to(Tensor tensor, str operation, int root, str group_name) -> Tensor")
_library.define("barrier(Tensor like, str group_name) -> Tensor")


def _waits_for(result: torch.Tensor, work: Any) -> torch.Tensor:
    from torch._C import _distributed_c10d

    if work is not None:
        _distributed_c10d._register_work(result, work)
    return result


def _group(name: Any) -> Any:
    from torch.distributed import distributed_c10d

    return distributed_c10d._resolve_process_group(name)


def _send(tensor: torch.Tensor, kept: bool, peer: int, tag: int, group_name: str) -> torch.Tensor:
    if not kept or not tensor.is_contiguous():
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    work = torch.distributed.isend(tensor, group=_group(group_name), tag=tag, group_dst=peer)
    return _waits_for(tensor.new_empty(0), work)


def _receive(like: torch.Tensor, peer: int, tag: int, group_name: str) -> torch.Tensor:
    result = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    return _waits_for(result, torch.distributed.irecv(result, group=_group(group_name), tag=tag, group_src=peer))


def _gather(tensor: torch.Tensor, mine: bool, root: int, size: int, group_name: str) -> torch.Tensor:
    result = torch.empty((size, *tensor.shape) if mine else (0,), dtype=tensor.dtype, device=tensor.device)
    work = torch.distributed.gather(
        tensor.contiguous(),
        list(result.unbind()) if mine else None,
        group=_group(group_name),
        async_op=True,
        group_dst=root,
    )
    return _waits_for(result, work)


def _scatter(given: torch.Tensor, mine: bool, root: int, group_name: str) -> torch.Tensor:
    result = torch.empty(given.shape[1:] if mine else given.shape, dtype=given.dtype, device=given.device)
    work = torch.distributed.scatter(
        result,
        list(given.contiguous().unbind()) if mine else None,
        group=_group(group_name),
        async_op=True,
        group_src=root,
    )
    return _waits_for(result, work)


def _reduce(tensor: torch.Tensor, operation: str, root: int, group_name: str) -> torch.Tensor:
    """The root's result. What the others get is unspecified: what eager leaves in their tensor."""
    result = tensor.clone(memory_format=torch.contiguous_format)
    op = getattr(torch.distributed.ReduceOp, operation.upper())
    work = torch.distributed.reduce(result, op=op, group=_group(group_name), async_op=True, group_dst=root)
    return _waits_for(result, work)


def _barrier(like: torch.Tensor, group_name: str) -> torch.Tensor:
    return _waits_for(like.new_empty(0), torch.distributed.barrier(_group(group_name), async_op=True))


for _name, _kernel in {
    "send": _send,
    "receive": _receive,
    "gather_to": _gather,
    "scatter_from": _scatter,
    "reduce_to": _reduce,
    "barrier": _barrier,
}.items():
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")  # eager's history knows nothing of an exchange
