"""Type promotion as eager's, and the dtype that eager computes in."""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch

from ..symbolic.expr import Expr
from .ir import Value, cast, const, index, round_to
from .rule_table import NoRule
from .ref import Ref, Scalar

__all__ = ["result_type", "compute_dtype", "operand", "rounded"]

_LOW = (torch.bfloat16, torch.float16)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What eager's kernels compute in for tensors of `dtype`."""
    return torch.float32 if dtype in _LOW else dtype


def _combine(high: torch.dtype | None, low: torch.dtype | None) -> torch.dtype | None:
    if high is None or low is None:
        return low if high is None else high
    if high.is_complex:
        return high
    if high.is_floating_point:
        return torch.promote_types(high, torch.complex64) if low.is_complex else high
    if high == torch.bool or low.is_floating_point or low.is_complex:
        return torch.promote_types(high, low)
    return high


def result_type(xs: Sequence[Any]) -> torch.dtype:
    """torch.result_type for any number of operands: Refs, Scalars, Python numbers and sizes."""
    ranks: list[torch.dtype | None] = [None, None, None]  # tensors with dimensions, 0-dim tensors, numbers
    for x in xs:
        if isinstance(x, Ref):
            k, dtype = (0 if x.ndim else 1), x.dtype
        else:
            k = 2
            dtype = (
                torch.bool
                if isinstance(x, bool)
                else (
                    torch.int64
                    if isinstance(x, (int, Expr))
                    else torch.complex64
                    if isinstance(x, complex)
                    else torch.get_default_dtype()
                )
            )
        ranks[k] = dtype if ranks[k] is None else torch.promote_types(ranks[k], dtype)
    r = _combine(ranks[0], _combine(ranks[1], ranks[2]))
    return r if r is not None else torch.get_default_dtype()


def operand(x: Any, dtype: torch.dtype) -> Value:
    """An operand as a value of `dtype`."""
    if isinstance(x, (Ref, Scalar)):
        return cast(x.value, dtype)
    if isinstance(x, Expr):
        return cast(index(x), dtype)
    if isinstance(x, complex) or (
        isinstance(x, float) and not math.isfinite(x) and not dtype.is_floating_point and dtype != torch.bool
    ):
        raise NoRule(f"the number {x} as {dtype}")
    return const(x, dtype)


def rounded(value: Value, dtype: torch.dtype) -> Value:
    """A result computed in compute_dtype(dtype) as a tensor of dtype."""
    return round_to(value, dtype) if dtype in _LOW and value.dtype == torch.float32 else cast(value, dtype)
