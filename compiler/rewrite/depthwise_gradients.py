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


def depthwise_gradients(a: AtenGraph) -> None:
    for n in list(a.graph.nodes):
        if n.target is aten.convolution_backward.default and _is_depthwise(n):
            _apart(a, n)


def _is_depthwise(n: Node) -> bool:
    """A gradient of an image of two dimensions, by a kernel of more than one element for each channel."""
    g, x, w, _, stride, padding, dilation, transposed, _, groups, mask = n.args
    m, k = g.meta["val"], w.meta["val"].shape
    return (
        isinstance(m, TensorMeta)
        and m.on_gpu
        and m.dtype in _DTYPES
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


def _apart(a: AtenGraph, n: Node) -> None:
    g, x, w, _, stride, padding, dilation, transposed, output_padding, groups, mask = n.args
    images = [u for u in n.users if u.target is operator.getitem and u.args[1] == 0]
    meta = n.meta["val"][0]
    if not images:  # (nothing reads it)
        return
    with a.graph.inserting_before(n):
        if all(s == 1 for s in stride):
            turned = call_like(a.graph, n, aten.flip.default, w, [2, 3])
            pads = [d * (k - 1) - p for k, p, d in zip(w.meta["val"].shape[2:], padding, dilation)]
            rest = (None, stride, pads, dilation, False, [0, 0], groups)
            image = call_like(a.graph, n, aten.convolution.default, g, turned, *rest)
            image = laid_as(a.graph, n, image, meta)
        elif any(mask[1:]):
            args = (*n.args[:-1], [True, False, False])
            alone = a.graph.call_function(n.target, args)
            alone.meta = {**n.meta, "val": (meta, None, None)}
            image = a.graph.call_function(operator.getitem, (alone, 0))
            image.meta = {**n.meta, "val": meta}
        else:
            return
    for u in images:
        u.replace_all_uses_with(image)
        a.graph.erase_node(u)
    if any(mask[1:]):
        n.args = (*n.args[:-1], [False, *mask[1:]])
        n.meta["val"] = (None, *n.meta["val"][1:])
    else:
        a.graph.erase_node(n)
