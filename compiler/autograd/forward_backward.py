"""The two graphs that a joint graph is cut into, where what forward saves is decided (partition.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable

import torch
import torch.fx

from ..base.fx_nodes import is_input
from ..graph.aten import AtenGraph, GraphOutput
from ..graph.captured import GraphInput
from ..graph.meta.core import TensorMeta
from ..graph.opinfo import op_info
from ..ops.raising import node_may_raise
from ..symbolic.expr import Expr, symbol
from .saved_masks import unpacked_node

__all__ = ["ancestors", "backward_graph", "forward_graph", "reached_from", "slot_of"]

Nodes = dict[torch.fx.Node, torch.fx.Node]


def reached_from(starts: Iterable[torch.fx.Node], neighbours: str = "users") -> set[torch.fx.Node]:
    seen = set(starts)
    todo = list(seen)
    while todo:
        for u in getattr(todo.pop(), neighbours):
            if u not in seen:
                seen.add(u)
                todo.append(u)
    return seen


def ancestors(ends: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    return reached_from(ends, "all_input_nodes")


def slot_of(o: GraphOutput) -> int | None:
    """The result that an output is, or is a view of; None where it is made of an input, or is no tensor."""
    if o.kind == "buffer":
        return o.value
    return o.value[1] if o.kind == "view" and o.value[0] == "node" else None


def forward_graph(joint: AtenGraph, n_inputs: int, n_outputs: int, slots: list[int], saved: list) -> AtenGraph:
    """The joint graph's outputs, from its results `slots`, and behind them the values that are saved."""
    g = torch.fx.Graph()
    new: dict[torch.fx.Node, torch.fx.Node] = {}
    results = joint.results
    late = reached_from(joint.placeholders[n_inputs:])
    checks = [
        n
        for n in joint.graph.nodes
        if isinstance(n.target, torch._ops.OpOverload)
        and n not in late
        and (not op_info(n.target).n_results or node_may_raise(n))
    ]
    wanted = ancestors([*(results[s] for s in slots), *saved, *checks])  # checks are there to raise: a singular matrix
    for i, n in enumerate(joint.placeholders):
        if i < n_inputs:
            new[n] = g.node_copy(n)
    for n in joint.graph.nodes:
        if n in wanted and n.op in ("call_function", "get_attr"):
            new[n] = g.node_copy(n, new.__getitem__)
    position = {s: k for k, s in enumerate(slots)}
    outs = [new[results[s]] for s in slots]
    saved_slots = []
    for n in saved:
        known = next((k for k, s in enumerate(slots) if results[s] is n), None)
        if known is None:
            outs.append(new[n])
            known = len(outs) - 1
        saved_slots.append(known)
    g.output(tuple(outs))
    outputs = [_moved(o, position) for o in joint.plan[:n_outputs]]
    outputs += [GraphOutput("buffer", k, n.meta["val"]) for k, n in zip(saved_slots, saved)]
    constants = joint.constants_in(g)
    return AtenGraph(
        g,
        joint.inputs[:n_inputs],
        outputs,
        [(i, position[s]) for i, s in joint.mutation_slots],
        joint.env,
        constants,
        list(joint.no_overlap),
        f"{joint.name}_forward",
        writes=joint.writes,
        own_writes=joint.own_writes,
    )


def _moved(o: GraphOutput, position: dict[int, int]) -> GraphOutput:
    if o.kind == "buffer":
        return replace(o, value=position[o.value])
    if o.kind == "view" and o.value[0] == "node":
        return replace(o, value=("node", position[o.value[1]]))
    return o


def backward_graph(
    joint: AtenGraph,
    saved: list,
    tangents: list,
    sizes: list[str],
    readers: set,
    recomputed: list,
    n_outputs: int,
    copy_of: Nodes,
    mask_of: Nodes,
) -> AtenGraph:
    """The gradients, from what is saved, sizes and tangents. `readers`: the operators of it; `recomputed`: values of
    forward that it computes again; `copy_of`: which input a saved value is a copy of; `mask_of`: which mask it holds
    the bits of.
    """
    g = torch.fx.Graph()
    new: Nodes = {}
    again = set(recomputed)
    inputs = _saved_and_sizes(g, new, saved, sizes, copy_of)
    inputs += _numbers(g, new, joint.placeholders, readers | again)
    for n in tangents:
        new[n] = g.node_copy(n)
        inputs.append(GraphInput(n.name, None, "tensor"))
    for k, mask in mask_of.items():
        new[mask] = unpacked_node(g, new[k], mask)
    for n in joint.graph.find_nodes(op="get_attr"):
        new[n] = g.node_copy(n)
    for n in joint.graph.nodes:
        if n in readers and n not in new:
            _copy_with_needs(n, g, new, again)
    outs, plan = _gradients(joint, n_outputs, g, new)
    for n in g.find_nodes(op="get_attr"):
        if not n.users:
            g.erase_node(n)
    g.output(tuple(outs))
    constants = joint.constants_in(g)
    return AtenGraph(g, inputs, plan, [], joint.env, constants, [], f"{joint.name}_backward")


def _input(g: torch.fx.Graph, name: str, value: TensorMeta | Expr | float) -> torch.fx.Node:
    p = g.placeholder(name)
    p.meta["val"] = value
    return p


def _saved_and_sizes(g: torch.fx.Graph, new: Nodes, saved: list, sizes: list[str], copy_of: Nodes) -> list[GraphInput]:
    """The first inputs of backward: saved inputs, what forward returned, sizes."""
    inputs = []
    for n in sorted(saved, key=lambda n: not is_input(n)):
        p = new[n] = new[copy_of.get(n, n)] = _input(g, f"saved_{n.name}", n.meta["val"])
        inputs.append(GraphInput(p.name, None, "tensor", given=not is_input(n)))
    for name in sizes:
        inputs.append(GraphInput(_input(g, f"size_{name}", symbol(name)).name, None, "int"))
    return inputs


def _numbers(g: torch.fx.Graph, new: Nodes, places: list[torch.fx.Node], running: set) -> list[GraphInput]:
    """Inputs of the joint graph that are numbers, as far as an operator that is `running` reads them."""
    inputs = []
    for n in places:
        if n in new or isinstance(n.meta.get("val"), TensorMeta) or not any(u in running for u in n.users):
            continue
        new[n] = _input(g, f"scalar_{n.name}", n.meta["val"])
        inputs.append(GraphInput(new[n].name, None, "float"))
    return inputs


def _copy_with_needs(root: torch.fx.Node, g: torch.fx.Graph, new: Nodes, again: set) -> None:
    """A node after what it needs: what is computed again comes where it is read, so that it does not lie about."""
    stack = [root]
    while stack:
        n = stack[-1]
        missing = [x for x in n.all_input_nodes if x in again and x not in new]
        if missing:
            stack += missing
            continue
        stack.pop()
        if n not in new:
            new[n] = g.node_copy(n, new.__getitem__)


def _gradients(
    joint: AtenGraph, n_outputs: int, g: torch.fx.Graph, new: Nodes
) -> tuple[list[torch.fx.Node], list[GraphOutput]]:
    """(backward's results, how each gradient is made of them, or of a tangent or an input as it is)."""
    place_of = {p: k for k, p in enumerate(g.find_nodes(op="placeholder"))}
    results = joint.results
    slots: dict[int, int] = {}
    outs: list[torch.fx.Node] = []
    plan = []
    for o in joint.plan[n_outputs:]:
        s = slot_of(o)
        if s is None:
            given = joint.placeholders[o.value[1] if o.kind == "view" else o.value]
            source, at = "input", place_of[new[given]]
        else:
            if s not in slots:
                slots[s] = len(outs)
                outs.append(new[results[s]])
            source, at = "node", slots[s]
        plan.append(
            GraphOutput("view", (source, at), o.meta, detached=None)
            if o.kind == "view"
            else GraphOutput("input" if s is None else "buffer", at, o.meta)
        )
    return outs, plan
