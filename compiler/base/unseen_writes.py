"""Writes to tensors that torch gives no sign of: through `x.data`, and to running statistics of a norm.

Compiled code doesn't move their versions either, or backward would raise where eager goes on. Whoever keeps what was
made of such a tensor asks here whether compiled code has written to any since.
"""

from __future__ import annotations

import torch

__all__ = ["copy_unseen", "note", "so_far"]

_count = 0


def so_far() -> int:
    """How many calls of compiled code have written so in this process."""
    return _count


def note() -> None:
    """Said by a plan that writes so, once in each call."""
    global _count
    _count += 1


def copy_unseen(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Write to a tensor as through its `data`: its version stays."""
    tensor.data.copy_(value)
