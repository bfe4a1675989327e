"""How much of a recorded graph computes what nobody reads: eager pays for it, the compiler leaves it out."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ..ops.closed_set import gives_views
from ..ops.raising import node_may_raise
from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta
from .clean import has_effect

__all__ = ["unused_share"]

_CALL = 2000  # elements that eager computes in the time that a call takes by itself
_FLOPS = 8  # multiplications that a product does in the time of one element
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "convolution")


def unused_share(aten_graph: AtenGraph) -> float:
    """The share, from 0 to 1, of the graph's work on values that no result needs: by elements computed, at the sizes of
    the first call. Before repeated expressions are merged: what a loop computes and drops is unused, also where each
    iteration computes the same."""
    hints = getattr(aten_graph.env, "hints", None) or {}
    live: set[Any] = set()
    all_work = live_work = 0
    results = {result for result in aten_graph.results if isinstance(result, torch.fx.Node)}
    for node in reversed(list(aten_graph.calls())):
        work = _work(node, hints)
        all_work += work
        if node in results or node in live or has_effect(node) or node_may_raise(node):
            live_work += work
            live.update(node.all_input_nodes)
    return (all_work - live_work) / all_work if all_work else 0.0


def _work(node: Any, hints: dict[str, int]) -> int:
    if not isinstance(node.target, torch._ops.OpOverload):  # takes one of several results
        return 0
    packet = node.target.overloadpacket.__name__
    if packet.startswith("empty") or gives_views(node.target):
        return 0  # makes no values
    work = _CALL + _numel(node.meta.get("val"), hints)
    if packet in _PRODUCTS and len(node.all_input_nodes) > 1:
        factor = node.all_input_nodes[-2].meta.get("val")  # its last size is summed over
        if isinstance(factor, TensorMeta) and factor.shape:
            work += _numel(node.meta.get("val"), hints) * _size(factor.shape[-1], hints) // _FLOPS
    return work


def _numel(val: Any, hints: dict[str, int]) -> int:
    if isinstance(val, (tuple, list)):
        return sum(_numel(part, hints) for part in val)
    if not isinstance(val, TensorMeta):
        return 0
    count = 1
    for size in val.shape:
        count *= _size(size, hints)
    return count


def _size(size: Any, hints: dict[str, int]) -> int:
    if isinstance(size, int):
        return size
    try:
        return int(size.eval(hints))
    except (KeyError, AttributeError, ZeroDivisionError):  # a size that no hint is known for
        return 1
