"""Attention written by hand, in training: backward makes the scores again instead of reading what forward kept of them
(CUDA, half precision).

Autograd's formulas keep softmax's result p and reduce p * dp over rows. Here forward keeps the logarithm of each row's
sum. Backward computes p = exp(score - logarithm) from the scores that it makes again. The row's sum of p * dp is that
of gradient * result, which p @ v gave: the same number. So no row of scores is reduced in backward, and fusion makes
each gradient a kernel whose scores are never in memory (fusion/tiled/match_chains.py), as it makes forward one
(match_attention.py). Taken where all that reads p and its gradient is products and what is computed element by element.
What the library has kernels for is its own where it is large (attention_training.py, which runs before)."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from torch.fx import Node

from ..base.fx_nodes import is_call, is_output, is_returned
from ..ops.tile_sizes import DTYPES, WIDEST, fills
from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta
from .pass_nodes import SAME_ELEMENTS, call_like, transposed

__all__ = ["Attention", "attention_gradients", "find", "row_sums"]

aten = torch.ops.aten
_VIEWS = SAME_ELEMENTS | {
    aten.permute.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.transpose.int,
}
_LONGEST = 64  # nodes between a product and what is made of it


@dataclass
class Dropout:
    """`dropped` = p * factor; or p where `mask` holds, times `scale`, of which backward makes a factor."""

    dropped: Node
    factor: Node | None = None
    mask: Node | None = None
    scale: float = 1.0

    @classmethod
    def of(cls, node: Node, p: Node) -> Dropout | None:
        """What a reader of p in forward is, if it is that."""
        if (
            node.target is aten.mul.Tensor
            and len(node.args) == 2
            and node.args[0] is p
            and isinstance(node.args[1], Node)
        ):
            return cls(node, node.args[1])
        if (
            node.target is not aten.native_dropout.default
            or node.args[0] is not p
            or node.args[2] is False
            or not isinstance(node.args[1], float)
            or not 0 < node.args[1] < 1
        ):
            return None
        items = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        return cls(items[0], None, items[1], 1 / (1 - node.args[1])) if len(items) == 2 == len(node.users) else None

    def scales(self, node: Any) -> bool:
        """Whether a value is what backward multiplies with."""
        if self.factor is not None:
            return node is self.factor
        return (
            node.target is aten.mul.Tensor
            and isinstance(node.args[1], float)
            and math.isclose(node.args[1], self.scale, rel_tol=1e-5)
            and node.args[0].target is aten._to_copy.default
            and node.args[0].args[0] is self.mask
        )


@dataclass
class Attention:
    """score (float32) -> p = softmax(score) -> result = p @ v, or of what a dropout leaves of p; backward: dp = grad @
    v^T, where that left p, and total = sum(p * dp)."""

    score: Node
    top: Node
    sums: Node
    p: Node
    dp: Node
    gradient: Node  # p * dp - p * total
    total: Node
    result: Node
    grad: Node
    again: list[Node]  # what is computed of the scores' product, that first, for softmax and for backward
    after: set[Node]  # what grad leads to
    # readers of p in backward, and the views and conversions that lead to each, from p on
    late: list[tuple[Node, list[Node]]]
    dropout: Dropout | None = None
    late_dropped: list[tuple[Node, list[Node]]] = field(default_factory=list)  # likewise of what a dropout left

    def kept(self) -> list[Node]:
        """The result, and it as it is laid out for what reads it in forward: there it is in memory, and kept in any
        case. Not as the graph's result: that the caller may change, as eager's backward does not read it."""
        out = [self.result]
        while True:
            readers = [user for user in out[-1].users if user not in self.after]
            if (
                len(readers) != 1
                or readers[0].target not in SAME_ELEMENTS | {aten.permute.default}
                or is_returned(readers[0])
            ):
                return out
            out.append(readers[0])


def attention_gradients(aten_graph: AtenGraph) -> None:
    for k, total in enumerate(row_sums(aten_graph)):
        found = find(aten_graph, total)
        if found is not None:
            _replace(aten_graph, found, f"attention {k}")


def row_sums(aten_graph: AtenGraph) -> list[Node]:
    """What may be a row's sum of p * dp."""
    return [node for node in aten_graph.graph.nodes if node.target is aten.sum.dim_IntList]


def _is_cast(node: Any) -> bool:
    return (
        node.target is aten._to_copy.default
        and not set(node.kwargs) - {"dtype"}
        and node.meta["val"].dtype.is_floating_point
    )


def _is_elementwise(node: Any) -> bool:
    return is_call(node) and (
        node.target in _VIEWS
        or _is_cast(node)
        or isinstance(node.target, torch._ops.OpOverload)
        and torch.Tag.pointwise in node.target.tags
        and torch.Tag.nondeterministic_seeded not in node.target.tags
        or node.target is aten.where.self
    )


def _made_by(node: Any) -> Any:
    """What a value is, seen through conversions and shapes."""
    while isinstance(node, Node) and (node.target in SAME_ELEMENTS or _is_cast(node)):
        node = node.args[0]
    return node


def _over_rows(node: Any, op: Any) -> bool:
    """Whether a node reduces the last dimension, and keeps it."""
    return (
        isinstance(node, Node)
        and node.target is op
        and len(node.args) == 3
        and bool(node.args[2])
        and list(node.args[1]) in ([-1], [len(node.args[0].meta["val"].shape) - 1])
    )


def _softmax(p: Node) -> tuple[Node, Node, Node] | None:
    """(score, its maximum, sum of exponentials) of the softmax of rows that p is."""
    if (
        p.target is not aten.div.Tensor
        or len(p.args) != 2
        or p.kwargs
        or not all(isinstance(arg, Node) for arg in p.args)
    ):
        return None
    e, sums = p.args
    if e.target is not aten.exp.default or not _over_rows(sums, aten.sum.dim_IntList) or sums.args[0] is not e:
        return None
    less = e.args[0]
    if (
        less.target is not aten.sub.Tensor
        or less.kwargs
        or not _over_rows(less.args[1], aten.amax.default)
        or less.args[1].args[0] is not less.args[0]
    ):
        return None
    return less.args[0], less.args[1], sums


def find(aten_graph: AtenGraph, total: Node) -> Attention | None:
    """The attention whose backward has this sum of a row."""
    if (
        not _over_rows(total, aten.sum.dim_IntList)
        or not total.meta["val"].on_gpu
        or total.meta["val"].dtype != torch.float32
    ):
        return None
    both = total.args[0]
    if both.target is not aten.mul.Tensor or not all(isinstance(arg, Node) for arg in both.args):
        return None
    for x, y in (both.args, both.args[::-1]):
        p = _made_by(x)
        parts = _softmax(p) if is_call(p) else None
        found = _product(y) if parts is not None else None
        if parts is not None and found is not None:
            return _rest(aten_graph, total, both, p, parts, y, *found)
    return None


def _product(dp: Node) -> tuple[Node, Node | None] | None:
    """(the product, what it is multiplied with where a dropout left something out) that dp is."""
    node = _made_by(dp)
    if node.target is aten.bmm.default:
        return node, None
    if node.target is aten.mul.Tensor:
        for x, y in (node.args, node.args[::-1]):
            if isinstance(y, Node) and isinstance(x, Node) and _made_by(x).target is aten.bmm.default:
                return _made_by(x), y
    return None


def _rest(
    aten_graph: AtenGraph,
    total: Node,
    both: Node,
    p: Node,
    parts: tuple[Node, Node, Node],
    dp: Node,
    product: Node,
    factor: Node | None,
) -> Attention | None:
    """The match where everything around the row's sum fits."""
    grad, across = product.args
    after = _reached(grad)
    readers = _readers(p)
    drawn, dropout = next(
        (
            (reader, d)
            for reader, path in readers
            if reader not in after and (d := Dropout.of(reader, (path or [p])[-1])) is not None
        ),
        (None, None),
    )
    if (dropout is None) != (factor is None) or dropout is not None and not dropout.scales(factor):
        return None
    late, early = (
        [(reader, path) for reader, path in readers if (reader in after) is is_late and reader is not drawn]
        for is_late in (True, False)
    )
    late_dropped: list[tuple[Node, list[Node]]] = []
    if dropout is not None:
        of_dropped = _readers(dropout.dropped)
        late_dropped = [(reader, path) for reader, path in of_dropped if reader in after]
        if early:
            return None
        early = [(reader, path) for reader, path in of_dropped if reader not in after]
    if len(early) != 1:
        return None
    ((forward, path),) = early
    last = (path or [p if dropout is None else dropout.dropped])[-1]
    gradient = _gradient(both, total)
    if (
        forward.target is not aten.bmm.default
        or forward.args[0] is not last
        or not all(node.target in SAME_ELEMENTS or _is_cast(node) for node in path)
    ):
        return None
    if not transposed(across, forward.args[1]) or gradient is None:
        return None
    again = _from_product(parts[0], {parts[1], p.args[0].args[0]}, after)
    if again is None or not _worth(aten_graph, forward, again[0], p):
        return None
    return Attention(*parts, p, dp, gradient, total, forward, grad, again, after, late, dropout, late_dropped)


def _reached(node: Node) -> set[Node]:
    seen, todo = {node}, [node]
    while todo:
        for user in todo.pop().users:
            if user not in seen:
                seen.add(user)
                todo.append(user)
    return seen


def _readers(node: Node) -> list[tuple[Node, list[Node]]]:
    """What reads a value, through views and conversions: these, in order."""
    out: list[tuple[Node, list[Node]]] = []
    for user in node.users:
        if user.target in _VIEWS or _is_cast(user):
            out += [(reader, [user, *path]) for reader, path in _readers(user)]
        else:
            out.append((user, []))
    return out


def _gradient(both: Node, total: Node) -> Node | None:
    """The scores' gradient, p * dp - p * total, that p * dp and its row's sum become, where nothing reads it but
    products, and what is computed element by element for them."""
    (minus,), terms = total.users if len(total.users) == 1 else (None,), 0
    if minus is None or minus.target is not aten.mul.Tensor or len(minus.users) != 1 or len(both.users) != 2:
        return None
    gradient = next(iter(minus.users))
    if gradient.target is not aten.sub.Tensor or gradient.kwargs or gradient.args != (both, minus):
        return None
    todo = [gradient]
    while todo:
        for user in todo.pop().users:
            terms += 1
            if (
                terms > _LONGEST
                or user.target is not aten.bmm.default
                and not _is_elementwise(user)
                or user.target is aten.bmm.default
                and user.meta["val"].dtype not in DTYPES
            ):
                return None
            if user.target is not aten.bmm.default:
                todo.append(user)
    return gradient


def _from_product(score: Node, softmax: set[Node], after: set[Node]) -> list[Node] | None:
    """What leads from one product to the scores, element by element, and what else is computed of that for backward, in
    order; None where there is no such product, or several, or something else needs them. `softmax`: what reads the
    scores."""
    known: dict[Node, bool] = {}

    def leads(node: Node) -> bool:
        if node not in known:
            known[node] = (
                node.target is aten.bmm.default
                or len(known) < _LONGEST
                and _is_elementwise(node)
                and any([leads(x) for x in node.all_input_nodes])
            )
        return known[node]

    if not leads(score):
        return None
    inside = {key for key, does in known.items() if does}
    if sum(node.target is aten.bmm.default for node in inside) != 1:
        return None
    todo = list(inside)
    while todo:
        for user in todo.pop().users:
            if user in inside or user in softmax or user in after:
                continue
            if not _is_elementwise(user) or len(inside) > _LONGEST:
                return None
            inside.add(user)
            todo.append(user)
    return [node for node in score.graph.nodes if node in inside]


def _worth(aten_graph: AtenGraph, result: Node, product: Node, p: Node) -> bool:
    hints = aten_graph.env.hints if aten_graph.env is not None else {}

    def hint(node: Any) -> int:
        return node if isinstance(node, int) else int(node.eval(hints))

    meta: TensorMeta = product.meta["val"]
    operands = [_made_by(arg).meta["val"] for arg in product.args]
    inner, columns = product.args[0].meta["val"].shape[-1], result.args[1].meta["val"].shape[-1]
    return (
        p.meta["val"].dtype == torch.float32
        and result.meta["val"].dtype in DTYPES
        and all(type(width) is int and 1 < width <= WIDEST for width in (inner, columns))
        and (meta.dtype in DTYPES or all(operand.dtype in DTYPES for operand in operands))
        and fills(*map(hint, meta.shape))
    )


# ---- rewriting
def _from_kept(kept: list[Node], call: Callable[..., Node]) -> Node:
    """The result, made by calls of what is kept of it."""
    *steps, x = kept
    for before, node in reversed(list(zip(steps, [*steps[1:], x]))):
        if node.target is aten.permute.default:
            order = [d % len(node.args[1]) for d in node.args[1]]
            x = call(aten.permute.default, x, [order.index(dim) for dim in range(len(order))])
        elif before.meta["val"].shape != node.meta["val"].shape:
            x = call(
                aten.view.default,
                call(aten.clone.default, x, memory_format=torch.contiguous_format),
                list(before.meta["val"].shape),
            )
    return x


def _replace(aten_graph: AtenGraph, found: Attention, tag: str) -> None:
    graph = aten_graph.graph
    if is_returned(found.result):  # (the caller's, who may change it)
        with graph.inserting_after(found.result):
            given = call_like(graph, found.result, aten.clone.default, found.result)
        found.result.replace_all_uses_with(given, is_output)
    with graph.inserting_after(found.sums):
        log = call_like(graph, found.sums, aten.log.default, found.sums)
    with graph.inserting_after(log):
        logarithm = call_like(graph, found.sums, aten.add.Tensor, found.top, log)
    kept = found.kept()
    for before, n in zip(kept, kept[1:]):
        before.append(n)  # (a copy that is the graph's result came last)
    position = {node: k for k, node in enumerate(graph.nodes)}
    with graph.inserting_after(
        max(
            (
                found.grad,
                *kept,
                logarithm,
                *found.again,
                *([found.dropout.mask or found.dropout.factor] if found.dropout else []),
            ),
            key=position.__getitem__,
        )
    ):
        anchor = graph.call_function(aten.alias.default, (found.grad,))  # (what follows comes in order, before it)
    with graph.inserting_before(anchor):

        def again(op: Any, *args: Any, **kwargs: Any) -> Node:
            node = call_like(graph, found.p, op, *args, **kwargs)
            node.meta = {**node.meta, "checkpoint": tag, "apart": tag}
            return node

        result = again(aten._to_copy.default, _from_kept(kept, again), dtype=torch.float32)
        total = call_like(
            graph,
            found.total,
            aten.mul.Tensor,
            call_like(graph, found.total, aten._to_copy.default, found.grad, dtype=torch.float32),
            result,
        )
        total = call_like(graph, found.total, aten.sum.dim_IntList, total, [2], True)
        total = call_like(graph, found.total, aten.view.default, total, list(found.total.meta["val"].shape))
        new: dict[Node, Node] = {}

        def copied(node: Node) -> None:
            if node not in new:
                new[node] = graph.node_copy(node, lambda x: new.get(x, x))
                new[node].meta = {**node.meta, "checkpoint": tag, "apart": tag}

        for n in found.again:
            copied(n)
        new[found.p] = again(aten.exp.default, again(aten.sub.Tensor, new[found.score], logarithm))
        if found.dropout is not None:  # (by the mask that was drawn)
            dropout = found.dropout
            scale = (
                dropout.factor
                if dropout.factor is not None
                else again(
                    aten.mul.Tensor, again(aten._to_copy.default, dropout.mask, dtype=torch.float32), dropout.scale
                )
            )
            new[dropout.dropped] = again(
                aten._to_copy.default,
                again(aten.mul.Tensor, new[found.p], scale),
                dtype=dropout.dropped.meta["val"].dtype,
            )
        for _, path in found.late + found.late_dropped:
            for n in path:
                copied(n)
    graph.erase_node(anchor)
    ends = [(path or [found.p])[-1] for _, path in found.late] + [
        (path or [found.dropout and found.dropout.dropped])[-1] for _, path in found.late_dropped
    ]
    for n in ends + found.again:
        for reader in [user for user in n.users if user in found.after]:
            reader.replace_input_with(n, new[n])
    with graph.inserting_before(found.gradient):  # one product of a tile less than autograd's p * dp - p * total
        less = call_like(graph, found.gradient, aten.sub.Tensor, found.dp, total)
        found.gradient.replace_all_uses_with(
            call_like(
                graph,
                found.gradient,
                aten.mul.Tensor,
                next(arg for arg in found.total.args[0].args if arg is not found.dp),
                less,
            )
        )
