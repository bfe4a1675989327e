"""Gradients of the images of depthwise convolutions on a GPU.

cuDNN has good kernels for a depthwise convolution, and poor ones for the gradient of its image: on an H200 they take
1.4 to 2.4 times as long. Without a stride the gradient is a depthwise convolution itself, with the kernel turned.
With one it is a call by itself, which lowering makes loops of (lowering/rules/products/depthwise.py).
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta
from .pass_nodes import call_like, laid_as

__all__ = ["depthwise_gradients"]

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def depthwise_gradients(aten_graph: AtenGraph) -> None:
    for node in list(aten_graph.graph.nodes):
        if node.target is aten.convolution_backward.default and _is_depthwise(node):
            _apart(aten_graph, node)


def _is_depthwise(node: Node) -> bool:
    """A gradient of an image of two dimensions, by a kernel of more than one element for each channel."""
    g, x, w, _, stride, padding, dilation, transposed, _, groups, mask = node.args
    meta, k = g.meta["val"], w.meta["val"].shape
    return (
        isinstance(meta, TensorMeta)
        and meta.on_gpu
        and meta.dtype in _DTYPES
        and mask[0]
        and not transposed
        and len(k) == 4
        and type(groups) is int
        and groups > 1
        and all(type(c) is int and c == groups for c in (k[0], x.meta["val"].shape[1]))
        and k[1] == 1
        and all(type(s) is int for s in (*k[2:], *stride, *padding, *dilation))
        and k[2] * k[3] > 1
        and all(d * (s - 1) >= p for s, p, d in zip(k[2:], padding, dilation))
    )


def _apart(aten_graph: AtenGraph, node: Node) -> None:
    g, x, w, _, stride, padding, dilation, transposed, output_padding, groups, mask = node.args
    images = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
    meta = node.meta["val"][0]
    if not images:  # (nothing reads it)
        return
    with aten_graph.graph.inserting_before(node):
        if all(s == 1 for s in stride):
            turned = call_like(aten_graph.graph, node, aten.flip.default, w, [2, 3])
            pads = [d * (size - 1) - p for size, p, d in zip(w.meta["val"].shape[2:], padding, dilation)]
            rest = (None, stride, pads, dilation, False, [0, 0], groups)
            image = call_like(aten_graph.graph, node, aten.convolution.default, g, turned, *rest)
            image = laid_as(aten_graph.graph, node, image, meta)
        elif any(mask[1:]):
            args = (*node.args[:-1], [True, False, False])
            alone = aten_graph.graph.call_function(node.target, args)
            alone.meta = {**node.meta, "val": (meta, None, None)}
            image = aten_graph.graph.call_function(operator.getitem, (alone, 0))
            image.meta = {**node.meta, "val": meta}
        else:
            return
    for u in images:
        u.replace_all_uses_with(image)
        aten_graph.graph.erase_node(u)
    if any(mask[1:]):
        node.args = (*node.args[:-1], [False, *mask[1:]])
        node.meta["val"] = (None, *node.meta["val"][1:])
    else:
        aten_graph.graph.erase_node(node)
