"""Dicts from outside whose keys are tensors: an optimizer's state of a parameter, what a program keeps for each one."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any

from ....guards import source as S
from ....graph.tensor import TraceTensor
from ...machine.signals import Break
from ...tensors.tensor_subclasses import Subclassed
from ..builtin_types import base_of

if TYPE_CHECKING:
    from ...machine.machine import Machine

__all__ = ["value_of_tensor"]


@dataclasses.dataclass(frozen=True)
class OfTensor:
    """Asks a dict for what it has under a tensor, which is not kept alive."""

    key: Any

    @property
    def __name__(self) -> str:
        return "value of a tensor"

    def __call__(self, mapping: dict) -> Any:
        tensor = self.key()
        return None if tensor is None else dict.get(mapping, tensor)


def value_of_tensor(machine: Machine, mapping: Any, key: TraceTensor | Subclassed) -> Any:
    """mapping[key]"""
    opt, real = machine.stepping, machine.world.reals.get(id(key))
    if opt is not None and mapping is opt.state and real is not None:
        return _state_of(machine, opt, mapping, real)
    source, shadow = machine.world.source_of(mapping), machine.world.shadows.get(id(mapping))
    if real is None or source is None or shadow is not None or base_of(mapping) is not dict or real not in mapping:
        raise Break("item", "a tensor is used as an index of a Python container")
    machine.world.guard(
        machine.world.sources[id(real)], "WEAK_ID", weakref.ref(real), "a tensor that is a key of a dict"
    )
    return machine.world.load(
        mapping[real], S.asked(source, OfTensor(weakref.ref(real))), "what a dict has under a tensor"
    )


def _state_of(machine: Machine, opt: Any, mapping: Any, real: Any) -> Any:
    """optimizer.state[parameter]"""
    for g, group in enumerate(opt.param_groups):
        for i, p in enumerate(group["params"]):
            if p is real:
                source = S.optimizer_state(S.attr(machine.world.sources[id(opt)], "__dict__"), g, i)
                return machine.world.load(mapping[real], source, "state of a parameter")
    raise Break(
        "optimizer",
        "a tensor has state that is not one of its parameters",
        "no change is needed: the code before and after it is compiled",
    )
