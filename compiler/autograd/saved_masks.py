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
    for n in list(graph.nodes):
        if n.target is not aten.threshold_backward.default or n.args[0] not in late or n.args[1] in late:
            continue
        grad, x, threshold = n.args
        m, to = x.meta["val"], n.meta["val"]
        below = TensorMeta(m.shape, m.stride, torch.bool, m.device)
        if not _fits(below, hints):
            continue
        with graph.inserting_before(n):
            le = graph.create_node("call_function", aten.le.Scalar, (x, threshold), name="le")
            zero = graph.create_node(
                "call_function", aten.full.default, ([], 0), {"dtype": to.dtype, "device": to.device}, name="zero"
            )
            where = graph.create_node("call_function", aten.where.self, (le, zero, grad), name="where")
        for k, meta in ((le, below), (zero, TensorMeta((), (), to.dtype, to.device)), (where, to)):
            k.meta.update(n.meta)
            k.meta["val"] = meta
        n.replace_all_uses_with(where)
        graph.erase_node(n)


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

    def is_read_by_kernels(n: torch.fx.Node) -> bool:
        return all(
            is_read_by_kernels(u) if is_view(u.target) else u.target is _BACKWARD or elementwise(u) for u in n.users
        )

    def is_made_by_kernels(n: Any) -> bool:
        if n.target is operator.getitem:
            return n.args[1] == 1 and n.args[0].target is _DROPOUT and _is_drawn(n.args[0], opts)
        return elementwise(n) and not is_view(n.target) and n.target is not mask_bits.UNPACK

    return {
        n
        for n in graph.nodes
        if n.op == "call_function"
        and n not in results
        and _fits(n.meta.get("val"), hints)
        and is_made_by_kernels(n)
        and is_read_by_kernels(n)
    }


def _fits(m: Any, hints: dict[str, int]) -> bool:
    if not isinstance(m, TensorMeta) or m.dtype is not torch.bool or m.device.type not in DEVICES:
        return False
    order = order_in_memory(m)
    inner = next((m.shape[d] for d in reversed(order or ()) if m.shape[d] != 1), 1)
    return type(inner) is int and inner > 0 and inner % 8 == 0 and as_expr(mul_all(m.shape)).eval(hints) >= LEAST


def _is_drawn(n: Any, opts: Any) -> bool:
    """Whether a dropout draws its numbers in a kernel of ours (lowering/rules/random.py)."""
    x, p, train = n.args
    if opts is not None and not opts.get("fallback_random", True):
        return train is not False
    m = x.meta["val"]
    return (
        torch.version.hip is None
        and train is not False
        and isinstance(p, float)
        and 0 <= p < 1
        and m.dtype in _DRAWN
        and philox.neighbours(m.dtype, m.device.index or 0) > 0
    )


def packed_nodes(graph: torch.fx.Graph, masks: Iterable[torch.fx.Node]) -> dict[torch.fx.Node, torch.fx.Node]:
    """For each of these masks the node that packs it, right behind it."""
    out = {}
    for n in masks:
        m = n.meta["val"]
        with graph.inserting_after(n):
            k = out[n] = graph.create_node("call_function", mask_bits.PACK, (n, order_in_memory(m)), name="pack_bits")
        k.meta.update(n.meta)
        k.meta["val"] = TensorMeta((mask_bits.bytes_for(m.shape),), (1,), torch.uint8, m.device)
    return out


def unpacked_node(graph: torch.fx.Graph, kept: torch.fx.Node, mask: torch.fx.Node) -> torch.fx.Node:
    """What `mask` is, of its bits."""
    m = mask.meta["val"]
    n = graph.create_node(
        "call_function", mask_bits.UNPACK, (kept, list(m.shape), order_in_memory(m)), name="unpack_bits"
    )
    n.meta.update(mask.meta)
    return n
