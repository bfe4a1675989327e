"""Hooks that run where a leaf's gradient is accumulated: on a node of autograd's graph, of which no attribute of the
tensor tells."""

from __future__ import annotations

import torch

from ..native import autograd_node

__all__ = ["is_hooked"]


def is_hooked(leaf: torch.Tensor) -> bool:
    """Whether there are such hooks; False where node.cpp was not built, which alone can tell."""
    node = autograd_node()
    return node is not None and node.is_hooked(leaf)
