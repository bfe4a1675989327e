"""Dropout by bits (CUDA, option `fast_dropout`): ops/keep_bits.py draws them, 32 elements' in a word.

What forward keeps for backward are the words. An element's bit lies where the element lies in memory, so that kernels
find those of neighbours together. What is kept is scaled by the probability that was drawn, in backward, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ..ops import mask_bits, keep_bits
from ..symbolic.expr import as_expr, ceildiv, maybe_int
from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta, numel, order_in_memory
from .pass_nodes import call_like

__all__ = ["dropout_by_bits"]

aten = torch.ops.aten
DEVICE = "cuda"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_DROPOUT, _BACKWARD = aten.native_dropout.default, aten.native_dropout_backward.default


def dropout_by_bits(aten_graph: AtenGraph) -> None:
    drawn: dict[Node, float] = {}  # the mask of each -> by what it scales
    for node in list(aten_graph.graph.nodes):
        if node.target is _DROPOUT and _is_drawn(node):
            _draw(aten_graph, node, drawn)
        elif node.target is _BACKWARD and node.args[1] in drawn:
            with aten_graph.graph.inserting_before(node):
                _replace(
                    aten_graph,
                    node,
                    _scaled(aten_graph, node, node.args[0], node.args[1], drawn[node.args[1]], node.meta["val"]),
                )


def _is_drawn(node: Node) -> bool:
    x, p, train = node.args
    meta = x.meta["val"]
    return (
        train is not False
        and keep_bits.drawable(p)
        and meta.device.type == DEVICE
        and meta.dtype in DTYPES
        and meta.numel() != 0
    )


def _draw(aten_graph: AtenGraph, node: Node, drawn: dict[Node, float]) -> None:
    x, p, _ = node.args
    meta = x.meta["val"]
    result, mask = node.meta["val"]
    with aten_graph.graph.inserting_before(node):
        words = call_like(
            aten_graph.graph,
            node,
            keep_bits.KEEP_BITS,
            maybe_int(ceildiv(as_expr(numel(meta.shape)), 32)),
            p,
            device=meta.device,
        )
        keep = call_like(
            aten_graph.graph,
            node,
            mask_bits.UNPACK,
            words,
            list(meta.shape),
            order_in_memory(mask) or list(range(meta.ndim)),
        )
        keep.meta["val"] = mask
        made = _scaled(aten_graph, node, x, keep, keep_bits.scale(p), result)
    drawn[keep] = keep_bits.scale(p)
    for user in list(node.users):
        _replace(aten_graph, user, keep if user.args[1] else made)
    aten_graph.graph.erase_node(node)


def _scaled(aten_graph: AtenGraph, node: Node, x: Node, keep: Node, scale: float, val: TensorMeta) -> Node:
    """x * scale where `keep` holds, else x * 0, rounded once; instead of `node`."""

    def f32(number: float) -> Node:
        return call_like(aten_graph.graph, node, aten.full.default, [], number, dtype=torch.float32, device=val.device)

    factor = call_like(aten_graph.graph, node, aten.where.self, keep, f32(scale), f32(0.0))
    if val.dtype is not torch.float32:
        x = call_like(aten_graph.graph, node, aten._to_copy.default, x, dtype=torch.float32)
    y = call_like(aten_graph.graph, node, aten.mul.Tensor, x, factor)
    if val.dtype is not torch.float32:
        y = call_like(aten_graph.graph, node, aten._to_copy.default, y, dtype=val.dtype)
    y.meta["val"] = val
    return y


def _replace(aten_graph: AtenGraph, node: Node, by: Any) -> None:
    node.replace_all_uses_with(by)
    aten_graph.graph.erase_node(node)
