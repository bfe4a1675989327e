"""Slices of what was written into slices: what is read is what was written there, or what was there before.

Writing to parts of a tensor in place (the gates of an LSTM cell, halves of a rotary embedding) becomes a chain of
slice_scatters, each a copy of the whole. Where every reader wants one part, the chain is dead and each part is computed
alone.
"""

from __future__ import annotations

import torch
import torch.fx

from ..graph.aten import AtenGraph

__all__ = ["slices_of_scatters"]

aten = torch.ops.aten
Node = torch.fx.Node


def slices_of_scatters(aten_graph: AtenGraph) -> None:
    """slice(slice_scatter(x, y, s), t) is slice(x, t) where s and t are disjoint, a part of y where t lies in s."""
    for node in aten_graph.graph.find_nodes(op="call_function", target=aten.slice.Tensor):
        while True:
            t = _range(node.args, 1)
            x = node.args[0]
            if (
                t is None
                or not isinstance(x, Node)
                or x.target is not aten.slice_scatter.default
                or x.kwargs
                or node.kwargs
            ):
                break
            s = _range(x.args, 2)
            if s is None or s[0] != t[0]:
                break
            dim, (lo, hi), (begin, end) = s[0], s[1:], t[1:]
            if hi <= begin or end <= lo:
                source, at = x.args[0], begin
            elif lo <= begin and end <= hi:
                source, at = x.args[1], begin - lo
            else:
                break
            size = source.meta["val"].shape[dim]
            if (
                source.meta["val"].dtype != node.meta["val"].dtype
                or not isinstance(size, int)
                or size < at + end - begin
            ):
                break
            node.args = (source, dim, at, at + end - begin, 1)


def _range(args: tuple, first: int) -> tuple[int, int, int] | None:
    """(dim, start, end) of a slice with step 1 and known ends, normalised as the closed set has them."""
    dim, start, end, step = (*args[first:], *(0, 0, None, 1)[len(args) - first :])
    if any(type(v) is not int for v in (dim, start, end, step)) or step != 1 or dim < 0 or not 0 <= start <= end:
        return None
    return dim, start, end
