"""The verifier of the graph stage's output."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from ..errors import VerifyError
from ..symbolic.expr import Expr
from .aten import AtenGraph
from .meta.core import TensorMeta
from ..ops.closed_set import OPSET, gives_views

__all__ = ["verify"]

aten = torch.ops.aten


def _fail(n: Any, what: str) -> None:
    raise VerifyError(f"graph stage: {n}: {what}")


def verify(a: AtenGraph) -> None:
    """Functional operators only, metadata everywhere, topological order, results fresh. Raises VerifyError naming the
    node.
    """
    seen: set[torch.fx.Node] = set()
    placeholders = a.graph.find_nodes(op="placeholder")
    if a.inputs and len(placeholders) != len(a.inputs):
        _fail("inputs", f"{len(placeholders)} placeholders for {len(a.inputs)} inputs")
    for n in a.graph.nodes:
        for i in n.all_input_nodes:
            if i not in seen:
                _fail(n, f"uses {i} before it is made")
        seen.add(n)
        if n.op == "output":
            continue
        val = n.meta.get("val")
        if val is None and n.op != "placeholder":
            _fail(n, "has no metadata (meta['val'])")
        if n.op == "get_attr" and n.target not in a.constants:
            _fail(n, f"names the constant {n.target!r}, which is not kept")
        if n.op == "call_function":
            _check_call(n, val)
        elif n.op not in ("placeholder", "get_attr"):
            _fail(n, f"{n.op} nodes do not belong in an aten graph")
    _check_results(a)


def _check_call(n: torch.fx.Node, val: Any) -> None:
    t = n.target
    if t is operator.getitem:
        if not isinstance(n.args[0].meta["val"], tuple) or not 0 <= n.args[1] < len(n.args[0].meta["val"]):
            _fail(n, "getitem of a node without that many results")
        return
    if not isinstance(t, torch._ops.OpOverload):
        _fail(n, f"target {t!r} is not an operator of torch")
    if any(x.alias_info is not None and x.alias_info.is_write for x in t._schema.arguments):
        _fail(n, f"{t} writes its arguments")
    if t not in OPSET and gives_views(t):
        _fail(n, f"{t} is a view that is not in the closed set")
    for m in val if isinstance(val, tuple) else (val,):
        if isinstance(m, TensorMeta):
            if len(m.shape) != len(m.stride):
                _fail(n, f"{len(m.shape)} sizes but {len(m.stride)} strides")
            if any(not isinstance(s, (int, Expr)) for s in (*m.shape, *m.stride)):
                _fail(n, f"sizes and strides must be ints or Exprs, got {m.shape}, {m.stride}")
    _check_args(n, n.args)


def _check_args(n: torch.fx.Node, x: Any) -> None:
    if isinstance(x, (list, tuple)):
        for y in x:
            _check_args(n, y)
    elif isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool, torch.Tensor)):
        _fail(n, f"holds {type(x).__name__} as an argument")


def _check_results(a: AtenGraph) -> None:
    r = a.results
    for o in a.plan:
        if o.kind == "buffer" or o.kind == "view" and o.value[0] == "node":
            slot = o.value if o.kind == "buffer" else o.value[1]
            n = r[slot]
            if n.op != "call_function":
                _fail(n, "is handed out as a fresh tensor but is an input or a constant")
            if gives_views(n.target):
                _fail(n, f"is handed out as a fresh tensor but is a view ({n.target})")
            if o.kind == "buffer":
                m = n.meta["val"]
                if (m.shape, m.stride, m.dtype) != (o.meta.shape, o.meta.stride, o.meta.dtype):
                    _fail(n, f"output is {m} with strides {m.stride}, eager gives {o.meta} with {o.meta.stride}")
