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
BLOCKED = (
    -60000.0
)  # what is added to a score that does not count: -inf, or the least number of half precision (for cuDNN)


def known_masks(a: AtenGraph) -> None:
    places = {**_FORWARD, **_BACKWARD}
    calls: dict[Node, list[Node]] = {}
    for n in a.graph.nodes:
        if n.target in places:
            mask = n.args[places[n.target][0]]
            if isinstance(mask, Node) and mask.meta["val"].on_gpu:
                calls.setdefault(mask, []).append(n)
    changed = False
    ran: set[Node] = set()
    for mask, users in calls.items():
        order = _made_of_constants(a, mask)
        t = _value(a, mask, order) if order is not None else None
        said = what_it_says(t) if t is not None else None
        if said is None or any(not _square(n) or _is_causal(n, places[n.target][1]) for n in users):
            continue
        for n in users:
            at, causal = places[n.target]
            args = list(n.args)
            args[at] = None
            if said == "causal":
                defaults = {s.name: s.default_value for s in n.target._schema.arguments}
                names = [s.name for s in n.target._schema.arguments]
                args += [n.kwargs.get(k, defaults[k]) for k in names[len(args) : causal + 1]]
                args[causal] = True
                n.kwargs = {k: v for k, v in n.kwargs.items() if k not in names[: causal + 1]}
            n.args = tuple(args)
        changed = True
        ran.update(order or ())
    if changed:
        dead_code(a)
        for n in reversed([n for n in a.graph.nodes if n in ran]):
            if not n.users:
                a.graph.erase_node(n)  # (what ran once without an error would not raise later)
        dead_code(a)


def _square(n: Node) -> bool:
    """As many queries as keys: there is one diagonal."""
    q, k = (n.args[i].meta["val"].shape for i in ((1, 2) if n.target in _BACKWARD else (0, 1)))
    return q[-2] == k[-2]


def _is_causal(n: Node, at: int) -> bool:
    return bool(n.args[at] if len(n.args) > at else n.kwargs.get("is_causal", False))


def known_value(a: AtenGraph, n: Node) -> torch.Tensor | None:
    """What a node computes, on the CPU, where nothing of the inputs is in it; else None."""
    order = _made_of_constants(a, n)
    return None if order is None else _value(a, n, order)


def _value(a: AtenGraph, n: Node, order: list[Node]) -> torch.Tensor | None:
    """`order`: the nodes that it is computed from."""
    values: dict[Node, Any] = {}
    try:
        with torch.no_grad():
            for x in order:
                if x.op == "get_attr":
                    values[x] = a.constants[x.target].cpu()
                else:
                    kwargs = {k: torch.device("cpu") if isinstance(v, torch.device) else v for k, v in x.kwargs.items()}
                    values[x] = x.target(*map_arg(x.args, values.__getitem__), **map_arg(kwargs, values.__getitem__))
    except (RuntimeError, TypeError, NotImplementedError):  # it will say so when the graph runs
        return None
    t = values[n]
    return t if isinstance(t, torch.Tensor) else None


def what_it_says(t: torch.Tensor) -> str | None:
    """ "causal", "nothing", or None: something else."""
    if t.ndim < 2 or t.numel() == 0:
        return None
    allowed = t if t.dtype == torch.bool else t == 0
    if bool(allowed.all()):
        return "nothing"
    lower = torch.ones(t.shape[-2:], dtype=torch.bool).tril()
    blocked = ~t if t.dtype == torch.bool else t <= BLOCKED
    return "causal" if bool((allowed == lower).all()) and bool((blocked != lower).all()) else None


def _made_of_constants(a: AtenGraph, mask: Node) -> list[Node] | None:
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
        m = n.meta.get("val")
        if len(found) >= MOST_NODES or not isinstance(m, TensorMeta) or not all(type(s) is int for s in m.shape):
            return None
        if n.op == "get_attr":
            if n.target not in a.constants or n.target.startswith("kept"):
                return None
        elif (
            n.op != "call_function"
            or not isinstance(n.target, torch._ops.OpOverload)
            or has_effect(n)
            or holds_symbols(n.args)
        ):
            return None
        count = 1
        for s in m.shape:
            count *= s
        total += count
        if total > 8 * LIMIT or count > LIMIT:
            return None
        found.add(n)
        stack.extend(n.all_input_nodes)
    return [n for n in a.graph.nodes if n in found]
