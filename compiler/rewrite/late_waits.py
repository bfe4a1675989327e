"""Collectives are waited for where their result is first read, so that they go on beside what is computed before.

They are begun where the program begins them, in its order, which all processes share.
"""

from __future__ import annotations

import operator

import torch
import torch.fx

from ..graph.aten import AtenGraph
from ..ops.closed_set import VIEWS
from ..ops.collectives import gives_waiting, waits

__all__ = ["plain_waits", "late_waits"]

Node = torch.fx.Node


def plain_waits(a: AtenGraph) -> None:
    """What torch gives a program that does not wait is a tensor of a class that waits when it is read. Kernels read
    memory: in a graph it is waited for."""
    for n in a.calls():
        if gives_waiting(n.target):
            n.target = torch.ops._c10d_functional.wait_tensor.default


def _only_looks(n: Node, late: set[Node]) -> bool:
    """Whether a node makes another view of what is waited for."""
    looks = n.target in VIEWS or n.target is operator.getitem
    return looks and bool(n.all_input_nodes) and n.all_input_nodes[0] in late


def late_waits(a: AtenGraph) -> None:
    """Move each wait, and views of its result, to the first reader."""
    nodes = list(a.graph.nodes)
    late: set[Node] = set()
    for n in nodes:
        if n.op == "call_function" and (waits(n.target) or _only_looks(n, late)):
            late.add(n)
    if not late:
        return
    place = {n: i for i, n in enumerate(nodes)}
    reader: dict[Node, Node] = {}  # what moves -> the node that it moves to
    begins: dict[Node, Node] = {}  # such a node -> the first of what was moved there
    for n in reversed(nodes):
        if n in late and n.users:
            at = reader[n] = min((reader.get(u, u) for u in n.users), key=place.__getitem__)
            begins.get(at, at).prepend(n)
            begins[at] = n
