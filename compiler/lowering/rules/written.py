"""Calls of operators that write their arguments, by their functional forms (ops/functional_forms.py).

The operator itself is called, on memory of the plan that holds what the argument held: the memory plan gives it the
argument's own memory where nobody reads that again (fusion/memory/).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ...ops.functional_forms import Form, form_of
from ..context import Lowering
from ..rule_table import rule
from ..buffer_strides import strides_of
from ..lowered import Extern, Param
from ..ref import Ref, Scalar, ref_of_buffer, shape_of
from .creation import EMPTY

__all__: list[str] = []

REASON = "an operator of the program's"


@rule(Form, any_dtype=True)
def written(lo: Lowering, node: Any, *args: Any, **kwargs: Any) -> Any:
    form = form_of(node.target)
    assert form is not None
    if form.fresh:
        return lo.extern(node, args, kwargs, REASON)
    given = {**dict(zip(form.names, args)), **kwargs}
    nodes = {**dict(zip(form.names, node.args)), **node.kwargs}
    without_contents = [k for k in form.written if _is_uninitialised(nodes[k])]
    read = {key: _operand(lo, value, nodes[key]) for key, value in given.items() if key not in without_contents}
    val = node.meta["val"]
    metas = val if isinstance(val, (tuple, list)) else (val,)
    outs = [lo.new_buffer(shape_of(meta.shape), meta.dtype, strides_of(meta)) for meta in metas]
    lines = [tuple(x) for x in lo.lines()]
    lo.steps.append(Extern(form.functional, (), read, outs, form.op, form.written, REASON, node.name, lines))
    lo.forget_drawing()  # it may draw random numbers
    results: list[Ref] = [ref_of_buffer(out) for out in outs]
    return tuple(results) if isinstance(val, (tuple, list)) else results[0]


def _operand(lo: Lowering, value: Any, node: Any) -> Any:
    """An argument as a call takes it: a tensor in memory with the strides that it has in eager."""
    if isinstance(value, Scalar):
        return Param(value.name)
    if isinstance(value, Ref):
        return lo.realise(value, strides_of(node.meta["val"]))
    if isinstance(value, (list, tuple)):
        return type(value)(_operand(lo, item, n) for item, n in zip(value, node))
    return value


def _is_uninitialised(x: Any) -> bool:
    """Whether a node's memory has no contents: what is not written of it is anything, in eager too."""
    if torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory:
        return False
    while isinstance(x, torch.fx.Node) and x.target is torch.ops.aten.view.default:
        x = x.args[0]
    if not isinstance(x, torch.fx.Node):
        return False
    filled = x.target is torch.ops.aten.full.default and x.meta.get("unwritten", False)
    return filled or str(x.target) in EMPTY
