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
from ..ops.collectives import communicates
from ..ops.raising import node_may_raise
from ..symbolic.expr import Expr, symbol
from .saved_masks import unpacked_node

__all__ = ["after_forward", "ancestors", "backward_graph", "forward_graph", "reached_from", "slot_of"]

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


def after_forward(joint: AtenGraph, n_inputs: int) -> set[torch.fx.Node]:
    """What can't be computed in forward: it needs a tangent, or what another process sends while backward runs."""
    exchanged = [n for n in joint.graph.nodes if n.meta.get("backward") and communicates(n.target)]
    return reached_from([*joint.placeholders[n_inputs:], *exchanged])


def ancestors(ends: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    return reached_from(ends, "all_input_nodes")


def slot_of(output: GraphOutput) -> int | None:
    """The result that an output is, or is a view of; None where it is made of an input, or is no tensor."""
    if output.kind == "buffer":
        return output.value
    return output.value[1] if output.kind == "view" and output.value[0] == "node" else None


def forward_graph(joint: AtenGraph, n_inputs: int, n_outputs: int, slots: list[int], saved: list) -> AtenGraph:
    """The joint graph's outputs, from its results `slots`, and behind them the values that are saved."""
    graph = torch.fx.Graph()
    new: dict[torch.fx.Node, torch.fx.Node] = {}
    results = joint.results
    late = after_forward(joint, n_inputs)
    checks = [
        node
        for node in joint.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
        and node not in late
        and (not op_info(node.target).n_results or node_may_raise(node) or communicates(node.target))
    ]
    # checks are there to raise: a singular matrix; and other processes wait, whoever reads what they get
    wanted = ancestors([*(results[slot] for slot in slots), *saved, *checks])
    for i, n in enumerate(joint.placeholders):
        if i < n_inputs:
            new[n] = graph.node_copy(n)
    for n in joint.graph.nodes:
        if n in wanted and n.op in ("call_function", "get_attr"):
            new[n] = graph.node_copy(n, new.__getitem__)
    position = {slot: k for k, slot in enumerate(slots)}
    outs = [new[results[slot]] for slot in slots]
    saved_slots = []
    for n in saved:
        known = next((k for k, slot in enumerate(slots) if results[slot] is n), None)
        if known is None:
            outs.append(new[n])
            known = len(outs) - 1
        saved_slots.append(known)
    graph.output(tuple(outs))
    outputs = [_moved(spec, position) for spec in joint.plan[:n_outputs]]
    outputs += [GraphOutput("buffer", slot, node.meta["val"]) for slot, node in zip(saved_slots, saved)]
    constants = joint.constants_in(graph)
    return AtenGraph(
        graph=graph,
        inputs=joint.inputs[:n_inputs],
        plan=outputs,
        mutation_slots=[(i, position[s]) for i, s in joint.mutation_slots],
        env=joint.env,
        constants=constants,
        no_overlap=list(joint.no_overlap),
        name=f"{joint.name}_forward",
        writes=joint.writes,
        own_writes=joint.own_writes,
    )


def _moved(output: GraphOutput, position: dict[int, int]) -> GraphOutput:
    if output.kind == "buffer":
        return replace(output, value=position[output.value])
    if output.kind == "view" and output.value[0] == "node":
        return replace(output, value=("node", position[output.value[1]]))
    return output


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
    graph = torch.fx.Graph()
    new: Nodes = {}
    again = set(recomputed)
    inputs = _saved_and_sizes(graph, new, saved, sizes, copy_of)
    inputs += _numbers(graph, new, joint.placeholders, readers | again)
    for node in tangents:
        new[node] = graph.node_copy(node)
        inputs.append(GraphInput(node.name, None, "tensor"))
    for key, mask in mask_of.items():
        new[mask] = unpacked_node(graph, new[key], mask)
    for node in joint.graph.find_nodes(op="get_attr"):
        new[node] = graph.node_copy(node)
    for node in joint.graph.nodes:
        if node in readers and node not in new:
            _copy_with_needs(node, graph, new, again)
    outs, plan = _gradients(joint, n_outputs, graph, new)
    for node in graph.find_nodes(op="get_attr"):
        if not node.users:
            graph.erase_node(node)
    graph.output(tuple(outs))
    constants = joint.constants_in(graph)
    return AtenGraph(graph, inputs, plan, [], joint.env, constants, [], f"{joint.name}_backward")


def _input(graph: torch.fx.Graph, name: str, value: TensorMeta | Expr | float) -> torch.fx.Node:
    placeholder = graph.placeholder(name)
    placeholder.meta["val"] = value
    return placeholder


def _saved_and_sizes(
    graph: torch.fx.Graph, new: Nodes, saved: list, sizes: list[str], copy_of: Nodes
) -> list[GraphInput]:
    """The first inputs of backward: saved inputs, what forward returned, sizes."""
    inputs = []
    for node in sorted(saved, key=lambda n: not is_input(n)):
        p = new[node] = new[copy_of.get(node, node)] = _input(graph, f"saved_{node.name}", node.meta["val"])
        inputs.append(GraphInput(p.name, None, "tensor", given=not is_input(node)))
    for name in sizes:
        inputs.append(GraphInput(_input(graph, f"size_{name}", symbol(name)).name, None, "int"))
    return inputs


def _numbers(graph: torch.fx.Graph, new: Nodes, places: list[torch.fx.Node], running: set) -> list[GraphInput]:
    """Inputs of the joint graph that are numbers, as far as an operator that is `running` reads them."""
    inputs = []
    for place in places:
        if (
            place in new
            or isinstance(place.meta.get("val"), TensorMeta)
            or not any(user in running for user in place.users)
        ):
            continue
        new[place] = _input(graph, f"scalar_{place.name}", place.meta["val"])
        inputs.append(GraphInput(new[place].name, None, "float"))
    return inputs


def _copy_with_needs(root: torch.fx.Node, graph: torch.fx.Graph, new: Nodes, again: set) -> None:
    """A node after what it needs: what is computed again comes where it is read, so that it does not lie about."""
    stack = [root]
    while stack:
        n = stack[-1]
        missing = [node for node in n.all_input_nodes if node in again and node not in new]
        if missing:
            stack += missing
            continue
        stack.pop()
        if n not in new:
            new[n] = graph.node_copy(n, new.__getitem__)


def _gradients(
    joint: AtenGraph, n_outputs: int, graph: torch.fx.Graph, new: Nodes
) -> tuple[list[torch.fx.Node], list[GraphOutput]]:
    """(backward's results, how each gradient is made of them, or of a tangent or an input as it is)."""
    place_of = {node: k for k, node in enumerate(graph.find_nodes(op="placeholder"))}
    results = joint.results
    slots: dict[int, int] = {}
    outs: list[torch.fx.Node] = []
    plan = []
    for spec in joint.plan[n_outputs:]:
        slot = slot_of(spec)
        if slot is None:
            given = joint.placeholders[spec.value[1] if spec.kind == "view" else spec.value]
            source, at = "input", place_of[new[given]]
        else:
            if slot not in slots:
                slots[slot] = len(outs)
                outs.append(new[results[slot]])
            source, at = "node", slots[slot]
        plan.append(
            GraphOutput("view", (source, at), spec.meta, detached=None)
            if spec.kind == "view"
            else GraphOutput("input" if slot is None else "buffer", at, spec.meta)
        )
    return outs, plan
