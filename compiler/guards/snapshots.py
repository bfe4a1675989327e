"""Snapshots of values whose owner may change them: what tells a value from others, and stays as it is now.

The flatten context of a wrapper subclass may be any object. What has an equality of its own is compared by that, a
container or a dataclass by its parts, and any other object by identity and by its fields.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from typing import Any

import torch

__all__ = ["Unguardable", "snapshot", "copied", "lasts"]

_MOST_DEPTH = 12
_ATOMS = (type(None), bool, int, str, bytes, type(...))
_FIXED = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    enum.Enum,
    torch.dtype,
    torch.layout,
    torch.memory_format,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)


class Unguardable(Exception):
    """A flatten context holds something that can be compared neither by equality nor by its fields."""


class _Same:
    """An object that is itself only."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any):
        self.obj = obj

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and other.obj is self.obj

    __hash__ = None  # type: ignore[assignment]


def snapshot(value: Any, depth: int = 0) -> Any:
    """What tells this value from others, and stays as it is now. Raises Unguardable."""
    cls = type(value)
    if cls in _ATOMS:
        return cls, value
    if cls in (float, complex):
        return cls, repr(value)  # -0.0 is not 0.0, and nan is itself
    if isinstance(value, _FIXED):
        return _Same(value)
    if depth > _MOST_DEPTH:
        raise Unguardable(f"is nested more than {_MOST_DEPTH} deep, or holds itself")
    if isinstance(value, torch.Tensor):
        raise Unguardable("holds a tensor")
    if isinstance(value, (list, tuple)):
        return cls, [snapshot(item, depth + 1) for item in value]
    if cls is dict:
        return cls, [(snapshot(key, depth + 1), snapshot(item, depth + 1)) for key, item in value.items()]
    if dataclasses.is_dataclass(value):
        return cls, [snapshot(getattr(value, f.name), depth + 1) for f in dataclasses.fields(value)]
    fields = getattr(value, "__dict__", None)
    if cls.__eq__ is not object.__eq__ and cls.__hash__ not in (None, object.__hash__):
        return cls, _kept(value) if _may_change(value) else value
    if cls.__eq__ is object.__eq__ and isinstance(fields, dict):
        return _Same(value), snapshot(fields, depth + 1)
    raise Unguardable(f"holds a {cls.__module__}.{cls.__qualname__}, of which nothing tells whether it has changed")


def _may_change(value: Any) -> bool:
    """Whether an object that is hashed by its value has fields that the program may set all the same."""
    return bool(getattr(value, "__dict__", None)) and not type(value).__module__.startswith("torch.")


def _kept(value: Any) -> Any:
    try:
        made = copy.deepcopy(value)
    except Exception as e:
        raise Unguardable(f"holds a {type(value).__qualname__}, of which no copy can be kept: {e}") from None
    if made != value:
        raise Unguardable(f"holds a {type(value).__qualname__}, which is not equal to its copy")
    return made


def lasts(value: Any, depth: int = 0) -> bool:
    """Whether a value of which a snapshot was made stays as it is for as long as it lives."""
    cls = type(value)
    if cls in _ATOMS or cls in (float, complex) or isinstance(value, _FIXED):
        return True
    if depth > _MOST_DEPTH or isinstance(value, (list, dict)):
        return False
    if isinstance(value, tuple):
        return all(lasts(item, depth + 1) for item in value)
    if dataclasses.is_dataclass(value):
        frozen = cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
        return frozen and all(lasts(getattr(value, f.name), depth + 1) for f in dataclasses.fields(value))
    return cls.__eq__ is not object.__eq__ and cls.__hash__ not in (None, object.__hash__) and not _may_change(value)


def copied(value: Any) -> Any:
    """The same value, of which nothing that a snapshot compares by its parts is the owner's own object."""
    cls = type(value)
    if cls is tuple:
        return tuple(map(copied, value))
    if isinstance(value, list):
        made = copy.copy(value)
        made[:] = map(copied, value)
        return made
    if cls is dict:
        return {key: copied(item) for key, item in value.items()}
    if dataclasses.is_dataclass(cls) and not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        made = copy.copy(value)
        for field in dataclasses.fields(cls):
            object.__setattr__(made, field.name, copied(getattr(value, field.name)))
        return made
    return value
