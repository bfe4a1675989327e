"""Attention written by hand, softmax(q @ k^T * scale) @ v, as one call of the library's kernel (CUDA, half precision,
inference).

Matched on the recorded graph, where softmax is one operator and everything around it views, conversions and scaling.
Each value on the way may have no other use: a gradient's formulas need them, so a graph with a backward keeps them.
What has a mask or a dropout stays as it is: rows that are masked as a whole give NaN by hand and 0 in the kernels.
"""

from __future__ import annotations

import operator
from typing import Any, Sequence

import torch
from torch.fx import Node

from ..base.fx_nodes import is_returned
from ..base.generations import here
from ..symbolic.expr import as_expr
from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta, contiguous_strides
from .pass_nodes import call_like

__all__ = ["attention"]

aten = torch.ops.aten
_VIEWS = frozenset(
    (
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.expand.default,
        aten.clone.default,
        aten.contiguous.default,
        aten.alias.default,
    )
)


def library_call(
    g: Any, like: Node, q: Node, k: Node, v: Node, scale: float, causal: bool = False, train: bool = False
) -> Node:
    """The call that torch's own choice would make for tensors of this kind. `train`: whether it keeps what backward
    needs.
    """
    cudnn = torch.backends.cudnn.is_available() and torch.backends.cuda.cudnn_sdp_enabled()
    if cudnn and here("cuDNN's attention", q.meta["val"].device.index or 0):
        return call_like(
            g,
            like,
            aten._scaled_dot_product_cudnn_attention.default,
            q,
            k,
            v,
            None,
            train,
            0.0,
            causal,
            False,
            scale=scale,
        )
    return call_like(
        g, like, aten._scaled_dot_product_flash_attention.default, q, k, v, 0.0, causal, False, scale=scale
    )


def attention(aten_graph: AtenGraph) -> None:
    for softmax in [node for node in aten_graph.graph.nodes if node.target is aten._softmax.default]:
        found = _match(softmax)
        if found is not None:
            _replace(aten_graph, *found)


def _match(softmax: Node) -> tuple[Node, Node, Node, float, Node] | None:
    """(first operand, second operand, values, scale, last product) of the pattern."""
    meta = softmax.meta["val"]
    if not meta.on_gpu or softmax.args[1] not in (-1, len(meta.shape) - 1):
        return None
    scores, last = _scores(softmax), _weighted_sum(softmax)
    if scores is None or last is None:
        return None
    product, scale = scores
    q, k, v = product.args[0], product.args[1], last.args[1]
    if not _fits(q.meta["val"], k.meta["val"], v.meta["val"], scale) or is_returned(product):
        return None
    return q, k, v, scale, last


def _scores(softmax: Node) -> tuple[Node, float] | None:
    """(the product that gives the scores, their scale)."""
    scale, x = 1.0, softmax.args[0]
    while isinstance(x, Node) and x.target is not aten.bmm.default:
        if len(x.users) != 1:
            return None
        number = x.args[1] if len(x.args) > 1 and isinstance(x.args[1], (int, float)) else None
        if x.target in (aten.div.Tensor, aten.div.Scalar) and number and len(x.args) == 2 and not x.kwargs:
            scale /= number
        elif x.target in (aten.mul.Tensor, aten.mul.Scalar) and number and not x.kwargs:
            scale *= number
        elif x.target is aten._to_copy.default:
            if set(x.kwargs) - {"dtype"} or not x.meta["val"].dtype.is_floating_point:
                return None
        elif x.target not in _VIEWS or not _same_rows(x):
            return None
        x = x.args[0]
    return (x, scale) if isinstance(x, Node) and len(x.users) == 1 else None


def _weighted_sum(softmax: Node) -> Node | None:
    """The product of the weights with the values."""
    weights = softmax
    while len(weights.users) == 1:
        user = next(iter(weights.users))
        if user.target is aten.bmm.default:
            return user if user.args[0] is weights else None
        is_view = user.target in _VIEWS and _same_rows(user)
        if not is_view and not (user.target is aten._to_copy.default and not set(user.kwargs) - {"dtype"}):
            return None
        weights = user
    return None


def _same_rows(view: Node) -> bool:
    """Whether a view keeps the last dimension and the number of elements."""
    before, after = view.args[0].meta["val"], view.meta["val"]
    return (
        bool(before.shape)
        and len(after.shape) > 1
        and before.shape[-1] == after.shape[-1]
        and _count(before.shape) is _count(after.shape)
    )


def _count(shape: Sequence[Any]) -> Any:
    product = as_expr(1)
    for size in shape:
        product = product * as_expr(size)
    return product


def _fits(q: TensorMeta, k: TensorMeta, value: TensorMeta, scale: float) -> bool:
    width = q.shape[-1]
    return (
        q.dtype in (torch.float16, torch.bfloat16)
        and k.dtype == value.dtype == q.dtype
        and isinstance(width, int)
        and width <= 256
        and width % 8 == 0
        and value.shape[-1] == width
        and k.shape[-1] is not None
        and scale > 0
    )


def _source(node: Node, shape3: Sequence[Any]) -> Node | None:
    """The four-dimensional tensor that `n`, (batch * heads, rows, columns), is a view or a copy of."""
    while node.target in _VIEWS:
        meta = node.meta["val"]
        if len(meta.shape) == 4 and node.target is not aten.expand.default:
            above = node.args[0]
            if not (
                above.target in _VIEWS and tuple(above.meta["val"].shape) == tuple(meta.shape)
            ) and node.target not in (aten.clone.default, aten.contiguous.default):
                return node
        up = node.args[0]
        if _count(up.meta["val"].shape) is not _count(meta.shape):
            break  # an expansion
        if len(meta.shape) == 4 and len(up.meta["val"].shape) != 4:
            return node
        node = up
    meta = node.meta["val"]
    ok = (
        len(meta.shape) == 4
        and meta.shape[2] == shape3[1]
        and meta.shape[3] == shape3[2]
        and _count(meta.shape[:2]) is as_expr(shape3[0])
    )
    return node if ok else None


def four_dimensional(g: Any, like: Node, q: Node, kt: Node, v: Node) -> tuple[Node, Node, Node]:
    """Queries, keys and values as (batch, heads, rows, columns), of operands of a batch of products, keys transposed:
    what these are views or copies of.
    """
    operands = [_source(node, node.meta["val"].shape) for node in (q, kt, v)]
    heads = {tuple(operand.meta["val"].shape[:2]) for operand in operands if operand is not None}
    if None in operands or len(heads) != 1:
        operands = [call_like(g, like, aten.unsqueeze.default, n, 0) for n in (q, kt, v)]
    q4, kt, v4 = operands  # type: ignore[assignment]
    k4 = call_like(g, like, aten.permute.default, kt, [0, 1, 3, 2])

    def in_lines(x: Node) -> Node:
        return (
            x
            if x.meta["val"].stride[-1] == 1
            else call_like(g, like, aten.clone.default, x, memory_format=torch.contiguous_format)
        )

    return in_lines(q4), in_lines(k4), in_lines(v4)


def _replace(aten_graph: AtenGraph, q: Node, k: Node, v: Node, scale: float, last: Node) -> None:
    graph = aten_graph.graph
    with graph.inserting_before(last):
        q4, k4, v4 = four_dimensional(graph, last, q, k, v)
        out = library_call(graph, last, q4, k4, v4, scale)
        first = graph.call_function(operator.getitem, (out, 0))
        first.meta = {**last.meta, "val": out.meta["val"][0]}
        meta = last.meta["val"]
        b, h, n, d = q4.meta["val"].shape
        dense = first
        if tuple(first.meta["val"].stride) != tuple(contiguous_strides((b, h, n, d))):
            dense = call_like(graph, last, aten.clone.default, first, memory_format=torch.contiguous_format)
        flat = graph.call_function(aten.view.default, (dense, list(meta.shape)))
        flat.meta = dict(last.meta)
    last.replace_all_uses_with(flat)
    graph.eliminate_dead_code()
