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
    a: AtenGraph, n_tangents: int, present: Sequence[bool], wanted: Sequence[bool], opts: Any = None
) -> AtenGraph:
    """`a`, a backward graph whose last `n_tangents` inputs are tangents, for calls with only those tangents `present`
    and gradients `wanted` (one flag per output). It takes the same inputs without the missing tangents; outputs that
    are not wanted are None.
    """
    g = torch.fx.Graph()
    new: dict[torch.fx.Node, Any] = {}
    tangents = a.placeholders[len(a.placeholders) - n_tangents :]
    missing = {t for t, here in zip(tangents, present) if not here}
    dependent = set(tangents)  # values that depend on tangents
    absent: set[torch.fx.Node] = set(missing)
    zeros: dict[torch.fx.Node, torch.fx.Node] = {}
    zero_constants = {n for n in a.graph.find_nodes(op="get_attr") if not a.constants[n.target].any()}

    def value(n: torch.fx.Node) -> torch.fx.Node:
        """The node in the new graph; zeros where the value is absent but an operator wants one."""
        if n not in absent:
            return new[n]
        if n not in zeros:
            m = n.meta["val"]
            z = zeros[n] = g.call_function(
                aten.full.default, (list(m.shape), 0), {"dtype": m.dtype, "device": m.device}
            )
            z.meta.update(n.meta)
            z.meta["val"] = TensorMeta(m.shape, views_meta.contiguous_strides(m.shape), m.dtype, m.device)
        return zeros[n]

    places = {p: i for i, p in enumerate(a.placeholders)}
    kept_places: dict[int, int] = {}
    for n in a.graph.nodes:
        if n.op == "placeholder":
            if n not in missing:
                kept_places[places[n]] = len(kept_places)
                new[n] = g.node_copy(n)
        elif n.op == "get_attr":
            new[n] = g.node_copy(n)
        elif n.op == "call_function":
            operands = [x for x in n.all_input_nodes if x in dependent]
            if operands:
                dependent.add(n)
            gone = [x for x in operands if x in absent]
            if gone:
                done = _absent(n, operands, absent, zero_constants)
                if done is True:
                    absent.add(n)
                    continue
                if done is not None:
                    new[n] = _as(g, new[done], n)
                    continue
            new[n] = g.node_copy(n, value)
    results = a.results
    outs: list[torch.fx.Node] = []
    slots: dict[int, int] = {}
    plan: list[GraphOutput] = []
    for o, want in zip(a.plan, wanted):
        s = slot_of(o)
        if not want:
            plan.append(GraphOutput("const", None))
        elif s is not None:
            if s not in slots:
                slots[s] = len(outs)
                outs.append(_own(g, value(results[s]), results[s]))
            plan.append(
                GraphOutput("buffer", slots[s], o.meta)
                if o.kind == "buffer"
                else GraphOutput("view", ("node", slots[s]), o.meta, detached=None)
            )
        elif o.kind == "input":
            plan.append(GraphOutput("input", kept_places[o.value], o.meta))
        elif o.kind == "view":
            plan.append(GraphOutput("view", ("input", kept_places[o.value[1]]), o.meta))
        else:
            plan.append(o)
    g.output(tuple(outs))
    constants = a.constants_in(g)
    inputs = [x for i, x in enumerate(a.inputs) if i in kept_places]
    return run_passes(AtenGraph(g, inputs, plan, [], a.env, constants, [], a.name), "decomposed", opts)


def _name(n: Any) -> str:
    return n.target._schema.name.partition("::")[2] if isinstance(n.target, torch._ops.OpOverload) else ""


def _absent(n: Any, operands: list, absent: set, empty: set) -> Any:
    """For an operator with absent operands: True where its result is absent, the node that its result equals, or None
    where zeros serve. `empty`: constants that are zeros.
    """
    if n.target is operator.getitem:
        return True
    left = _left_of_sum(n, operands, absent)
    if left is not None:
        return left
    if any(x not in absent for x in operands):
        return None
    name = _name(n)
    condition = _ABSENT_IF.get(name)
    gone = name in _LINEAR if condition is None else condition(n, operands, absent, empty)
    return True if gone else None


def _left_of_sum(n: Any, operands: list, absent: set) -> Any:
    """Of a sum of two values that depend on tangents the one that is there; no negative of it, and no multiple."""
    name = _name(n)
    if name not in ("add", "sub") or len(operands) != 2 or n.kwargs.get("alpha", 1) != 1:
        return None
    if n.args[0] not in absent and len(n.all_input_nodes) == 2:
        return n.args[0]
    return n.args[1] if name == "add" and n.args[1] not in absent else None


def _both_absent(n: Any, operands: list, absent: set, empty: set) -> bool:
    """A tangent plus a number or a value is not linear."""
    return all(isinstance(x, torch.fx.Node) and x in absent for x in n.args[:2])


def _all_absent(n: Any, operands: list, absent: set, empty: set) -> bool:
    return all(x in absent for x in n.args[0])


def _zeros_where_present(n: Any, operands: list, absent: set, empty: set) -> bool:
    return all(isinstance(x, torch.fx.Node) and (x in absent or _is_zeros(x, empty)) for x in n.args[1:])


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


def _as(g: torch.fx.Graph, x: Any, like: torch.fx.Node) -> torch.fx.Node:
    """`x` with the dtype and shape of the value `like`."""
    m, to = x.meta["val"], like.meta["val"]
    if m.dtype != to.dtype:
        m = TensorMeta(m.shape, m.stride, to.dtype, m.device)
        x = g.call_function(aten._to_copy.default, (x,), {"dtype": to.dtype})
        x.meta.update(like.meta)
        x.meta["val"] = m
    if m.shape != to.shape:
        x = g.call_function(aten.expand.default, (x, list(to.shape)))
        x.meta.update(like.meta)
        x.meta["val"] = views_meta.expand(m, to.shape)
    return x


def _own(g: torch.fx.Graph, x: Any, like: torch.fx.Node) -> torch.fx.Node:
    """A result in memory of its own, laid out as planned."""
    if x.target is like.target and x.meta["val"].stride == like.meta["val"].stride:
        return x
    c = g.call_function(aten.clone.default, (x,))
    c.meta.update(like.meta)
    return c


def without_unused_inputs(a: AtenGraph) -> tuple[AtenGraph, list[int]]:
    """The graph without the tensors that it does not read, and the positions of those that it keeps. Sizes and scalars
    stay.
    """
    asked = {
        o.value if o.kind == "input" else o.value[1]
        for o in a.plan
        if o.kind == "input" or o.kind == "view" and o.value[0] == "input"
    }
    places = a.placeholders
    kept = [i for i, n in enumerate(places) if n.users or i in asked or a.inputs[i].kind != "tensor"]
    if len(kept) == len(places):
        return a, kept
    g = torch.fx.Graph()
    new: dict[torch.fx.Node, torch.fx.Node] = {}
    stay = {places[i] for i in kept}
    for n in a.graph.nodes:
        if n.op != "placeholder" or n in stay:
            new[n] = g.node_copy(n, new.__getitem__)
    at = {old: k for k, old in enumerate(kept)}
    plan = [
        (
            GraphOutput("input", at[o.value], o.meta)
            if o.kind == "input"
            else (
                GraphOutput("view", ("input", at[o.value[1]]), o.meta)
                if o.kind == "view" and o.value[0] == "input"
                else o
            )
        )
        for o in a.plan
    ]
    return (
        AtenGraph(
            g, [a.inputs[i] for i in kept], plan, a.mutation_slots, a.env, a.constants, [], a.name, writes=a.writes
        ),
        kept,
    )
