"""DTensors as an optimizer updates them: the part of each that this process holds.

What an optimizer does to each element alone it does to the elements here. So the graph has the local tensors, and no
operator on DTensors: a parameter, its gradient and its state are sharded alike, or the step runs as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ....graph.tensor import TraceTensor
from ....graph.wrappers import is_dtensor
from ...machine.signals import Break
from ...tensors import tensor_calls
from ...tensors.tensor_subclasses import Subclassed
from ...tensors.wrapper_values import finish, inner_attribute, inner_tensors, inside

if TYPE_CHECKING:
    from ...machine.machine import Machine

__all__ = ["OF_THE_WHOLE", "local_lists"]

# Whose step makes one element of a parameter of all of them: on a part of it, it would be another step.
OF_THE_WHOLE: tuple[type, ...] = (torch.optim.Muon,) if hasattr(torch.optim, "Muon") else ()


def local_lists(machine: Machine, given: tuple) -> tuple:
    """Arguments of an optimizer's function, lists of which the first are the parameters, with local tensors in the
    place of DTensors."""
    lists = [ts for ts in given if type(ts) is list]
    if not any(type(t) is Subclassed and is_dtensor(t.tensor_class) for ts in lists for t in ts):
        return given  # (tensors of other wrapper classes are computed with as the class says)
    if type(machine.stepping) in OF_THE_WHOLE:
        raise Break("optimizer", "its step needs whole parameters, and a DTensor holds a part of one")
    placed = [[*ts] for ts in lists]
    for i, p in enumerate(lists[0]):
        for ts, row in zip(lists[1:], placed[1:]):
            if i < len(ts):
                row[i] = _placed_alike(machine, p, ts[i])
    changed = [p for p in lists[0] if type(p) is Subclassed]
    machine.effects.call(
        torch.autograd.graph.increment_version, [changed], {}
    )  # a write to the parts is one to the whole
    local = iter([[_local(machine, t) for t in ts] for ts in placed])
    return tuple(next(local) if type(ts) is list else ts for ts in given)


def _local(machine: Machine, t: Any) -> Any:
    """The part of a DTensor, to write to: of one that this graph differentiates it is the same input."""
    if type(t) is not Subclassed:
        return t
    real = machine.world.reals.get(id(t))
    if real is None:
        return inner_attribute(machine, t, "_local_tensor")
    latest = machine.world.subclassed[id(real)]
    if latest.plain.tt_differentiable:
        return tensor_calls.call_method(machine, inside(machine, latest)[0], "detach", [], {})
    return inner_tensors(machine.world, latest)[0]


def _placed_alike(machine: Machine, p: Any, t: Any) -> Any:
    """What belongs to a parameter, placed as that is: parts of a gradient that are yet to be added are exchanged where
    torch's step meets the parameter."""
    parted = [type(x) is Subclassed and is_dtensor(x.tensor_class) for x in (p, t)]
    if not any(parted) or t is None or isinstance(t, TraceTensor) and not t.dim():
        return t
    if not all(parted):
        raise Break("optimizer", "of a parameter and its gradient or state one is a DTensor, and the other is none")
    own, wanted = _spec(machine, t), _spec(machine, p)
    if any(place.is_partial() for place in wanted.placements):
        raise Break("optimizer", "a DTensor is updated before its parts are added up")
    if own.mesh == wanted.mesh and own.placements == wanted.placements:
        return t
    if own.mesh != wanted.mesh or not any(place.is_partial() for place in own.placements):
        raise Break("optimizer", "a DTensor and its gradient or state are sharded in different ways")
    return machine.call(machine.getattr(t, "redistribute"), [], {"placements": wanted.placements})


def _spec(machine: Machine, t: Subclassed) -> Any:
    """How a DTensor is placed."""
    if t.unfinished is not None:
        finish(machine, t)
    real = machine.world.reals.get(id(t))
    return (t.plain.tt_wrapper if real is None else real)._spec
