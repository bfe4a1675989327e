"""Parameters are gathered one module ahead, and gradients are exchanged beside the next module's backward.

Between two of FSDP2's modules there is one all-gather under way at a time: that of the module behind the one which is
computed. It begins before the one ahead of it is waited for. A reduce-scatter is waited for when the next one begins.
An all-reduce of what it gave (parts that several processes hold alike) begins then, and is waited for one module later.
So there is something to do while tensors are exchanged, and no more memory than for one exchange of each kind.
"""

from __future__ import annotations

import torch
import torch.fx

from ..base.fx_nodes import is_call
from ..graph.aten import AtenGraph
from ..ops.collectives import gathers_parts, reduces_parts, waits

__all__ = ["overlap_exchanges"]

Node = torch.fx.Node


def overlap_exchanges(aten_graph: AtenGraph) -> None:
    """Move all-gathers of parameters up, and what is made of reduced gradients to where it may be waited for."""
    nodes = list(aten_graph.graph.nodes)
    gathers = [node for node in nodes if gathers_parts(node)]
    reductions = [node for node in nodes if reduces_parts(node)]
    if gathers:
        _ahead(aten_graph.graph, gathers)
    if reductions:
        _behind(aten_graph.graph, reductions)


def _ahead(graph: torch.fx.Graph, gathers: list[Node]) -> None:
    before = None  # what the next all-gather begins before
    for gather in gathers:
        needed = _copy_in(gather)
        _move(needed, before or next(node for node in graph.nodes if is_call(node) and node not in needed))
        before = next((user for user in gather.users if waits(user.target)), before)


def _copy_in(gather: Node) -> list[Node]:
    """An all-gather, and what is computed for it alone: of inputs."""
    found = [gather]
    for n in found:
        found += [node for node in n.all_input_nodes if is_call(node) and node not in found]
    return found


def _move(nodes: list[Node], before: Node) -> None:
    """Put nodes, in the order that they have, before another one; where they come before it anyway they stay."""
    place = {node: i for i, node in enumerate(before.graph.nodes)}
    for node in sorted(nodes, key=place.__getitem__):
        if place[node] > place[before]:
            before.prepend(node)


def _behind(graph: torch.fx.Graph, reductions: list[Node]) -> None:
    output = graph.output_node()
    made = {reduction: _made_of(reduction) for reduction in reductions}
    followed = {
        reduction: next((reduction_made for reduction_made in reductions if reduction_made in made[reduction]), None)
        for reduction in reductions
    }
    heads = [reduction for reduction in reductions if reduction not in followed.values()]
    for i, head in enumerate(heads):
        second = followed[head]
        last = made[second] if second is not None else []
        stages = [[reduction_made for reduction_made in made[head] if reduction_made not in last], last]
        for stage, until in zip(stages, [*heads[i + 1 : i + 3], output, output]):
            _move_back(graph, stage, until)


def _move_back(graph: torch.fx.Graph, nodes: list[Node], until: Node) -> None:
    """Put nodes before one that comes after what they are made of; else they stay."""
    inside, place = set(nodes), {node: i for i, node in enumerate(graph.nodes)}
    if all(i in inside or not is_call(i) or place[i] < place[until] for node in nodes for i in node.all_input_nodes):
        for node in sorted(nodes, key=place.__getitem__):
            until.prepend(node)


def _made_of(reduction: Node) -> list[Node]:
    """What is made of reduced gradients: results, which nothing else in the graph reads."""
    found: list[Node] = list(reduction.users)
    for node in found:
        found += [user for user in node.users if is_call(user) and user not in found]
    return found
