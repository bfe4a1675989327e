"""Constant folding: operators whose operands are small constants are computed now."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.fx.node import map_arg

from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta, numel
from .clean import has_effect
from .pass_nodes import holds_symbols, number_of

__all__ = ["constant_folding"]

aten = torch.ops.aten
Node = torch.fx.Node
_NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)
LIMIT = 4096  # elements; larger results would bloat the entry


def constant_folding(aten_graph: AtenGraph) -> None:
    """Numbers: what stays a scalar fill becomes another fill. Tensors: operators on kept constants run once, now."""
    _numbers(aten_graph)
    _fold_fills(aten_graph)
    _fold_constants(aten_graph)


def _numbers(aten_graph: AtenGraph) -> None:
    """Kept tensors of one number (torch's composite operators make them) as numbers, where element-wise operators read
    them: equal ones then are one."""
    results = set(aten_graph.results)
    for node in aten_graph.graph.find_nodes(op="get_attr"):
        if node.target not in aten_graph.constants or node.target.startswith("kept") or node in results:
            continue
        tensor = aten_graph.constants[node.target]
        if (
            tensor.ndim
            or tensor.is_complex()
            or tensor.requires_grad
            or tensor.dtype not in _NUMBERS
            or not all(
                isinstance(user.target, torch._ops.OpOverload) and torch.Tag.pointwise in user.target.tags
                for user in node.users
            )
        ):
            continue
        _becomes_fill(aten_graph, node, [], tensor.item(), tensor)
        if not aten_graph.graph.find_nodes(op="get_attr", target=node.target):
            aten_graph.constants.pop(node.target, None)


def _becomes_fill(aten_graph: AtenGraph, node: Node, shape: Any, number: Any, val: Any) -> Node:
    """A node's place is taken by a tensor of one number, under its name."""
    with aten_graph.graph.inserting_before(node):
        made = aten_graph.graph.create_node(
            "call_function",
            aten.full.default,
            (list(shape), number),
            {"dtype": val.dtype, "device": val.device},
            name=node.name,
        )
    made.meta.update(node.meta)
    node.replace_all_uses_with(made)
    aten_graph.graph.erase_node(node)
    return made


def _fold_fills(aten_graph: AtenGraph) -> None:
    results = set(aten_graph.results)
    for node in list(aten_graph.calls()):
        if node in results:
            continue
        val = node.meta.get("val")
        if not isinstance(val, TensorMeta):
            continue
        value = number_of(node.args[0]) if node.args and isinstance(node.args[0], Node) else None
        if value is None:
            continue
        if (number := _number_on_cpu(node, val)) is not None:
            _becomes_fill(aten_graph, node, [], number, val)
            continue
        if node.target in (
            aten.expand.default,
            aten.view.default,
            aten.permute.default,
            aten.slice.Tensor,
            aten.select.int,
            aten.squeeze.dims,
            aten.unsqueeze.default,
            aten.clone.default,
        ):
            new = value
        elif node.target is aten._to_copy.default and "device" not in node.kwargs:
            new = torch.tensor(value, dtype=node.args[0].meta["val"].dtype).to(val.dtype).item()
        else:
            continue
        source = node.args[0].meta["val"]
        stride = source.stride if val.shape == source.shape else val.stride
        fill = _becomes_fill(aten_graph, node, val.shape, new, val)
        fill.meta["val"] = TensorMeta(val.shape, stride, val.dtype, val.device)


def _number_on_cpu(node: Node, val: TensorMeta) -> Any:
    """What an element-wise operator makes of numbers on the CPU, as eager does; None of anything else. (Models scale by
    the square root of a width that they made a tensor.)"""
    numbers = {i: number_of(i) for i in node.all_input_nodes}
    element_wise = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
    if (
        not element_wise
        or val.shape
        or val.dtype not in _NUMBERS
        or val.device.type != "cpu"
        or any(number is None or i.meta["val"].shape for i, number in numbers.items())
        or holds_symbols(node.args)
        or has_effect(node)
    ):
        return None
    known = {i: torch.tensor(number, dtype=i.meta["val"].dtype) for i, number in numbers.items()}
    result = _run(node, known)
    return result.item() if result.dtype == val.dtype and not result.ndim else None


def _fold_constants(aten_graph: AtenGraph) -> None:
    known: dict[Node, torch.Tensor] = {
        node: aten_graph.constants[node.target]
        for node in aten_graph.graph.find_nodes(op="get_attr")
        if node.target in aten_graph.constants and not node.target.startswith("kept")
    }
    if not known:
        return
    results = set(aten_graph.results)
    for n in list(aten_graph.calls()):
        if not isinstance(n.target, torch._ops.OpOverload) or has_effect(n):
            continue
        val = n.meta.get("val")
        inputs = n.all_input_nodes
        if not inputs or not isinstance(val, TensorMeta) or not all(i in known for i in inputs):
            continue
        size = numel(val.shape)
        if not isinstance(size, int) or size > LIMIT or n in results or holds_symbols(n.args):
            continue
        try:
            with torch.no_grad():
                result = _run(n, known)
        except (RuntimeError, TypeError):  # the kernel refuses: it will say so when the graph runs
            continue
        if tuple(result.shape) != val.shape or result.dtype != val.dtype:
            continue
        name = f"folded{len(aten_graph.constants)}_{n.name}"
        with aten_graph.graph.inserting_before(n):
            made = aten_graph.graph.create_node("get_attr", name, (), {}, name=name)
        made.meta.update(n.meta)
        made.meta["val"] = TensorMeta(val.shape, tuple(result.stride()), val.dtype, val.device)
        aten_graph.constants[name] = result
        known[made] = result
        n.replace_all_uses_with(made)
        aten_graph.graph.erase_node(n)


def _run(node: Node, known: dict[Node, torch.Tensor]) -> torch.Tensor:
    args, kwargs = map_arg(node.args, known.__getitem__), map_arg(node.kwargs, known.__getitem__)
    return node.target(*args, **kwargs).clone()
