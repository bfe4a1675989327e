"""Convolutions in groups of an odd width on a GPU: each group is padded to a power of two of channels.

The library has kernels for images whose groups are a power of two wide. For others (the 24 channels of a RegNet's
group) it copies image and result into such a layout at each call, element by element: on an H200 380 us, where the
convolution of the padded groups takes 55. The kernel that makes an image writes it padded, and what reads the result
skips the padding.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta, channels_last_strides
from .pass_nodes import call_like, laid_as

__all__ = ["padded_groups"]

aten = torch.ops.aten
LEAST = 17  # channels of a group: the library takes narrower ones as they are
DTYPES = (torch.float16, torch.bfloat16)


def padded_groups(aten_graph: AtenGraph) -> None:
    images: dict[Node, Node] = {}
    weights: dict[Node, Node] = {}
    for node in list(aten_graph.graph.nodes):
        if node.target not in (aten.convolution.default, aten.convolution_backward.default):
            continue
        backward = node.target is aten.convolution_backward.default
        x, weight = node.args[backward : backward + 2]
        biased = node.args[-1][2] if backward else node.args[2] is not None
        groups = node.args[-2 if backward else -1]
        transposed = node.args[-4 if backward else 6]
        widths = _widths(x, weight, groups)
        if widths is None or transposed or biased:
            continue
        (cin, wide_in), (cout, wide_out) = widths
        with aten_graph.graph.inserting_before(node):
            if x not in images:
                images[x] = _pad_image(aten_graph, node, x, groups, cin, wide_in)
            if weight not in weights:
                weights[weight] = _pad_weight(aten_graph, node, weight, groups, (cout, wide_out), (cin, wide_in))
            if backward:
                gradient = node.args[0]
                if gradient not in images:
                    images[gradient] = _pad_image(aten_graph, node, gradient, groups, cout, wide_out)
                _backward(aten_graph, node, images[gradient], images[x], weights[weight], groups, widths)
                continue
            wide = call_like(aten_graph.graph, node, node.target, images[x], weights[weight], *node.args[2:])
            _lay_last(wide)
            out = _narrow_image(aten_graph, node, wide, groups, cout, node.meta["val"])
        node.replace_all_uses_with(out)
        aten_graph.graph.erase_node(node)


def _widths(x: Node, weight: Any, groups: Any) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """(channels of a group, channels with padding) of image and result, where padding is worth it."""
    meta = x.meta["val"]
    if (
        type(groups) is not int
        or groups < 2
        or len(meta.shape) != 4
        or not meta.on_gpu
        or meta.dtype not in DTYPES
        or tuple(meta.stride) != tuple(channels_last_strides(meta.shape))
        or not all(type(size) is int for size in weight.meta["val"].shape)
    ):
        return None
    out, cin = weight.meta["val"].shape[:2]
    found = tuple(
        (channels, 1 << (channels - 1).bit_length() if channels >= LEAST else channels)
        for channels in (cin, out // groups)
    )
    return found if any(channels != wide for channels, wide in found) else None


def _backward(
    aten_graph: AtenGraph,
    node: Node,
    gradient: Node,
    x: Node,
    weight: Node,
    groups: int,
    widths: tuple[tuple[int, int], tuple[int, int]],
) -> None:
    (cin, _), (cout, _) = widths
    wide = call_like(aten_graph.graph, node, node.target, gradient, x, weight, *node.args[3:])
    wide.meta["val"] = tuple(
        meta and TensorMeta(like.shape, channels_last_strides(like.shape), meta.dtype, meta.device)
        for meta, like in zip(node.meta["val"], (x.meta["val"], weight.meta["val"], None))
    )
    for user in list(node.users):
        k = user.args[1]
        with aten_graph.graph.inserting_before(user):
            item = aten_graph.graph.call_function(operator.getitem, (wide, k))
            item.meta = {**user.meta, "val": wide.meta["val"][k]}
            narrow = (
                _narrow_image(aten_graph, user, item, groups, cin, user.meta["val"])
                if k == 0
                else _narrow_weight(aten_graph, user, item, groups, cout, cin)
            )
        user.replace_all_uses_with(narrow)
        aten_graph.graph.erase_node(user)
    aten_graph.graph.erase_node(node)


# ---- images: (n, groups * channels, height, width), channels last
def _pad_image(aten_graph: AtenGraph, like: Node, x: Node, groups: int, channels: int, wide: int) -> Node:
    if channels == wide:
        return x
    n, _, h, w = x.meta["val"].shape
    parted = call_like(aten_graph.graph, like, aten.view.default, x, [n, groups, channels, h, w])
    padded = call_like(
        aten_graph.graph, like, aten.constant_pad_nd.default, parted, [0, 0, 0, 0, 0, wide - channels], 0.0
    )
    c = groups * wide
    padded.meta["val"] = padded.meta["val"].replace(stride=(h * w * c, wide, 1, w * c, c))
    return call_like(aten_graph.graph, like, aten.view.default, padded, [n, c, h, w])


def _narrow_image(aten_graph: AtenGraph, like: Node, x: Node, groups: int, channels: int, meta: TensorMeta) -> Node:
    n, c, h, w = x.meta["val"].shape
    if c == groups * channels:
        return x
    parted = call_like(aten_graph.graph, like, aten.view.default, x, [n, groups, c // groups, h, w])
    cut = call_like(aten_graph.graph, like, aten.slice.Tensor, parted, 2, 0, channels, 1)
    dense = call_like(aten_graph.graph, like, aten.clone.default, cut)
    c = groups * channels
    dense.meta["val"] = dense.meta["val"].replace(stride=(h * w * c, channels, 1, w * c, c))
    return laid_as(
        aten_graph.graph, like, call_like(aten_graph.graph, like, aten.view.default, dense, [n, c, h, w]), meta
    )


# ---- weights: (groups * channels out, channels in, taps, taps)
def _pad_weight(
    aten_graph: AtenGraph, like: Node, weight: Node, groups: int, out: tuple[int, int], inner: tuple[int, int]
) -> Node:
    (cout, wide_out), (cin, wide_in) = out, inner
    kh, kw = weight.meta["val"].shape[2:]
    parted = call_like(aten_graph.graph, like, aten.view.default, weight, [groups, cout, cin, kh, kw])
    by = [0, 0, 0, 0, 0, wide_in - cin, 0, wide_out - cout]
    padded = call_like(aten_graph.graph, like, aten.constant_pad_nd.default, parted, by, 0.0)
    each = wide_in * kh * kw
    padded.meta["val"] = padded.meta["val"].replace(stride=(wide_out * each, each, 1, kw * wide_in, wide_in))
    return call_like(aten_graph.graph, like, aten.view.default, padded, [groups * wide_out, wide_in, kh, kw])


def _narrow_weight(aten_graph: AtenGraph, like: Node, weight: Node, groups: int, cout: int, cin: int) -> Node:
    wide_out, wide_in, kh, kw = weight.meta["val"].shape
    parted = call_like(aten_graph.graph, like, aten.view.default, weight, [groups, wide_out // groups, wide_in, kh, kw])
    cut = call_like(aten_graph.graph, like, aten.slice.Tensor, parted, 1, 0, cout, 1)
    cut = call_like(aten_graph.graph, like, aten.slice.Tensor, cut, 2, 0, cin, 1)
    dense = call_like(aten_graph.graph, like, aten.clone.default, cut, memory_format=torch.contiguous_format)
    whole = call_like(aten_graph.graph, like, aten.view.default, dense, [groups * cout, cin, kh, kw])
    return laid_as(aten_graph.graph, like, whole, like.meta["val"])


def _lay_last(node: Node) -> None:
    meta = node.meta["val"]
    node.meta["val"] = TensorMeta(meta.shape, channels_last_strides(meta.shape), meta.dtype, meta.device)
