"""Biases of convolutions on a GPU: added by kernels of ours, and their gradients summed by them.

The library's convolution takes no bias: torch adds it in a pass of its own over the result, and sums the gradient in
another. Of ours the one joins what follows the convolution, the other what makes the gradient.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta
from .pass_nodes import call_like

__all__ = ["convolution_bias"]

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def convolution_bias(aten_graph: AtenGraph) -> None:
    for node in list(aten_graph.graph.nodes):
        if (
            node.target is aten.convolution.default
            and _taken_apart(node.meta["val"])
            and isinstance(node.args[2], Node)
        ):
            _add_beside(aten_graph, node)
        elif (
            node.target is aten.convolution_backward.default
            and _taken_apart(node.args[0].meta["val"])
            and node.args[-1][2]
        ):
            _sum_beside(aten_graph, node)


def _taken_apart(result: Any) -> bool:
    return isinstance(result, TensorMeta) and result.on_gpu and result.dtype in _DTYPES


def _add_beside(aten_graph: AtenGraph, node: Node) -> None:
    x, weight, bias, *rest = node.args
    if bias.meta["val"].dtype is not node.meta["val"].dtype:
        return
    with aten_graph.graph.inserting_before(node):
        plain = aten_graph.graph.call_function(aten.convolution.default, (x, weight, None, *rest))
        plain.meta = dict(node.meta)
        column = call_like(
            aten_graph.graph, node, aten.view.default, bias, [-1] + [1] * (len(node.meta["val"].shape) - 2)
        )
        out = call_like(aten_graph.graph, node, aten.add.Tensor, plain, column)
    out.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(out)
    aten_graph.graph.erase_node(node)


def _sum_beside(aten_graph: AtenGraph, node: Node) -> None:
    gradient, mask = node.args[0], node.args[-1]
    for u in [user for user in node.users if user.target is operator.getitem and user.args[1] == 2]:
        meta = gradient.meta["val"]
        with aten_graph.graph.inserting_before(u):
            total = call_like(aten_graph.graph, u, aten.sum.dim_IntList, gradient, [0, *range(2, len(meta.shape))])
        u.replace_all_uses_with(total)
        aten_graph.graph.erase_node(u)
    if any(mask[:2]):
        node.args = (*node.args[:-1], [*mask[:2], False])
        node.meta["val"] = (*node.meta["val"][:2], None)  # (what is left out has no memory that others could take)
    elif not node.users:
        aten_graph.graph.erase_node(node)
