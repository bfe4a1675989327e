"""Texts of values: str(), repr(), ascii() and format(), as classes of the program define them."""

from __future__ import annotations

import builtins
import re
import types
from typing import TYPE_CHECKING, Any

import torch

from ....graph.tensor import TraceTensor
from .. import elements
from ..builtin_types import python_method
from ..identity import TEXTS, default_text
from ..lookups import class_attribute
from ...machine.signals import Break, Raised
from ...machine.stack_values import ATOMS, specialize
from ...numbers.late_text import LateText, join_texts, made_late, settled
from ...tensors.tensor_subclasses import Subclassed

if TYPE_CHECKING:
    from ...machine.machine import Machine

__all__ = ["to_text", "format_text"]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _refuse_tensors(value: Any) -> None:
    if isinstance(value, (TraceTensor, Subclassed)):
        raise Break("print", "a tensor is made into text")
    if isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            _refuse_tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            _refuse_tensors(item)


def _texts_as_object(value: Any, dunder: str) -> bool:
    """Whether its class has object's own __str__ or __repr__."""
    return class_attribute(type(value), dunder) is object.__dict__[dunder]


def to_text(machine: Machine, value: Any, function: str) -> str | LateText:
    """str(), repr() or ascii() of a value."""
    if type(value) in (str, LateText) and function == "str":
        return value
    if (late := made_late(machine, getattr(builtins, function), (value,))) is not None:
        return late
    if isinstance(value, _SYMBOLIC):
        value = specialize(value)
    if isinstance(value, (TraceTensor, Subclassed)):
        _refuse_tensors(value)
    dunder = "__str__" if function == "str" else "__repr__"
    if not isinstance(value, BaseException):
        method = python_method(type(value), dunder)
        if (
            method is None
            and dunder == "__str__"
            and class_attribute(type(value), "__str__") is object.__dict__["__str__"]
        ):
            dunder = "__repr__"
            method = python_method(type(value), dunder)
        if method is not None and not machine.is_atom(value):
            text = machine.call(method, [value])
            if type(text) is not LateText and not isinstance(text, str):
                raise Raised(TypeError(f"{dunder} returned non-string (type {machine.world.type_of(text).__name__})"))
            return text
    if type(value) in TEXTS:
        return TEXTS[type(value)](machine, value)
    value = machine.world.pin(machine.deep_plain(value))
    _refuse_tensors(value)
    if (
        _texts_as_object(value, "__repr__")
        and not isinstance(value, BaseException)
        and _texts_as_object(value, "__str__")
    ):
        return default_text(machine, value)
    with machine.env.fixing_texts():
        return _without_address(
            value, machine.native(getattr(builtins, function), elements.with_own_text(machine, value))
        )


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def _without_address(value: Any, text: str) -> str:
    """The text that native code made of a value and of what it holds: an address in it is that of this call's
    object.
    """
    if type(value) not in ATOMS and _ADDRESS.search(text):
        raise Break("address", "an object's address is made into text")
    return text


def _method_text(machine: Machine, method: types.MethodType) -> str | LateText:
    name = machine.getattr(machine.getattr(method, "__func__"), "__qualname__")
    return join_texts([f"<bound method {name} of ", to_text(machine, machine.getattr(method, "__self__"), "repr"), ">"])


TEXTS[types.MethodType] = _method_text


def format_text(machine: Machine, value: Any, spec: str) -> str | LateText:
    """format(value, spec)."""
    if type(value) is LateText and not spec:
        return value
    if type(spec) is str and (late := made_late(machine, format, (value, spec))) is not None:
        return late
    value, spec = settled(value), settled(spec)
    if isinstance(value, _SYMBOLIC):
        value = specialize(value)
    if isinstance(value, (bool, int, float, str, complex)) and type(value) in ATOMS:
        return machine.native(format, value, spec)
    _refuse_tensors(value)
    method = python_method(type(value), "__format__")
    if method is not None:
        text = machine.call(method, [value, spec])
        if not isinstance(text, str):
            raise Raised(TypeError(f"__format__ must return a str, not {machine.world.type_of(text).__name__}"))
        return text
    if not spec:
        return to_text(machine, value, "str")
    with machine.env.fixing_texts():
        return _without_address(value, machine.native(format, machine.deep_plain(value), spec))
