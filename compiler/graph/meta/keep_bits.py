"""Dropout by bits (../../keep_bits.py)."""
from __future__ import annotations

from typing import Any

import torch

from ...keep_bits import fraction
from .core import TensorMeta, new, rule

__all__: list[str] = []


@rule("tcompile::keep_bits")
def keep_bits(words: Any, p: float, *, device: torch.device) -> TensorMeta:
    fraction(p)                                          # (raises where there is none)
    return new((words,), torch.int32, device)
