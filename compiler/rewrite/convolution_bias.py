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


def convolution_bias(a: AtenGraph) -> None:
    for n in list(a.graph.nodes):
        if n.target is aten.convolution.default and _taken_apart(n.meta["val"]) and isinstance(n.args[2], Node):
            _add_beside(a, n)
        elif n.target is aten.convolution_backward.default and _taken_apart(n.args[0].meta["val"]) and n.args[-1][2]:
            _sum_beside(a, n)


def _taken_apart(result: Any) -> bool:
    return isinstance(result, TensorMeta) and result.on_gpu and result.dtype in _DTYPES


def _add_beside(a: AtenGraph, n: Node) -> None:
    x, w, bias, *rest = n.args
    if bias.meta["val"].dtype is not n.meta["val"].dtype:
        return
    with a.graph.inserting_before(n):
        plain = a.graph.call_function(aten.convolution.default, (x, w, None, *rest))
        plain.meta = dict(n.meta)
        column = call_like(a.graph, n, aten.view.default, bias, [-1] + [1] * (len(n.meta["val"].shape) - 2))
        out = call_like(a.graph, n, aten.add.Tensor, plain, column)
    out.meta["val"] = n.meta["val"]
    n.replace_all_uses_with(out)
    a.graph.erase_node(n)


def _sum_beside(a: AtenGraph, n: Node) -> None:
    gradient, mask = n.args[0], n.args[-1]
    for u in [u for u in n.users if u.target is operator.getitem and u.args[1] == 2]:
        m = gradient.meta["val"]
        with a.graph.inserting_before(u):
            total = call_like(a.graph, u, aten.sum.dim_IntList, gradient, [0, *range(2, len(m.shape))])
        u.replace_all_uses_with(total)
        a.graph.erase_node(u)
    if any(mask[:2]):
        n.args = (*n.args[:-1], [*mask[:2], False])
        n.meta["val"] = (*n.meta["val"][:2], None)  # (what is left out has no memory that others could take)
    elif not n.users:
        a.graph.erase_node(n)
