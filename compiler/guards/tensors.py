"""What a TENSOR guard asks of a tensor, in Python; and the templates that its C counterpart compares with.

Only a plain dense tensor may pass: the dispatch keys of the tensor must be exactly those of a tensor made by
`torch.empty` (in or out of inference mode), with the conjugate and negative bits that the guard names. That refuses
FakeTensors and other wrapper subclasses, functorch's wrappers, ZeroTensors, sparse, nested and quantized tensors.
A tensor with a forward-mode tangent is refused as well. `is_hooked` is what no attribute of a leaf tells.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, Callable

import torch
import torch.autograd.forward_ad as forward_ad

from ..native import autograd_node
from ..symbolic.expr import is_unbacked
from .guard import TensorSpec

__all__ = [
    "tensor_mismatch",
    "has_tangent",
    "below_autograd",
    "key_template",
    "KeyTemplate",
    "is_symbol",
    "is_hooked",
    "tells_hooks",
]

_keys = torch._C._dispatch_keys


def is_hooked(leaf: torch.Tensor) -> bool:
    """Whether hooks run where a leaf's gradient is accumulated, on a node of autograd's graph; False where node.cpp was
    not built, which alone can tell."""
    node = autograd_node()
    return node is not None and node.is_hooked(leaf)


def tells_hooks() -> bool:
    """Whether `is_hooked` can tell."""
    return autograd_node() is not None


def is_symbol(expr: Any) -> bool:
    """Whether a size is a bare symbol, which a guard binds."""
    return getattr(expr, "op", None) == "sym"


class KeyTemplate:
    """The dispatch key words (raw 64-bit sets) of plain tensors of one dtype, device and layout."""

    __slots__ = ("normal", "inference", "conj", "neg", "example")

    def __init__(self, dtype: torch.dtype, device: torch.device, layout: torch.layout) -> None:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.inference_mode(False):
            self.example = torch.empty((0,), dtype=dtype, device=device, layout=layout)
            self.normal = _keys(self.example).raw_repr()
            c = torch.empty((1,), dtype=torch.complex64, device="meta")
            plain = _keys(c).raw_repr()
            self.conj = _keys(c.conj()).raw_repr() ^ plain
            self.neg = _keys(c.conj().imag).raw_repr() ^ plain
            with torch.inference_mode():
                self.inference = _keys(torch.empty((0,), dtype=dtype, device=device, layout=layout)).raw_repr()

    def accepted(self, spec: TensorSpec) -> tuple[int, int]:
        """The two key words that fit `spec`: of a normal and of an inference tensor; twice the same one where the guard
        names which."""
        flags = (self.conj if spec.is_conj else 0) | (self.neg if spec.is_neg else 0)
        normal, inference = self.normal | flags, self.inference | flags
        return (
            normal if spec.is_inference is not True else inference,
            inference if spec.is_inference is not False else normal,
        )


@lru_cache(maxsize=None)
def key_template(dtype: torch.dtype, device: torch.device, layout: torch.layout) -> KeyTemplate:
    return KeyTemplate(dtype, device, layout)


def below_autograd() -> bool:
    """Whether this is code of a `__torch_dispatch__`, or what else autograd has called."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView)


def has_tangent(tensor: torch.Tensor) -> bool:
    level = forward_ad._current_level
    # (below autograd nobody sees tangents, and torch can't be asked)
    return level >= 0 and not below_autograd() and torch._VF._unpack_dual(tensor, level=level)[1] is not None


# (part, what it has to be, what it is), in the order in which they are compared
_KIND: tuple[tuple[str, Callable[[TensorSpec], Any], Callable[[torch.Tensor], Any]], ...] = (
    ("layout", lambda spec: spec.layout or torch.strided, lambda t: t.layout),
    ("dtype", lambda spec: spec.dtype, lambda t: t.dtype),
    ("device", lambda spec: spec.device, lambda t: t.device),
)
# where one is named: of strided tensors
_PLACE: tuple[tuple[str, Callable[[TensorSpec], Any], Callable[[torch.Tensor], Any]], ...] = (
    ("storage_offset", lambda spec: spec.storage_offset, lambda t: t.storage_offset()),
    ("data_ptr", lambda spec: spec.data_ptr, lambda t: t.data_ptr()),
)
_Mismatch = tuple[str, Any, Any]


def tensor_mismatch(value: Any, spec: TensorSpec, bindings: dict[str, int]) -> _Mismatch | None:
    """None where `value` fits `spec`, else (which part, expected, got). Bare symbols of shape and stride are bound in
    `bindings`, or compared with what is bound already; a size symbol never stands for 0 or 1,
    unless `is_unbacked` says so of its name."""
    cls: Any = type(value)
    if cls is not spec.type:
        return "type", spec.type, cls
    with torch._C.DisableTorchFunctionSubclass():
        for part, wanted, got in _KIND:
            if got(value) != wanted(spec):
                return part, wanted(spec), got(value)
        # keys come first: only a plain dense tensor has strides and memory to ask for
        return (
            _keys_mismatch(value, spec) or _autograd_mismatch(value, spec) or _geometry_mismatch(value, spec, bindings)
        )


def _keys_mismatch(value: torch.Tensor, spec: TensorSpec) -> _Mismatch | None:
    """Which bit of the dispatch keys differs, where it has a name."""
    template = key_template(spec.dtype, spec.device, spec.layout or torch.strided)
    if _keys(value).raw_repr() in template.accepted(spec):
        return None
    if value.is_conj() != spec.is_conj:
        return "conj", spec.is_conj, value.is_conj()
    if value.is_neg() != spec.is_neg:
        return "neg", spec.is_neg, value.is_neg()
    if spec.is_inference is not None and value.is_inference() is not spec.is_inference:
        return "inference", spec.is_inference, value.is_inference()
    return "dispatch keys", "a plain dense tensor", str(_keys(value))


def _autograd_mismatch(value: torch.Tensor, spec: TensorSpec) -> _Mismatch | None:
    if value.requires_grad is not bool(spec.requires_grad):
        return "requires_grad", spec.requires_grad, value.requires_grad
    if has_tangent(value):
        return "tangent", "no forward-mode tangent", "a forward-mode dual tensor"
    return None


def _geometry_mismatch(value: torch.Tensor, spec: TensorSpec, bindings: dict[str, int]) -> _Mismatch | None:
    if spec.layout is not None and spec.layout is not torch.strided:
        return None if tuple(value.shape) == spec.shape else ("shape", spec.shape, tuple(value.shape))
    if value.dim() != len(spec.shape):
        return "ndim", len(spec.shape), value.dim()
    # a symbol is bound by the shape where that shows it
    found = _sizes_mismatch("shape", spec.shape, value.shape, bindings) or _sizes_mismatch(
        "stride", spec.stride, value.stride(), bindings
    )
    if found is not None:
        return found
    for part, wanted, got in _PLACE:
        if wanted(spec) is not None and got(value) != wanted(spec):
            return part, wanted(spec), got(value)
    return None


def _sizes_mismatch(what: str, wanted: Any, got: Any, bindings: dict[str, int]) -> _Mismatch | None:
    """What differs first in a shape or in strides. Expressions are checked once all symbols are bound."""
    for i, (w, g) in enumerate(zip(wanted, got)):
        if is_symbol(w):
            if w.name not in bindings:
                if what == "shape" and g < 2 and not is_unbacked(w.name):
                    return f"{what}[{i}]", f"{w.name} >= 2", g
                bindings[w.name] = g
            w = bindings[w.name]
        if isinstance(w, int) and w != g:
            return f"{what}[{i}]", w, g
    return None


def is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def memory_range(value: Any) -> tuple[int, int]:
    """First byte and one past the last byte that the elements of a tensor, or of a numpy array without negative
    strides, touch; (p, p) where it is empty."""
    if not isinstance(value, torch.Tensor):
        start = value.__array_interface__["data"][0]
        return start, start + (
            sum((size - 1) * stride for size, stride in zip(value.shape, value.strides)) + value.itemsize
            if value.size
            else 0
        )
    with torch._C.DisableTorchFunctionSubclass():
        start = value.data_ptr()
        if value.numel() == 0:
            return start, start
        span = sum((size - 1) * s for size, s in zip(value.shape, value.stride()))
        return start, start + (span + 1) * value.element_size()
