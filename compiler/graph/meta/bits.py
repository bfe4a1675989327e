"""Truth values as bits of words (../../keep_bits.py)."""
from __future__ import annotations

from typing import Any, Sequence

import torch

from ...keep_bits import fraction
from .core import TensorMeta, new, rule

__all__: list[str] = []


@rule("tcompile::keep_bits")
def keep_bits(words: Any, p: float, *, device: torch.device) -> TensorMeta:
    fraction(p)                                          # (raises where there is none)
    return new((words,), torch.int32, device)


@rule("tcompile::unpack_bits")
def unpack_bits(words: TensorMeta, shape: Sequence[Any]) -> TensorMeta:
    return new(tuple(shape), torch.bool, words.device)
