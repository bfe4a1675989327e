"""New nodes for passes to write, and what passes ask of nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ..base.fx_modules import call_node
from ..graph.decompose.table import Builder, short_name
from ..graph.meta.core import TensorMeta
from ..symbolic.expr import Expr

__all__ = ["SAME_ELEMENTS", "call_like", "filled", "is_zero", "number_of", "laid_as", "holds_symbols", "transposed"]

aten = torch.ops.aten
# views and copies that keep the order of elements
SAME_ELEMENTS = frozenset(
    (aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.clone.default, aten.alias.default)
)


def call_like(graph: torch.fx.Graph, like: Node, op: Any, *args: Any, **kwargs: Any) -> Node:
    """A call of `op` with its metadata by rule; lines and module of `like`."""
    node = call_node(graph, "call_function", op, args, kwargs, short_name(op))
    node.meta = {**like.meta, "val": Builder.meta(op, args, kwargs)}
    return node


def filled(graph: torch.fx.Graph, like: Node, shape: Any, number: Any, val: Any) -> Node:
    """A tensor of one number, of the dtype and on the device of `val`."""
    return call_like(graph, like, aten.full.default, list(shape), number, dtype=val.dtype, device=val.device)


def number_of(x: Any) -> Any:
    """The number that something is, or that a node fills its tensor with; None of anything else."""
    if isinstance(x, Node):
        x = x.args[1] if x.target is aten.full.default else None
    return x if isinstance(x, (int, float, complex)) else None


def is_zero(x: Any) -> bool:
    number = number_of(x)
    return type(number) in (int, float, bool) and number == 0


def permuted(graph: torch.fx.Graph, like: Node, x: Node, order: list[int]) -> Node:
    """`x` with its dimensions in `order`, which undoes itself: what `x` was permuted from, where it was so."""
    if x.target is aten.permute.default and list(x.args[1]) == order:
        return x.args[0]
    return call_like(graph, like, aten.permute.default, x, order)


def laid_as(graph: torch.fx.Graph, like: Node, x: Node, meta: TensorMeta) -> Node:
    """`x` in the order that the node had in whose place it comes: what leaves the graph keeps eager's."""
    if tuple(x.meta["val"].stride) == tuple(meta.stride):
        return x
    copy = call_like(graph, like, aten.clone.default, x)
    copy.meta["val"] = meta
    return copy


def holds_symbols(args: Any) -> bool:
    """Whether arguments of a node name sizes that vary."""
    return isinstance(args, Expr) or isinstance(args, (list, tuple)) and any(map(holds_symbols, args))


def transposed(x: Any, y: Any) -> bool:
    """Whether two matrices of a batch are each other's transposes."""

    def swaps(node: Any, of: Any) -> bool:
        return node.target is aten.permute.default and node.args[0] is of and list(node.args[1]) == [0, 2, 1]

    return isinstance(x, Node) and isinstance(y, Node) and (swaps(x, y) or swaps(y, x))
