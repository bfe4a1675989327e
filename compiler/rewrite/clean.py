"""Passes that remove: dead code, repeated subexpressions, operators that do nothing, chains of views."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
import torch.fx

from ..ops.collectives import communicates
from ..ops.raising import node_may_raise
from ..symbolic.expr import Expr
from ..graph.aten import AtenGraph
from ..graph.meta import views_meta
from ..graph.meta.core import TensorMeta
from ..graph.opinfo import op_info
from ..ops.closed_set import POINTWISE, VIEWS, extern_reason, is_extern, rows_read, takes_any_layout

__all__ = ["dead_code", "common_subexpressions", "no_ops", "view_chains"]

aten = torch.ops.aten
Node = torch.fx.Node


def has_effect(n: Node) -> bool:
    """Random operators move the generator's state, other processes wait for a collective, and operators without a
    result are there to raise (_linalg_check_errors, _assert_async): they run even where nobody reads the result."""
    return isinstance(n.target, torch._ops.OpOverload) and (
        op_info(n.target).random or not op_info(n.target).n_results or communicates(n.target)
    )


def dead_code(a: AtenGraph) -> None:
    """Remove operators whose results nobody reads, but for those that may raise: eager raises all the same."""
    for n in reversed(list(a.graph.nodes)):
        if n.op in ("call_function", "get_attr") and not n.users and not has_effect(n) and not node_may_raise(n):
            a.graph.erase_node(n)
            if n.op == "get_attr" and not a.graph.find_nodes(op="get_attr", target=n.target):
                a.constants.pop(n.target, None)


def _key(x: Any) -> Any:
    """A hashable that tells arguments apart: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    c = x.__class__
    if c is Node or c is Expr:
        return x
    if c is list or c is tuple:
        return (list, *map(_key, x))
    if c is float:
        return (float, x.hex())
    if c is complex:
        return (complex, x.real.hex(), x.imag.hex())
    if isinstance(x, list):
        return (list, *map(_key, x))
    return (c, x)


def common_subexpressions(a: AtenGraph) -> None:
    """Compute equal expressions once. Results stay apart: each is a tensor of its own to the caller; and so does what a
    custom backward computes anew (`graph/higher_order.py`)."""
    seen: dict[Any, Node] = {}
    results = set(a.results)
    for n in list(a.graph.nodes):
        if n.op not in ("call_function", "get_attr") or n in results or has_effect(n):
            continue
        val = n.meta.get("val")
        laid_out = n.target is aten.clone.default or any(
            has_effect(u) for u in n.users
        )  # random numbers are drawn in memory's order
        strides = val.stride if isinstance(val, TensorMeta) and laid_out else None
        try:
            k = (
                n.op,
                n.target,
                _key(n.args),
                tuple((m, _key(v)) for m, v in sorted(n.kwargs.items())),
                strides,
                n.meta.get("apart"),
                n.meta.get("unwritten"),  # (an operator that writes it need not be given what is in there)
            )
            first = seen.setdefault(k, n)
        except TypeError:  # an argument that cannot be hashed: leave the node
            continue
        if first is not n:
            n.replace_all_uses_with(first)
            a.graph.erase_node(n)


def no_ops(a: AtenGraph) -> None:
    """Remove casts to the same dtype, views of the same shape, x*1, x+0 on integers and the like, and casts that undo a
    widening cast."""
    results = set(a.results)
    for n in list(a.calls()):
        if n in results or not n.users:
            continue
        to = _equivalent(n)
        if (
            to is not None
            and to.meta["val"].shape == n.meta["val"].shape
            and to.meta["val"].dtype == n.meta["val"].dtype
        ):
            n.replace_all_uses_with(to)
            a.graph.erase_node(n)


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


def _equivalent(n: Node) -> Node | None:
    t, args = n.target, n.args
    x = args[0] if args and isinstance(args[0], Node) else None
    if x is None or not isinstance(x.meta.get("val"), TensorMeta) or not isinstance(n.meta.get("val"), TensorMeta):
        return None
    m = x.meta["val"]
    if t is aten._to_copy.default and not n.kwargs.keys() - {"dtype"}:
        if n.kwargs["dtype"] == m.dtype:
            return x
        if x.target is aten._to_copy.default and "device" not in x.kwargs:
            src = x.args[0].meta["val"].dtype
            if n.kwargs["dtype"] == src and (src, m.dtype) in _EXACT:
                return x.args[0]
        return None
    if t is aten.clone.default:
        return None if _layout_matters(n, x) else x
    if t in (aten.view.default, aten.expand.default) and n.meta["val"].shape == m.shape:
        return x
    if t in (aten.mul.Tensor, aten.div.Tensor) and _is_number(args[1], 1):
        return x
    if (
        t in (aten.add.Tensor, aten.sub.Tensor)
        and _is_number(args[1], 0)
        and not (m.dtype.is_floating_point or m.dtype.is_complex)
    ):
        return x  # for floats -0.0 + 0 is 0.0
    if t is aten.sub.Tensor and not n.kwargs and _is_zero(args[1]):
        return x
    return None


def _layout_matters(n: Node, x: Node) -> bool:
    """Whether somebody reads the memory of `n`, a copy of `x`, as it is laid out. Strides of intermediate values are
    free, with exceptions: as_strided; random operators, whose numbers are drawn in the order of memory (but attention
    draws for each score, wherever its operands lie); operators that may take contiguous operands for granted; and
    those that read rows, where the copy is what put its rows in one piece. These get what eager gives them."""
    m, copy = x.meta["val"], n.meta["val"]
    makes_rows = m.ndim > 0 and m.shape[-1] != 1 and m.stride[-1] != copy.stride[-1]
    todo, seen = [(n, u) for u in n.users], set()
    while todo:
        operand, u = todo.pop()
        if (operand, u) in seen:
            continue
        seen.add((operand, u))
        if u.target is aten.as_strided.default:
            return True
        if u.op != "call_function" or u.target is operator.getitem:
            continue
        if u.target in VIEWS or makes_rows and u.target in POINTWISE:  # (both pass on how their operand lies)
            todo += [(u, v) for v in u.users]
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
    if isinstance(x, Node) and x.target is aten.full.default:
        x = x.args[1]
    return _is_number(x, 0) and math.copysign(1, x) > 0


def _is_number(x: Any, value: int) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool) and x == value


def view_chains(a: AtenGraph) -> None:
    """view of view is one view; permute of permute is one permute."""
    for n in list(a.calls()):
        x = n.args[0] if n.args and isinstance(n.args[0], Node) else None
        if x is None or x.op != "call_function" or x.target is not n.target:
            continue
        if n.target is aten.view.default:
            m = x.args[0].meta["val"]
            if views_meta.view_strides(m.shape, m.stride, n.meta["val"].shape) is not None:
                n.args = (x.args[0], n.args[1])
        elif n.target is aten.permute.default:
            order = [x.args[1][d] for d in n.args[1]]
            n.args = (x.args[0], order)
    for n in list(a.graph.nodes):
        if n.target is aten.permute.default and list(n.args[1]) == list(range(len(n.args[1]))) and n not in a.results:
            n.replace_all_uses_with(n.args[0])
