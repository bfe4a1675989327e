"""Attention with dropout of our own for the library's (CUDA, option `fast_dropout`): numbers that are not eager's,
drawn as bits for both passes.

On GPUs of the Hopper generation, in 16 bits, for heads of at most 64 columns: with 64, in bfloat16, the kernels were
measured to be faster than the library's.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from ..base.generations import here
from ..ops import keep_bits
from ..ops.dropout_attention import ATTENTION, BACKWARD, words
from ..ops.philox import arguments_of
from ..symbolic.expr import as_expr
from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta
from .pass_nodes import call_like

__all__ = ["dropout_attention"]

aten = torch.ops.aten
_BACKWARD = {
    aten._scaled_dot_product_cudnn_attention.default: aten._scaled_dot_product_cudnn_attention_backward.default,
    aten._scaled_dot_product_flash_attention.default: aten._scaled_dot_product_flash_attention_backward.default,
}
WIDEST = 64  # columns of a head
LEAST = 16  # rows and keys


def dropout_attention(aten_graph: AtenGraph) -> None:
    for backward in [node for node in aten_graph.graph.nodes if node.target in _BACKWARD]:
        given = arguments_of(backward.target, backward.args, backward.kwargs)
        back = _backwards(backward)
        if back is not None and _fits(aten_graph, given):
            _replace(aten_graph, backward, given, back)


def _backwards(node: Node) -> list[Node] | None:
    """The calls of the backward pass; None where something else reads more than the result."""
    out: dict[Node, None] = {}
    for user in node.users:
        if user.target is not operator.getitem:
            return None
        for result in user.users if user.args[1] else ():
            if result.target is not _BACKWARD[node.target]:
                return None
            out[result] = None
    return list(out)


def _fits(aten_graph: AtenGraph, given: dict[str, Any]) -> bool:
    q, k, value = (given[x].meta["val"] for x in ("query", "key", "value"))
    hints = aten_graph.env.hints if aten_graph.env is not None else {}

    def hint(x: Any) -> int:
        return x if isinstance(x, int) else x.eval(hints)

    p, scale = given["dropout_p"], _scale(given, q)
    return (
        q.on_gpu
        and here("attention with dropout of ours", q.device.index or 0)
        and q.dtype in (torch.float16, torch.bfloat16)
        and q.dtype == k.dtype == value.dtype
        and given.get("attn_bias") is None
        and not given.get("return_debug_mask")
        and keep_bits.drawable(p)
        and isinstance(scale, float)
        and scale > 0
        and all(type(width) is int and LEAST <= width <= WIDEST for width in (q.shape[3], value.shape[3]))
        and as_expr(q.shape[1]) is as_expr(k.shape[1])
        and (not given["is_causal"] or as_expr(q.shape[2]) is as_expr(k.shape[2]))
        and all(hint(length) >= LEAST for length in (q.shape[2], k.shape[2]))
        and all(hint(size) for size in q.shape[:2])
    )


def _scale(given: dict[str, Any], q: TensorMeta) -> Any:
    scale = given.get("scale")
    return q.shape[3] ** -0.5 if scale is None and type(q.shape[3]) is int else scale


def _replace(aten_graph: AtenGraph, node: Node, given: dict[str, Any], back: list[Node]) -> None:
    graph = aten_graph.graph
    q, k, v = (given[x] for x in ("query", "key", "value"))
    (batch, heads, rows, _), keys, p = q.meta["val"].shape, k.meta["val"].shape[2], given["dropout_p"]
    how = keep_bits.keep_fraction(p) / (1 << keep_bits.BITS), bool(given["is_causal"]), _scale(given, q.meta["val"])
    with graph.inserting_before(node):
        bits = call_like(
            graph, node, keep_bits.KEEP_BITS, words(batch, heads, rows, keys), p, device=q.meta["val"].device
        )
        both = call_like(graph, node, ATTENTION, q, k, v, bits, *how)
        out, logarithm = (graph.call_function(operator.getitem, (both, i)) for i in range(2))
        for i, x in enumerate((out, logarithm)):
            x.meta = {**node.meta, "val": both.meta["val"][i]}
    for b in back:
        with graph.inserting_before(b):
            new = call_like(graph, b, BACKWARD, b.args[0], q, k, v, out, logarithm, bits, *how)
        b.replace_all_uses_with(new)
        graph.erase_node(b)
    for user in list(node.users):
        if user.args[1] == 0:
            user.replace_all_uses_with(out)
        graph.erase_node(user)
    graph.erase_node(node)
