"""Sums of gradients that are mostly zeros.

Where a tensor was used in parts (the query, key and value of one projection), or as a table of rows besides its other
uses (an embedding tied to the output's weights), autograd adds up tensors of its full size, each zero but in the part
or the rows that were used. Parts are joined instead, and rows are added to the other gradient where it lies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ..graph.aten import AtenGraph
from .pass_nodes import call_like

__all__ = ["sums_of_parts"]

aten = torch.ops.aten


def sums_of_parts(a: AtenGraph) -> None:
    """add(select_scatter(0, x, d, i), select_scatter(0, y, d, j)) is a concatenation (slice_scatter likewise); add(x,
    embedding_dense_backward) is x with the rows added."""
    for n in reversed(list(a.graph.nodes)):
        if _is_sum(n) and not (len(n.users) == 1 and _is_sum(u := next(iter(n.users))) and _alike(u, n)):
            _join_parts(a, n)
    for n in list(a.graph.nodes):
        if _is_sum(n):
            _add_rows(a, n)


def _is_sum(n: Node) -> bool:
    if n.op != "call_function" or n.target is not aten.add.Tensor or n.kwargs.get("alpha", 1) != 1:
        return False
    return all(isinstance(x, Node) and _alike(x, n) for x in n.args[:2]) and n.meta["val"].dtype.is_floating_point


def _alike(x: Node, y: Node) -> bool:
    p, q = x.meta.get("val"), y.meta["val"]
    return getattr(p, "shape", None) == q.shape and p.dtype == q.dtype and p.device == q.device


# ---- parts
def _terms(n: Node) -> list[Node]:
    """What a chain of sums adds up, in order."""
    out: list[Node] = []
    todo = [n]
    while todo:
        x = todo.pop()
        if x is n or _is_sum(x) and len(x.users) == 1:
            todo += [x.args[1], x.args[0]]
        else:
            out.append(x)
    return out


def _part(n: Node) -> tuple[int, int, int] | None:
    """(dim, from, to) where `n` is zeros but for that part, known as plain numbers."""
    if (
        n.target not in (aten.select_scatter.default, aten.slice_scatter.default)
        or n.kwargs
        or not _zeros(n.args[0])
        or len(n.users) != 1
    ):
        return None
    if n.args[1].meta["val"].dtype != n.meta["val"].dtype:
        return None
    shape = n.meta["val"].shape
    if n.target is aten.select_scatter.default:
        dim, lo = n.args[2:4]
        hi = lo + 1 if type(lo) is int else None
    else:
        dim, lo, hi, step = (*n.args[2:], *(0, 0, None, 1)[len(n.args) - 2 :])
        if step != 1:
            return None
        hi = shape[dim] if hi is None else hi
    if any(type(v) is not int for v in (dim, lo, hi, shape[dim])) or dim < 0 or lo < 0:
        return None
    return dim, lo, min(hi, shape[dim])


def _zeros(n: Any) -> bool:
    return (
        isinstance(n, Node)
        and n.target is aten.full.default
        and type(n.args[1]) in (int, float, bool)
        and n.args[1] == 0
    )


def _join_parts(a: AtenGraph, n: Node) -> None:
    terms = _terms(n)
    found = {x: p for x in terms if (p := _part(x)) is not None}
    dims = {p[0] for p in found.values()}
    if len(found) < 2 or len(dims) > 1:
        return
    dim = dims.pop()
    order = sorted(found, key=lambda x: found[x][1])
    at, pieces = 0, []
    with a.graph.inserting_before(n):

        def zeros(size: int) -> Node:
            shape = [size if d == dim else s for d, s in enumerate(n.meta["val"].shape)]
            return call_like(
                a.graph, n, aten.full.default, shape, 0, dtype=n.meta["val"].dtype, device=n.meta["val"].device
            )

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
                call_like(a.graph, x, aten.unsqueeze.default, y, dim) if x.target is aten.select_scatter.default else y
            )
            at = hi
        end = n.meta["val"].shape[dim]
        if at < end:
            pieces.append(zeros(end - at))
        total = call_like(a.graph, n, aten.cat.default, pieces, dim)
        if total.meta["val"].stride != n.meta["val"].stride:
            return
        for x in terms:
            if x not in found:
                total = call_like(a.graph, n, aten.add.Tensor, total, x)
    n.replace_all_uses_with(total)


# ---- rows
def _add_rows(a: AtenGraph, n: Node) -> None:
    val = n.meta["val"]
    if val.device.type != "cpu" or val.dtype not in (torch.float32, torch.float64):
        return  # (low precision would round at each row that is added)
    rows = next(
        (x for x in n.args[:2] if x.target is aten.embedding_dense_backward.default and len(x.users) == 1), None
    )
    if rows is None or n.args[0] is n.args[1]:
        return
    g, ids, _, padding, by_frequency = rows.args
    other = n.args[1] if rows is n.args[0] else n.args[0]
    if by_frequency or type(padding) is not int or other.meta["val"].stride != val.stride:
        return
    with a.graph.inserting_before(n):
        if padding >= 0:
            keep = call_like(
                a.graph,
                n,
                aten.unsqueeze.default,
                call_like(a.graph, n, aten.ne.Scalar, ids, padding),
                len(ids.meta["val"].shape),
            )
            zero = call_like(a.graph, n, aten.full.default, [], 0, dtype=val.dtype, device=val.device)
            g = call_like(a.graph, n, aten.where.self, keep, g, zero)
        total = call_like(a.graph, n, aten.index_put.default, other, [ids], g, True)
    n.replace_all_uses_with(total)
