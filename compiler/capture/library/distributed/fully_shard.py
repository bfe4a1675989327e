"""Modules that FSDP2 (`fully_shard`) has sharded: what its hooks do around forward and backward, as nodes of the graph.

Where the outermost such module is called, its hooks are not run. A module's parameters are the results of an `Unshard`
node while its forward lasts, and backward gathers them once more or reads what forward gathered, as FSDP2 was told.
FSDP2's own objects stay in the state between two steps. What no node does (hooks of the program's, parameters in the
CPU's memory) runs by the hooks, and so does all of a forward that capture cannot see as a whole.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from .... import events
from ....graph.tensor import TraceTensor
from ....graph.wrappers import is_wrapper
from ....graph.wrappers.unshard import LocalShards, ShardGroup, Unshard, described, given_of
from ....guards import source as S
from ....guards.sharded_state import (
    LAYOUTS,
    WANTED,
    ShardedCheck,
    groups_of,
    has_gradient,
    keeps_apart,
    parameters_of,
    placed_before,
    states_of,
)
from ...kinds.callables import python_function
from ...kinds.parameters import interpret
from ...machine.signals import Break
from .placed_tensors import apply_of_library

if TYPE_CHECKING:
    from ...machine.machine import Machine

__all__ = ["Unsharding", "parted_by_hooks"]

_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state"
_RUNS = "FSDP2's hooks run as they are: "
_by_hooks: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # outermost state -> why


class Unsharding:
    """The outermost FSDP2 module of one capture, and which of its modules are being called."""

    def __init__(self, machine: Machine, root: Any):
        self.machine, self.root = machine, root
        machine.placed += [p.sharded_param for p in parameters_of(root)]
        self.open: dict[int, list[tuple[dict, Any]]] = {}  # id of a state -> what its parameters hide
        self.given: dict[bool, dict[tuple, TraceTensor]] = {}  # by grad mode: kind and id of FSDP2's parameter -> input
        self.waited_for: set[int] = set()  # ids of groups that exchange gradients of earlier passes with this one's

    def _given(self) -> dict[tuple, TraceTensor]:
        """The parts of all parameters, and what goes with them, as inputs of the graph: with a history where gradients
        are recorded now."""
        differentiable = torch.is_grad_enabled()
        if differentiable not in self.given:
            shards, known = LocalShards(differentiable), self.given.setdefault(differentiable, {})
            where = S.unwrapped(self.machine.world.sources[id(self.root)], shards)
            rows = zip(given_of(self.root, differentiable), shards(self.root))
            for k, (row, tensor) in enumerate(rows):
                known[row.kind, id(row.parameter)] = self._input(tensor, S.item(where, k))
        return self.given[differentiable]

    def _input(self, part: torch.Tensor, source: Any) -> TraceTensor:
        world = self.machine.world
        part._is_param = True  # type: ignore[attr-defined]  # it is one's memory: who changes it changes that
        trace = world.stand_in(part, source)
        world.register(part, source)
        world.tensors[id(part)], world.reals[id(trace)] = trace, part
        self.machine.graph.add_input(part, trace, source, world.spec(part, trace), True)
        return trace

    def enter(self, state: Any) -> None:
        """The whole parameters of a module's groups, in the place of their parts."""
        machine = self.machine
        hidden = self.open[id(state)] = []
        machine.world.keep.append(state)
        for group in groups_of(state):
            what = described(group)
            if not torch.is_grad_enabled():
                what = replace(what, taken=(), earlier=())
            unshard, given = Unshard(what, (group._module_fqn or "").replace(".", "_")), tuple(self._of(group, what))
            whole = machine.graph.record("call_function", unshard, given, {}, machine.native(unshard, *given))
            tables: dict[int, dict[str, Any]] = {}
            for param, t in zip(group.fsdp_params, whole):
                if param.is_dtensor:
                    t = _as_dtensor(machine, param, t)
                for owner, name in _places(param):
                    table = tables.get(id(owner))
                    if table is None:
                        table = tables[id(owner)] = machine.world.create(dict(owner._parameters))
                        mine = machine.world.pending.setdefault(id(owner), {})
                        machine.world.keep.append(owner)
                        hidden.append((mine, table))
                        mine["_parameters"] = table
                    t._is_param = True  # as the program sees it
                    table[name] = t

    def _of(self, group: Any, what: ShardGroup) -> Iterator[TraceTensor]:
        known, ps = self._given(), group.fsdp_params
        if what.earlier and id(group) in self.waited_for:
            raise Break("disabled", "a module is called twice while gradients of earlier passes wait")
        if what.earlier:
            self.waited_for.add(id(group))
        yield from (known["part", id(p)] for p in ps)
        yield from (known["taker", id(ps[i])] for i in what.taken)
        yield from (known["earlier", id(ps[i])] for i in what.earlier)

    def leave(self, state: Any) -> None:
        for mine, table in self.open.pop(id(state)):
            if mine.pop("_parameters", None) is not table:
                raise Break("mutation", "the table of a module's parameters is replaced while FSDP2 has them gathered")

    def by_hooks(self, reason: str) -> None:
        """Capture cannot follow the forward to its end: the hooks run from now on."""
        reason = reason or "the graph breaks while parameters are gathered"
        _by_hooks[self.root] = reason
        what = f"FSDP2's hooks of {type(self.root._modules[0]).__name__}"
        events.fallback(what, f"{reason}; they run around the graphs")


def _as_dtensor(machine: Machine, param: Any, local: TraceTensor) -> Any:
    """What was a DTensor before FSDP2 sharded its local tensor (tensor parallel) is one again."""
    from torch.distributed.tensor._api import _FromTorchTensor

    spec = placed_before(param)
    shape, stride = spec.tensor_meta.shape, spec.tensor_meta.stride
    return apply_of_library(machine, _FromTorchTensor, (local, spec.mesh, spec.placements, False, shape, stride))


def _places(param: Any) -> list[tuple[torch.nn.Module, str]]:
    """The modules that have a parameter, and under which name."""
    info = param._module_info
    return [(info.module, info.param_name), *zip(info.shared_modules, info.shared_param_names)]


def parted_by_hooks(inputs: Iterable[Any]) -> list[Any]:
    """The DTensors of all modules of which FSDP2's hooks have gathered parameters for these inputs of a graph."""
    module = sys.modules.get(_STATE)
    if module is None or not (given := {id(t) for t in inputs if isinstance(t, torch.nn.Parameter)}):
        return []
    from torch.distributed._composable_state import _module_state_mapping as known

    found: dict[int, Any] = {}  # by the id of the context that states of one outermost module share
    for state in {s for reference in list(known.values()) if isinstance(s := reference(), module.FSDPState)}:
        gathered = (
            getattr(param, "_unsharded_param", None) for group in groups_of(state) for param in group.fsdp_params
        )
        if any(id(t) in given for t in gathered):
            found[id(state._state_ctx)] = state
    return [p.sharded_param for state in found.values() for p in parameters_of(state)]


# --- what only the hooks do
def _only_hooks_do(root: Any) -> str:
    """Why the hooks have to run; "" where nodes of the graph can do what they do."""
    if root._state_ctx.iter_forward_root is not None:
        return "a forward of it is under way"
    if root._state_ctx.post_optim_event is not None:
        return "parameters wait for an event of the program's"
    owners: dict[int, tuple[torch.nn.Module, set[str]]] = {}
    for state in states_of(root):
        if len(state._modules) > 1:
            return "fully_shard was given a list of modules"
        for group in groups_of(state):
            if reason := _of_group(group):
                return reason
            for param in group.fsdp_params:
                for owner, name in _places(param):
                    owners.setdefault(id(owner), (owner, set()))[1].add(name)
    if any(
        parameter is not None and key not in names
        for o, names in owners.values()
        for key, parameter in o._parameters.items()
    ):
        return "a module has parameters that are sharded, and others that are not"
    return ""


def _of_group(group: Any) -> str:
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo

    for name, wanted, reason in WANTED:
        value = getattr(group, name, wanted)
        if getattr(value, "name", value) != wanted:
            return reason
    if type(group.mesh_info) not in (FSDPMeshInfo, HSDPMeshInfo):
        return "it is not sharded along a dimension of a mesh"
    if type(group.mesh_info) is HSDPMeshInfo and group.reduce_grads and not group.all_reduce_grads:
        return "gradients are exchanged within a part of the mesh alone"
    if group.post_forward_mesh_info not in (None, group.mesh_info):
        return "parameters are sharded in another way after forward"
    communication = (type(group._all_gather_comm), type(group._reduce_scatter_comm))
    if communication != (collectives.DefaultAllGather, collectives.DefaultReduceScatter):
        return "the program says how tensors are exchanged"
    if any(getattr(group, name, None) is not getattr(collectives, usual, None) for name, usual in LAYOUTS):
        return "the program says how tensors are laid out before they are exchanged, or after"
    if len({param.param_dtype or param.orig_dtype for param in group.fsdp_params}) != 1:
        return "parameters of several dtypes are gathered together"
    reduced = group._reduce_dtype or group.fsdp_params[0].param_dtype or group.fsdp_params[0].orig_dtype
    if reduced not in (torch.float32, torch.bfloat16):
        return f"gradients are reduced in {str(reduced).removeprefix('torch.')}"
    return next((reason for param in group.fsdp_params if (reason := _of_parameter(param, group))), "")


def _of_parameter(param: Any, group: Any) -> str:
    if param.offload_to_cpu:
        return "parameters lie in the CPU's memory"
    if param.fsdp_placement.dim != 0:
        return "a parameter is sharded along another dimension than its first"
    if getattr(param, "is_spmd_types", False) or getattr(group.mesh_info, "is_spmd_mesh", False):
        return "parameters are placed on a mesh of all dimensions"
    local = param.sharded_param._local_tensor
    if is_wrapper(local) or hasattr(local, "fsdp_pre_all_gather"):
        return f"parts are of class {type(local).__name__}"
    if getattr(param, "_has_sharded_grad_dtype_override", False):
        return "a parameter says of which dtype its gradient is"
    if not group.reduce_grads and not keeps_apart(param):
        return "gradients are added up in the parameters before they are exchanged"
    if has_gradient(param):
        return "gradients of an earlier pass wait to be exchanged"
    return ""


def _elsewhere(value: Any, device: torch.device) -> bool:
    """Whether a tensor among the arguments lies on another device than the module."""
    if isinstance(value, TraceTensor):
        return value.device.type != device.type
    inside = value if type(value) in (tuple, list) else value.values() if type(value) is dict else ()
    return any(_elsewhere(v, device) for v in inside)


# --- the hooks
def _begun(machine: Machine, state: Any, args: Any, kwargs: Any) -> Unsharding:
    source = machine.world.source_of(state)
    if source is None:
        raise Break("disabled", _RUNS + "the module is made inside")
    if state._is_root is None:
        machine.native(state._lazy_init)  # what a first call does, whoever runs it
    if not state._is_root:
        raise Break("disabled", _RUNS + "the outermost module is called outside")
    if machine.opts.in_order:
        raise Break("disabled", _RUNS + "another compiler than tcompile makes the kernels")
    machine.world.guard(S.asked(source, ShardedCheck(state)), "ID", True, "what FSDP2's hooks do")
    reason = _by_hooks.get(state) or _only_hooks_do(state)
    if not reason and state._device.type != "cpu" and _elsewhere((args, kwargs), state._device):
        reason = "its arguments lie on another device"
    if reason:
        raise Break("disabled", _RUNS + reason)
    return Unsharding(machine, state)


@python_function((_STATE, "FSDPState._pre_forward"))
def pre_forward(machine: Machine, state: Any, module: Any, args: Any, kwargs: Any) -> Any:
    if machine.unsharding is None:
        machine.unsharding = _begun(machine, state, args, kwargs)
    known = machine.unsharding
    if not any(s is state for s in states_of(known.root)) or id(state) in known.open:
        raise Break("disabled", _RUNS + "a module of another call, or one that calls itself, is sharded")
    if not known.open and state is not known.root:
        raise Break("disabled", _RUNS + "the outermost module is called outside")
    policy = state._mp_policy
    if policy.cast_forward_inputs and policy.param_dtype is not None:
        args, kwargs = interpret(machine, cast_floats, [policy.param_dtype, (args, kwargs)], {})
    known.enter(state)
    return args, kwargs


@python_function((_STATE, "FSDPState._post_forward"))
def post_forward(machine: Machine, state: Any, module: Any, given: Any, output: Any) -> Any:
    known = machine.unsharding
    if known is None or id(state) not in known.open:
        raise Break("disabled", _RUNS + "the forward of this module began outside")
    known.leave(state)
    dtype = state._mp_policy.output_dtype
    return output if dtype is None else interpret(machine, cast_floats, [dtype, output], {})


def cast_floats(dtype: torch.dtype, values: Any) -> Any:
    from torch.distributed.fsdp._fully_shard._fsdp_common import _cast_fp_tensor
    from torch.distributed.utils import _apply_to_tensors

    return _apply_to_tensors(functools.partial(_cast_fp_tensor, dtype), values)
