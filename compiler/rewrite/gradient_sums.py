"""Sums of gradients that are mostly zeros.

Autograd adds up tensors of a tensor's full size, each zero but in what one use read. Uses in parts are the query, key
and value of one projection: their gradients are joined. A use as a table of rows is an embedding that is tied to the
output's weights: its rows are added to the other gradient where it lies.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from ..base.fx_nodes import is_call
from ..graph.aten import AtenGraph
from .pass_nodes import call_like, filled, is_zero

__all__ = ["sums_of_parts"]

aten = torch.ops.aten


def sums_of_parts(aten_graph: AtenGraph) -> None:
    """add(select_scatter(0, x, d, i), select_scatter(0, y, d, j)) is a concatenation (slice_scatter likewise); add(x,
    embedding_dense_backward) is x with the rows added."""
    for node in reversed(list(aten_graph.graph.nodes)):
        if _is_sum(node) and not (
            len(node.users) == 1 and _is_sum(user := next(iter(node.users))) and _alike(user, node)
        ):
            _join_parts(aten_graph, node)
    for node in list(aten_graph.graph.nodes):
        if _is_sum(node):
            _add_rows(aten_graph, node)


def _is_sum(node: Node) -> bool:
    if not is_call(node) or node.target is not aten.add.Tensor or node.kwargs.get("alpha", 1) != 1:
        return False
    return (
        all(isinstance(arg, Node) and _alike(arg, node) for arg in node.args[:2])
        and node.meta["val"].dtype.is_floating_point
    )


def _alike(x: Node, y: Node) -> bool:
    p, meta = x.meta.get("val"), y.meta["val"]
    return getattr(p, "shape", None) == meta.shape and p.dtype == meta.dtype and p.device == meta.device


# ---- parts
def _terms(node: Node) -> list[Node]:
    """What a chain of sums adds up, in order."""
    out: list[Node] = []
    todo = [node]
    while todo:
        x = todo.pop()
        if x is node or _is_sum(x) and len(x.users) == 1:
            todo += [x.args[1], x.args[0]]
        else:
            out.append(x)
    return out


def _part(node: Node) -> tuple[int, int, int] | None:
    """(dim, from, to) where `node` is zeros but for that part, known as plain numbers."""
    if (
        node.target not in (aten.select_scatter.default, aten.slice_scatter.default)
        or node.kwargs
        or not is_zero(node.args[0])
        or len(node.users) != 1
    ):
        return None
    if node.args[1].meta["val"].dtype != node.meta["val"].dtype:
        return None
    shape = node.meta["val"].shape
    if node.target is aten.select_scatter.default:
        dim, lo = node.args[2:4]
        hi = lo + 1 if type(lo) is int else None
    else:
        dim, lo, hi, step = (*node.args[2:], *(0, 0, None, 1)[len(node.args) - 2 :])
        if step != 1:
            return None
        hi = shape[dim] if hi is None else hi
    if any(type(v) is not int for v in (dim, lo, hi, shape[dim])) or dim < 0 or lo < 0:
        return None
    return dim, lo, min(hi, shape[dim])


def _join_parts(aten_graph: AtenGraph, node: Node) -> None:
    terms = _terms(node)
    found = {term: part for term in terms if (part := _part(term)) is not None}
    dims = {p[0] for p in found.values()}
    if len(found) < 2 or len(dims) > 1:
        return
    dim = dims.pop()
    order = sorted(found, key=lambda x: found[x][1])
    at, pieces = 0, []
    with aten_graph.graph.inserting_before(node):

        def zeros(size: int) -> Node:
            shape = [size if axis == dim else s for axis, s in enumerate(node.meta["val"].shape)]
            return filled(aten_graph.graph, node, shape, 0, node.meta["val"])

        for x in order:
            _, lo, hi = found[x]
            if lo < at or hi <= lo:
                return  # overlapping parts add up
            at = hi
        at = 0
        for x in order:
            _, lo, hi = found[x]
            if lo > at:
                pieces.append(zeros(lo - at))
            y = x.args[1]
            pieces.append(
                call_like(aten_graph.graph, x, aten.unsqueeze.default, y, dim)
                if x.target is aten.select_scatter.default
                else y
            )
            at = hi
        end = node.meta["val"].shape[dim]
        if at < end:
            pieces.append(zeros(end - at))
        total = call_like(aten_graph.graph, node, aten.cat.default, pieces, dim)
        if total.meta["val"].stride != node.meta["val"].stride:
            return
        for x in terms:
            if x not in found:
                total = call_like(aten_graph.graph, node, aten.add.Tensor, total, x)
    node.replace_all_uses_with(total)


# ---- rows
def _add_rows(aten_graph: AtenGraph, node: Node) -> None:
    val = node.meta["val"]
    if val.device.type != "cpu" or val.dtype not in (torch.float32, torch.float64):
        return  # (low precision would round at each row that is added)
    rows = next(
        (arg for arg in node.args[:2] if arg.target is aten.embedding_dense_backward.default and len(arg.users) == 1),
        None,
    )
    if rows is None or node.args[0] is node.args[1]:
        return
    g, ids, _, padding, by_frequency = rows.args
    other = node.args[1] if rows is node.args[0] else node.args[0]
    if by_frequency or type(padding) is not int or other.meta["val"].stride != val.stride:
        return
    with aten_graph.graph.inserting_before(node):
        if padding >= 0:
            keep = call_like(
                aten_graph.graph,
                node,
                aten.unsqueeze.default,
                call_like(aten_graph.graph, node, aten.ne.Scalar, ids, padding),
                len(ids.meta["val"].shape),
            )
            zero = filled(aten_graph.graph, node, [], 0, val)
            g = call_like(aten_graph.graph, node, aten.where.self, keep, g, zero)
        total = call_like(aten_graph.graph, node, aten.index_put.default, other, [ids], g, True)
    node.replace_all_uses_with(total)
