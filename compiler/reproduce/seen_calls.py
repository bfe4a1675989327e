"""The call of a function as a report remembers it: enough to write it down later, and no tensor kept alive."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch

from .specs import InputSpec, spec_of

__all__ = ["SeenCall", "Gone", "seen_call", "value_of"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_MOST = 64  # values of a list that are looked at


@dataclass(frozen=True)
class SeenCall:
    """A function, referred to weakly, and its arguments: specs of tensors, plain values, weak references."""

    function: Callable[[], Any]
    args: tuple


@dataclass(frozen=True)
class Gone:
    """A value that can't be written down."""

    what: str


def seen_call(function: Any, args: Sequence[Any]) -> SeenCall:
    try:
        held: Callable[[], Any] = weakref.ref(function)
    except TypeError:  # a builtin
        held = _nothing
    return SeenCall(held, tuple(_seen(arg) for arg in args))


def _nothing() -> None:
    return None


def _seen(value: Any, depth: int = 0) -> Any:
    if isinstance(value, torch.Tensor):
        return spec_of("argument", value)
    if isinstance(value, _PLAIN):
        return value
    if type(value) in (list, tuple) and len(value) <= _MOST and depth < 8:
        return type(value)(_seen(item, depth + 1) for item in value)
    if type(value) is dict and len(value) <= _MOST and depth < 8:
        return {key: _seen(item, depth + 1) for key, item in value.items()}
    try:
        return weakref.ref(value)
    except TypeError:
        return Gone(f"a {type(value).__name__}")


def value_of(seen: Any) -> Any:
    """The value again: a spec for a tensor, the object that a weak reference leads to, or Gone."""
    if isinstance(seen, weakref.ref):
        value = seen()
        return Gone("an object that is no longer there") if value is None else value
    if isinstance(seen, InputSpec):
        return seen
    if type(seen) in (list, tuple):
        return type(seen)(value_of(v) for v in seen)
    return {key: value_of(item) for key, item in seen.items()} if type(seen) is dict else seen
