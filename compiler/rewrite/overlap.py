"""Parameters are gathered one module ahead, and gradients are exchanged beside the next module's backward.

Between two of FSDP2's modules there is one all-gather under way at a time: that of the module behind the one which is
computed. It begins before the one ahead of it is waited for. A reduce-scatter is waited for when the next one begins.
An all-reduce of what it gave (parts that several processes hold alike) begins then, and is waited for one module later.
So there is something to do while tensors are exchanged, and no more memory than for one exchange of each kind.
"""

from __future__ import annotations

import torch
import torch.fx

from ..graph.aten import AtenGraph
from ..ops.collectives import gathers_parts, reduces_parts, waits

__all__ = ["overlap_exchanges"]

Node = torch.fx.Node


def overlap_exchanges(a: AtenGraph) -> None:
    """Move all-gathers of parameters up, and what is made of reduced gradients to where it may be waited for."""
    nodes = list(a.graph.nodes)
    gathers = [n for n in nodes if gathers_parts(n)]
    reductions = [n for n in nodes if reduces_parts(n)]
    if gathers:
        _ahead(a.graph, gathers)
    if reductions:
        _behind(a.graph, reductions)


def _ahead(graph: torch.fx.Graph, gathers: list[Node]) -> None:
    before = None  # what the next all-gather begins before
    for g in gathers:
        needed = _copy_in(g)
        _move(needed, before or next(n for n in graph.nodes if n.op == "call_function" and n not in needed))
        before = next((u for u in g.users if waits(u.target)), before)


def _copy_in(gather: Node) -> list[Node]:
    """An all-gather, and what is computed for it alone: of inputs."""
    found = [gather]
    for n in found:
        found += [i for i in n.all_input_nodes if i.op == "call_function" and i not in found]
    return found


def _move(nodes: list[Node], before: Node) -> None:
    """Put nodes, in the order that they have, before another one; where they come before it anyway they stay."""
    place = {n: i for i, n in enumerate(before.graph.nodes)}
    for n in sorted(nodes, key=place.__getitem__):
        if place[n] > place[before]:
            before.prepend(n)


def _behind(graph: torch.fx.Graph, reductions: list[Node]) -> None:
    output = graph.output_node()
    made = {r: _made_of(r) for r in reductions}
    followed = {r: next((n for n in reductions if n in made[r]), None) for r in reductions}
    heads = [r for r in reductions if r not in followed.values()]
    for i, head in enumerate(heads):
        second = followed[head]
        last = made[second] if second is not None else []
        stages = [[n for n in made[head] if n not in last], last]
        for stage, until in zip(stages, [*heads[i + 1 : i + 3], output, output]):
            _move_back(graph, stage, until)


def _move_back(graph: torch.fx.Graph, nodes: list[Node], until: Node) -> None:
    """Put nodes before one that comes after what they are made of; else they stay."""
    inside, place = set(nodes), {n: i for i, n in enumerate(graph.nodes)}
    if all(i in inside or i.op != "call_function" or place[i] < place[until] for n in nodes for i in n.all_input_nodes):
        for n in sorted(nodes, key=place.__getitem__):
            until.prepend(n)


def _made_of(reduction: Node) -> list[Node]:
    """What is made of reduced gradients: results, which nothing else in the graph reads."""
    found: list[Node] = list(reduction.users)
    for n in found:
        found += [u for u in n.users if u.op == "call_function" and u not in found]
    return found
