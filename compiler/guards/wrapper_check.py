"""What a guard asks of a tensor of a wrapper subclass, apart from its type and the tensors inside.

Those have guards of their own. Here are the outer tensor's properties and the *flatten context*: whatever
`__tensor_flatten__` gives beside the names of the inner tensors.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .snapshots import snapshot
from .tensors import has_tangent

__all__ = ["WrapperCheck", "InnerTensor", "gradient"]

_FACTS = ("dtype", "device", "layout", "requires_grad", "conj", "neg", "the number of dimensions", "tangent")


@dataclasses.dataclass(frozen=True)
class InnerTensor:
    """Asks a wrapper for one of its inner tensors that is no plain attribute."""

    name: str

    @property
    def __name__(self) -> str:
        return f"inner tensor {self.name}"

    def __call__(self, t: Any) -> Any:
        return getattr(t, self.name, None)


def gradient(t: Any) -> Any:
    """Asks a wrapper, whose class leaves that to torch, for its gradient."""
    return t.grad


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
        return not self.difference(t)

    def difference(self, t: Any) -> str:
        """What differs first, in words; "" where nothing does."""
        try:
            with torch._C.DisableTorchFunctionSubclass():
                return self._difference(t)
        except Exception as e:  # of the class's own code
            return f"__tensor_flatten__, which raises {type(e).__name__}"

    def _difference(self, t: Any) -> str:
        for what, found, wanted in zip(_FACTS, self._facts(t), self.facts):
            if found != wanted:
                return what
        names, context = self._context(t)
        if names != self.names:
            return "the names of the inner tensors"
        if context != self.context:
            return "the flatten context"
        for size, wanted in zip(t.shape, self.shape):
            if size != (wanted if type(wanted) is int else getattr(t, wanted[0]).shape[wanted[1]]):
                return "shape"
        if self.stride == "contiguous":
            return "" if t.is_contiguous() else "stride"
        same = t.stride() == (self.stride if type(self.stride) is tuple else getattr(t, self.stride).stride())
        return "" if same else "stride"
