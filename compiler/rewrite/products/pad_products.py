"""Matrix products over an odd number of columns (a vocabulary of 50257) on a GPU: padded to multiples of eight.

The library's fast kernels want sizes and rows that are multiples of 16 bytes; without them a product takes several
times as long. What is padded is written by the kernel that makes the operand anyway, and the result's extra rows and
columns are never read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ...base.fx_nodes import is_call
from ...graph.aten import AtenGraph
from ...graph.meta.core import TensorMeta
from ..pass_nodes import call_like

__all__ = ["pad_products"]

aten = torch.ops.aten
LEAST, WORK = 1024, 1 << 32  # of the odd size, and multiplications from which it matters


def pad_products(aten_graph: AtenGraph) -> None:
    padded: dict[tuple[Node, int, int], Node] = {}
    results = set(aten_graph.results)
    for n in [node for node in aten_graph.graph.nodes if node.target is aten.mm.default and not node.kwargs]:
        x, y = n.args
        m, k, c = (*x.meta["val"].shape, y.meta["val"].shape[1])
        if not _slow(n.meta["val"], m, k, c) or not (_is_made(x) or _is_made(y)):
            continue
        pm, pk, pc = (-size % 8 if size >= LEAST else 0 for size in (m, k, c))
        if any(p and not _is_made(operand) for p, operand in ((pm, x), (pk, x), (pk, y), (pc, y))):
            continue  # a copy of what lies in memory already costs more than it brings
        with aten_graph.graph.inserting_before(n):
            x2 = _pad(aten_graph, _pad(aten_graph, x, 0, pm, padded), 1, pk, padded)
            y2 = _pad(aten_graph, _pad(aten_graph, y, 0, pk, padded), 1, pc, padded)
            out = call_like(aten_graph.graph, n, aten.mm.default, x2, y2)
            if pm:
                out = call_like(aten_graph.graph, n, aten.slice.Tensor, out, 0, 0, m, 1)
            if pc:
                out = call_like(aten_graph.graph, n, aten.slice.Tensor, out, 1, 0, c, 1)
            if out.meta["val"].stride != n.meta["val"].stride and n in results:
                # views that are handed out count in the layout of the result
                out = call_like(aten_graph.graph, n, aten.clone.default, out)
                out.meta["val"] = n.meta["val"]
        n.replace_all_uses_with(out)
        aten_graph.graph.erase_node(n)


def _slow(val: TensorMeta, m: Any, k: Any, c: Any) -> bool:
    return (
        val.on_gpu
        and val.dtype in (torch.float16, torch.bfloat16)
        and all(type(size) is int for size in (m, k, c))
        and any(size % 8 and size >= LEAST for size in (m, k, c))
        and m * k * c >= WORK
    )


def _is_made(node: Node) -> bool:
    """Whether a kernel of ours makes the operand, so that padding it is free."""
    while node.target in (aten.permute.default, aten.view.default):
        node = node.args[0]
    return (
        is_call(node)
        and isinstance(node.target, torch._ops.OpOverload)
        and (
            torch.Tag.pointwise in node.target.tags
            or node.target in (aten._to_copy.default, aten.clone.default, aten.constant_pad_nd.default)
        )
    )


def _pad(aten_graph: AtenGraph, node: Node, dim: int, by: int, padded: dict[tuple[Node, int, int], Node]) -> Node:
    """`node` with `by` zeros after its last element of a dimension; before a transposition, so that both uses of a
    matrix share it.
    """
    if not by:
        return node
    if node.target is aten.permute.default and list(node.args[1]) == [1, 0]:
        return call_like(
            aten_graph.graph, node, aten.permute.default, _pad(aten_graph, node.args[0], 1 - dim, by, padded), [1, 0]
        )
    key = (node, dim, by)
    found = padded.get(key)
    if found is None:
        with aten_graph.graph.inserting_after(node):
            found = padded[key] = call_like(
                aten_graph.graph, node, aten.constant_pad_nd.default, node, [0, by] if dim == 1 else [0, 0, 0, by], 0.0
            )
    return found
