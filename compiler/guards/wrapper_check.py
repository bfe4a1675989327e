"""What a guard asks of a tensor of a wrapper subclass, apart from its type and the tensors inside.

Those have guards of their own. Here are the outer tensor's properties and the *flatten context*: whatever
`__tensor_flatten__` gives beside the names of the inner tensors.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch.autograd import forward_ad

from .snapshots import lasts, snapshot
from .tensors import has_tangent

__all__ = ["WrapperCheck", "InnerTensor", "PlacedAs", "accumulation_hooks", "gradient", "is_leaf", "tensor_hooks"]

_FACTS = ("dtype", "device", "layout", "requires_grad", "conj", "neg", "the number of dimensions", "tangent")


# Classes whose flatten context has the outer sizes, strides and dtype, and whose tensors are never conjugate views.
# What the context and the other parts of those are read from, without a call of Python.
_CONTEXT_SAYS_ALL = {
    "torch.distributed.tensor.DTensor": operator.attrgetter(
        "_spec.placements", "_spec.tensor_meta", "_spec.shard_order", "requires_grad", "_spec.mesh"
    )
}


@dataclasses.dataclass(frozen=True)
class InnerTensor:
    """Asks a wrapper for one of its inner tensors that is no plain attribute."""

    name: str

    @property
    def __name__(self) -> str:
        return f"inner tensor {self.name}"

    def __call__(self, tensor: Any) -> Any:
        return getattr(tensor, self.name, None)


@dataclasses.dataclass(frozen=True)
class PlacedAs:
    """Asks a DTensor's placement whether it says the same as this one."""

    placement: Any

    @property
    def __name__(self) -> str:
        return f"placed as {self.placement}"

    def __call__(self, other: Any) -> bool:
        known = self.placement
        return other is known or type(other) is type(known) and other == known


def gradient(tensor: Any) -> Any:
    """Asks a wrapper, whose class leaves that to torch, for its gradient."""
    return tensor.grad


def is_leaf(tensor: Any) -> bool:
    """Likewise, for whether it is a leaf."""
    return tensor.is_leaf


def tensor_hooks(tensor: Any) -> Any:
    """Likewise, for the hooks that are called with its gradient."""
    return tensor._backward_hooks


def accumulation_hooks(tensor: Any) -> Any:
    """Likewise, for those that are called once its gradient is accumulated."""
    return tensor._post_accumulate_grad_hooks


def _are(found: Any, known: Any) -> bool:
    return len(found) == len(known) and all(map(operator.is_, found, known))


class WrapperCheck:
    """Whether a tensor of a wrapper subclass is like the one that was captured.

    shape    per dimension its size, or (inner tensor, dimension) of the same size; `sizes` where all are numbers
    stride   strides, "contiguous", or the name of an inner tensor with the same strides
    fits     what the last tensor that fitted was made of, where that can't change: the same objects fit without a look
             at what is inside of them
    whole    the context says all that is asked: nothing else can differ between tensors of this class
    """

    __name__ = "wrapper"

    def __init__(self, tensor: Any, shape: tuple, stride: tuple | str):
        names, context = tensor.__tensor_flatten__()
        self.names = tuple(names)
        self.others = tuple(name for name in names if not isinstance(getattr(tensor, name), torch.Tensor))
        parts = self._parts(tensor, context)
        self.context = snapshot(parts)
        self.fits: list | None = parts if lasts(tuple(parts)) else None
        self.facts = self._facts(tensor)
        self.shape, self.stride = shape, stride
        self.whole = f"{type(tensor).__module__}.{type(tensor).__qualname__}" in _CONTEXT_SAYS_ALL and not has_tangent(
            tensor
        )
        self.sizes = shape if all(type(size) is int for size in shape) else None
        read = _CONTEXT_SAYS_ALL.get(f"{type(tensor).__module__}.{type(tensor).__qualname__}")
        self.read = read if read is not None and self.whole and self._reads_parts(read, tensor) else None

    def _reads_parts(self, read: Any, tensor: Any) -> bool:
        """Whether `read` gives the parts as this version of the class has them."""
        try:
            found = read(tensor)
        except AttributeError:
            return False
        return self.fits is not None and self.fits[0] and _are(found, self.fits[1:])

    def _parts(self, tensor: Any, context: Any) -> list:
        """The parts of the context, and what inside is no tensor."""
        parts = [True, *context] if type(context) is tuple else [False, context]
        for name in self.others:
            parts.append(getattr(tensor, name))
        return parts

    def _facts(self, tensor: Any) -> tuple:
        return (
            tensor.dtype,
            tensor.device,
            tensor.layout,
            tensor.requires_grad,
            tensor.is_conj(),
            tensor.is_neg(),
            tensor.dim(),
            has_tangent(tensor),
        )

    def __call__(self, tensor: Any) -> bool:
        fits, read = self.fits, self.read
        if fits is not None and read is not None and forward_ad._current_level < 0 and _are(read(tensor), fits[1:]):
            return True
        return self.whole and not has_tangent(tensor) and self._made_of_the_same(tensor) or not self.difference(tensor)

    def _made_of_the_same(self, tensor: Any) -> bool:
        parts = self._parts(tensor, tensor.__tensor_flatten__()[1])
        return self.fits is not None and _are(parts, self.fits)

    def difference(self, tensor: Any) -> str:
        """What differs first, in words; "" where nothing does."""
        try:
            with torch._C.DisableTorchFunctionSubclass():
                return self._difference(tensor)
        except Exception as e:  # of the class's own code
            return f"__tensor_flatten__, which raises {type(e).__name__}"

    def _difference(self, tensor: Any) -> str:
        facts = self._facts(tensor)
        if facts != self.facts:
            return next(what for what, found, wanted in zip(_FACTS, facts, self.facts) if found != wanted)
        names, context = tensor.__tensor_flatten__()
        if tuple(names) != self.names:
            return "the names of the inner tensors"
        if not self._made_of_the_same(tensor):
            parts = self._parts(tensor, context)
            if any(isinstance(part, torch.Tensor) for part in parts) or snapshot(parts) != self.context:
                return "the flatten context"
            self.fits = parts if lasts(tuple(parts)) else None
        if self.sizes is not None:
            if tensor.shape != self.sizes:
                return "shape"
        else:
            for size, wanted in zip(tensor.shape, self.shape):
                if size != (wanted if type(wanted) is int else getattr(tensor, wanted[0]).shape[wanted[1]]):
                    return "shape"
        if self.stride == "contiguous":
            return "" if tensor.is_contiguous() else "stride"
        same = tensor.stride() == (self.stride if type(self.stride) is tuple else getattr(tensor, self.stride).stride())
        return "" if same else "stride"
