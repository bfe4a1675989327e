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


def dropout_by_bits(a: AtenGraph) -> None:
    drawn: dict[Node, float] = {}  # the mask of each -> by what it scales
    for n in list(a.graph.nodes):
        if n.target is _DROPOUT and _is_drawn(n):
            _draw(a, n, drawn)
        elif n.target is _BACKWARD and n.args[1] in drawn:
            with a.graph.inserting_before(n):
                _replace(a, n, _scaled(a, n, n.args[0], n.args[1], drawn[n.args[1]], n.meta["val"]))


def _is_drawn(n: Node) -> bool:
    x, p, train = n.args
    m = x.meta["val"]
    return (
        train is not False
        and keep_bits.drawable(p)
        and m.device.type == DEVICE
        and m.dtype in DTYPES
        and m.numel() != 0
    )


def _draw(a: AtenGraph, n: Node, drawn: dict[Node, float]) -> None:
    x, p, _ = n.args
    m = x.meta["val"]
    result, mask = n.meta["val"]
    with a.graph.inserting_before(n):
        words = call_like(
            a.graph, n, keep_bits.KEEP_BITS, maybe_int(ceildiv(as_expr(numel(m.shape)), 32)), p, device=m.device
        )
        keep = call_like(
            a.graph, n, mask_bits.UNPACK, words, list(m.shape), order_in_memory(mask) or list(range(m.ndim))
        )
        keep.meta["val"] = mask
        made = _scaled(a, n, x, keep, keep_bits.scale(p), result)
    drawn[keep] = keep_bits.scale(p)
    for u in list(n.users):
        _replace(a, u, keep if u.args[1] else made)
    a.graph.erase_node(n)


def _scaled(a: AtenGraph, n: Node, x: Node, keep: Node, scale: float, val: TensorMeta) -> Node:
    """x * scale where `keep` holds, else x * 0, rounded once; instead of `n`."""

    def f32(number: float) -> Node:
        return call_like(a.graph, n, aten.full.default, [], number, dtype=torch.float32, device=val.device)

    factor = call_like(a.graph, n, aten.where.self, keep, f32(scale), f32(0.0))
    if val.dtype is not torch.float32:
        x = call_like(a.graph, n, aten._to_copy.default, x, dtype=torch.float32)
    y = call_like(a.graph, n, aten.mul.Tensor, x, factor)
    if val.dtype is not torch.float32:
        y = call_like(a.graph, n, aten._to_copy.default, y, dtype=val.dtype)
    y.meta["val"] = val
    return y


def _replace(a: AtenGraph, n: Node, by: Any) -> None:
    n.replace_all_uses_with(by)
    a.graph.erase_node(n)
