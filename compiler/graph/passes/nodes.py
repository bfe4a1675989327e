"""New nodes for passes to write."""
from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ..decompose.builder import Builder, short_name

__all__ = ["call_like"]


def call_like(graph: torch.fx.Graph, like: Node, op: Any, *args: Any, **kwargs: Any) -> Node:
    """A call of `op` with its metadata by rule; lines and module of `like`."""
    n = graph.create_node("call_function", op, args, kwargs, name=short_name(op))
    n.meta = {**like.meta, "val": Builder.meta(op, args, kwargs)}
    return n
