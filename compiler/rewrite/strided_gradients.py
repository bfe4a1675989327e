"""Gradients of windows: sums at positions that are regular.

The gradient of `as_strided` adds each window's elements up at their places in memory: autograd writes an `index_add`
with one 64-bit position for each element, kept as a constant. Positions that are a sum of steps (axis i moves by stride
i) need no constant. Windows that overlap by a part are cut into parts as long as the step from one window to the next.
The parts of one kind lie side by side. The gradient is the sum of the kinds, each shifted:

    windows of 4, a step of 2:   abcd        ab..  +  ..cd
                                   efgh   =    ef.. +   ..gh

That is element-wise work, which fuses with its neighbours and has an order, where additions in memory have none.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from ..base.fx_nodes import is_constant
from ..graph.aten import AtenGraph
from .pass_nodes import call_like, is_zero

__all__ = ["regular", "strided_gradients"]

aten = torch.ops.aten
MOST_PARTS = 8  # that a window is cut into, and so the terms of the sum
MOST_AXES = 6


def strided_gradients(aten_graph: AtenGraph) -> None:
    """index_add(zeros, 0, a regular constant, x) as a sum of shifted parts of x."""
    for node in aten_graph.graph.find_nodes(op="call_function", target=aten.index_add.default):
        if node.kwargs:
            continue
        zeros, dim, at, x = node.args[:4]
        size = node.meta["val"].shape
        if len(node.args) != 4 or dim != 0 or len(size) != 1 or type(size[0]) is not int or not is_zero(zeros):
            continue
        if not isinstance(at, Node) or not is_constant(at) or at.target.startswith("kept"):
            continue
        found = regular(aten_graph.constants[at.target]) if x.meta["val"].dtype == node.meta["val"].dtype else None
        if found is None:
            continue
        with aten_graph.graph.inserting_before(node):
            r = _Sum(aten_graph.graph, node).place(x, *found, size[0])
        if r is not None:
            node.replace_all_uses_with(r)
            aten_graph.graph.erase_node(node)


def regular(positions: torch.Tensor) -> tuple[list[int], list[int], int] | None:
    """(sizes, strides, first) where a row of positions counts through axes, the last one fastest:
    first + i0 * stride0 + i1 * stride1 + ... None where it does not, or counts backwards.
    """
    p = positions
    if p.dim() != 1 or p.dtype not in (torch.int32, torch.int64) or p.numel() < 2:
        return None
    sizes: list[int] = []
    strides: list[int] = []
    first = int(p[0])
    while p.numel() > 1:
        step = int(p[1]) - first
        breaks = (p[1:] - p[:-1] != step).nonzero()
        size = int(breaks[0]) + 1 if breaks.numel() else p.numel()
        if step < 0 or p.numel() % size or len(sizes) == MOST_AXES:
            return None
        rows = p.reshape(-1, size)
        if bool((rows != rows[:, :1] + step * torch.arange(size, dtype=p.dtype, device=p.device)).any()):
            return None
        sizes.insert(0, size)
        strides.insert(0, step)
        p = rows[:, 0]
    return sizes, strides, first


class _Sum:
    """Writes the nodes of one sum."""

    def __init__(self, graph: Graph, like: Node):
        self.graph, self.like = graph, like

    def call(self, op: object, *args: object) -> Node:
        return call_like(self.graph, self.like, op, *args)

    def place(self, x: Node, sizes: list[int], strides: list[int], first: int, n: int) -> Node | None:
        """x's elements, added up at first + sum(i * stride) of n positions; None where windows are cut too often."""
        order = sorted(range(len(sizes)), key=lambda d: -strides[d])
        if not _worth(sizes, strides, order):
            return None
        x = self.call(aten.view.default, x, sizes)
        if order != sorted(order):
            x = self._dense(self.call(aten.permute.default, x, order))
        sizes, strides = [sizes[dim] for dim in order], [strides[dim] for dim in order]
        while strides and strides[-1] == 0:
            x = self.call(aten.sum.dim_IntList, x, [len(strides) - 1], False)
            del strides[-1], sizes[-1]
        x = self.call(aten.view.default, x, [*sizes, 1])  # the last axis is the positions that are filled so far
        span = 1
        while sizes:
            size, step = sizes.pop(), strides.pop()
            total = (size - 1) * step + span
            parts = [self._part(x, sizes, size, step, begin, span, total) for begin in range(0, span, step)]
            x, span = parts[0], total
            for part in parts[1:]:
                x = self.call(aten.add.Tensor, x, part)
        return self._padded(x, first, n - first - span)

    def _part(self, x: Node, outer: list[int], size: int, step: int, begin: int, span: int, total: int) -> Node:
        """Elements [begin, begin + step) of each of `size` windows, side by side, where they lie among `total`."""
        end = min(begin + step, span)
        if (begin, end) != (0, span):
            x = self._dense(self.call(aten.slice.Tensor, x, len(outer) + 1, begin, end, 1))
        x = self.call(aten.view.default, self._padded(x, 0, step - (end - begin)), [*outer, size * step])
        return self._padded(x, begin, total - begin - size * step)

    def _padded(self, x: Node, before: int, after: int) -> Node:
        """x with zeros before and after its last axis, or without its end where `after` is negative."""
        return self.call(aten.constant_pad_nd.default, x, [before, after], 0) if before or after else x

    def _dense(self, x: Node) -> Node:
        return call_like(self.graph, self.like, aten.clone.default, x, memory_format=torch.contiguous_format)


def _worth(sizes: list[int], strides: list[int], order: list[int]) -> bool:
    """Whether no window is cut into too many parts."""
    span = 1
    for dim in reversed(order):
        if strides[dim] == 0:
            continue
        if span > MOST_PARTS * strides[dim]:
            return False
        span += (sizes[dim] - 1) * strides[dim]
    return True
