"""Parameters that FSDP2 has parted, in a graph: gathered where a module begins, their gradients reduced behind it.

An `Unshard` node gives the whole parameters of one group, of the parts that each process holds. That is one all-gather
of all parts at once, as FSDP2 does it; its gradient is one reduce-scatter. What the graph gets comes from
`LocalShards`, and the gradients that leave there become `.grad` of the parameters, as FSDP2 sets them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from ...guards.sharded_state import groups_of, parameters_of, states_of
from ..tensor import state
from .crossings import Call

__all__ = ["Shard", "ShardGroup", "Unshard", "LocalShards"]


@dataclass(frozen=True)
class Shard:
    """One parameter: `shape` of the whole, `part` of what each process holds, padded to the same along dimension 0."""

    shape: tuple[int, ...]
    part: tuple[int, ...]
    differentiable: bool


@dataclass(frozen=True)
class ShardGroup:
    """Parameters that are gathered together: the `gather` group's name, the `reduce` group's, and how many processes.

    dtype, reduce_dtype   what is gathered, and what gradients are reduced in; None: gradients' own
    own_dtype             of the parameters and of their gradients
    again                 backward gathers once more; else what forward gathered is kept
    """

    shards: tuple[Shard, ...]
    gather: str
    reduce: str
    processes: int
    dtype: torch.dtype
    reduce_dtype: torch.dtype | None
    own_dtype: torch.dtype
    again: bool


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: ShardGroup, *parts: torch.Tensor) -> tuple:
        ctx.group = group
        ctx.set_materialize_grads(False)
        with _marked("unshard", group.again):
            whole = _gathered(group, parts)
        ctx.mark_non_differentiable(*(t for t, s in zip(whole, group.shards) if not s.differentiable))
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple:
        group = ctx.group
        there = {i: g for i, g in enumerate(gradients) if g is not None and group.shards[i].differentiable}
        with _marked("reduced", True):
            return None, *_reduced(group, there)


@contextmanager
def _marked(name: str, value: bool) -> Iterator[None]:
    """Say of the nodes that are recorded what they are there for: partition and passes go by it."""
    recorder = state.recorder
    before = getattr(recorder, "where", None)
    if before is None:
        yield
        return
    recorder.where = {**before, name: value}
    try:
        yield
    finally:
        recorder.where = before


def _gathered(group: ShardGroup, parts: Sequence[torch.Tensor]) -> tuple:
    given = [t.to(group.dtype) for t in parts]
    flat = torch.cat(given) if len(given) > 1 else given[0]
    ops = torch.ops._c10d_functional
    gathered = ops.wait_tensor.default(ops.all_gather_into_tensor.default(flat, group.processes, group.gather))
    rows = gathered.view(group.processes, -1).split([prod(s.part) for s in group.shards], 1)
    return tuple(_whole(row, s, group.processes) for row, s in zip(rows, group.shards))


def _whole(row: torch.Tensor, shard: Shard, processes: int) -> torch.Tensor:
    rows, *rest = shard.part
    whole = row.reshape(rows * processes, *rest)
    return whole if whole.shape[0] == shard.shape[0] else whole[: shard.shape[0]]


def _reduced(group: ShardGroup, gradients: dict[int, torch.Tensor]) -> list[torch.Tensor | None]:
    """The mean of all processes' gradients: of each the part that this process holds. As in FSDP2, those that there
    are none of are not exchanged."""
    out: list[torch.Tensor | None] = [None] * len(group.shards)
    if not gradients:
        return out
    rows = [_in_rows(g, group.shards[i], group.processes) for i, g in gradients.items()]
    rows = [r if group.reduce_dtype is None else r.to(group.reduce_dtype) for r in rows]
    flat = (torch.cat(rows, 1) if len(rows) > 1 else rows[0]).reshape(-1)
    ops = torch.ops._c10d_functional
    mean = ops.wait_tensor.default(ops.reduce_scatter_tensor.default(flat, "avg", group.processes, group.reduce)).to(
        group.own_dtype
    )
    for i, part in zip(gradients, mean.split([prod(group.shards[i].part) for i in gradients])):
        out[i] = part
    return out


def _in_rows(gradient: torch.Tensor, shard: Shard, processes: int) -> torch.Tensor:
    """A gradient with one row for each process."""
    missing = shard.part[0] * processes - shard.shape[0]
    if missing:
        gradient = torch.cat([gradient, gradient.new_zeros((missing, *shard.shape[1:]))])
    return gradient.reshape(processes, -1)


class Unshard(Call):
    """Parts that this process holds -> the whole parameters of a group."""

    def __init__(self, group: ShardGroup, name: str):
        super().__init__(f"unshard_{name}" if name else "unshard")
        self.group = group

    def __call__(self, *parts: torch.Tensor) -> tuple:
        return _Gather.apply(self.group, *parts)


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, groups: Sequence[Sequence[Any]]) -> tuple:
        parameters = [p for group in groups for p in group]
        ctx.groups, ctx.parameters = groups, parameters
        ctx.set_materialize_grads(False)
        parts = tuple(p._sharded_param_data.detach() for p in parameters)
        ctx.mark_non_differentiable(*(t for t, p in zip(parts, parameters) if not p.sharded_param.requires_grad))
        return parts

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple:
        there = {id(p): g for p, g in zip(ctx.parameters, gradients) if g is not None}
        for group in reversed(ctx.groups):  # hooks of the program's hear of gradients in this order
            for p in group:
                if id(p) in there:
                    _receive(p, there[id(p)])
        return None, None


@torch.no_grad()
def _receive(p: Any, gradient: torch.Tensor) -> None:
    """Set or add to the gradient of a parameter, as FSDP2 does once it has reduced it."""
    part = gradient.as_strided(p.sharded_size, p.contiguous_sharded_stride)
    sharded = p.sharded_param
    if sharded.grad is None:
        sharded.grad = p.to_sharded_dtensor(part)
    else:
        sharded.grad._local_tensor += part
    for hook in (getattr(sharded, "_post_accumulate_grad_hooks", None) or {}).values():
        hook(sharded)


class LocalShards(Call):
    """The state of an outermost FSDP2 module -> the parts that this process holds of all parameters, flat and padded.

    They are plain tensors in the parameters' memory. Gradients that reach them are the parameters' own.
    `differentiable`: gradients pass, in whatever mode they are asked for.
    """

    def __init__(self, differentiable: bool) -> None:
        super().__init__("local_shards")
        self.differentiable = differentiable
        self.anchor = torch.empty(0, requires_grad=True)  # (without an input that requires grad there is no history)

    def __call__(self, state: Any) -> tuple:
        if self.differentiable:
            groups = [group.fsdp_params for s in states_of(state) for group in groups_of(s)]
            with torch.enable_grad():
                return _Leave.apply(self.anchor, groups)
        return tuple(p._sharded_param_data.detach() for p in parameters_of(state))
