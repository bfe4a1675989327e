"""Batches of matrix products that everything reads transposed are made transposed: (a @ b)^T = b^T @ a^T.

Autograd's formula for k of `q @ k.mT` makes the gradient of the transpose, whose rows are k's columns: whoever wants
the gradient as k lies (a parameter's .grad does) copies it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ...base.fx_nodes import is_output
from ...symbolic.expr import as_expr
from ...graph.aten import AtenGraph
from ..pass_nodes import call_like, permuted

__all__ = ["turned_products"]

aten = torch.ops.aten
SWAPPED = [0, 2, 1]


def turned_products(aten_graph: AtenGraph) -> None:
    for n in [node for node in aten_graph.graph.nodes if node.target is aten.bmm.default and node.meta["val"].on_gpu]:
        others = [user for user in n.users if not is_output(user)]
        if not all(u.target is aten.permute.default and list(u.args[1]) == SWAPPED for u in others):
            continue
        views = _views(aten_graph, n)
        if views is None or not others and not views:
            continue
        with aten_graph.graph.inserting_before(n):
            x, y = (permuted(aten_graph.graph, n, arg, SWAPPED) for arg in reversed(n.args))
            new = call_like(aten_graph.graph, n, aten.bmm.default, x, y)
        for other in others:
            other.replace_all_uses_with(new)
            aten_graph.graph.erase_node(other)
        n.replace_all_uses_with(new)  # (a result, whose views are said anew)
        for key, meta in views.items():
            aten_graph.plan[key] = replace(aten_graph.plan[key], meta=meta)
        aten_graph.graph.erase_node(n)


def _views(aten_graph: AtenGraph, node: Node) -> dict[int, Any] | None:
    """Which of the graph's outputs are views of the product, and as what of its transpose; None where one is something
    else.
    """
    slots = {k for k, result in enumerate(aten_graph.results) if result is node}
    out: dict[int, Any] = {}
    for k, spec in enumerate(aten_graph.plan):
        if spec.kind == "buffer" and spec.value in slots or any(slot in slots for _, slot in aten_graph.mutation_slots):
            return None
        if spec.kind == "view" and spec.value[0] == "node" and spec.value[1] in slots:
            meta = _of_transpose(spec.meta, node.meta["val"])
            if meta is None:
                return None
            out[k] = meta
    return out


def _of_transpose(view: Any, m: Any) -> Any:
    """A view that runs over the columns of a batch of contiguous matrices as rows, of their transposes; None for any
    other.
    """
    _, rows, columns = map(as_expr, m.shape)
    if view.storage_offset != 0 or len(view.shape) < 2 or any(x.is_const and x.value < 2 for x in (rows, columns)):
        return None
    *batch, across, along = (as_expr(stride) for stride in view.stride)
    sizes = [as_expr(size) for size in view.shape]
    if sizes[-2] is not columns or sizes[-1] is not rows or across is not as_expr(1) or along is not columns:
        return None
    if any(s // (rows * columns) * (rows * columns) is not s for s in batch):
        return None
    return view.replace(stride=(*view.stride[:-2], m.shape[1], 1))
