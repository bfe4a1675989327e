"""Batches of matrix products that everything reads transposed are made transposed: (a @ b)^T = b^T @ a^T.

Autograd's formula for k of `q @ k.mT` makes the gradient of the transpose, whose rows are k's columns: whoever wants
the gradient as k lies (a parameter's .grad does) copies it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ...symbolic.expr import as_expr
from ...graph.aten import AtenGraph
from ..pass_nodes import call_like, permuted

__all__ = ["turned_products"]

aten = torch.ops.aten
SWAPPED = [0, 2, 1]


def turned_products(a: AtenGraph) -> None:
    for n in [n for n in a.graph.nodes if n.target is aten.bmm.default and n.meta["val"].on_gpu]:
        others = [u for u in n.users if u.op != "output"]
        if not all(u.target is aten.permute.default and list(u.args[1]) == SWAPPED for u in others):
            continue
        views = _views(a, n)
        if views is None or not others and not views:
            continue
        with a.graph.inserting_before(n):
            x, y = (permuted(a.graph, n, m, SWAPPED) for m in reversed(n.args))
            new = call_like(a.graph, n, aten.bmm.default, x, y)
        for u in others:
            u.replace_all_uses_with(new)
            a.graph.erase_node(u)
        n.replace_all_uses_with(new)  # (a result, whose views are said anew)
        for k, meta in views.items():
            a.plan[k] = replace(a.plan[k], meta=meta)
        a.graph.erase_node(n)


def _views(a: AtenGraph, n: Node) -> dict[int, Any] | None:
    """Which of the graph's outputs are views of the product, and as what of its transpose; None where one is something
    else.
    """
    slots = {k for k, r in enumerate(a.results) if r is n}
    out: dict[int, Any] = {}
    for k, o in enumerate(a.plan):
        if o.kind == "buffer" and o.value in slots or any(slot in slots for _, slot in a.mutation_slots):
            return None
        if o.kind == "view" and o.value[0] == "node" and o.value[1] in slots:
            meta = _of_transpose(o.meta, n.meta["val"])
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
    *batch, across, along = (as_expr(s) for s in view.stride)
    sizes = [as_expr(s) for s in view.shape]
    if sizes[-2] is not columns or sizes[-1] is not rows or across is not as_expr(1) or along is not columns:
        return None
    if any(s // (rows * columns) * (rows * columns) is not s for s in batch):
        return None
    return view.replace(stride=(*view.stride[:-2], m.shape[1], 1))
