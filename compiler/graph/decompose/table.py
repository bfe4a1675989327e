"""The decomposition table, and the builder that its functions write with.

A decomposition is a function (b, *args, **kwargs) with the operator's signature after the Builder: fx nodes stand for
tensors, ints and Exprs for sizes. It returns the node (or tuple of nodes, or list) that takes the operator's place, or
NotImplemented to leave it as it is.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, Callable

import torch
import torch.fx

from ...base.fx_nodes import is_call, is_output
from ...base.fx_modules import call_node
from ...ops.closed_set import gives_views
from ...symbolic.expr import Expr
from ..aten import AtenGraph
from ..fallback import meta_by_running
from ..meta import TensorMeta, lookup
from ..meta.core import fix, state

__all__ = ["Builder", "TABLE", "decomposition", "decompose", "dtype_of", "has_no_elements", "shape_of", "short_name"]

aten = torch.ops.aten
Node = torch.fx.Node
TABLE: dict[Any, Callable[..., Any]] = {}


# ---- what decompositions ask of a node
def dtype_of(x: Node) -> torch.dtype:
    return x.meta["val"].dtype


def shape_of(x: Node) -> tuple:
    return x.meta["val"].shape


def has_no_elements(x: Node) -> bool:
    return any(isinstance(s, int) and s == 0 for s in shape_of(x))


def decomposition(*ops: Any) -> Callable[[Callable], Callable]:
    """Register a decomposition for OpOverloads; an OpOverloadPacket stands for all its functional overloads."""

    def put(fn: Callable) -> Callable:
        for op in ops:
            if isinstance(op, torch._ops.OpOverloadPacket):
                for name in op.overloads():
                    overload = getattr(op, name)
                    if not any(
                        arg.alias_info is not None and arg.alias_info.is_write for arg in overload._schema.arguments
                    ):
                        TABLE[overload] = fn
            else:
                TABLE[op] = fn
        return fn

    return put


class Builder:
    """Writes nodes into a graph. `b.call(op, ...)` decomposes further; `b.emit(op, ...)` writes the node itself.

    Short forms for what decompositions need most: b.add(x, y), b.mul, b.sub, b.div, b.cast(x, dtype), b.where(...), ...
    operate on nodes and Python numbers, already of one dtype."""

    def __init__(self, graph: torch.fx.Graph):
        self.graph = graph
        self.where_meta: dict[str, Any] = {}
        # what is zero but for one element in a row -> (the row's dimension, where it is, what it is)
        self.one_hot: dict[Node, tuple[int, Node, Node]] = {}

    def emit(self, op: Any, *args: Any, val: Any = None, **kwargs: Any) -> Node:
        node = call_node(self.graph, "call_function", op, args, kwargs, short_name(op))
        node.meta.update(self.where_meta)
        node.meta["val"] = self.meta(op, args, kwargs) if val is None else val
        return node

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        function = TABLE.get(op)
        if function is not None:
            result = function(self, *args, **kwargs)
            if result is not NotImplemented:
                return result
        node = self.emit(op, *args, **kwargs)
        val = node.meta["val"]
        if isinstance(val, (tuple, list)):
            node.meta["val"] = tuple(val)
            return tuple(self.item(node, i) if isinstance(v, TensorMeta) else None for i, v in enumerate(val))
        return node

    def item(self, node: Node, i: int) -> Node:
        return self.emit(operator.getitem, node, i, val=node.meta["val"][i])

    @staticmethod
    def meta(op: Any, args: tuple, kwargs: dict) -> Any:
        """Metadata of op on nodes."""
        margs, mkw = [_meta(arg) for arg in args], {name: _meta(value) for name, value in kwargs.items()}
        rule = lookup(op)
        return rule(*margs, **mkw) if rule is not None else meta_by_running(op, tuple(margs), mkw)

    # ---- element-wise, on operands of one dtype
    def _binary(self, op: Any, a: Any, b: Any, dtype: torch.dtype | None = None) -> Node:
        if not isinstance(a, Node):
            a = self.full((), a, b.meta["val"].dtype, b.meta["val"].device)
        val = self.meta(op, (a, b), {})
        want = dtype or a.meta["val"].dtype
        return self.emit(op, a, b, val=val if val.dtype is want else val.replace(dtype=want))

    def add(self, a: Any, b: Any) -> Node:
        return self._binary(aten.add.Tensor, *((a, b) if isinstance(a, Node) else (b, a)))

    def mul(self, a: Any, b: Any) -> Node:
        return self._binary(aten.mul.Tensor, *((a, b) if isinstance(a, Node) else (b, a)))

    def sub(self, a: Any, b: Any) -> Node:
        return self._binary(aten.sub.Tensor, a, b)

    def div(self, a: Any, b: Any) -> Node:
        return self._binary(aten.div.Tensor, a, b)

    def pow(self, a: Node, b: float) -> Node:
        return self.emit(aten.pow.Tensor_Scalar, a, b, val=self.meta(aten.neg.default, (a,), {}))

    def compare(self, name: str, a: Node, b: Any) -> Node:
        op = getattr(getattr(aten, name), "Tensor" if isinstance(b, Node) else "Scalar")
        return self._binary(op, a, b, torch.bool)

    def unary(self, name: str, a: Node) -> Node:
        return self.emit(getattr(aten, name).default, a)

    def where(self, cond: Node, a: Any, b: Any) -> Node:
        ref = a if isinstance(a, Node) else b
        dtype, device = ref.meta["val"].dtype, ref.meta["val"].device
        a = a if isinstance(a, Node) else self.full((), a, dtype, device)
        b = b if isinstance(b, Node) else self.full((), b, dtype, device)
        return self.emit(aten.where.self, cond, a, b)

    def full(self, shape: Any, value: Any, dtype: torch.dtype, device: torch.device) -> Node:
        return self.emit(aten.full.default, list(shape), value, dtype=dtype, device=device)

    def iota(self, n: Any, dtype: torch.dtype, device: torch.device, start: Any = 0, step: Any = 1) -> Node:
        end = start + n * step
        val = TensorMeta((n,), (1,), dtype, device)
        return self.emit(aten.arange.start_step, start, end, step, dtype=dtype, device=device, val=val)

    def cast(self, x: Node, dtype: torch.dtype) -> Node:
        meta = x.meta["val"]
        return x if meta.dtype is dtype else self.emit(aten._to_copy.default, x, dtype=dtype)

    # ---- shapes
    def view(self, x: Node, shape: Any) -> Node:
        meta = x.meta["val"]
        shape = list(shape)
        if tuple(shape) == meta.shape:
            return x
        from ..meta.views_meta import contiguous_strides, view_strides

        stride = view_strides(meta.shape, meta.stride, shape)
        if stride is None:
            stride = contiguous_strides(shape)
            x = self.emit(aten.clone.default, x, memory_format=torch.contiguous_format)
        return self.emit(aten.view.default, x, shape, val=TensorMeta(tuple(shape), stride, meta.dtype, meta.device))

    def expand(self, x: Node, shape: Any) -> Node:
        return x if tuple(shape) == x.meta["val"].shape else self.emit(aten.expand.default, x, list(shape))

    def unsqueeze(self, x: Node, *dims: int) -> Node:
        for dim in dims:
            x = self.emit(aten.unsqueeze.default, x, dim)
        return x


def short_name(op: Any) -> str:
    return op._schema.name.partition("::")[2].strip("_") if isinstance(op, torch._ops.OpOverload) else "item"


def _meta(x: Any) -> Any:
    cls = x.__class__
    if cls is Node:
        return x.meta["val"]
    if isinstance(x, (list, tuple)):
        return [_meta(y) for y in x]
    return x


def decompose(aten_graph: AtenGraph) -> AtenGraph:
    """A new AtenGraph with every operator taken apart for which the table has a function."""
    graph = torch.fx.Graph()
    builder = Builder(graph)
    new: dict[Node, Any] = {}
    outer, state.env = state.env, aten_graph.env

    def arg(x: Any) -> Any:
        if x.__class__ is Node:
            return new[x]
        if isinstance(x, (list, tuple)):
            return type(x)(arg(item) for item in x) if type(x) in (list, tuple) else [arg(item) for item in x]
        return x

    try:
        for node in aten_graph.graph.nodes:
            if is_output(node):
                out = graph.create_node(
                    "output", "output", (tuple(new[result] for result in node.args[0]),), {}, name="output"
                )
                out.meta.update(node.meta)
                continue
            if not is_call(node):
                made = graph.create_node(node.op, node.target, node.args, node.kwargs, name=node.name)
                made.meta.update(node.meta)
                new[node] = made
                continue
            if node.target is operator.getitem and not isinstance(new[node.args[0]], Node):
                new[node] = new[node.args[0]][node.args[1]]
                continue
            builder.where_meta = {key: value for key, value in node.meta.items() if key != "val"}
            args = tuple([arg(x) for x in node.args])
            kwargs = {name: arg(value) for name, value in node.kwargs.items()} if node.kwargs else {}
            function = TABLE.get(node.target)
            result = _taken_apart(function, builder, args, kwargs) if function is not None else NotImplemented
            if result is NotImplemented:
                result = builder.emit(node.target, *args, val=node.meta["val"], **kwargs)
            elif isinstance(result, Node):
                result = _keep_layout(result, node.meta["val"], node)
            new[node] = result
    finally:
        state.env = outer
    _lay_out_results(aten_graph, graph, builder)
    return replace(aten_graph, graph=graph)


def _taken_apart(function: Any, builder: Builder, args: tuple, kwargs: dict) -> Any:
    """What the table's function gives. Where it has to know a number that is a size expression, that is fixed by a
    guard.
    """
    try:
        return function(builder, *args, **kwargs)
    except TypeError:
        found = []

        def known(x: Any) -> Any:
            if isinstance(x, (list, tuple)):
                return [known(item) for item in x]
            if not isinstance(x, Expr):
                return x
            found.append(x)
            return fix(x)

        args, kwargs = tuple(map(known, args)), {name: known(value) for name, value in kwargs.items()}
        if not found:
            raise
        return function(builder, *args, **kwargs)


def _keep_layout(result: Node, val: TensorMeta, node: Node) -> Node:
    """The metadata that eager gives wins: strides of intermediate values decide what later operators do."""
    got = result.meta["val"]
    if got.dtype != val.dtype:
        raise AssertionError(f"decomposition of {node.target} gives {got.dtype}, not {val.dtype}")
    if got.stride != val.stride and is_call(result) and not gives_views(result.target) and len(result.users) == 0:
        result.meta["val"] = got.replace(stride=val.stride)
    return result


def _lay_out_results(aten_graph: AtenGraph, graph: torch.fx.Graph, builder: Builder) -> None:
    """Results must be fresh memory with the strides that the outputs have in eager."""
    out = graph.output_node()
    want = {spec.value: spec.meta for spec in aten_graph.plan if spec.kind == "buffer"}
    old = aten_graph.results
    mutated = {slot for _, slot in aten_graph.mutation_slots}
    results = list(out.args[0])
    with graph.inserting_before(out):
        for i, result in enumerate(results):
            if i in mutated:
                continue
            stride = want[i].stride if i in want and want[i] is not None else old[i].meta["val"].stride
            val = result.meta["val"]
            fresh = is_call(result) and not gives_views(result.target)
            if fresh and val.stride == stride:
                continue
            meta = TensorMeta(val.shape, tuple(stride), val.dtype, val.device)
            builder.where_meta = {key: value for key, value in result.meta.items() if key != "val"}
            results[i] = builder.emit(aten.clone.default, result, val=meta)
    out.args = (tuple(results),)
