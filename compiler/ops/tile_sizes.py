"""Sizes from which attention and chains of products, sum(f(a @ b) * c), are kernels that make a @ b tile by tile: what
fusion builds (fusion/tiled) and graph passes count on (rewrite/attention_*.py)."""

from __future__ import annotations

import torch

__all__ = ["DTYPES", "FEW_FLOPS", "WIDEST", "fills"]

DTYPES = (torch.float16, torch.bfloat16)
WIDEST = 128  # of the sums within a product, and of columns
LEAST = 16  # rows and keys that are worth a tile
TILE = 64
FEW_FLOPS = 4e9  # of a library's call of attention that takes less time than launching it
PROGRAMS, FEW_KEYS = 64, 512  # programs that keep a device busy, unless each goes through few keys


def fills(batch: int, rows: int, keys: int) -> bool:
    """Whether tiles of rows that go through all keys keep a device busy."""
    return min(rows, keys) >= LEAST and (keys <= FEW_KEYS or batch * -(-rows // TILE) >= PROGRAMS)
