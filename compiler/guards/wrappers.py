"""What a guard asks of a tensor of a wrapper subclass, apart from its type and the tensors inside.

Those have guards of their own. Here are the outer tensor's properties and the *flatten context*: whatever
`__tensor_flatten__` gives beside the names of the inner tensors. A context is compared by a snapshot of it, because the
object itself may be changed by its owner. What has no equality is compared by identity and by its fields.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from typing import Any

import torch

from .tensors import has_tangent

__all__ = ["Unguardable", "WrapperCheck", "InnerTensor", "snapshot"]

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
        return cls, [snapshot(v, depth + 1) for v in value]
    if cls is dict:
        return cls, [(snapshot(k, depth + 1), snapshot(v, depth + 1)) for k, v in value.items()]
    if dataclasses.is_dataclass(value):
        return cls, [snapshot(getattr(value, f.name), depth + 1) for f in dataclasses.fields(value)]
    if cls.__eq__ is not object.__eq__ and cls.__hash__ not in (None, object.__hash__):
        return cls, value  # what is hashed by its value does not change
    fields = getattr(value, "__dict__", None)
    if cls.__eq__ is object.__eq__ and isinstance(fields, dict):
        return _Same(value), snapshot(fields, depth + 1)
    raise Unguardable(f"holds a {cls.__module__}.{cls.__qualname__}, of which nothing tells whether it has changed")


@dataclasses.dataclass(frozen=True)
class InnerTensor:
    """Asks a wrapper for one of its inner tensors that is no plain attribute."""

    name: str

    @property
    def __name__(self) -> str:
        return f"inner tensor {self.name}"

    def __call__(self, t: Any) -> Any:
        return getattr(t, self.name, None)


class WrapperCheck:
    """Whether a tensor of a wrapper subclass is like the one that was captured.

    shape    per dimension its size, or (inner tensor, dimension) of the same size
    stride   strides, "contiguous", or the name of an inner tensor with the same strides
    """

    __name__ = "wrapper"

    def __init__(self, t: Any, shape: tuple, stride: tuple | str):
        self.names, self.context = self._context(t)
        self.facts = self._facts(t)
        self.shape, self.stride = shape, stride

    def _context(self, t: Any) -> tuple[tuple, Any]:
        """The names of what is inside, and a snapshot of the context and of what inside is no tensor."""
        names, context = t.__tensor_flatten__()
        others = [x for x in (getattr(t, name) for name in names) if not isinstance(x, torch.Tensor)]
        return tuple(names), snapshot((context, others))

    def _facts(self, t: Any) -> tuple:
        return t.dtype, t.device, t.layout, t.requires_grad, t.is_conj(), t.is_neg(), t.dim(), has_tangent(t)

    def __call__(self, t: Any) -> bool:
        try:
            with torch._C.DisableTorchFunctionSubclass():
                return self._holds(t)
        except Exception:  # of the class's own: the tensor is not like that one
            return False

    def _holds(self, t: Any) -> bool:
        if self._facts(t) != self.facts:
            return False
        if self._context(t) != (self.names, self.context):
            return False
        for size, wanted in zip(t.shape, self.shape):
            if size != (wanted if type(wanted) is int else getattr(t, wanted[0]).shape[wanted[1]]):
                return False
        if self.stride == "contiguous":
            return t.is_contiguous()
        return t.stride() == (self.stride if type(self.stride) is tuple else getattr(t, self.stride).stride())
