"""Which effects of a call can be undone: whoever wants to run it again, to time it, puts back what it sets."""

from __future__ import annotations

import contextvars
import inspect
import weakref
from typing import Collection, Iterable

import torch

from .effects import Effect

__all__ = ["Attribute", "split_effects"]

Attribute = tuple[weakref.ref, str]  # of an object that lives outside, held weakly: its name there
_PLAIN = (object.__setattr__, torch.nn.Module.__setattr__)


def split_effects(effects: Iterable[Effect], made: Collection[int]) -> tuple[list[str], list[Attribute]]:
    """The words of effects that last, and the attributes that can be put back. `made`: ids of the instances that the
    call makes itself; what they are given goes with them, or with another effect that shows them."""
    lasting: list[str] = []
    attributes: list[Attribute] = []
    for effect in effects:
        if effect.kind in ("setattr", "delattr"):
            if id(effect.target) in made:
                continue
            if (found := _attribute(effect)) is not None:
                attributes.append(found)
                continue
        elif effect.kind == "call" and isinstance(getattr(effect.target, "__self__", None), contextvars.ContextVar):
            continue  # a call in a context of its own changes it there alone
        lasting.append(effect.words())
    return lasting, attributes


def _attribute(effect: Effect) -> Attribute | None:
    """The attribute, where it lies in the object's own dict before and after."""
    cls = type(effect.target)
    if cls.__setattr__ not in _PLAIN or not isinstance(getattr(effect.target, "__dict__", None), dict):
        return None
    if hasattr(type(inspect.getattr_static(cls, effect.name, None)), "__set__"):
        return None
    if isinstance(effect.target, torch.nn.Module):
        registered = (effect.target._parameters, effect.target._buffers, effect.target._modules)
        if isinstance(effect.value, (torch.nn.Parameter, torch.nn.Module)) or any(effect.name in d for d in registered):
            return None
    try:
        return weakref.ref(effect.target), effect.name
    except TypeError:  # an object that nothing can hold weakly
        return None
