"""DTensors as an optimizer updates them: the part of each that this process holds.

What an optimizer does to each element alone it does to the elements here. So the graph has the local tensors, and no
operator on DTensors: a parameter, its gradient and its state are sharded alike, or the step runs as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ....graph.wrappers import is_dtensor
from ...machine.signals import Break
from ...tensors.tensor_subclasses import Subclassed
from ...tensors.wrapper_values import inner_tensors

if TYPE_CHECKING:
    from ...machine.machine import Machine

__all__ = ["OF_THE_WHOLE", "local_lists"]

# Whose step makes one element of a parameter of all of them: on a part of it, it would be another step.
OF_THE_WHOLE: tuple[type, ...] = (torch.optim.Muon,) if hasattr(torch.optim, "Muon") else ()


def local_lists(m: Machine, given: tuple) -> tuple:
    """Arguments of an optimizer's function, lists of which the first are the parameters, with local tensors in the
    place of DTensors."""
    lists = [ts for ts in given if type(ts) is list]
    if not any(type(t) is Subclassed and is_dtensor(t.tensor_class) for ts in lists for t in ts):
        return given  # (tensors of other wrapper classes are computed with as the class says)
    if type(m.stepping) in OF_THE_WHOLE:
        raise Break("optimizer", "its step needs whole parameters, and a DTensor holds a part of one")
    for i, p in enumerate(lists[0]):
        _refuse_other_shards(m, [p, *(ts[i] for ts in lists[1:] if i < len(ts))])
    changed = [p for p in lists[0] if type(p) is Subclassed]
    m.effects.call(torch.autograd.graph.increment_version, [changed], {})  # a write to the parts is one to the whole
    return tuple([_local(m, t) for t in ts] if type(ts) is list else ts for ts in given)


def _local(m: Machine, t: Any) -> Any:
    return inner_tensors(m.world, t)[0] if type(t) is Subclassed else t


def _refuse_other_shards(m: Machine, belonging: list) -> None:
    """A parameter, and what belongs to it."""
    p, grad, *_ = belonging
    sharded = [t for t in belonging if type(t) is Subclassed]
    if not sharded:
        return
    if type(p) is not Subclassed or type(grad) is not Subclassed:
        raise Break("optimizer", f"a parameter or its gradient is not a {sharded[0].tensor_class.__name__}")
    for t in sharded:
        if not is_dtensor(t.tensor_class):
            raise Break("optimizer", f"a tensor of class {t.tensor_class.__name__} is updated")
        if id(t) not in m.world.reals:
            raise Break("optimizer", f"a {t.tensor_class.__name__} is updated with one that was made inside")
    specs = [m.world.reals[id(t)]._spec for t in sharded]
    if any(s.mesh is not specs[0].mesh or s.placements != specs[0].placements for s in specs):
        raise Break("optimizer", "a DTensor and its gradient or state are sharded in different ways")
    if any(place.is_partial() for place in specs[0].placements):
        raise Break("optimizer", "a DTensor is updated before its parts are added up")
