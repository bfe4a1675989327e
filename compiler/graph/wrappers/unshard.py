"""Parameters that FSDP2 has sharded, in a graph: gathered where a module begins, their gradients reduced behind it.

An `Unshard` node gives the whole parameters of one group, of the parts that each process holds. That is one all-gather
of all parts at once, as FSDP2 does it. Its gradient is one reduce-scatter, and one all-reduce where several processes
hold the same part. What the graph gets comes from `LocalShards`. The gradients that leave there become `.grad` of the
parameters, as FSDP2 sets them.

Gradients that the program wants added up before they are exchanged leave whole, through `takers`: tensors of the whole
parameters' shapes without memory of their own. A later pass gets their sum as `earlier`, and exchanges it with its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from ...guards.sharded_state import groups_of, kept_of, keeps_apart, parameters_of, placed_before, states_of
from ..tensor import marked
from .crossings import Call

__all__ = ["ShardGroup", "Unshard", "Given", "given_of", "described", "LocalShards"]


@dataclass(frozen=True)
class Shard:
    """One parameter: `shape` of the whole, `part` of what each process holds, padded to the same along dimension 0."""

    shape: tuple[int, ...]
    part: tuple[int, ...]
    differentiable: bool


@dataclass(frozen=True)
class ShardGroup:
    """Parameters that are gathered together: the `gather` group's name, the `reduce` group's, and how many processes.

    across, replicas      the name of the group of processes that hold the same part, and how many; "" where none do
    taken, earlier        of which parameters gradients leave whole, and of which there are such of earlier passes
    dtype, reduce_dtype   what is gathered, and what gradients are reduced in; None: gradients' own
    own_dtype             of the parameters and of their gradients
    again                 backward gathers once more; else what forward gathered is kept
    """

    shards: tuple[Shard, ...]
    gather: str
    reduce: str
    processes: int
    across: str
    replicas: int
    taken: tuple[int, ...]
    earlier: tuple[int, ...]
    dtype: torch.dtype
    reduce_dtype: torch.dtype | None
    own_dtype: torch.dtype
    again: bool


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: ShardGroup, *given: torch.Tensor) -> tuple:
        ctx.group = group
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given[len(given) - len(group.earlier) :])
        with marked(unshard=group.again):
            whole = _gathered(group, given[: len(group.shards)])
        ctx.mark_non_differentiable(*(t for t, shard in zip(whole, group.shards) if not shard.differentiable))
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple:
        group = ctx.group
        there = {
            i: gradient
            for i, gradient in enumerate(gradients)
            if gradient is not None and group.shards[i].differentiable
        }
        if group.taken:
            taken = (there.get(i) for i in group.taken)
            kept = group.reduce_dtype or group.dtype
            return None, *[None] * len(group.shards), *(g if g is None else g.to(kept) for g in taken)
        for i, sum_before in zip(group.earlier, ctx.saved_tensors):
            there[i] = sum_before + there[i] if i in there else sum_before
        with marked(reduced=True):
            return None, *_reduced(group, dict(sorted(there.items()))), *[None] * len(group.earlier)


def _gathered(group: ShardGroup, parts: Sequence[torch.Tensor]) -> tuple:
    given = [part.to(group.dtype) for part in parts]
    flat = torch.cat(given) if len(given) > 1 else given[0]
    ops, gathered = torch.ops._c10d_functional, flat
    if group.processes > 1:
        gathered = ops.wait_tensor.default(ops.all_gather_into_tensor.default(flat, group.processes, group.gather))
    rows = gathered.view(group.processes, -1).split([prod(shard.part) for shard in group.shards], 1)
    return tuple(_whole(row, shard, group.processes) for row, shard in zip(rows, group.shards))


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
    rows = [_in_rows(gradient, group.shards[key], group.processes) for key, gradient in gradients.items()]
    rows = [row if group.reduce_dtype is None else row.to(group.reduce_dtype) for row in rows]
    flat = (torch.cat(rows, 1) if len(rows) > 1 else rows[0]).reshape(-1)
    ops, mean = torch.ops._c10d_functional, flat
    if group.processes > 1:
        mean = ops.wait_tensor.default(ops.reduce_scatter_tensor.default(mean, "avg", group.processes, group.reduce))
    if group.replicas > 1:
        mean = ops.wait_tensor.default(ops.all_reduce.default(mean, "avg", group.across))
    mean = mean.to(group.own_dtype)
    for gradient, part in zip(gradients, mean.split([prod(group.shards[i].part) for i in gradients])):
        out[gradient] = part
    return out


def _in_rows(gradient: torch.Tensor, shard: Shard, processes: int) -> torch.Tensor:
    """A gradient with one row for each process."""
    missing = shard.part[0] * processes - shard.shape[0]
    if missing:
        gradient = torch.cat([gradient, gradient.new_zeros((missing, *shard.shape[1:]))])
    return gradient.reshape(processes, -1)


class Unshard(Call):
    """Parts that this process holds, takers of whole gradients, earlier gradients -> a group's whole parameters."""

    def __init__(self, group: ShardGroup, name: str):
        super().__init__(f"unshard_{name}" if name else "unshard")
        self.group = group

    def __call__(self, *given: torch.Tensor) -> tuple:
        return _Gather.apply(self.group, *given)


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, order: Sequence[Any], given: Sequence[Given]) -> tuple:
        ctx.order, ctx.given = order, given
        ctx.set_materialize_grads(False)
        tensors = tuple(g.tensor() for g in given)
        ctx.mark_non_differentiable(*(tensor for tensor, g in zip(tensors, given) if not g.differentiable))
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple:
        there = {
            (g.kind, id(g.parameter)): gradient for g, gradient in zip(ctx.given, gradients) if gradient is not None
        }
        earlier = {id(g.parameter): g.now for g in ctx.given if g.kind == "earlier"}
        for group in ctx.order:  # hooks of the program's hear of gradients in this order
            for param in group.fsdp_params:
                part = there.get(("part", id(param)))
                _keep(param, there.get(("taker", id(param))), None if part is None else earlier.get(id(param)))
            if group.reduce_grads:
                _exchange_rest(group)
            for param in group.fsdp_params:
                if ("part", id(param)) in there:
                    _receive(param, there["part", id(param)])
        return None, None, None


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


@torch.no_grad()
def _keep(p: Any, gradient: torch.Tensor | None, exchanged: torch.Tensor | None) -> None:
    """Add to what is exchanged later, and take away what was: tensors of their own, since a forward may have been given
    the one before."""
    kept = before = kept_of(p)
    if exchanged is not None:
        kept = None if kept is exchanged else -exchanged if kept is None else kept - exchanged
    if gradient is not None:
        kept = gradient if kept is None else kept + gradient
    if kept is not before:
        _set_kept(p, kept)


def _set_kept(param: Any, kept: torch.Tensor | None) -> None:
    if kept is not None and param.is_dtensor:
        kept = type(param.sharded_param)(kept, placed_before(param), requires_grad=False)
    if keeps_apart(param):
        param.unsharded_accumulated_grad = kept
    else:
        param._unsharded_param.grad = kept


@torch.no_grad()
def _exchange_rest(group: Any) -> None:
    """The graph has exchanged what was kept when forward began. What came since then is exchanged here."""
    rest = {i: kept for i, param in enumerate(group.fsdp_params) if (kept := kept_of(param)) is not None}
    if not rest:
        return
    for param, part in zip(group.fsdp_params, _reduced(described(group), rest)):
        _set_kept(param, None)
        if part is not None:
            _receive(param, part)


@dataclass(frozen=True, eq=False)
class Given:
    """One tensor that a graph gets of a parameter of FSDP2's. kind: "part", "taker" or "earlier"."""

    kind: str
    parameter: Any
    kept: torch.dtype | None = None
    now: Any = None

    @property
    def differentiable(self) -> bool:
        return self.kind != "earlier" and self.parameter.sharded_param.requires_grad

    def tensor(self) -> torch.Tensor:
        parameter = self.parameter
        if self.kind == "taker":
            return torch.empty((), dtype=self.kept, device=parameter._sharded_param_data.device).expand(
                parameter._orig_size
            )
        return (parameter._sharded_param_data if self.kind == "part" else self.now).detach()


def given_of(state: Any, differentiable: bool) -> list[Given]:
    """What a graph gets of the parameters below an outermost module, in order."""
    given = [Given("part", p) for p in parameters_of(state)]
    for group in (group for s in states_of(state) for group in groups_of(s)) if differentiable else ():
        kept = group._reduce_dtype or group.fsdp_params[0].param_dtype or group.fsdp_params[0].orig_dtype
        for param in group.fsdp_params:
            if not group.reduce_grads and param.sharded_param.requires_grad:
                given.append(Given("taker", param, kept))
            elif group.reduce_grads and param.unsharded_accumulated_grad is not None:
                given.append(Given("earlier", param, now=kept_of(param)))
    return given


class LocalShards(Call):
    """The state of an outermost FSDP2 module -> the parts that this process holds of all parameters, flat and padded,
    and what else graphs get of them.

    They are plain tensors in the parameters' memory. Gradients that reach them are the parameters' own.
    `differentiable`: gradients pass, in whatever mode they are asked for.
    """

    def __init__(self, differentiable: bool) -> None:
        super().__init__("local_shards")
        self.differentiable = differentiable
        self.anchor = torch.empty(0, requires_grad=True)  # (without an input that requires grad there is no history)

    def __call__(self, state: Any) -> tuple:
        given = given_of(state, self.differentiable)
        if self.differentiable:
            order = [group for s in reversed(states_of(state)) for group in reversed(groups_of(s))]
            with torch.enable_grad():
                return _Leave.apply(self.anchor, order, given)
        return tuple(g.tensor() for g in given)


def described(group: Any) -> ShardGroup:
    """A group of FSDP2's, as it is now."""
    first, mesh = group.fsdp_params[0], group.mesh_info
    reduce = getattr(mesh, "reduce_scatter_process_group", None) or mesh.shard_process_group
    shards = tuple(
        Shard(tuple(param._orig_size), tuple(param.padded_sharded_param_size), param.sharded_param.requires_grad)
        for param in group.fsdp_params
    )
    alike = getattr(mesh, "replicate_process_group", None)
    parameters = list(enumerate(group.fsdp_params))
    return ShardGroup(
        shards=shards,
        gather=mesh.shard_process_group.group_name,
        reduce=reduce.group_name,
        processes=mesh.shard_mesh_size,
        across="" if alike is None else alike.group_name,
        replicas=1 if alike is None else mesh.replicate_mesh_size,
        taken=() if group.reduce_grads else tuple(i for i, p in parameters if p.sharded_param.requires_grad),
        earlier=tuple(i for i, p in parameters if p.unsharded_accumulated_grad is not None)
        if group.reduce_grads
        else (),
        dtype=first.param_dtype or first.orig_dtype,
        reduce_dtype=group._reduce_dtype,
        own_dtype=next(
            (param.orig_dtype for param in group.fsdp_params if param.sharded_param.requires_grad), first.orig_dtype
        ),
        again=group.post_forward_mesh_info is not None,
    )
