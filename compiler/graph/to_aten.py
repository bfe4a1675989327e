"""The graph stage: a captured torch-level graph becomes a functional graph of the closed operator set.

Its first half runs the captured graph once more on TraceTensors, where every operator is heard and recorded
(functionalize.py). The second half, `finish`, runs passes and decomposes.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, Sequence

import torch
import torch.fx
from torch.fx.node import map_arg

from ..base.fx_nodes import called, is_call, is_constant, is_input, is_method, is_output
from ..rewrite import run_passes
from ..rewrite.equal_sizes import unify_sizes
from ..symbolic.env import ShapeEnv
from .captured import CapturedGraph, GraphInput
from .decompose import decompose
from .torch_modes import TorchModes
from .aten import AtenGraph
from .traced_calls import trace_call
from .functionalize import Functionalizer
from .higher_order import CheckpointCall
from .history import remember_module
from .known_values import know_literal
from .tensor import TraceTensor, from_meta, recording, tensor_meta, trace_tensor_like

__all__ = ["to_aten", "finish", "record_function", "run_nodes"]


def to_aten(captured: CapturedGraph, opts: Any = None) -> AtenGraph:
    """Record, run passes, decompose, run passes. `opts` is the compile call's Options (None: defaults)."""
    a = _record(captured)
    if opts is not None and opts.get("freezing"):
        from .freeze import fold_batch_norms

        fold_batch_norms(a)
    return finish(a, opts)


def finish(a: AtenGraph, opts: Any = None) -> AtenGraph:
    """The part behind recording: passes and decomposition."""
    unify_sizes(a)
    a = run_passes(a, "recorded", opts)
    a = decompose(a)
    unify_sizes(a)
    return run_passes(a, "decomposed", opts)


# ---- recording
def _record(captured: CapturedGraph) -> AtenGraph:
    """The captured graph as a functional aten graph, nothing decomposed yet."""
    functionalizer = Functionalizer(captured.env)
    with recording(functionalizer):
        _, result = run_nodes(functionalizer, captured, keep_grad=False)
    return functionalizer.finish(result, captured.inputs, captured.name)


def run_nodes(
    functionalizer: Functionalizer,
    captured: CapturedGraph,
    keep_grad: bool,
    wrap_input: Callable[[Functionalizer, Any], Any] | None = None,
) -> tuple[list, tuple]:
    """Run a captured graph node by node on TraceTensors, `functionalizer` listening: its inputs and what it returns.

    keep_grad: inputs keep requires_grad, so that gradients asked for afterwards are recorded too. wrap_input: what the
    graph gets for an input tensor."""
    gm = captured.graph_module
    values: dict[torch.fx.Node, Any] = {}
    inputs: list[Any] = []
    result: Any = ()
    with TorchModes():  # the program may leave them switched: it breaks inside of a region, or raises
        for node in gm.graph.nodes:
            if is_input(node):
                i = len(inputs)
                x = values[node] = _input(functionalizer, node, i, captured.inputs[i], captured, keep_grad)
                if wrap_input is not None and isinstance(x, TraceTensor):
                    values[node] = wrap_input(functionalizer, x)
                inputs.append(values[node])
            elif is_output(node):
                result = map_arg(node.args[0], values.__getitem__)
            else:
                values[node] = _run(functionalizer, gm, node, values)
    return inputs, tuple(result) if isinstance(result, (tuple, list)) else (result,)


def record_function(
    fn: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    env: ShapeEnv | None = None,
    dynamic: Mapping[int, Iterable[int]] | None = None,
    keep_grad: bool = False,
) -> AtenGraph:
    """The aten graph of `fn(*tensors)`, a Python function run on TraceTensors like the given real tensors. It returns a
    tensor or a (nested) list or tuple of tensors and other values, flattened in order. `dynamic` names symbolic
    dimensions by input. For tests and for code that has a function rather than a captured graph."""
    functionalizer = Functionalizer(env)
    traced = []
    inputs = []
    for i, real in enumerate(tensors):
        t = trace_tensor_like(real if keep_grad else real.detach(), env, (dynamic or {}).get(i, ()))
        functionalizer.add_input(f"arg{i}", t, i)
        traced.append(t)
        inputs.append(GraphInput(f"arg{i}", None, "tensor"))
    with recording(functionalizer):
        out = fn(*traced)
    flat: list[Any] = []
    _flatten(out, flat)
    return functionalizer.finish(
        tuple(
            functionalizer.lift(v) if isinstance(v, torch.Tensor) and not isinstance(v, TraceTensor) else v
            for v in flat
        ),
        inputs,
    )


def _flatten(x: Any, into: list) -> None:
    if isinstance(x, (tuple, list)):
        for y in x:
            _flatten(y, into)
    else:
        into.append(x)


def _input(
    functionalizer: Functionalizer, node: torch.fx.Node, index: int, spec: Any, captured: CapturedGraph, keep_grad: bool
) -> Any:
    val = node.meta.get("val")
    if val is None:
        val = captured.example_inputs[index]
    if isinstance(val, torch.Tensor):
        if isinstance(val, TraceTensor):
            meta = tensor_meta(val)
            if spec.spec is not None:  # as it comes: what is written into it may have made it require grad since
                meta = meta.replace(requires_grad=spec.spec.requires_grad)
            t = from_meta(meta if keep_grad else meta.replace(requires_grad=False), captured.env)
        else:
            t = trace_tensor_like(val if keep_grad else val.detach(), captured.env)
        if isinstance(val, torch.nn.Parameter):
            t._is_param = True
        functionalizer.add_input(spec.name, t, index)
        return t
    if isinstance(val, torch.SymInt):
        n = functionalizer.add_scalar_input(spec.name, captured.env.to_expr(val))
        functionalizer.symbols[str(n.meta["val"])] = n
        return val
    functionalizer.add_scalar_input(spec.name, val)
    return val


def _run(functionalizer: Functionalizer, gm: torch.fx.GraphModule, node: torch.fx.Node, values: dict) -> Any:
    stack = node.meta.get("stack") or []
    functionalizer.where = {"stack": stack, "module": node.meta.get("module", "")}
    if isinstance(node.target, CheckpointCall):
        # the partition of a joint graph computes these again in backward
        functionalizer.where["checkpoint"] = node.name
    if functionalizer.env is not None and stack:
        functionalizer.env.location = (stack[-1][0], stack[-1][1])
    if is_constant(node):
        out: Any = gm
        for part in node.target.split("."):
            out = getattr(out, part)
    else:
        args = map_arg(node.args, values.__getitem__)
        kwargs = map_arg(node.kwargs, values.__getitem__) if node.kwargs else {}
        if is_call(node) or is_method(node) and isinstance(args[0], TraceTensor):
            out = trace_call(called(node), args, kwargs)
        elif is_method(node):
            out = getattr(args[0], node.target)(*args[1:], **kwargs)
        else:
            raise NotImplementedError(f"captured graphs hold no {node.op} nodes")
    if functionalizer.where["module"]:
        remember_module(out, functionalizer.where["module"])
    if isinstance(out, torch.Tensor) and not isinstance(out, TraceTensor):
        made, out = out, functionalizer.lift(out, kept=is_constant(node))
        if not is_constant(node):
            know_literal(out, made)
    return out
