"""Batches of products by one and the same matrix are made one product: all rows of all batches times that matrix.

`F.linear` of a tensor whose first dimensions are swapped (sequence before batch, as attention modules like it) arrives
as such a batch: torch can't merge the two dimensions without a copy. A library runs it as many tiny products, ten times
as slow as one. The rows are taken in the order in which they lie, and the result is read in the order that was asked
for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ...graph.aten import AtenGraph
from ...symbolic.expr import as_expr
from ..pass_nodes import call_like, permuted

__all__ = ["broadcast_products"]

aten = torch.ops.aten
SWAPPED = [1, 0, 2]
MANY_ROWS = 64  # of each product, from which a batch is worth more than a copy that makes it one product


def broadcast_products(aten_graph: AtenGraph) -> None:
    results = set(aten_graph.results)
    hints = aten_graph.env.hints if aten_graph.env is not None else {}
    for n in [node for node in aten_graph.graph.nodes if node.target is aten.bmm.default]:
        x, y = n.args
        matrix = _repeated(y)
        order = None if matrix is None else _order_of_rows(x, hints)
        if order is None:
            continue
        batch, rows, inner = x.meta["val"].shape
        columns = n.meta["val"].shape[2]
        with aten_graph.graph.inserting_before(n):
            if order == "swapped":
                x = permuted(aten_graph.graph, n, x, SWAPPED)
                batch, rows = rows, batch
            elif order == "copied":
                x = call_like(aten_graph.graph, n, aten.clone.default, x, memory_format=torch.contiguous_format)
            merged = call_like(aten_graph.graph, n, aten.view.default, x, [batch * rows, inner])
            product = call_like(aten_graph.graph, n, aten.mm.default, merged, matrix)
            out = call_like(aten_graph.graph, n, aten.view.default, product, [batch, rows, columns])
            if order == "swapped":
                out = call_like(aten_graph.graph, n, aten.permute.default, out, SWAPPED)
            if n in results:  # it is nobody's view, and views of it count in its layout
                out = call_like(aten_graph.graph, n, aten.clone.default, out)
                out.meta["val"] = n.meta["val"]
        n.replace_all_uses_with(out)
        aten_graph.graph.erase_node(n)


def _repeated(y: Node) -> Node | None:
    """The matrix that each of a batch is."""
    meta = y.meta["val"]
    if not _is(meta.stride[0], 0) or _is(meta.shape[0], 1):
        return None
    while y.target in (aten.expand.default, aten.view.default):
        y = y.args[0]
        of = y.meta["val"]
        if len(of.shape) == 2:
            same = all(
                as_expr(s) is as_expr(t) for s, t in zip((*of.shape, *of.stride), (*meta.shape[1:], *meta.stride[1:]))
            )
            return y if same else None
    return None


def _order_of_rows(x: Node, hints: dict[str, int]) -> str | None:
    """How the rows of a batch become one dimension: "as they are", "swapped" (batch inside of rows), or "copied"; None
    where they are better left.
    """
    meta = x.meta["val"]
    batch, rows, _ = map(as_expr, meta.shape)
    by_batch, by_row, by_element = map(as_expr, meta.stride)
    if by_element is as_expr(1):
        if by_batch is rows * by_row:
            return "as they are"
        if by_row is batch * by_batch:
            return "swapped"
    return "copied" if rows.eval(hints) < MANY_ROWS else None


def _is(size: Any, value: int) -> bool:
    return as_expr(size) is as_expr(value)
