"""Attention written by hand, in training, as the library's kernels for both passes: where scores are scaled products,
perhaps with a causal mask, and large enough that launching a library's call does not matter. (`attention_gradients.py`
finds it.)"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import Node

from ..base.fx_nodes import is_output
from ..graph.aten import AtenGraph
from ..graph.meta.core import contiguous_strides
from ..ops.tile_sizes import FEW_FLOPS
from .attention_inference import four_dimensional, library_call
from .attention_gradients import Attention, find, row_sums
from .clean import dead_code
from .known_masks import known_value, what_it_says
from .pass_nodes import SAME_ELEMENTS, call_like, is_zero, number_of, transposed

__all__ = ["attention_calls"]

aten = torch.ops.aten
LOW = -60000.0  # a score that does not count: -inf, or the least number of half precision


def attention_calls(aten_graph: AtenGraph) -> None:
    """Have the library compute such attention and its gradients. (These may differ in their last bits from run to run:
    not under deterministic algorithms.)
    """
    if torch.are_deterministic_algorithms_enabled():
        return
    changed = False
    for total in row_sums(aten_graph):
        found = find(aten_graph, total)
        if found is None or found.dropout is not None:
            continue
        seen = _scores(aten_graph, found)
        back = _backward(aten_graph, found, *seen) if seen is not None else None
        product = found.again[0]
        if seen is not None and back is not None and _fits(aten_graph, found, product):
            _replace(aten_graph, found, product, seen[0], seen[1] is not None, *back)
            changed = True
    if changed:
        dead_code(aten_graph)


def _scores(aten_graph: AtenGraph, found: Attention) -> tuple[float, Node | None] | None:
    """(scale, the causal mask's condition or None) where the scores are a product with these alone."""
    node, scale, condition, path = found.score, 1.0, None, set()
    while node.target is not aten.bmm.default:
        path.add(node)
        if node.target in SAME_ELEMENTS or node.target is aten._to_copy.default:
            node = node.args[0]
        elif _number(node) is not None:
            scale *= _number(node)  # type: ignore[operator]
            node = node.args[0]
        elif node.target is aten.where.self and condition is None:
            blocked = _is_low(node.args[1])
            if not blocked and not _is_low(node.args[2]) or not _says_causal(aten_graph, node.args[0], blocked):
                return None
            condition, node = node.args[0], node.args[2 if blocked else 1]
        else:
            return None
    return (scale, condition) if scale > 0 and path | {node} == set(found.again) else None


def _number(node: Node) -> float | None:
    """What a node multiplies with."""
    if (
        node.target not in (aten.mul.Tensor, aten.div.Tensor)
        or not isinstance(node.args[1], (int, float))
        or not node.args[1]
    ):
        return None
    return float(node.args[1]) if node.target is aten.mul.Tensor else 1 / node.args[1]


def _is_low(x: Any) -> bool:
    number = number_of(x)
    return isinstance(number, (int, float)) and number <= LOW


def _says_causal(aten_graph: AtenGraph, condition: Any, blocked: bool) -> bool:
    if not isinstance(condition, Node):
        return False
    tensor = known_value(aten_graph, condition)
    return (
        tensor is not None
        and tensor.dtype == torch.bool
        and tensor.ndim >= 2
        and tensor.shape[-1] == tensor.shape[-2]
        and what_it_says(~tensor if blocked else tensor) == "causal"
    )


def _backward(
    aten_graph: AtenGraph, found: Attention, scale: float, condition: Node | None
) -> tuple[Node, Node, Node] | None:
    """The products that are the gradients of q, k (transposed or not) and v, where nothing else is made of the scores'
    gradient than autograd makes.
    """
    node, left = found.gradient, scale
    while True:
        users = list(node.users)
        if len(users) != 1:
            break
        u = users[0]
        if u.target in SAME_ELEMENTS or u.target is aten._to_copy.default:
            node = u
        elif _number(u) is not None and u.args[0] is node:
            left /= _number(u)  # type: ignore[operator]
            node = u
        elif (
            u.target is aten.where.self
            and condition is not None
            and u.args[0] is condition
            and node in u.args[1:]
            and is_zero(next(arg for arg in u.args[1:] if arg is not node))
        ):
            node = u
        else:
            return None
    flipped = [user for user in node.users if user.target is aten.permute.default and list(user.args[1]) == [0, 2, 1]]
    readers = [user for x in (node, *flipped) for user in x.users if user not in flipped]
    if (
        len(readers) != 2
        or not math.isclose(left, 1, rel_tol=1e-6)
        or any(reader.target is not aten.bmm.default for reader in readers)
    ):
        return None
    product = found.again[0]
    q, kt = product.args
    dq = next((reader for reader in readers if reader.args[0] is node and transposed(reader.args[1], kt)), None)
    dk = next(
        (
            reader
            for reader in readers
            if reader.args[1] is node
            and transposed(reader.args[0], q)
            or reader.args[0] in flipped
            and reader.args[1] is q
        ),
        None,
    )
    values = [(reader, path) for reader, path in found.late if reader.target is aten.bmm.default]
    others = {reader for reader, _ in found.late if reader.target is not aten.bmm.default}
    if dq is None or dk is None or len(values) != 1 or values[0][0].args[1] is not found.grad or len(others) != 2:
        return None
    return dq, dk, values[0][0]


def _fits(aten_graph: AtenGraph, found: Attention, product: Node) -> bool:
    hints = aten_graph.env.hints if aten_graph.env is not None else {}
    (g, rows, keys), inner = product.meta["val"].shape, product.args[0].meta["val"].shape[-1]
    dtypes = {x.meta["val"].dtype for x in (*product.args, found.result)}
    flops = 4.0 * inner * math.prod(size if isinstance(size, int) else size.eval(hints) for size in (g, rows, keys))
    return len(dtypes) == 1 and inner == found.result.meta["val"].shape[-1] and inner % 8 == 0 and flops >= FEW_FLOPS


def _replace(
    aten_graph: AtenGraph, found: Attention, product: Node, scale: float, causal: bool, dq: Node, dk: Node, dv: Node
) -> None:
    graph, like = aten_graph.graph, found.result
    q, kt = product.args
    rows, keys = product.meta["val"].shape[1:]
    with graph.inserting_before(found.result):
        operands = four_dimensional(graph, like, q, kt, found.result.args[1])
        out = library_call(graph, like, *operands, scale, causal, True)
        results = [_item(graph, like, out, k) for k in (0, 1, 6, 7)]
        flat = _flat(graph, like, results[0], found.result)
    grad_at = max((found.grad, flat), key={node: k for k, node in enumerate(graph.nodes)}.__getitem__)
    with graph.inserting_after(grad_at):
        anchor = graph.call_function(aten.alias.default, (found.grad,))
    with graph.inserting_before(anchor):
        grad = call_like(
            graph,
            found.gradient,
            aten.view.default,
            (
                call_like(graph, found.gradient, aten.clone.default, found.grad, memory_format=torch.contiguous_format)
                if found.grad.meta["val"].stride[-1] != 1
                else found.grad
            ),
            list(results[0].meta["val"].shape),
        )
        saved, lse, seed, offset = results
        if out.target is aten._scaled_dot_product_cudnn_attention.default:
            back = call_like(
                graph,
                found.gradient,
                aten._scaled_dot_product_cudnn_attention_backward.default,
                grad,
                *operands,
                saved,
                lse,
                seed,
                offset,
                None,
                None,
                None,
                rows,
                keys,
                0.0,
                causal,
                scale=scale,
            )
        else:
            back = call_like(
                graph,
                found.gradient,
                aten._scaled_dot_product_flash_attention_backward.default,
                grad,
                *operands,
                saved,
                lse,
                None,
                None,
                rows,
                keys,
                0.0,
                causal,
                seed,
                offset,
                scale=scale,
            )
        for i, (old, turned) in enumerate(((dq, False), (dk, dk.args[1] is not q), (dv, False))):
            made = _item(graph, found.gradient, back, i)
            new = _flat(graph, found.gradient, made, old, turned)
            if new.args[0] is made and _seen_as_views(aten_graph, old):
                old.replace_all_uses_with(made, is_output)  # (of the same elements in the same order)
            old.replace_all_uses_with(new)
    graph.erase_node(anchor)
    found.result.replace_all_uses_with(flat)


def _seen_as_views(aten_graph: AtenGraph, node: Node) -> bool:
    """Whether those of the graph's outputs that are made of a node are views of its memory."""
    slots = {k for k, result in enumerate(aten_graph.results) if result is node}
    return not any(spec.kind == "buffer" and spec.value in slots for spec in aten_graph.plan) and not any(
        k in slots for _, k in aten_graph.mutation_slots
    )


def _item(graph: torch.fx.Graph, like: Node, call: Node, k: int) -> Node:
    node = graph.call_function(operator.getitem, (call, k))
    node.meta = {**like.meta, "val": call.meta["val"][k]}
    return node


def _flat(graph: torch.fx.Graph, like: Node, x: Node, instead: Node, turned: bool = False) -> Node:
    """What the library made, as the product that it stands for lies in memory."""
    meta = instead.meta["val"]
    if tuple(x.meta["val"].stride) != tuple(contiguous_strides(x.meta["val"].shape)):
        x = call_like(graph, like, aten.clone.default, x, memory_format=torch.contiguous_format)
    if not turned:
        return call_like(graph, like, aten.view.default, x, list(meta.shape))
    x = call_like(graph, like, aten.view.default, x, [meta.shape[0], meta.shape[2], meta.shape[1]])
    return call_like(
        graph,
        like,
        aten.clone.default,
        call_like(graph, like, aten.permute.default, x, [0, 2, 1]),
        memory_format=torch.contiguous_format,
    )
