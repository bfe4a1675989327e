"""Backward graphs for what one call of backward has and wants.

A result that the loss does not use has no tangent, and torch.autograd.grad(loss, x) wants one gradient only: eager
computes neither what would be multiplied by zero nor what nobody asked for. A *variant* of the backward graph does the
same: a missing tangent is an absent value that goes through the graph by the rules below, as undefined tensors go
through autograd, and gradients not wanted are dropped.
"""

from __future__ import annotations

import operator
from typing import Any, Callable, Sequence

import torch
import torch.fx

from ..base.fx_nodes import is_call, is_constant, is_input
from ..graph.aten import AtenGraph, GraphOutput
from ..graph.meta import views_meta
from ..graph.meta.core import TensorMeta
from ..rewrite import run_passes
from .forward_backward import slot_of

__all__ = ["variant", "without_unused_inputs"]

aten = torch.ops.aten

# Linear in their tangent operand, whatever the others are: absent in, absent out.
_LINEAR = frozenset(
    """
        mul neg _to_copy clone view expand permute transpose t squeeze unsqueeze select slice diagonal as_strided
        alias detach sum mean mm bmm view_as_real view_as_complex real imag conj _conj _unsafe_view reshape flip roll
        convolution_backward native_layer_norm_backward native_batch_norm_backward
        native_group_norm_backward embedding_dense_backward gelu_backward threshold_backward sigmoid_backward
        tanh_backward silu_backward _softmax_backward_data _log_softmax_backward_data nll_loss_backward mkldnn_linear
        cumsum max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward
        upsample_nearest2d_backward upsample_bilinear2d_backward _scaled_dot_product_flash_attention_for_cpu_backward
        select_backward slice_backward native_dropout_backward as_strided_copy""".split()
)


def variant(
    aten_graph: AtenGraph, n_tangents: int, present: Sequence[bool], wanted: Sequence[bool], opts: Any = None
) -> AtenGraph:
    """`aten_graph`, a backward graph whose last `n_tangents` inputs are tangents, for calls with only those tangents
    `present` and gradients `wanted` (one flag per output). It takes the same inputs without the missing tangents;
    outputs that are not wanted are None.
    """
    graph = torch.fx.Graph()
    new: dict[torch.fx.Node, Any] = {}
    tangents = aten_graph.placeholders[len(aten_graph.placeholders) - n_tangents :]
    missing = {tangent for tangent, here in zip(tangents, present) if not here}
    dependent = set(tangents)  # values that depend on tangents
    absent: set[torch.fx.Node] = set(missing)
    zeros: dict[torch.fx.Node, torch.fx.Node] = {}
    zero_constants = {
        node for node in aten_graph.graph.find_nodes(op="get_attr") if not aten_graph.constants[node.target].any()
    }

    def value(node: torch.fx.Node) -> torch.fx.Node:
        """The node in the new graph; zeros where the value is absent but an operator wants one."""
        if node not in absent:
            return new[node]
        if node not in zeros:
            meta = node.meta["val"]
            z = zeros[node] = graph.call_function(
                aten.full.default, (list(meta.shape), 0), {"dtype": meta.dtype, "device": meta.device}
            )
            z.meta.update(node.meta)
            z.meta["val"] = TensorMeta(meta.shape, views_meta.contiguous_strides(meta.shape), meta.dtype, meta.device)
        return zeros[node]

    places = {placeholder: i for i, placeholder in enumerate(aten_graph.placeholders)}
    kept_places: dict[int, int] = {}
    for node in aten_graph.graph.nodes:
        if is_input(node):
            if node not in missing:
                kept_places[places[node]] = len(kept_places)
                new[node] = graph.node_copy(node)
        elif is_constant(node):
            new[node] = graph.node_copy(node)
        elif is_call(node):
            operands = [x for x in node.all_input_nodes if x in dependent]
            if operands:
                dependent.add(node)
            gone = [operand for operand in operands if operand in absent]
            if gone:
                done = _absent(node, operands, absent, zero_constants)
                if done is True:
                    absent.add(node)
                    continue
                if done is not None:
                    new[node] = _as(graph, new[done], node)
                    continue
            new[node] = graph.node_copy(node, value)
    results = aten_graph.results
    outs: list[torch.fx.Node] = []
    slots: dict[int, int] = {}
    plan: list[GraphOutput] = []
    for spec, want in zip(aten_graph.plan, wanted):
        slot = slot_of(spec)
        if not want:
            plan.append(GraphOutput("const", None))
        elif slot is not None:
            if slot not in slots:
                slots[slot] = len(outs)
                outs.append(_own(graph, value(results[slot]), results[slot]))
            plan.append(
                GraphOutput("buffer", slots[slot], spec.meta)
                if spec.kind == "buffer"
                else GraphOutput("view", ("node", slots[slot]), spec.meta, detached=None)
            )
        elif spec.kind == "input":
            plan.append(GraphOutput("input", kept_places[spec.value], spec.meta))
        elif spec.kind == "view":
            plan.append(GraphOutput("view", ("input", kept_places[spec.value[1]]), spec.meta))
        else:
            plan.append(spec)
    graph.output(tuple(outs))
    constants = aten_graph.constants_in(graph)
    inputs = [x for i, x in enumerate(aten_graph.inputs) if i in kept_places]
    return run_passes(
        AtenGraph(graph, inputs, plan, [], aten_graph.env, constants, [], aten_graph.name), "decomposed", opts
    )


def _name(node: Any) -> str:
    return node.target._schema.name.partition("::")[2] if isinstance(node.target, torch._ops.OpOverload) else ""


def _absent(node: Any, operands: list, absent: set, empty: set) -> Any:
    """For an operator with absent operands: True where its result is absent, the node that its result equals, or None
    where zeros serve. `empty`: constants that are zeros.
    """
    if node.target is operator.getitem:
        return True
    left = _left_of_sum(node, operands, absent)
    if left is not None:
        return left
    if any(operand not in absent for operand in operands):
        return None
    name = _name(node)
    condition = _ABSENT_IF.get(name)
    gone = name in _LINEAR if condition is None else condition(node, operands, absent, empty)
    return True if gone else None


def _left_of_sum(node: Any, operands: list, absent: set) -> Any:
    """Of a sum of two values that depend on tangents the one that is there; no negative of it, and no multiple."""
    name = _name(node)
    if name not in ("add", "sub") or len(operands) != 2 or node.kwargs.get("alpha", 1) != 1:
        return None
    if node.args[0] not in absent and len(node.all_input_nodes) == 2:
        return node.args[0]
    return node.args[1] if name == "add" and node.args[1] not in absent else None


def _both_absent(n: Any, operands: list, absent: set, empty: set) -> bool:
    """A tangent plus a number or a value is not linear."""
    return all(isinstance(arg, torch.fx.Node) and arg in absent for arg in n.args[:2])


def _all_absent(n: Any, operands: list, absent: set, empty: set) -> bool:
    return all(x in absent for x in n.args[0])


def _zeros_where_present(n: Any, operands: list, absent: set, empty: set) -> bool:
    return all(isinstance(arg, torch.fx.Node) and (arg in absent or _is_zeros(arg, empty)) for arg in n.args[1:])


def _first_alone(n: Any, operands: list, absent: set, empty: set) -> bool:
    """The first operand is the tangent, the others are values."""
    return operands == [n.args[0]]


def _filled_with_zeros(n: Any, operands: list, absent: set, empty: set) -> bool:
    return n.args[2] == 0 and operands == [n.args[0]]


def _padded_with_zeros(n: Any, operands: list, absent: set, empty: set) -> bool:
    return len(n.args) < 3 or n.args[2] == 0


def _written_to_zeros(n: Any, operands: list, absent: set, empty: set) -> bool:
    return n.args[0] not in operands and _is_zeros(n.args[0], empty)


# Whether the result is absent where all operands that depend on tangents are: on a condition. All others: _LINEAR.
_ABSENT_IF: dict[str, Callable[[Any, list, set, set], bool]] = {
    **dict.fromkeys(("add", "sub"), _both_absent),
    **dict.fromkeys(("cat", "stack"), _all_absent),
    "where": _zeros_where_present,
    **dict.fromkeys(("div", "gather", "index", "index_select"), _first_alone),
    "masked_fill": _filled_with_zeros,
    "constant_pad_nd": _padded_with_zeros,
    **dict.fromkeys(
        """
            slice_scatter select_scatter as_strided_scatter diagonal_scatter scatter scatter_add index_put index_add
            _unsafe_index_put""".split(),
        _written_to_zeros,
    ),
}


def _is_zeros(x: Any, empty: set) -> bool:
    return x in empty or _is_zero(x)


def _is_zero(x: Any) -> bool:
    return (
        _name(x) in ("full", "scalar_tensor")
        and bool(x.args[-1] == 0)
        or _name(x) in ("zeros", "zeros_like", "new_zeros")
    )


def _as(graph: torch.fx.Graph, x: Any, like: torch.fx.Node) -> torch.fx.Node:
    """`x` with the dtype and shape of the value `like`."""
    meta, to = x.meta["val"], like.meta["val"]
    if meta.dtype != to.dtype:
        meta = TensorMeta(meta.shape, meta.stride, to.dtype, meta.device)
        x = graph.call_function(aten._to_copy.default, (x,), {"dtype": to.dtype})
        x.meta.update(like.meta)
        x.meta["val"] = meta
    if meta.shape != to.shape:
        x = graph.call_function(aten.expand.default, (x, list(to.shape)))
        x.meta.update(like.meta)
        x.meta["val"] = views_meta.expand(meta, to.shape)
    return x


def _own(graph: torch.fx.Graph, x: Any, like: torch.fx.Node) -> torch.fx.Node:
    """A result in memory of its own, laid out as planned."""
    if x.target is like.target and x.meta["val"].stride == like.meta["val"].stride:
        return x
    c = graph.call_function(aten.clone.default, (x,))
    c.meta.update(like.meta)
    return c


def without_unused_inputs(aten_graph: AtenGraph) -> tuple[AtenGraph, list[int]]:
    """The graph without the tensors that it does not read, and the positions of those that it keeps. Sizes and scalars
    stay.
    """
    asked = {
        spec.value if spec.kind == "input" else spec.value[1]
        for spec in aten_graph.plan
        if spec.kind == "input" or spec.kind == "view" and spec.value[0] == "input"
    }
    places = aten_graph.placeholders
    kept = [i for i, place in enumerate(places) if place.users or i in asked or aten_graph.inputs[i].kind != "tensor"]
    if len(kept) == len(places):
        return aten_graph, kept
    graph = torch.fx.Graph()
    new: dict[torch.fx.Node, torch.fx.Node] = {}
    stay = {places[i] for i in kept}
    for node in aten_graph.graph.nodes:
        if not is_input(node) or node in stay:
            new[node] = graph.node_copy(node, new.__getitem__)
    at = {old: k for k, old in enumerate(kept)}
    plan = [
        (
            GraphOutput("input", at[spec.value], spec.meta)
            if spec.kind == "input"
            else (
                GraphOutput("view", ("input", at[spec.value[1]]), spec.meta)
                if spec.kind == "view" and spec.value[0] == "input"
                else spec
            )
        )
        for spec in aten_graph.plan
    ]
    return (
        AtenGraph(
            graph=graph,
            inputs=[aten_graph.inputs[i] for i in kept],
            plan=plan,
            mutation_slots=aten_graph.mutation_slots,
            env=aten_graph.env,
            constants=aten_graph.constants,
            no_overlap=[],
            name=aten_graph.name,
            writes=aten_graph.writes,
        ),
        kept,
    )
