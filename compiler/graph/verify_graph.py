"""The verifier of the graph stage's output."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from ..base.fx_nodes import is_call, is_constant, is_input, is_output
from ..errors import VerifyError
from ..symbolic.expr import Expr
from .aten import AtenGraph
from .meta.core import TensorMeta
from ..ops.closed_set import OPSET, gives_views

__all__ = ["verify"]

aten = torch.ops.aten


def _fail(node: Any, what: str) -> None:
    raise VerifyError(f"graph stage: {node}: {what}")


def verify(aten_graph: AtenGraph) -> None:
    """Functional operators only, metadata everywhere, topological order, results fresh. Raises VerifyError naming the
    node.
    """
    seen: set[torch.fx.Node] = set()
    placeholders = aten_graph.graph.find_nodes(op="placeholder")
    if aten_graph.inputs and len(placeholders) != len(aten_graph.inputs):
        _fail("inputs", f"{len(placeholders)} placeholders for {len(aten_graph.inputs)} inputs")
    for node in aten_graph.graph.nodes:
        for i in node.all_input_nodes:
            if i not in seen:
                _fail(node, f"uses {i} before it is made")
        seen.add(node)
        if is_output(node):
            continue
        val = node.meta.get("val")
        if val is None and not is_input(node):
            _fail(node, "has no metadata (meta['val'])")
        if is_constant(node) and node.target not in aten_graph.constants:
            _fail(node, f"names the constant {node.target!r}, which is not kept")
        if is_call(node):
            _check_call(node, val)
        elif node.op not in ("placeholder", "get_attr"):
            _fail(node, f"{node.op} nodes do not belong in an aten graph")
    _check_results(aten_graph)


def _check_call(node: torch.fx.Node, val: Any) -> None:
    target = node.target
    if target is operator.getitem:
        if not isinstance(node.args[0].meta["val"], tuple) or not 0 <= node.args[1] < len(node.args[0].meta["val"]):
            _fail(node, "getitem of a node without that many results")
        return
    if not isinstance(target, torch._ops.OpOverload):
        _fail(node, f"target {target!r} is not an operator of torch")
    if any(arg.alias_info is not None and arg.alias_info.is_write for arg in target._schema.arguments):
        _fail(node, f"{target} writes its arguments")
    if target not in OPSET and gives_views(target):
        _fail(node, f"{target} is a view that is not in the closed set")
    for meta in val if isinstance(val, tuple) else (val,):
        if isinstance(meta, TensorMeta):
            if len(meta.shape) != len(meta.stride):
                _fail(node, f"{len(meta.shape)} sizes but {len(meta.stride)} strides")
            if any(not isinstance(s, (int, Expr)) for s in (*meta.shape, *meta.stride)):
                _fail(node, f"sizes and strides must be ints or Exprs, got {meta.shape}, {meta.stride}")
    _check_args(node, node.args)


def _check_args(node: torch.fx.Node, x: Any) -> None:
    if isinstance(x, (list, tuple)):
        for y in x:
            _check_args(node, y)
    elif isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool, torch.Tensor)):
        _fail(node, f"holds {type(x).__name__} as an argument")


def _check_results(aten_graph: AtenGraph) -> None:
    results = aten_graph.results
    for spec in aten_graph.plan:
        if spec.kind == "buffer" or spec.kind == "view" and spec.value[0] == "node":
            slot = spec.value if spec.kind == "buffer" else spec.value[1]
            node = results[slot]
            if not is_call(node):
                _fail(node, "is handed out as a fresh tensor but is an input or a constant")
            if gives_views(node.target):
                _fail(node, f"is handed out as a fresh tensor but is a view ({node.target})")
            if spec.kind == "buffer":
                meta = node.meta["val"]
                if (meta.shape, meta.stride, meta.dtype) != (spec.meta.shape, spec.meta.stride, spec.meta.dtype):
                    _fail(
                        node,
                        f"output is {meta} with strides {meta.stride}, eager gives {spec.meta} with {spec.meta.stride}",
                    )
