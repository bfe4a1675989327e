"""Pattern rewriting: written-out attention becomes the library's fused operator."""
from __future__ import annotations

import torch
import torch.fx

from ..aten import AtenGraph

__all__ = ["attention"]

aten = torch.ops.aten
Node = torch.fx.Node


def attention(a: AtenGraph) -> None:
    """Nothing yet matches: attention written by hand stays two products and a softmax."""
