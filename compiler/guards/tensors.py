"""What a TENSOR guard asks of a tensor, in Python; and the templates that its C counterpart compares with.

Only a plain dense tensor may pass: the dispatch keys of the tensor must be exactly those of a tensor made by
`torch.empty` (in or out of inference mode), with the conjugate and negative bits that the guard names. That refuses
FakeTensors and other wrapper subclasses, functorch's wrappers, ZeroTensors, sparse, nested and quantized tensors.
A tensor with a forward-mode tangent is refused as well.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad

from ..symbolic.expr import is_unbacked
from .guard import TensorSpec

__all__ = ["tensor_mismatch", "key_template", "KeyTemplate", "is_symbol"]

_keys = torch._C._dispatch_keys


def is_symbol(e: Any) -> bool:
    """Whether a size is a bare symbol, which a guard binds."""
    return getattr(e, "op", None) == "sym"


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


def _has_tangent(t: torch.Tensor) -> bool:
    level = forward_ad._current_level
    return level >= 0 and torch._VF._unpack_dual(t, level=level)[1] is not None


def tensor_mismatch(value: Any, spec: TensorSpec, bindings: dict[str, int]) -> tuple[str, Any, Any] | None:
    """None where `value` fits `spec`, else (which part, expected, got). Bare symbols of shape and stride are bound in
    `bindings`, or compared with what is bound already; a size symbol never stands for 0 or 1,
    unless `is_unbacked` says so of its name."""
    cls: Any = type(value)
    if cls is not spec.type:
        return "type", spec.type, cls
    with torch._C.DisableTorchFunctionSubclass():
        if value.layout is not (spec.layout or torch.strided):
            return "layout", spec.layout or torch.strided, value.layout
        if value.dtype is not spec.dtype:
            return "dtype", spec.dtype, value.dtype
        if value.device != spec.device:
            return "device", spec.device, value.device
        template = key_template(spec.dtype, spec.device, spec.layout or torch.strided)
        keys = _keys(value).raw_repr()
        if keys not in template.accepted(spec):
            if value.is_conj() != spec.is_conj:
                return "conj", spec.is_conj, value.is_conj()
            if value.is_neg() != spec.is_neg:
                return "neg", spec.is_neg, value.is_neg()
            if spec.is_inference is not None and value.is_inference() is not spec.is_inference:
                return "inference", spec.is_inference, value.is_inference()
            return "dispatch keys", "a plain dense tensor", str(_keys(value))
        if value.requires_grad is not bool(spec.requires_grad):
            return "requires_grad", spec.requires_grad, value.requires_grad
        if _has_tangent(value):
            return "tangent", "no forward-mode tangent", "a forward-mode dual tensor"
        if spec.layout is not None and spec.layout is not torch.strided:
            return None if tuple(value.shape) == spec.shape else ("shape", spec.shape, tuple(value.shape))
        if value.dim() != len(spec.shape):
            return "ndim", len(spec.shape), value.dim()
        for what, wanted, got in (("shape", spec.shape, value.shape), ("stride", spec.stride, value.stride())):
            for i, (w, g) in enumerate(zip(wanted, got)):
                if w is None:
                    continue
                if is_symbol(w):
                    if w.name in bindings:
                        w = bindings[w.name]
                    elif what == "shape" and g < 2 and not is_unbacked(w.name):
                        return f"{what}[{i}]", f"{w.name} >= 2", g
                    else:
                        bindings[w.name] = g
                        continue
                elif not isinstance(w, int):
                    continue  # an expression: checked once all symbols are bound
                if w != g:
                    return f"{what}[{i}]", w, g
        if spec.storage_offset is not None and value.storage_offset() != spec.storage_offset:
            return "storage_offset", spec.storage_offset, value.storage_offset()
        if spec.data_ptr is not None and value.data_ptr() != spec.data_ptr:
            return "data_ptr", spec.data_ptr, value.data_ptr()
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
            sum((n - 1) * s for n, s in zip(value.shape, value.strides)) + value.itemsize if value.size else 0
        )
    with torch._C.DisableTorchFunctionSubclass():
        start = value.data_ptr()
        if value.numel() == 0:
            return start, start
        span = sum((n - 1) * s for n, s in zip(value.shape, value.stride()))
        return start, start + (span + 1) * value.element_size()
