"""Python's own types: which of them hold content, which change, and whether a class's method is one of C or has to be
interpreted.
"""

from __future__ import annotations

import collections
import types
from typing import Any

import torch

from ...graph.tensor import TraceTensor
from ..machine.generators import InlineGenerator, PythonIterator
from ..machine.stack_values import ATOMS, MISSING
from ..numbers.late_text import LateText
from .lookups import class_attribute
from .outside_iterators import OutsideIterator

__all__ = ["MUTABLE", "BUILTIN_TYPES", "base_of", "python_method"]

MUTABLE = frozenset((list, dict, set, collections.OrderedDict, collections.defaultdict, collections.deque, bytearray))
BUILTIN_TYPES = frozenset(
    (
        list,
        dict,
        tuple,
        set,
        frozenset,
        collections.OrderedDict,
        collections.defaultdict,
        collections.deque,
        str,
        bytes,
        bytearray,
        range,
        slice,
        types.FunctionType,
        types.MethodType,
        types.ModuleType,
        types.BuiltinFunctionType,
        torch.Size,
        TraceTensor,
        LateText,
        InlineGenerator,
        PythonIterator,
        OutsideIterator,
        torch.SymInt,
        torch.SymFloat,
        torch.SymBool,
        type,
        object,
        property,
        staticmethod,
        classmethod,
        types.MappingProxyType,
        types.CodeType,
        types.CellType,
    )
)
_CONTAINER_BASES = (list, tuple, collections.OrderedDict, dict, set, frozenset, collections.deque)


_NATIVE_METHODS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
)


def base_of(obj: Any) -> type | None:
    """The builtin container type that holds the content of `obj`, or None for other objects."""
    for base in _CONTAINER_BASES:
        if isinstance(obj, base):
            return base
    return None


def python_method(cls: type, name: str) -> Any:
    """The class attribute `name` if it is written in Python (so must be interpreted), else None."""
    if cls in ATOMS or cls in BUILTIN_TYPES:
        return None
    found = class_attribute(cls, name)
    if found is MISSING or found is None or type(found) in _NATIVE_METHODS:
        return None
    return found
