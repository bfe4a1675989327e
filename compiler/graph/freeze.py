"""Freezing (option `freezing`, inference only): what depends on parameters and buffers alone is computed once, not at
each call.

A batch norm behind a convolution becomes part of the convolution's weights. Then the graph is split in two: one of
what is made of parameters alone (folded weights, casts, transposed copies), whose results are kept, and the rest, which
takes them as inputs.

The parameters stay inputs of the compiled function. At each call their identity, address and version are compared with
those that the kept results were made from. Where one differs (an optimizer's step, load_state_dict, `p.data = ...`),
the results are made anew. So they are where compiled code has written something that torch gives no sign of. Such
writes by eager code (into `p.data`, and to running statistics in training) go unseen until `refresh`."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, Callable

import torch
import torch.fx
from torch.fx.node import map_arg

from ..base.fx_nodes import is_input
from ..base.unseen_writes import so_far
from .captured import GraphInput
from ..symbolic.expr import Expr
from .aten import AtenGraph
from .decompose.table import Builder
from .aten_interpreter import interpret
from .meta.core import TensorMeta, state
from ..rewrite.clean import dead_code, has_effect

__all__ = ["fold_batch_norms", "made_of_parameters", "part", "Frozen"]

aten = torch.ops.aten
Node = torch.fx.Node
_NORMS = (aten.native_batch_norm.default, aten._native_batch_norm_legit_no_training.default)
_VIEWS = frozenset(
    (
        aten.view.default,
        aten.permute.default,
        aten.expand.default,
        aten.slice.Tensor,
        aten.select.int,
        aten.squeeze.dims,
        aten.unsqueeze.default,
        aten.diagonal.default,
        aten.as_strided.default,
        aten.t.default,
        aten.transpose.int,
        aten.alias.default,
        aten.detach.default,
    )
)


def _frozen_inputs(aten_graph: AtenGraph) -> dict[Node, int]:
    """Placeholders of parameters and buffers that the graph does not write, with their position."""
    written = {i for i, _ in aten_graph.mutation_slots}
    return {
        placeholder: i
        for i, (placeholder, inp) in enumerate(zip(aten_graph.placeholders, aten_graph.inputs))
        if getattr(inp, "static", False)
        and i not in written
        and isinstance(placeholder.meta.get("val"), TensorMeta)
        and not any(isinstance(size, Expr) for size in placeholder.meta["val"].shape)
    }


# ---- convolution and batch norm
def fold_batch_norms(aten_graph: AtenGraph) -> None:
    """A recorded graph's batch norms in inference, of a convolution's result that nothing else reads, as other weights
    of the convolution.
    """
    frozen = _frozen_inputs(aten_graph)
    results = set(aten_graph.results)
    outer, state.env = state.env, aten_graph.env
    try:
        for node in list(aten_graph.calls()):
            if node.target in _NORMS:
                _fold(aten_graph, node, frozen, results)
    finally:
        state.env = outer
    dead_code(aten_graph)


def _fold(aten_graph: AtenGraph, node: Node, frozen: dict[Node, int], results: set[Node]) -> None:
    """A convolution's weight and bias take in the batch norm that follows it."""
    if not _foldable(node, frozen, results):
        return
    conv, weight, bias, mean, var = node.args[:5]
    eps = node.args[-1]
    w, b = conv.args[1], conv.args[2]
    transposed = conv.args[6]
    build = Builder(aten_graph.graph)
    build.where_meta = {key: value for key, value in node.meta.items() if key != "val"}
    with aten_graph.graph.inserting_before(conv):
        scale = build.emit(aten.rsqrt.default, build.add(var, float(eps)))
        if weight is not None:
            scale = build.mul(weight, scale)
        shape = [1] * len(w.meta["val"].shape)
        shape[1 if transposed else 0] = w.meta["val"].shape[1 if transposed else 0]
        new_w = build.mul(w, build.view(scale, shape))
        shift = build.mul(mean if b is None else build.sub(mean, b), scale)
        new_b = build.unary("neg", shift) if bias is None else build.sub(bias, shift)
        folded = build.emit(aten.convolution.default, conv.args[0], new_w, new_b, *conv.args[3:], val=conv.meta["val"])
        folded.meta.update({key: value for key, value in conv.meta.items() if key != "val"})
    for user in list(node.users):
        if user.args[1] == 0:
            user.replace_all_uses_with(folded)


def _foldable(node: Node, frozen: dict[Node, int], results: set[Node]) -> bool:
    """Whether a batch norm is that of a convolution alone, and all its numbers are frozen."""
    args = list(node.args)
    conv, weight, bias, mean, var = args[:5]
    if node.target is aten.native_batch_norm.default and args[5]:
        return False
    if (
        any(
            user.target is not operator.getitem or user.args[1] != 0 and (user.users or user in results)
            for user in node.users
        )
        or node in results
        or node.kwargs
    ):
        return False
    if (
        not isinstance(conv, Node)
        or conv.target is not aten.convolution.default
        or len(conv.users) != 1
        or conv in results
        or conv.kwargs
    ):
        return False
    w, b = conv.args[1], conv.args[2]
    transposed, groups = conv.args[6], conv.args[8]
    given = [x for x in (w, b, weight, bias, mean, var) if x is not None]
    if (
        mean is None
        or var is None
        or any(x not in frozen for x in given)
        or len({x.meta["val"].dtype for x in given}) != 1
        or not w.meta["val"].dtype.is_floating_point
        or transposed
        and groups != 1
    ):
        return False
    return True


# ---- what is made of parameters alone
def made_of_parameters(aten_graph: AtenGraph) -> tuple[set[Node], set[Node]]:
    """(nodes that are frozen inputs or made of those and constants alone, nodes made of constants alone); results of
    the graph are neither.
    """
    made: set[Node] = set(_frozen_inputs(aten_graph))
    constant: set[Node] = set(aten_graph.graph.find_nodes(op="get_attr"))
    results = set(aten_graph.results)
    for n in aten_graph.calls():
        if n in results or not _settled(n):
            continue
        if all(node in constant for node in n.all_input_nodes):
            constant.add(n)
        elif all(node in made or node in constant for node in n.all_input_nodes):
            made.add(n)
    return made, constant


def part(aten_graph: AtenGraph) -> tuple[AtenGraph, AtenGraph] | None:
    """(the graph of what depends on frozen inputs alone, the graph that takes its results as further inputs); None
    where there is nothing to keep. Both take all inputs of `aten_graph`."""
    made, constant = made_of_parameters(aten_graph)
    works: set[Node] = set()  # among `made`: more than views
    for n in (node for node in aten_graph.calls() if node in made):
        if (
            n.target not in _VIEWS
            and n.target is not operator.getitem
            or any(node in works for node in n.all_input_nodes)
        ):
            works.add(n)
    keep = [
        node
        for node in aten_graph.graph.nodes
        if node in works and isinstance(node.meta["val"], TensorMeta) and any(user not in made for user in node.users)
    ]
    if not keep:
        return None
    first = _copy_of(aten_graph, {n for n in made if not is_input(n)} | constant, keep)
    last = aten_graph.placeholders[-1]
    inputs = list(aten_graph.inputs)
    for n in keep:
        with aten_graph.graph.inserting_after(last):
            p = aten_graph.graph.create_node("placeholder", f"kept_{n.name}", (), {}, name=f"kept_{n.name}")
        p.meta.update(n.meta)
        inputs.append(GraphInput(p.name, None, "tensor"))
        n.replace_all_uses_with(p, delete_user_cb=lambda u: u not in made)
        last = p
    rest = replace(aten_graph, inputs=inputs)
    dead_code(rest)
    return first, rest


def _settled(node: Node) -> bool:
    """Whether a node gives the same at each call, in sizes that are known."""
    val = node.meta.get("val")
    vals = val if isinstance(val, tuple) else (val,)
    return (
        not has_effect(node)
        and torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())
        and not any(isinstance(s, Expr) for v in vals if isinstance(v, TensorMeta) for s in (*v.shape, *v.stride))
    )


def _copy_of(aten_graph: AtenGraph, nodes: set[Node], keep: list[Node]) -> AtenGraph:
    from .aten import GraphOutput

    graph = torch.fx.Graph()
    new: dict[Node, Node] = {}
    for node in aten_graph.graph.nodes:
        if is_input(node) or node in nodes:
            new[node] = graph.create_node(
                node.op,
                node.target,
                map_arg(node.args, lambda x: new[x]),
                map_arg(node.kwargs, lambda x: new[x]),
                name=node.name,
            )
            new[node].meta.update(node.meta)
    out = graph.create_node("output", "output", (tuple(new[n] for n in keep),), {}, name="output")
    out.meta.update(aten_graph.graph.output_node().meta)
    plan = [GraphOutput("buffer", k, node.meta["val"]) for k, node in enumerate(keep)]
    first = AtenGraph(
        graph=graph,
        inputs=aten_graph.inputs,
        plan=plan,
        mutation_slots=[],
        env=aten_graph.env,
        constants=dict(aten_graph.constants),
        no_overlap=[],
        name=f"{aten_graph.name}_parameters",
    )
    graph.eliminate_dead_code()
    return first


class Frozen:
    """A compiled graph with what depends on its parameters alone kept from call to call."""

    def __init__(self, first: AtenGraph, rest: Callable[..., tuple]):
        self.first, self.rest = first, rest
        self.positions = [i for i, placeholder in enumerate(first.placeholders) if placeholder.users]
        self.seen: list[tuple] = []
        self.unseen = 0  # writes of compiled code, when the kept results were made
        self.kept: tuple = ()

    def __call__(self, *inputs: Any) -> tuple:
        seen = self.seen
        if (
            not seen
            or self.unseen != so_far()
            or any(
                inputs[position] is not tensor or tensor.data_ptr() != at or _version(tensor) != v
                for position, (tensor, at, v) in zip(self.positions, seen)
            )
        ):
            self.refresh(inputs)
        return self.rest(*inputs, *self.kept)

    def refresh(self, inputs: tuple) -> None:
        """Make the kept results of the parameters as they are now."""
        self.unseen = so_far()
        with torch.no_grad():
            self.kept = interpret(self.first, inputs)
        self.seen = [
            (inputs[position], inputs[position].data_ptr(), _version(inputs[position])) for position in self.positions
        ]

    def __getattr__(self, name: str) -> Any:
        if name in ("first", "rest", "call"):  # (callers that take a graph's bare function must come past the check)
            raise AttributeError(name)
        return getattr(self.rest, name)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
