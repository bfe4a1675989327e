"""Collectives are waited for where their result is first read, so that they go on beside what is computed before.

They are begun where the program begins them, in its order, which all processes share.
"""

from __future__ import annotations

import operator

import torch
import torch.fx

from ..base.fx_nodes import is_call
from ..graph.aten import AtenGraph
from ..ops.closed_set import VIEWS
from ..ops.collectives import gives_waiting, waits

__all__ = ["plain_waits", "late_waits"]

Node = torch.fx.Node


def plain_waits(aten_graph: AtenGraph) -> None:
    """What torch gives a program that does not wait is a tensor of a class that waits when it is read. Kernels read
    memory: in a graph it is waited for."""
    for node in aten_graph.calls():
        if gives_waiting(node.target):
            node.target = torch.ops._c10d_functional.wait_tensor.default


def _only_looks(node: Node, late: set[Node]) -> bool:
    """Whether a node makes another view of what is waited for."""
    looks = node.target in VIEWS or node.target is operator.getitem
    return looks and bool(node.all_input_nodes) and node.all_input_nodes[0] in late


def late_waits(aten_graph: AtenGraph) -> None:
    """Move each wait, and views of its result, to the first reader."""
    nodes = list(aten_graph.graph.nodes)
    late: set[Node] = set()
    for node in nodes:
        if is_call(node) and (waits(node.target) or _only_looks(node, late)):
            late.add(node)
    if not late:
        return
    place = {node: i for i, node in enumerate(nodes)}
    reader: dict[Node, Node] = {}  # what moves -> the node that it moves to
    begins: dict[Node, Node] = {}  # such a node -> the first of what was moved there
    for node in reversed(nodes):
        if node in late and node.users:
            at = reader[node] = min((reader.get(user, user) for user in node.users), key=place.__getitem__)
            begins.get(at, at).prepend(node)
            begins[at] = node
