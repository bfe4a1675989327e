"""The bridge to torch's autograd engine: one autograd.Function per compiled graph.

A call runs the compiled forward graph, hands what it kept to the engine, and the compiled backward graph runs when the engine asks.
The backward graph is compiled at the first backward. What can't be traced, and double backward, run by eager kernels, and an event says so.
"""
from __future__ import annotations

import threading
import weakref
from typing import Any, Callable

import torch

from .. import events, stages
from ..capture.result import CapturedGraph
from ..config import Options
from ..graph.tensor import DataDependentError
from ..runtime.dispatch import disabled
from .joint import CannotTrace, JointGraph, NoGradient

__all__ = ["compile_with_grad", "GradGraph"]

_lock = threading.RLock()


def compile_with_grad(captured: CapturedGraph, opts: Options) -> Callable[..., tuple]:
    """callable(*inputs) -> tuple, differentiable with respect to the inputs that require grad."""
    try:
        joint: JointGraph = stages.run("autograd", captured, opts=opts)
    except NoGradient:
        return stages.compile_captured(captured, opts)
    except (CannotTrace, DataDependentError, NotImplementedError) as why:
        events.emit("fallback", what=f"gradients of {captured.name}", reason=f"{why}; the graph runs by eager kernels and eager autograd", count=1)
        return captured.graph_module.forward
    return GradGraph(captured, joint, opts)


class GradGraph:
    """A compiled graph with gradients; see `compile_with_grad`."""

    def __init__(self, captured: CapturedGraph, joint: JointGraph, opts: Options):
        self.captured, self.joint, self.opts = captured, joint, opts
        p = joint.partition
        events.emit("aten", graph_module=p.forward, name=p.forward.name)
        self.forward = stages.compile_aten(p.forward, opts)
        self._backward: Callable[..., tuple] | None = None
        self.inputs_out = {k: o.value for k, o in enumerate(p.forward.plan[:joint.n_outputs]) if o.kind == "input"}
        self.sizes = [_size_reader(name, p.forward) for name in p.symbols]
        floats = {i.name for i in p.backward.inputs if i.kind == "float"}
        self.scalars = [k for k, i in enumerate(captured.inputs) if f"scalar_{i.name}" in floats]
        tangents = [n for n in p.backward.placeholders][len(p.backward.inputs) - len(joint.tangent_outputs):]
        self.tangent_strides = [n.meta["val"].stride for n in tangents]
        if captured.env is not None and captured.env.hints:
            self.backward()           # what it decides about sizes must be known before the entry's guards are made

    def __call__(self, *inputs: Any) -> tuple:
        everything: list[Any] = []
        differentiable = _Bridge.apply(self, everything, *inputs)
        for i, t in zip(self.joint.tangent_outputs, differentiable):
            everything[i] = t
        for k, i in self.inputs_out.items():
            everything[k] = inputs[i]
        return tuple(everything)

    def backward(self) -> Callable[..., tuple]:
        """The compiled backward graph, made at its first use (with symbolic sizes: at once)."""
        if self._backward is None:
            with _lock, disabled():
                if self._backward is None:
                    p = self.joint.partition
                    events.emit("aten", graph_module=p.backward, name=p.backward.name)
                    with torch.no_grad():
                        self._backward = stages.compile_aten(p.backward, self.opts)
        return self._backward


def _size_reader(name: str, forward: Any) -> Callable[[tuple], int]:
    """How a size symbol's value is read from forward's inputs."""
    from ..symbolic.expr import symbol
    s = symbol(name)
    for i, n in enumerate(forward.placeholders):
        val = n.meta.get("val")
        if val is s:
            return lambda inputs: inputs[i]
        for d, size in enumerate(getattr(val, "shape", ())):
            if size is s:
                return lambda inputs, d=d: inputs[i].shape[d]
        for d, stride in enumerate(getattr(val, "stride", ())):
            if stride is s:
                return lambda inputs, d=d: inputs[i].stride(d)
    raise CannotTrace(f"no input gives the size {name} by itself")


class _Bridge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: GradGraph, everything: list, *inputs: Any) -> tuple:
        p, n = graph.joint.partition, graph.joint.n_outputs
        results = graph.forward(*inputs)
        everything.extend(results[:n])
        ctx.graph = graph
        ctx.rest = [read(inputs) for read in graph.sizes] + [inputs[k] for k in graph.scalars]
        ctx.save_for_backward(*(inputs[i] for i in p.saved_inputs), *results[n:])
        ctx.inputs = [(weakref.ref(t), t._version) if isinstance(t, torch.Tensor) else t for t in inputs]
        return tuple(results[i] for i in graph.joint.tangent_outputs)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor) -> tuple:
        graph = ctx.graph
        if torch.is_grad_enabled():
            return (None, None, *_double(ctx, tangents))
        fixed = [_strided_as(t, s) for t, s in zip(tangents, graph.tangent_strides)]
        grads = graph.backward()(*ctx.saved_tensors, *ctx.rest, *fixed)
        out: list[Any] = [None] * len(ctx.inputs)
        for i, g in zip(graph.joint.grad_inputs, grads):
            out[i] = g
        return (None, None, *out)


def _strided_as(t: torch.Tensor, stride: tuple) -> torch.Tensor:
    """The tangent in the layout that the backward graph was traced for."""
    if all(isinstance(s, int) for s in stride):
        if t.stride() == stride:
            return t
        return torch.empty_strided(t.shape, stride, dtype=t.dtype, device=t.device).copy_(t)
    return t.contiguous()


def _double(ctx: Any, tangents: tuple) -> list:
    """Double backward: the graph once more under eager autograd, so that gradients have gradients."""
    graph = ctx.graph
    inputs = []
    for kept in ctx.inputs:
        if isinstance(kept, tuple):
            t = kept[0]()
            if t is None or t._version != kept[1]:
                raise RuntimeError("tcompile: double backward (create_graph=True) needs the inputs of the compiled call, but one of them is gone or "
                                   "was changed in place since; keep them alive, or run this part eager with tcompile.disable")
            inputs.append(t)
        else:
            inputs.append(kept)
    events.emit("fallback", what=f"double backward of {graph.captured.name}", reason="gradients of gradients run by eager kernels", count=1)
    j = graph.joint
    with torch.enable_grad():
        outs = graph.captured.graph_module(*inputs)
        wanted = [inputs[i] for i in j.grad_inputs]
        grads = torch.autograd.grad([outs[i] for i in j.tangent_outputs], wanted, tangents, create_graph=True, allow_unused=True)
    result: list[Any] = [None] * len(inputs)
    for i, g in zip(j.grad_inputs, grads):
        result[i] = g
    return result
