"""Parts of graphs as graphs of their own: what a kernel computes, what leads to one value."""

from __future__ import annotations

import operator
from typing import Any, Iterable

import torch
import torch.fx
from torch.fx.node import map_aggregate

from ..base.fx_nodes import is_call, is_constant, is_input, is_output
from ..errors import ReproduceError
from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta
from ..symbolic.expr import Expr
from .specs import InputSpec, spec_of

__all__ = ["captured_part", "aten_part", "ancestors"]

aten = torch.ops.aten


def captured_part(module: torch.fx.GraphModule, specs: list[InputSpec]) -> tuple[torch.fx.Graph, list[InputSpec]]:
    """A captured graph whose tensors are all inputs: `get_attr` nodes become placeholders behind the others."""
    graph, new, kept = torch.fx.Graph(), {}, list(specs)
    for node in module.graph.nodes:
        if is_input(node):
            new[node] = graph.placeholder(node.name)
    for node in module.graph.nodes:
        if is_constant(node):
            value: Any = module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            if not isinstance(value, torch.Tensor):
                raise ReproduceError(f"the graph holds a graph of its own ({node.target}), which a file can't hold yet")
            new[node] = graph.placeholder(node.name)
            kept.append(spec_of(node.name, value, statistics=True))
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "get_attr"):
            new[node] = graph.node_copy(node, new.__getitem__)
    return graph, kept


def ancestors(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """The operations that the values of `nodes` come from, and themselves."""
    seen: set[torch.fx.Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if is_call(node) and node not in seen:
            seen.add(node)
            todo += node.all_input_nodes
    return seen


def aten_part(
    whole: AtenGraph, inside: set[torch.fx.Node], results: list[torch.fx.Node], known: dict[int, InputSpec]
) -> tuple[torch.fx.Graph, list[InputSpec]]:
    """The nodes `inside` as a graph that gives `results`. What they read from elsewhere are its inputs. `known`: what
    is known of the whole graph's inputs, by index."""
    sizes = whole.env.hints if whole.env is not None else {}
    inside = set(inside)
    todo = list(inside)
    while todo:  # an input is one tensor, not several
        for node in todo.pop().all_input_nodes:
            if isinstance(node.meta.get("val"), (tuple, list)) and node not in inside:
                inside.add(node)
                todo.append(node)
    for node in whole.graph.nodes:  # parts of several results are taken out where these are computed
        if node.target is operator.getitem and node.args[0] in inside:
            inside.add(node)
    places = {placeholder: i for i, placeholder in enumerate(whole.placeholders)}
    graph, new, specs = torch.fx.Graph(), {}, []
    for node in whole.graph.nodes:
        if node in inside or is_output(node) or not any(user in inside for user in node.users) and node not in results:
            continue
        new[node] = graph.placeholder(node.name)
        spec = known.get(places.get(node, -1))
        if spec is None and is_constant(node):
            spec = spec_of(node.name, whole.constants[str(node.target)], statistics=True)
        specs.append(spec or _spec(node, sizes))
    for node in whole.graph.nodes:
        if node in inside:
            copy = new[node] = graph.node_copy(node, new.__getitem__)
            copy.args = map_aggregate(copy.args, lambda v: _number(v, sizes))  # type: ignore[assignment]
            copy.kwargs = map_aggregate(copy.kwargs, lambda v: _number(v, sizes))  # type: ignore[assignment]
            if node.target is aten.view.default:  # (in such a graph it is a reshape: no layout is promised)
                copy.target = aten.reshape.default
    graph.output(tuple(new[result] for result in results))
    return graph, specs


def _number(value: Any, sizes: dict[str, int]) -> Any:
    return value.eval(sizes) if isinstance(value, Expr) else value


def _spec(node: torch.fx.Node, sizes: dict[str, int]) -> InputSpec:
    val = node.meta.get("val")
    if isinstance(val, TensorMeta):
        shape, stride = (tuple(int(_number(x, sizes)) for x in xs) for xs in (val.shape, val.stride))
        spec = InputSpec(node.name, shape=shape, stride=stride, dtype=val.dtype, device=str(val.device))
        return spec
    if isinstance(val, (int, float, Expr)):
        return InputSpec(node.name, is_tensor=False, value=_number(val, sizes))
    return InputSpec(node.name, refused=f"nothing is known of the value {node.name}")
