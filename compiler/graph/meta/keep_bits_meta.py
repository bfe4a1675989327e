"""Dropout by bits (ops/keep_bits.py), and what unpacks them (ops/mask_bits.py)."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ...ops.keep_bits import fraction
from .core import TensorMeta, contiguous_strides, new, rule

__all__: list[str] = []


@rule("tcompile::keep_bits")
def keep_bits(words: Any, p: float, *, device: torch.device) -> TensorMeta:
    fraction(p)  # (raises where there is none)
    return new((words,), torch.int32, device)


@rule("tcompile::unpack_bits")
def unpack_bits(words: TensorMeta, size: Sequence[Any], order: Sequence[int]) -> TensorMeta:
    laid = contiguous_strides(tuple(size[dim] for dim in order))
    return new(size, torch.bool, words.device, [laid[order.index(dim)] for dim in range(len(order))])
