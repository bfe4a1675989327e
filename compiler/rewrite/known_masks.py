"""Attention masks that are known when the graph is compiled (CUDA).

Libraries make causal masks from positions, with nothing of the inputs in them, and hand them to the kernel as a tensor.
Such a mask is computed here once: where it says no more than `is_causal`, or nothing at all, the kernel is told so. It
then leaves out half of the work, and nobody makes, keeps or reads the mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from ..base.fx_nodes import is_call, is_constant
from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta
from .clean import dead_code, has_effect
from .pass_nodes import holds_symbols

__all__ = ["known_masks", "known_value", "what_it_says"]

aten = torch.ops.aten
# operator -> positions of the mask and of is_causal
_FORWARD = {
    aten._scaled_dot_product_cudnn_attention.default: (3, 6),
    aten._scaled_dot_product_efficient_attention.default: (3, 6),
}
_BACKWARD = {
    aten._scaled_dot_product_cudnn_attention_backward.default: (8, 14),
    aten._scaled_dot_product_efficient_attention_backward.default: (4, 11),
}
LIMIT = 1 << 25  # elements of a mask that is looked at
MOST_NODES = 200
# what is added to a score that does not count: -inf, or the least number of half precision (for cuDNN)
BLOCKED = -60000.0


def known_masks(aten_graph: AtenGraph) -> None:
    places = {**_FORWARD, **_BACKWARD}
    calls: dict[Node, list[Node]] = {}
    for n in aten_graph.graph.nodes:
        if n.target in places:
            mask = n.args[places[n.target][0]]
            if isinstance(mask, Node) and mask.meta["val"].on_gpu:
                calls.setdefault(mask, []).append(n)
    changed = False
    ran: set[Node] = set()
    for mask, users in calls.items():
        order = _made_of_constants(aten_graph, mask)
        t = _value(aten_graph, mask, order) if order is not None else None
        said = what_it_says(t) if t is not None else None
        if said is None or any(not _square(user) or _is_causal(user, places[user.target][1]) for user in users):
            continue
        for n in users:
            at, causal = places[n.target]
            args = list(n.args)
            args[at] = None
            if said == "causal":
                defaults = {arg.name: arg.default_value for arg in n.target._schema.arguments}
                names = [arg.name for arg in n.target._schema.arguments]
                args += [n.kwargs.get(name, defaults[name]) for name in names[len(args) : causal + 1]]
                args[causal] = True
                n.kwargs = {name: value for name, value in n.kwargs.items() if name not in names[: causal + 1]}
            n.args = tuple(args)
        changed = True
        ran.update(order or ())
    if changed:
        dead_code(aten_graph)
        for n in reversed([node for node in aten_graph.graph.nodes if node in ran]):
            if not n.users:
                aten_graph.graph.erase_node(n)  # (what ran once without an error would not raise later)
        dead_code(aten_graph)


def _square(node: Node) -> bool:
    """As many queries as keys: there is one diagonal."""
    q, k = (node.args[i].meta["val"].shape for i in ((1, 2) if node.target in _BACKWARD else (0, 1)))
    return q[-2] == k[-2]


def _is_causal(node: Node, at: int) -> bool:
    return bool(node.args[at] if len(node.args) > at else node.kwargs.get("is_causal", False))


def known_value(aten_graph: AtenGraph, node: Node) -> torch.Tensor | None:
    """What a node computes, on the CPU, where nothing of the inputs is in it; else None."""
    order = _made_of_constants(aten_graph, node)
    return None if order is None else _value(aten_graph, node, order)


def _value(aten_graph: AtenGraph, node: Node, order: list[Node]) -> torch.Tensor | None:
    """`order`: the nodes that it is computed from."""
    values: dict[Node, Any] = {}
    try:
        with torch.no_grad():
            for step in order:
                if is_constant(step):
                    values[step] = aten_graph.constants[step.target].cpu()
                else:
                    kwargs = {
                        name: torch.device("cpu") if isinstance(value, torch.device) else value
                        for name, value in step.kwargs.items()
                    }
                    values[step] = step.target(
                        *map_arg(step.args, values.__getitem__), **map_arg(kwargs, values.__getitem__)
                    )
    except (RuntimeError, TypeError, NotImplementedError):  # it will say so when the graph runs
        return None
    t = values[node]
    return t if isinstance(t, torch.Tensor) else None


def what_it_says(tensor: torch.Tensor) -> str | None:
    """ "causal", "nothing", or None: something else."""
    if tensor.ndim < 2 or tensor.numel() == 0:
        return None
    allowed = tensor if tensor.dtype == torch.bool else tensor == 0
    if bool(allowed.all()):
        return "nothing"
    lower = torch.ones(tensor.shape[-2:], dtype=torch.bool).tril()
    blocked = ~tensor if tensor.dtype == torch.bool else tensor <= BLOCKED
    return "causal" if bool((allowed == lower).all()) and bool((blocked != lower).all()) else None


def _made_of_constants(aten_graph: AtenGraph, mask: Node) -> list[Node] | None:
    """The nodes that a mask is computed from, in order; None where an input is among them, a size that varies, or too
    much.
    """
    found: set[Node] = set()
    stack = [mask]
    total = 0
    while stack:
        n = stack.pop()
        if n in found:
            continue
        meta = n.meta.get("val")
        if (
            len(found) >= MOST_NODES
            or not isinstance(meta, TensorMeta)
            or not all(type(size) is int for size in meta.shape)
        ):
            return None
        if is_constant(n):
            if n.target not in aten_graph.constants or n.target.startswith("kept"):
                return None
        elif (
            not is_call(n) or not isinstance(n.target, torch._ops.OpOverload) or has_effect(n) or holds_symbols(n.args)
        ):
            return None
        count = 1
        for size in meta.shape:
            count *= size
        total += count
        if total > 8 * LIMIT or count > LIMIT:
            return None
        found.add(n)
        stack.extend(n.all_input_nodes)
    return [node for node in aten_graph.graph.nodes if node in found]
