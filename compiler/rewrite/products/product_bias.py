"""A bias that is added to a matrix product (CUDA): one call of the library, which adds it while the product is still in
registers.

`linear` on operands that are no plain matrices makes a product and an addition of its own; adding would read and write
the whole result again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ...base.fx_nodes import is_input
from ...graph.aten import AtenGraph
from ...graph.meta.core import TensorMeta

__all__ = ["bias_products"]

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def bias_products(aten_graph: AtenGraph) -> None:
    results = set(aten_graph.results)
    for node in list(aten_graph.graph.nodes):
        if node.target is not aten.add.Tensor or node.kwargs.get("alpha", 1) != 1 or node in results:
            continue
        for x, bias in (node.args, node.args[::-1]):
            views = _views_of_a_product(x, results) if isinstance(x, Node) and isinstance(bias, Node) else None
            if views is not None and _is_bias(bias, views[-1], node):
                _join(aten_graph, node, views, bias)
                break


def _views_of_a_product(x: Node, results: set[Node]) -> list[Node] | None:
    """The views from `x` down to a product that nothing else reads, which keep its columns; None where that is not
    so.
    """
    out = []
    while True:
        if x in results or len(x.users) != 1 or not isinstance(x.meta.get("val"), TensorMeta):
            return None
        out.append(x)
        if x.target is aten.mm.default:
            return out if not x.kwargs else None
        if x.target is not aten.view.default or x.args[0].meta["val"].shape[-1:] != x.meta["val"].shape[-1:]:
            return None
        x = x.args[0]


def _is_bias(bias: Node, product: Node, node: Node) -> bool:
    """Whether `bias` is a parameter (or the conversion of one) with a number for each column."""
    source = bias.args[0] if bias.target is aten._to_copy.default else bias
    meta, p, s = bias.meta["val"], product.meta["val"], node.meta["val"]
    return (
        isinstance(source, Node)
        and is_input(source)
        and isinstance(meta, TensorMeta)
        and meta.on_gpu
        and meta.device == p.device
        and len(meta.shape) == 1
        and type(meta.shape[0]) is int
        and meta.shape[0] == p.shape[1]
        and meta.shape[0] > 1
        and meta.dtype == p.dtype == s.dtype
        and p.dtype in _DTYPES
        and len(s.shape)
        == len(node.args[0].meta["val"].shape if node.args[1] is bias else node.args[1].meta["val"].shape)
    )


def _join(aten_graph: AtenGraph, node: Node, views: list[Node], bias: Node) -> None:
    graph, product = aten_graph.graph, views[-1]
    with graph.inserting_before(node):  # (the bias may have been made after the product)
        new: Any = graph.call_function(aten.addmm.default, (bias, *product.args))
        new.meta = {**node.meta, "val": product.meta["val"]}
        for view in reversed(views[:-1]):
            new = graph.call_function(aten.view.default, (new, view.args[1]))
            new.meta = dict(view.meta)
    node.replace_all_uses_with(new)
    for view in (node, *views):
        graph.erase_node(view)
