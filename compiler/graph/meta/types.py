"""Type promotion: the dtype that eager computes in and returns, from tensors, 0-dim tensors and Python numbers."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from .core import TensorMeta

__all__ = ["result_type", "promote", "category", "opmath", "is_float", "is_int", "to_complex_real"]

_BOOL, _INT, _FLOAT, _COMPLEX = 0, 1, 2, 3

_CATEGORY: dict[torch.dtype, int] = {torch.bool: _BOOL}
_CATEGORY.update({d: _INT for d in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)})
for _n in ("uint16", "uint32", "uint64"):
    if hasattr(torch, _n):
        _CATEGORY[getattr(torch, _n)] = _INT
_CATEGORY.update({d: _COMPLEX for d in (torch.complex32, torch.complex64, torch.complex128)})
_promote: dict[tuple, torch.dtype] = {}


def category(dtype: torch.dtype) -> int:
    return _CATEGORY.get(dtype, _FLOAT)


def is_float(dtype: torch.dtype) -> bool:
    return category(dtype) == _FLOAT


def is_int(dtype: torch.dtype) -> bool:
    """Integers and bool."""
    return category(dtype) <= _INT


def promote(dtype: torch.dtype, b: torch.dtype) -> torch.dtype:
    if dtype is b:
        return dtype
    r = _promote.get((dtype, b))
    if r is None:
        r = _promote[dtype, b] = torch.promote_types(dtype, b)
    return r


def _number_type(x: Any) -> torch.dtype:
    if isinstance(x, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(x, complex):
        return torch.complex128 if torch.get_default_dtype() is torch.float64 else torch.complex64
    if isinstance(x, (float, torch.SymFloat)):
        return torch.get_default_dtype()
    return torch.int64


def result_type(xs: Sequence[Any]) -> torch.dtype:
    """torch.result_type of any number of TensorMetas and Python numbers: tensors with dimensions decide, then 0-dim
    tensors, then numbers; a lower class only counts where its category is higher."""
    dim = zero = num = None
    for x in xs:
        if isinstance(x, TensorMeta):
            if x.shape:
                dim = x.dtype if dim is None else promote(dim, x.dtype)
            else:
                zero = x.dtype if zero is None else promote(zero, x.dtype)
        elif x is not None:
            t = _number_type(x)
            num = t if num is None else promote(num, t)
    r = dim
    for lower in (zero, num):
        if lower is not None:
            if r is None:
                r = lower
            elif category(lower) > category(r):
                # a float number beside ints gives the default dtype, a complex one beside float16 complex32, ...
                r = promote(r, lower) if lower is not num or category(r) == _FLOAT else lower
                if lower is num and category(lower) == _COMPLEX and category(dim or zero or lower) == _FLOAT:
                    r = _complex_of(dim or zero)
    assert r is not None
    return r


def _complex_of(dtype: torch.dtype) -> torch.dtype:
    return {torch.float64: torch.complex128, torch.float16: torch.complex32}.get(dtype, torch.complex64)


def to_complex_real(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a complex number's parts."""
    return {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}.get(
        dtype, dtype
    )


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype that eager's kernels compute in: float32 for float16 and bfloat16."""
    return (
        torch.float32
        if dtype in (torch.float16, torch.bfloat16)
        else torch.complex64
        if dtype is torch.complex32
        else dtype
    )
