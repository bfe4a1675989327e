"""Steps of torch's optimizers over DTensors that are parameters of compiled modules (FSDP2's, tensor parallel ones).

Over DTensors each operator of a step is looked up in Python, for each tensor: it takes longer than the step's kernels.
What these optimizers do to each element alone they do to the parts that this process holds. So `optimizer.step()` runs
as torch wrote it, over plain tensors in the memory of the parts: parameters, gradients and state. It is that of eager,
kernel by kernel. Parameters that are plain tensors take part as they are. Optimizers with hooks or a closure, and
those of other classes, are left to torch; each such step is a fallback that the report counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import optimizer as _optimizer

from .. import events
from ..capture.kinds.callables import python_function
from ..capture.library.distributed.shards import OF_THE_WHOLE
from ..capture.library.optimizers import OWN_HOOKS, captured_step
from ..capture.tensors.tensor_subclasses import PLAIN_TENSORS
from ..graph.wrappers import is_dtensor

__all__ = ["take_steps_over"]

# id of a parameter -> the part of it that this process holds. (A parameter that is weakly referred to can't be swapped,
# which is how `module.to()` changes a DTensor.)
_of_graphs: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def take_steps_over(parameters: Iterable[Any]) -> None:
    """From now on steps over these DTensors run on their parts."""
    for param in parameters:
        _of_graphs[id(param)] = param._local_tensor
    if _before not in OWN_HOOKS:
        OWN_HOOKS.update((_before, _after))
        _optimizer.register_optimizer_step_pre_hook(_before)
        _optimizer.register_optimizer_step_post_hook(_after)


def _on_parts(original: Any) -> Any:
    """An optimizer of the same class and settings over the parts. `owners`: id of a part -> it, and whose it is."""
    owners: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    groups = [
        {**param_group, "params": [_part(p, owners) for p in param_group["params"]]}
        for param_group in original.param_groups
    ]
    state = type(original.state)(dict)
    for part, whole in owners.values():
        if known := original.state.get(whole):
            state[part] = {key: _local(value, whole) for key, value in known.items()}
    made = object.__new__(type(original))
    made.__dict__.update(original.__dict__, param_groups=groups, state=state, owners=owners)
    return made


def _is_known(p: Any) -> bool:
    part = _of_graphs.get(id(p))
    return part is not None and part is getattr(p, "_local_tensor", None)


def _part(p: Any, owners: dict[int, tuple]) -> torch.Tensor:
    if type(p) in PLAIN_TENSORS:
        if type(p.grad) not in (type(None), torch.Tensor):
            raise _NotOurs(f"the gradient of a plain parameter is a {type(p.grad).__name__}")
        owners[id(p)] = p, p
        return p
    if not _is_known(p):
        raise _NotOurs("it has parameters that no compiled module has")
    if any(place.is_partial() for place in p._spec.placements):
        raise _NotOurs("the parts of a parameter are yet to be added")
    part = p._local_tensor.detach()
    if p.grad is not None:
        part.grad = _local(_placed_alike(p.grad, p), p)
    owners[id(part)] = part, p
    return part


def _placed_alike(gradient: Any, p: Any) -> Any:
    """A gradient that is placed in another way than its parameter (parts of a norm's are yet to be added, where each
    process has a part of the sequence): torch's step exchanges it where it first meets the parameter."""
    if not is_dtensor(type(gradient)) or not is_dtensor(type(p)):
        return gradient
    own, wanted = _spec(gradient), _spec(p)
    if own.mesh != wanted.mesh or own.placements == wanted.placements:
        return gradient
    return gradient.detach().redistribute(placements=wanted.placements)


def _give_back(made: Any, original: Any) -> None:
    """State that the step has made is of DTensors, as the parameters are."""
    for part, state in made.state.items():
        _, whole = made.owners[id(part)]
        before = original.state[whole]
        for key, value in state.items():
            if part is whole or not isinstance(value, torch.Tensor):
                before[key] = value
            elif before.get(key) is None:
                before[key] = (
                    type(whole)(value, whole._spec, requires_grad=False) if value.shape == part.shape else value
                )
    changed = [p for part, p in made.owners.values() if part is not p and part.grad is not None]
    torch.autograd.graph.increment_version(changed)


class _NotOurs(Exception):
    """Why torch's own step runs."""


def _local(value: Any, whole: Any) -> Any:
    """The part of what belongs to a parameter; numbers and plain tensors of its state as they are."""
    if type(value) in PLAIN_TENSORS or not isinstance(value, torch.Tensor):
        return value
    if not is_dtensor(type(value)) or not is_dtensor(type(whole)):
        raise _NotOurs(f"a {type(value).__name__} belongs to a {type(whole).__name__}")
    own, wanted = _spec(value), _spec(whole)
    if own.placements != wanted.placements or own.mesh != wanted.mesh:
        raise _NotOurs("a gradient or state is sharded in another way than its parameter")
    return value._local_tensor  # type: ignore[attr-defined]


def _spec(t: Any) -> Any:
    """How a DTensor is placed."""
    return t._spec


def _alone(optimizer: Any) -> bool:
    """Whether nobody else hears of the optimizer's steps."""
    own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    every = (_optimizer._global_optimizer_pre_hooks, _optimizer._global_optimizer_post_hooks)
    return not any(own) and all(hook in OWN_HOOKS for hooks in every for hook in hooks.values())


def _before(optimizer: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    groups = optimizer.param_groups
    if not _of_graphs or not any(id(p) in _of_graphs for group in groups for p in group["params"]):
        return None
    try:
        if reason := _left_to_torch(optimizer, args, kwargs):
            raise _NotOurs(reason)
        return (_on_parts(optimizer),), kwargs
    except _NotOurs as why:
        what = f"{type(optimizer).__name__}.step()"
        events.fallback(what, f"{why}; torch's own step runs over DTensors")
        return None


def _left_to_torch(optimizer: Any, args: tuple, kwargs: dict) -> str:
    kind = type(optimizer)
    if len(args) != 1 or any(v is not None for v in kwargs.values()):
        return "it is given a closure"
    if kind in OF_THE_WHOLE:
        return "it needs whole parameters"
    if captured_step(kind) is None:
        return "it is not one of torch's optimizers that update each element alone"
    if optimizer.defaults["differentiable"]:
        return "it is differentiable"
    return "" if _alone(optimizer) else "an optimizer has hooks"


def _after(optimizer: Any, args: tuple, kwargs: dict) -> None:
    if args[0] is not optimizer:
        _give_back(args[0], optimizer)


@python_function((__name__, _before.__qualname__), (__name__, _after.__qualname__))
def _nothing(m: Any, *args: Any) -> None:
    """A captured step is a graph of the parts anyway."""
