"""How a wrapper is made of its inner tensors, as its class says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...guards.snapshots import copied
from ..tensor import TraceTensor

__all__ = ["Fixed", "Wrapping", "is_dtensor", "is_wrapper", "take_apart", "made_of"]


@dataclass(frozen=True, eq=False)
class Fixed:
    """What stands among the inner tensors of a wrapper and is none: the mesh of a DTensor."""

    value: Any


@dataclass(frozen=True, eq=False)
class Wrapping:
    """How a wrapper is made of its inner tensors: what `__tensor_flatten__` said. `inner` has a Wrapping where an inner
    tensor is a wrapper itself, and None for a plain tensor.
    """

    cls: type
    names: tuple[str, ...]
    context: Any
    inner: tuple["Wrapping | Fixed | None", ...]


def is_dtensor(cls: type) -> bool:
    """Whether a class is torch's DTensor, which is not imported for that."""
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and cls is tensor.DTensor


def is_wrapper(tensor: Any) -> bool:
    """Whether a tensor is of a traceable wrapper subclass of the program's, or of a library's."""
    return type(tensor) is not TraceTensor and is_traceable_wrapper_subclass(tensor)


def take_apart(tensor: torch.Tensor) -> tuple[Wrapping, tuple, list[torch.Tensor]]:
    """(how it is made, its sizes and strides, the plain tensors inside), all of them of wrappers inside, too."""
    if type(tensor) is TraceTensor:
        if tensor.tt_wrapper is None:
            raise NotImplementedError("a plain tensor stands where one of a wrapper subclass did, which is not traced")
        tensor = tensor.tt_wrapper
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    inner: list[Wrapping | Fixed | None] = []
    sizes: list[Any] = []
    plain: list[torch.Tensor] = []
    for name in names:
        part = getattr(tensor, name)
        if is_wrapper(part):
            wrapping, own, parts = take_apart(part)
            inner.append(wrapping)
            sizes.append(own)
            plain += parts
            continue
        is_plain = isinstance(part, torch.Tensor)
        inner.append(None if is_plain else Fixed(part))
        sizes.append(None)
        plain += [part] if is_plain else []
    return (
        Wrapping(type(tensor), tuple(names), copied(context), tuple(inner)),
        (tuple(tensor.shape), tuple(tensor.stride()), tuple(sizes)),
        plain,
    )


def made_of(wrapping: Wrapping, sizes: tuple, plain: Iterator[torch.Tensor]) -> torch.Tensor:
    size, stride, own = sizes
    parts = {}
    for name, inner, of_inner in zip(wrapping.names, wrapping.inner, own, strict=True):
        if inner is None:
            parts[name] = next(plain)
        else:
            parts[name] = inner.value if isinstance(inner, Fixed) else made_of(inner, of_inner, plain)
    if all(type(n) is int for n in size):
        size = torch.Size(size)
    cls: Any = wrapping.cls
    return cls.__tensor_unflatten__(parts, copied(wrapping.context), size, stride)
