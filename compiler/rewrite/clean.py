"""Passes that remove: dead code, repeated subexpressions, operators that do nothing, chains of views."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
import torch.fx

from ..base.fx_nodes import is_call, is_constant
from ..ops.collectives import communicates
from ..ops.raising import node_may_raise
from ..symbolic.expr import Expr
from .pass_nodes import number_of
from ..graph.aten import AtenGraph
from ..graph.meta import views_meta
from ..graph.meta.core import TensorMeta
from ..graph.opinfo import op_info
from ..ops.closed_set import POINTWISE, VIEWS, extern_reason, is_extern, rows_read, takes_any_layout

__all__ = ["dead_code", "common_subexpressions", "no_ops", "view_chains"]

aten = torch.ops.aten
Node = torch.fx.Node


def has_effect(node: Node) -> bool:
    """Random operators move the generator's state, other processes wait for a collective, and operators without a
    result are there to raise (_linalg_check_errors, _assert_async): they run even where nobody reads the result."""
    return isinstance(node.target, torch._ops.OpOverload) and (
        op_info(node.target).random or not op_info(node.target).n_results or communicates(node.target)
    )


def dead_code(aten_graph: AtenGraph) -> None:
    """Remove operators whose results nobody reads, but for those that may raise: eager raises all the same."""
    for node in reversed(list(aten_graph.graph.nodes)):
        if (
            node.op in ("call_function", "get_attr")
            and not node.users
            and not has_effect(node)
            and not node_may_raise(node)
        ):
            aten_graph.graph.erase_node(node)
            if is_constant(node) and not aten_graph.graph.find_nodes(op="get_attr", target=node.target):
                aten_graph.constants.pop(node.target, None)


def _key(x: Any) -> Any:
    """A hashable that tells arguments apart: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    cls = x.__class__
    if cls is Node or cls is Expr:
        return x
    if cls is list or cls is tuple:
        return (list, *map(_key, x))
    if cls is float:
        return (float, x.hex())
    if cls is complex:
        return (complex, x.real.hex(), x.imag.hex())
    if isinstance(x, list):
        return (list, *map(_key, x))
    return (cls, x)


def common_subexpressions(aten_graph: AtenGraph) -> None:
    """Compute equal expressions once. Results stay apart: each is a tensor of its own to the caller; and so does what a
    custom backward computes anew (`graph/higher_order.py`)."""
    seen: dict[Any, Node] = {}
    results = set(aten_graph.results)
    for node in list(aten_graph.graph.nodes):
        if node.op not in ("call_function", "get_attr") or node in results or has_effect(node):
            continue
        val = node.meta.get("val")
        # random numbers are drawn in memory's order
        laid_out = node.target is aten.clone.default or any(has_effect(user) for user in node.users)
        strides = val.stride if isinstance(val, TensorMeta) and laid_out else None
        try:
            k = (
                node.op,
                node.target,
                _key(node.args),
                tuple((name, _key(value)) for name, value in sorted(node.kwargs.items())),
                strides,
                node.meta.get("apart"),
                node.meta.get("unwritten"),  # (an operator that writes it need not be given what is in there)
            )
            first = seen.setdefault(k, node)
        except TypeError:  # an argument that cannot be hashed: leave the node
            continue
        if first is not node:
            node.replace_all_uses_with(first)
            aten_graph.graph.erase_node(node)


def no_ops(aten_graph: AtenGraph) -> None:
    """Remove casts to the same dtype, views of the same shape, x*1, x+0 on integers and the like, and casts that undo a
    widening cast."""
    results = set(aten_graph.results)
    for node in list(aten_graph.calls()):
        if node in results or not node.users:
            continue
        to = _equivalent(node)
        if (
            to is not None
            and to.meta["val"].shape == node.meta["val"].shape
            and to.meta["val"].dtype == node.meta["val"].dtype
        ):
            node.replace_all_uses_with(to)
            aten_graph.graph.erase_node(node)


# every value of the first dtype survives the way to the second and back
_EXACT = {
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
    (torch.float32, torch.float64),
    (torch.bfloat16, torch.float64),
    (torch.float16, torch.float64),
    (torch.int32, torch.int64),
    (torch.bool, torch.int64),
    (torch.bool, torch.float32),
    (torch.uint8, torch.int64),
    (torch.int8, torch.int64),
    (torch.int16, torch.int64),
}


def _equivalent(node: Node) -> Node | None:
    target, args = node.target, node.args
    x = args[0] if args and isinstance(args[0], Node) else None
    if x is None or not isinstance(x.meta.get("val"), TensorMeta) or not isinstance(node.meta.get("val"), TensorMeta):
        return None
    meta = x.meta["val"]
    if target is aten._to_copy.default and not node.kwargs.keys() - {"dtype"}:
        if node.kwargs["dtype"] == meta.dtype:
            return x
        if x.target is aten._to_copy.default and "device" not in x.kwargs:
            src = x.args[0].meta["val"].dtype
            if node.kwargs["dtype"] == src and (src, meta.dtype) in _EXACT:
                return x.args[0]
        return None
    if target is aten.clone.default:
        return None if _layout_matters(node, x) else x
    if target in (aten.view.default, aten.expand.default) and node.meta["val"].shape == meta.shape:
        return x
    if target in (aten.mul.Tensor, aten.div.Tensor) and _is_number(args[1], 1):
        return x
    if (
        target in (aten.add.Tensor, aten.sub.Tensor)
        and _is_number(args[1], 0)
        and not (meta.dtype.is_floating_point or meta.dtype.is_complex)
    ):
        return x  # for floats -0.0 + 0 is 0.0
    if target is aten.sub.Tensor and not node.kwargs and _is_zero(args[1]):
        return x
    return None


def _layout_matters(node: Node, x: Node) -> bool:
    """Whether somebody reads the memory of `node`, a copy of `x`, as it is laid out. Strides of intermediate values are
    free, with exceptions: as_strided; random operators, whose numbers are drawn in the order of memory (but attention
    draws for each score, wherever its operands lie); operators that may take contiguous operands for granted; and
    those that read rows, where the copy is what put its rows in one piece. These get what eager gives them."""
    meta, copy = x.meta["val"], node.meta["val"]
    makes_rows = meta.ndim > 0 and meta.shape[-1] != 1 and meta.stride[-1] != copy.stride[-1]
    todo, seen = [(node, user) for user in node.users], set()
    while todo:
        operand, u = todo.pop()
        if (operand, u) in seen:
            continue
        seen.add((operand, u))
        if u.target is aten.as_strided.default:
            return True
        if not is_call(u) or u.target is operator.getitem:
            continue
        if u.target in VIEWS or makes_rows and u.target in POINTWISE:  # (both pass on how their operand lies)
            todo += [(u, user) for user in u.users]
        elif not is_extern(u):
            if has_effect(u):
                return True
        elif not takes_any_layout(u.target) or makes_rows and operand in rows_read(u):
            return True
        elif has_effect(u) and extern_reason(u.target) != "attention":
            return True
    return False


def _is_zero(x: Any) -> bool:
    """Whether something is 0, or a tensor of zeros; not of -0.0."""
    number = number_of(x)
    return _is_number(number, 0) and math.copysign(1, number) > 0


def _is_number(x: Any, value: int) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and x == value


def view_chains(aten_graph: AtenGraph) -> None:
    """view of view is one view; permute of permute is one permute."""
    for node in list(aten_graph.calls()):
        x = node.args[0] if node.args and isinstance(node.args[0], Node) else None
        if x is None or not is_call(x) or x.target is not node.target:
            continue
        if node.target is aten.view.default:
            meta = x.args[0].meta["val"]
            if views_meta.view_strides(meta.shape, meta.stride, node.meta["val"].shape) is not None:
                node.args = (x.args[0], node.args[1])
        elif node.target is aten.permute.default:
            order = [x.args[1][dim] for dim in node.args[1]]
            node.args = (x.args[0], order)
    for node in list(aten_graph.graph.nodes):
        if (
            node.target is aten.permute.default
            and list(node.args[1]) == list(range(len(node.args[1])))
            and node not in aten_graph.results
        ):
            node.replace_all_uses_with(node.args[0])
