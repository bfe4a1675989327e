"""`x.add(y, alpha=s)`, `x.addcmul(a, b, value=s)` and their like where `s` is a 0-dim tensor, or a float that may vary.

torch takes a number there, and reads it from a tensor. In a graph it stays a tensor: the operation is written out in
the order of eager's kernels, in float32 for narrower types, as those compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch

from ...graph.tensor import TraceTensor
from ...guards import source as S
from . import scalars
from .float_node import FloatNode
from .tensor_reads import is_read

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["holds_scale", "scaled"]

_KEYWORDS = {"add": "alpha", "sub": "alpha", "addcmul": "value", "addcdiv": "value"}
_NARROW = (torch.bfloat16, torch.float16)


def holds_scale(obj: TraceTensor, name: str, args: list, kwargs: dict) -> bool:
    """Whether a call of a tensor's method is one of these."""
    keyword = _KEYWORDS.get(name.rstrip("_"))
    if keyword is None or keyword not in kwargs or len(kwargs) != 1 or not obj.dtype.is_floating_point:
        return False
    scale = kwargs[keyword]
    if not (
        isinstance(scale, TraceTensor)
        and scale.dim() == 0
        and scale.dtype.is_floating_point
        or type(scale) is torch.SymFloat
        and isinstance(scale.node, FloatNode)
        and (is_read(scale) or S.as_number(scale.node.expr, _wide(obj), "held"))
    ):
        return False
    return len(args) == (1 if keyword == "alpha" else 2) and all(
        isinstance(a, TraceTensor)
        and a.dim()
        and a.dtype.is_floating_point
        and torch.promote_types(a.dtype, obj.dtype) == obj.dtype
        for a in args
    )


def _wide(t: TraceTensor) -> torch.dtype:
    """The type that a tensor's operators compute in."""
    return torch.float32 if t.dtype in _NARROW else t.dtype


def scaled(m: Machine, obj: TraceTensor, name: str, args: list, kwargs: dict, call_method: Callable) -> Any:
    """The operation with products and sums."""

    def call(t: Any, method: str, *operands: Any) -> Any:
        return call_method(m, t, method, list(operands), {})

    plain = name.rstrip("_")
    scale = kwargs[_KEYWORDS[plain]]
    wide = _wide(obj)
    if type(scale) is torch.SymFloat:
        scale = scalars.scalar_input(m, scale.node, wide, obj.device, "" if is_read(scale) else "held")
    elif scale.dtype != wide:
        scale = call(scale, "to", wide)
    widen: Callable = lambda t: t if t.dtype == wide else call(t, "to", wide)  # noqa: E731
    term = call(widen(args[0]), "mul", scale)
    if plain == "addcmul":
        term = call(term, "mul", widen(args[1]))
    elif plain == "addcdiv":
        term = call(term, "div", widen(args[1]))
    if wide == obj.dtype:
        return call(obj, ("sub" if plain == "sub" else "add") + name[len(plain) :], term)
    result = call(call(widen(obj), "sub" if plain == "sub" else "add", term), "to", obj.dtype)
    return call(obj, "copy_", result) if name != plain else result
