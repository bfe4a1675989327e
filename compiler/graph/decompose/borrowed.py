"""Decompositions that torch itself has, run on tensors without data and recorded like any other code.

torch's own table serves several compilers. Most of its entries round, lay out or promote in other ways than the eager
kernel does. Listed here are those that the table of operators (tests/ops) showed to be right, and that run no slower
than eager's kernel. (Resampling, reflecting pads and the like are right, too, but gather element by element what eager
copies in whole rows.)"""

from __future__ import annotations

import operator
from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode

from ...base.fx_nodes import is_call, is_constant
from ...symbolic.expr import Expr
from ..traced_calls import trace_call
from ..fallback import taken_apart
from ..functionalize import Functionalizer
from ..meta.core import TensorMeta, state
from ..tensor import from_meta, recording
from .table import TABLE, Builder, Node

__all__ = ["BORROWED"]

aten = torch.ops.aten

BORROWED = """
    _chunk_cat _euclidean_dist _softmax_backward_data _unsafe_masked_index _unsafe_masked_index_put_accumulate addmv
    addr binary_cross_entropy_with_logits block_diag channel_shuffle deg2rad diag_embed dist dot heaviside
    linalg_cross linspace.Tensor_Scalar linspace.Tensor_Tensor logaddexp2 logspace.Scalar_Tensor
    logspace.Tensor_Scalar logspace.Tensor_Tensor logspace multi_margin_loss
    multilabel_margin_loss_forward mv mvlgamma narrow_copy native_dropout_backward polar rad2deg sinc soft_margin_loss
    special_entr special_xlog1py trace unfold_copy unfold_backward vdot""".split()


def _borrow(op: Any, function: Callable) -> Callable[..., Any]:
    def decompose(builder: Builder, *args: Any, **kwargs: Any) -> Any:
        return _record(builder, op, function, args, kwargs)

    return decompose


def _record(builder: Builder, op: Any, function: Callable, args: tuple, kwargs: dict) -> Any:
    """Run torch's function on stand-ins of the nodes, and write what it did through the builder."""
    functionalizer = Functionalizer(state.env)
    nodes: list[Node] = []

    def stand_in(x: Any) -> Any:
        if isinstance(x, Node):
            val = x.meta["val"]
            if not isinstance(val, TensorMeta):
                return _public(val)
            t = from_meta(val.replace(requires_grad=False), state.env)
            functionalizer.add_input(f"arg{len(nodes)}", t, len(nodes))
            nodes.append(x)
            return t
        if isinstance(x, (list, tuple)):
            return [stand_in(y) for y in x]
        return _public(x)

    targs = [stand_in(x) for x in args]
    tkwargs = {name: stand_in(value) for name, value in kwargs.items()}
    with recording(functionalizer), torch.no_grad(), _Factories():
        out = function(*targs, **tkwargs)
    if out is NotImplemented:
        return NotImplemented
    single = isinstance(out, torch.Tensor)
    sub = functionalizer.finish((out,) if single else tuple(out), [], "borrowed")
    if any(spec.kind not in ("buffer", "const", "view", "input") for spec in sub.plan) or any(
        constant.ndim for constant in sub.constants.values()
    ):
        return NotImplemented  # (a table of numbers: torch's kernel does better)
    new: dict[Node, Any] = dict(zip(sub.placeholders, nodes))

    def arg(x: Any) -> Any:
        if isinstance(x, Node):
            return new[x]
        return [arg(y) for y in x] if isinstance(x, (list, tuple)) else x

    for node in sub.graph.nodes:
        if is_constant(node):
            tensor = sub.constants[node.target]
            new[node] = builder.full((), tensor.item(), tensor.dtype, tensor.device)
        elif is_call(node):
            if node.target is operator.getitem:
                new[node] = new[node.args[0]][node.args[1]]
                continue
            r = builder.call(
                node.target, *[arg(x) for x in node.args], **{name: arg(value) for name, value in node.kwargs.items()}
            )
            new[node] = r
    got = [_result(builder, output, new, nodes) for output in sub.outputs]
    return got[0] if single else tuple(got)


def _result(builder: Builder, output: Any, new: dict[Node, Any], nodes: list[Node]) -> Any:
    """A result as a node; views of what was computed or of an argument are views of their nodes."""
    if output.kind == "const":
        return output.value
    if output.kind == "input":
        return nodes[output.value]
    if output.kind == "buffer":
        return new[output.value]
    base, shape, stride, offset = output.value
    if isinstance(base, int):
        x, laid_out = nodes[base], nodes[base].meta["val"]
    else:
        x, laid_out = new[base], base.meta["val"]
    if x.meta["val"].stride != laid_out.stride:
        x = builder.emit(aten.clone.default, x, val=laid_out)
    val = TensorMeta(tuple(shape), tuple(stride), laid_out.dtype, laid_out.device)
    return builder.emit(aten.as_strided.default, x, list(shape), list(stride), offset, val=val)


def _public(x: Any) -> Any:
    return state.env.wrap(x) if isinstance(x, Expr) and state.env is not None else x


class _Factories(TorchFunctionMode):
    """Tensors made from nothing are stand-ins too."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return trace_call(func, args, kwargs or {})


def _fill() -> None:
    known = torch._decomp.decomposition_table
    for name in BORROWED:
        packet, _, overload = name.partition(".")
        p = getattr(torch.ops.aten, packet, None)
        op = getattr(p, overload or "default", None) if p is not None else None
        if op in known and op not in TABLE:
            TABLE[op] = _borrow(op, known[op])
            taken_apart.add(op)


_fill()
