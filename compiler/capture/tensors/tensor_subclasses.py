"""The stand-in for a tensor whose class the program derived from torch.Tensor. What it does is in subclass_calls.py."""

from __future__ import annotations

from typing import Any, Iterable

import torch

from ...graph.tensor import TraceTensor

__all__ = [
    "PLAIN_TENSORS",
    "Subclassed",
    "holds_subclassed",
    "refusal",
    "plain_alias",
    "ProbeClasses",
    "SuperOf",
    "answers_calls",
    "is_like_tensor",
]


class Subclassed:
    """A tensor of a class with attributes of its own, and perhaps a `__torch_function__`.

    tensor_class   the class that the program sees
    plain          the same tensor as a plain one: what operators compute with where functions of subclasses are off
    unfinished     an empty instance of a wrapper subclass, while the program gives it its inner tensors
    nested         a jagged nested tensor: an instance over TraceTensors (jagged_values.py); there is no plain tensor
    The instance's own attributes are those of the program's object; the __dict__ is the real one for a tensor from
    outside.
    """

    __slots__ = ("tensor_class", "plain", "unfinished", "nested", "__dict__", "__weakref__")
    tensor_class: type
    plain: TraceTensor
    unfinished: torch.Tensor | None
    nested: Any

    def __init__(self, tensor_class: type, plain: TraceTensor, members: dict | None = None):
        self.tensor_class, self.plain, self.unfinished, self.nested = tensor_class, plain, None, None
        if members is not None:
            self.__dict__ = members


class SuperOf:
    """super(cls, s) of a Subclassed."""

    __slots__ = ("__thisclass__", "__self__", "__self_class__")

    def __init__(self, cls: type, subclassed: Subclassed):
        self.__thisclass__, self.__self__, self.__self_class__ = cls, subclassed, subclassed.tensor_class


class ProbeClasses(dict[type, type]):
    """Classes of the program's -> the classes that hear in their place what torch asks of them; `stands_for` is the way
    back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stands_for: dict[type, type] = {}


PLAIN_TENSORS = (TraceTensor, torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def holds_subclassed(value: Any, depth: int = 0) -> bool:
    """Whether a value is a Subclassed, or a tensor that one will stand for, or a container that holds some."""
    cls = type(value)  # objects may lie about their class
    if cls is Subclassed or issubclass(cls, torch.Tensor) and cls not in PLAIN_TENSORS:
        return True
    if depth < 4 and cls in (list, tuple):
        return any(holds_subclassed(item, depth + 1) for item in value)
    return depth < 4 and cls is dict and any(holds_subclassed(item, depth + 1) for item in value.values())


def is_like_tensor(value: Any) -> bool:
    """An object of the program's that is no tensor, but has a `__torch_function__`."""
    cls = type(value)
    return (
        hasattr(cls, "__torch_function__")
        and cls is not Subclassed
        and not issubclass(cls, (torch.Tensor, type, torch.overrides.TorchFunctionMode))
    )


def answers_calls(values: Iterable) -> bool:
    """Whether torch's functions, given these arguments, ask a `__torch_function__` of the program's."""
    for value in values:
        cls = type(value)
        if cls is TraceTensor or cls is int or cls is float or value is None:
            continue
        if cls is Subclassed or is_like_tensor(value):
            return True
        if (cls is list or cls is tuple) and answers_calls(value):
            return True
    return False


def refusal(cls: type) -> str:
    """Why tensors of a class cannot be captured, or ""."""
    dispatch = getattr(cls, "__torch_dispatch__", None)
    if dispatch is not None and dispatch is not torch._C._disabled_torch_dispatch_impl:
        return "whose __torch_dispatch__ says what operators do"
    if issubclass(cls, torch.nn.parameter.UninitializedTensorMixin):
        return "which has no shape yet"
    return ""


def plain_alias(real: torch.Tensor) -> torch.Tensor:
    """A tensor of a subclass as a plain one over the same memory, with the same history."""
    with torch._C.DisableTorchFunctionSubclass():
        return real.as_subclass(torch.Tensor)
