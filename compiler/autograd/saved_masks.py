"""Which masks forward keeps for backward as bits (ops/mask_bits.py), and the operators that pack and unpack them.

On a GPU, and of large masks alone: made by a kernel of ours, which packs what it has in registers, and read element by
element, by kernels that unpack where they read. What a library call reads or makes, and what the caller gets, stays as
it is.
"""

from __future__ import annotations

import operator
from typing import Any, Callable, Container, Iterable

import torch
import torch.fx

from ..base.fx_nodes import is_call
from ..ops import mask_bits, philox
from ..graph.meta.core import TensorMeta, order_in_memory
from ..symbolic.expr import as_expr, mul_all

__all__ = ["packable", "packed_nodes", "unpacked_node", "with_comparisons"]

DEVICES = ("cuda",)
LEAST = 1 << 20  # elements of a mask: below, launches are what takes the time
aten = torch.ops.aten
_DROPOUT, _BACKWARD = aten.native_dropout.default, aten.native_dropout_backward.default
_DRAWN = (torch.float32, torch.bfloat16, torch.float16)


def with_comparisons(graph: torch.fx.Graph, late: Container[torch.fx.Node], hints: dict[str, int]) -> None:
    """Have relu's backward choose by a comparison, of which forward may keep the bits where nothing else reads what
    relu gave. `late`: what depends on tangents."""
    for node in list(graph.nodes):
        if node.target is not aten.threshold_backward.default or node.args[0] not in late or node.args[1] in late:
            continue
        grad, x, threshold = node.args
        m, to = x.meta["val"], node.meta["val"]
        below = TensorMeta(m.shape, m.stride, torch.bool, m.device)
        if not _fits(below, hints):
            continue
        with graph.inserting_before(node):
            le = graph.create_node("call_function", aten.le.Scalar, (x, threshold), name="le")
            zero = graph.create_node(
                "call_function", aten.full.default, ([], 0), {"dtype": to.dtype, "device": to.device}, name="zero"
            )
            where = graph.create_node("call_function", aten.where.self, (le, zero, grad), name="where")
        for k, meta in ((le, below), (zero, TensorMeta((), (), to.dtype, to.device)), (where, to)):
            k.meta.update(node.meta)
            k.meta["val"] = meta
        node.replace_all_uses_with(where)
        graph.erase_node(node)


def packable(
    graph: torch.fx.Graph,
    results: Container[torch.fx.Node],
    elementwise: Callable[[Any], bool],
    is_view: Callable[[Any], bool],
    hints: dict[str, int],
    opts: Any,
) -> set[torch.fx.Node]:
    """The masks that may be kept as bits. `results`: what the caller gets; `elementwise`: whether a node is computed
    element by element.
    """

    def is_read_by_kernels(node: torch.fx.Node) -> bool:
        return all(
            is_read_by_kernels(user) if is_view(user.target) else user.target is _BACKWARD or elementwise(user)
            for user in node.users
        )

    def is_made_by_kernels(node: Any) -> bool:
        if node.target is operator.getitem:
            return node.args[1] == 1 and node.args[0].target is _DROPOUT and _is_drawn(node.args[0], opts)
        return elementwise(node) and not is_view(node.target) and node.target is not mask_bits.UNPACK

    return {
        node
        for node in graph.nodes
        if is_call(node)
        and node not in results
        and _fits(node.meta.get("val"), hints)
        and is_made_by_kernels(node)
        and is_read_by_kernels(node)
    }


def _fits(meta: Any, hints: dict[str, int]) -> bool:
    if not isinstance(meta, TensorMeta) or meta.dtype is not torch.bool or meta.device.type not in DEVICES:
        return False
    order = order_in_memory(meta)
    inner = next((meta.shape[d] for d in reversed(order or ()) if meta.shape[d] != 1), 1)
    return type(inner) is int and inner > 0 and inner % 8 == 0 and as_expr(mul_all(meta.shape)).eval(hints) >= LEAST


def _is_drawn(n: Any, opts: Any) -> bool:
    """Whether a dropout draws its numbers in a kernel of ours (lowering/rules/random.py)."""
    x, p, train = n.args
    if opts is not None and not opts.get("fallback_random", True):
        return train is not False
    meta = x.meta["val"]
    return (
        torch.version.hip is None
        and train is not False
        and isinstance(p, float)
        and 0 <= p < 1
        and meta.dtype in _DRAWN
        and philox.neighbours(meta.dtype, meta.device.index or 0) > 0
    )


def packed_nodes(graph: torch.fx.Graph, masks: Iterable[torch.fx.Node]) -> dict[torch.fx.Node, torch.fx.Node]:
    """For each of these masks the node that packs it, right behind it."""
    out = {}
    for mask in masks:
        meta = mask.meta["val"]
        with graph.inserting_after(mask):
            k = out[mask] = graph.create_node(
                "call_function", mask_bits.PACK, (mask, order_in_memory(meta)), name="pack_bits"
            )
        k.meta.update(mask.meta)
        k.meta["val"] = TensorMeta((mask_bits.bytes_for(meta.shape),), (1,), torch.uint8, meta.device)
    return out


def unpacked_node(graph: torch.fx.Graph, kept: torch.fx.Node, mask: torch.fx.Node) -> torch.fx.Node:
    """What `mask` is, of its bits."""
    meta = mask.meta["val"]
    node = graph.create_node(
        "call_function", mask_bits.UNPACK, (kept, list(meta.shape), order_in_memory(meta)), name="unpack_bits"
    )
    node.meta.update(mask.meta)
    return node
