"""Matrix products that read the same matrix become one (CUDA): the query, key and value of an attention, the gate and
the rise of an MLP.

One wide product fills the device where several narrow ones don't, and is one launch. The weights are joined by a kernel
of ours in each call, so that no copy of a parameter can go stale. That costs little beside the products, and `_gain`
says where it pays. Weights that autocast converts in each call are joined by the conversion itself.
"""

from __future__ import annotations


import torch
from torch.fx import Node

from ...base.fx_nodes import is_input
from ...graph.aten import AtenGraph
from ...graph.meta.core import TensorMeta
from ..pass_nodes import call_like

__all__ = ["merge_products"]

aten = torch.ops.aten
LAUNCH_US, NARROW_US = 2.0, 4.0  # a small kernel, a product that does not fill the device
FLOPS, BYTES = 6e8, 3e6  # in a microsecond: of a wide product in half precision, of a copy
NARROW = 0.75  # rate of a product of fewer than WIDE columns, against a wide one's
WIDE = 1536
LEAST_ROWS = 16  # fewer are not a matter of the tensor cores


def merge_products(aten_graph: AtenGraph) -> None:
    if any(placeholder.name.startswith("tangent_") for placeholder in aten_graph.placeholders):
        return  # (a backward pass reads the weights one by one as well)
    together: dict[tuple, list[Node]] = {}
    results = set(aten_graph.results)  # (each is a tensor of its own)
    for node in aten_graph.graph.nodes:
        key = _key(node) if node not in results else None
        if key is not None:
            together.setdefault(key, []).append(node)
    place = {node: i for i, node in enumerate(aten_graph.graph.nodes)}
    for ns in together.values():
        if (
            len(ns) > 1
            and all(_is_early(operand, ns[0], place) for product in ns for operand in _operands(product)[1:])
            and _gain(ns) > 0
        ):
            _merge(aten_graph, ns)


def _operands(node: Node) -> tuple[Node, ...]:
    """(the shared matrix, the weight as it is stored, the bias if any)."""
    x, y = node.args[-2:]
    operand = y.args[0]
    return (x, operand) if node.target is aten.mm.default else (x, operand, node.args[0])


def _key(node: Node) -> tuple | None:
    """What products to be merged have in common; None for anything else than a half precision x @ weight.T (+ bias) on
    a GPU.
    """
    if (
        node.target not in (aten.mm.default, aten.addmm.default)
        or node.kwargs.get("alpha", 1) != 1
        or node.kwargs.get("beta", 1) != 1
    ):
        return None
    x, y = node.args[-2:]
    if (
        not isinstance(y, Node)
        or y.target is not aten.permute.default
        or list(y.args[1]) != [1, 0]
        or not _weight(y.args[0])
    ):
        return None
    m, k = x.meta["val"].shape
    val: TensorMeta = node.meta["val"]
    if (
        not val.on_gpu
        or val.dtype not in (torch.float16, torch.bfloat16)
        or type(k) is not int
        or type(m) is not int
        or m < LEAST_ROWS
    ):
        return None
    if type(val.shape[1]) is not int or val.shape[1] % 8 or k % 8:
        return None
    if node.target is aten.addmm.default:
        bias = node.args[0]
        if not isinstance(bias, Node) or not _weight(bias) or len(bias.meta["val"].shape) != 1:
            return None
    return x, node.target, val.dtype


def _weight(node: Node) -> bool:
    """A parameter, or the conversion of one: nothing that the graph computes."""
    while isinstance(node, Node) and node.target is aten._to_copy.default:
        node = node.args[0]
    return isinstance(node, Node) and is_input(node)


def _is_early(ways: Node, first: Node, place: dict[Node, int]) -> bool:
    return place[ways] < place[first] or ways.target is aten._to_copy.default


def _gain(ns: list[Node]) -> float:
    """Microseconds that one product saves."""
    m, k = ns[0].args[-2].meta["val"].shape
    columns = [node.meta["val"].shape[1] for node in ns]

    def time(c: int) -> float:
        return max(NARROW_US, 2.0 * m * k * c / FLOPS / (1.0 if c >= WIDE else NARROW))

    joined = 2 * 2 * k * sum(columns) / BYTES
    launches = len(ns) - (2 if ns[0].target is aten.mm.default else 3)
    return sum(map(time, columns)) + LAUNCH_US * launches - time(sum(columns)) - joined


def _merge(aten_graph: AtenGraph, ns: list[Node]) -> None:
    graph, first = aten_graph.graph, ns[0]
    rows = [_operands(product) for product in ns]
    with graph.inserting_before(first):
        moved: dict[Node, Node] = {}
        for k in range(1, len(rows[0])):
            for row in rows:
                _bring(graph, row[k], first, moved)
        parts = [[moved.get(r[k], r[k]) for r in rows] for k in range(1, len(rows[0]))]
        weight = call_like(
            aten_graph.graph,
            first,
            aten.permute.default,
            call_like(aten_graph.graph, first, aten.cat.default, parts[0], 0),
            [1, 0],
        )
        x = rows[0][0]
        if len(parts) == 2:
            out = call_like(
                aten_graph.graph,
                first,
                aten.addmm.default,
                call_like(aten_graph.graph, first, aten.cat.default, parts[1], 0),
                x,
                weight,
            )
        else:
            out = call_like(aten_graph.graph, first, aten.mm.default, x, weight)
        at = 0
        pieces = []
        for node in ns:
            c = node.meta["val"].shape[1]
            pieces.append(call_like(aten_graph.graph, node, aten.slice.Tensor, out, 1, at, at + c, 1))
            at += c
    for node, piece in zip(ns, pieces):
        node.replace_all_uses_with(piece)
        y = node.args[-1]
        graph.erase_node(node)
        if not y.users:
            graph.erase_node(y)


def _bring(graph: torch.fx.Graph, node: Node, first: Node, moved: dict[Node, Node]) -> None:
    """Conversions of weights that come after the first product are made before it."""
    if node.target is aten._to_copy.default and node not in moved:
        _bring(graph, node.args[0], first, moved)
        first.prepend(node)
