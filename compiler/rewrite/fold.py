"""Constant folding: operators whose operands are small constants are computed now."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.fx.node import map_arg

from ..symbolic.expr import Expr
from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta, numel
from .clean import has_effect
from .pass_nodes import holds_symbols

__all__ = ["constant_folding"]

aten = torch.ops.aten
Node = torch.fx.Node
_NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)
LIMIT = 4096  # elements; larger results would bloat the entry


def constant_folding(a: AtenGraph) -> None:
    """Numbers: what stays a scalar fill becomes another fill. Tensors: operators on kept constants run once, now."""
    _numbers(a)
    _fold_fills(a)
    _fold_constants(a)


def _numbers(a: AtenGraph) -> None:
    """Kept tensors of one number (torch's composite operators make them) as numbers, where element-wise operators read
    them: equal ones then are one."""
    results = set(a.results)
    for n in a.graph.find_nodes(op="get_attr"):
        if n.target not in a.constants or n.target.startswith("kept") or n in results:
            continue
        t = a.constants[n.target]
        if (
            t.ndim
            or t.is_complex()
            or t.requires_grad
            or t.dtype not in _NUMBERS
            or not all(
                isinstance(u.target, torch._ops.OpOverload) and torch.Tag.pointwise in u.target.tags for u in n.users
            )
        ):
            continue
        with a.graph.inserting_before(n):
            m = a.graph.create_node(
                "call_function", aten.full.default, ([], t.item()), {"dtype": t.dtype, "device": t.device}, name=n.name
            )
        m.meta.update(n.meta)
        n.replace_all_uses_with(m)
        a.graph.erase_node(n)
        if not a.graph.find_nodes(op="get_attr", target=n.target):
            a.constants.pop(n.target, None)


def _fill_value(x: Any) -> Any:
    """The number that a node fills its tensor with; None if it is not a fill."""
    if isinstance(x, Node) and x.target is aten.full.default and not isinstance(x.args[1], (Node, Expr)):
        return x.args[1]
    return None


def _fold_fills(a: AtenGraph) -> None:
    results = set(a.results)
    for n in list(a.calls()):
        if n in results:
            continue
        val = n.meta.get("val")
        if not isinstance(val, TensorMeta):
            continue
        v = _fill_value(n.args[0]) if n.args else None
        if v is None:
            continue
        if n.target in (
            aten.expand.default,
            aten.view.default,
            aten.permute.default,
            aten.slice.Tensor,
            aten.select.int,
            aten.squeeze.dims,
            aten.unsqueeze.default,
            aten.clone.default,
        ):
            new = v
        elif n.target is aten._to_copy.default and "device" not in n.kwargs:
            new = torch.tensor(v, dtype=n.args[0].meta["val"].dtype).to(val.dtype).item()
        else:
            continue
        with a.graph.inserting_before(n):
            m = a.graph.create_node(
                "call_function",
                aten.full.default,
                (list(val.shape), new),
                {"dtype": val.dtype, "device": val.device},
                name=n.name,
            )
        m.meta.update(n.meta)
        m.meta["val"] = TensorMeta(
            val.shape,
            n.args[0].meta["val"].stride if val.shape == n.args[0].meta["val"].shape else val.stride,
            val.dtype,
            val.device,
        )
        n.replace_all_uses_with(m)
        a.graph.erase_node(n)


def _fold_constants(a: AtenGraph) -> None:
    known: dict[Node, torch.Tensor] = {
        n: a.constants[n.target]
        for n in a.graph.find_nodes(op="get_attr")
        if n.target in a.constants and not n.target.startswith("kept")
    }
    if not known:
        return
    results = set(a.results)
    for n in list(a.calls()):
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
                r = _run(n, known)
        except (RuntimeError, TypeError):  # the kernel refuses: it will say so when the graph runs
            continue
        if tuple(r.shape) != val.shape or r.dtype != val.dtype:
            continue
        name = f"folded{len(a.constants)}_{n.name}"
        with a.graph.inserting_before(n):
            m = a.graph.create_node("get_attr", name, (), {}, name=name)
        m.meta.update(n.meta)
        m.meta["val"] = TensorMeta(val.shape, tuple(r.stride()), val.dtype, val.device)
        a.constants[name] = r
        known[m] = r
        n.replace_all_uses_with(m)
        a.graph.erase_node(n)


def _run(n: Node, known: dict[Node, torch.Tensor]) -> torch.Tensor:
    args, kwargs = map_arg(n.args, known.__getitem__), map_arg(n.kwargs, known.__getitem__)
    return n.target(*args, **kwargs).clone()
