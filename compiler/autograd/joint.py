"""The joint graph: forward and its gradients in one functional aten graph."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..capture.result import CapturedGraph, GraphInput
from ..graph.aten import AtenGraph
from ..graph.functionalize import Functionalizer
from ..graph.record import run_nodes
from ..graph.tensor import TraceTensor, from_meta, recording, tensor_meta
from ..graph.to_aten import finish
from .partition import Partition, partition

__all__ = ["JointGraph", "CannotTrace", "NoGradient", "joint_graph"]


class CannotTrace(Exception):
    """This graph's gradients are left to eager autograd; the message says why, in words for the report."""


class NoGradient(Exception):
    """Nothing that the graph returns requires grad: it is compiled like any graph (torch.no_grad() inside, detached results)."""


@dataclass
class JointGraph:
    """Forward and backward as two AtenGraphs.

    forward      returns the captured graph's `n_outputs` outputs, then the tensors kept for backward
    backward     takes what forward kept, size symbols, then one tangent per output in `tangent_outputs`; returns one gradient per
                 input in `grad_inputs`
    """
    partition: Partition
    n_outputs: int
    tangent_outputs: list[int]
    grad_inputs: list[int]
    aten: AtenGraph

    def __str__(self) -> str:
        return f"forward:\n{self.partition.forward}\n\nbackward:\n{self.partition.backward}"


def joint_graph(captured: CapturedGraph, opts: Any) -> JointGraph:
    """Trace forward and `torch.autograd.grad` at once and part them. Raises CannotTrace where eager autograd has to serve."""
    f = Functionalizer(captured.env)
    with torch.enable_grad(), recording(f):
        try:
            inputs, result = run_nodes(f, captured, keep_grad=True)
        except RuntimeError as e:
            if "leaf Variable that requires grad" in str(e):        # inputs are leaves here, whatever they are outside
                raise CannotTrace("an input that requires grad is changed in place") from None
            raise
        grad_inputs = [i for i, t in enumerate(inputs) if isinstance(t, TraceTensor) and t.requires_grad]
        written = {m.input for m in (a.memory for a in f.aliases.values()) if m.written and m.input is not None}
        if written & set(grad_inputs):
            raise CannotTrace("an input that requires grad is changed in place")
        outputs = [i for i, t in enumerate(result) if isinstance(t, TraceTensor) and t.requires_grad and not _aliases_input(f, t)]
        if any(isinstance(t, TraceTensor) and t.requires_grad and _aliases_input(f, t) and not _is_input(f, t, inputs) for t in result):
            raise CannotTrace("an output that requires grad is a view of an input")
        seen: set[int] = set()
        for i in outputs:
            memory = id(f.alias_of(result[i]).memory)
            if memory in seen:
                raise CannotTrace("two outputs that require grad share memory")
            seen.add(memory)
        if not outputs:
            raise NoGradient
        tangents, specs = [], list(captured.inputs)
        for k, i in enumerate(outputs):
            meta = tensor_meta(result[i])
            t = from_meta(meta.replace(requires_grad=False, storage_offset=0), captured.env)
            f.add_input(f"tangent_{k}", t, len(specs))
            specs.append(GraphInput(f"tangent_{k}", None, "tensor"))
            tangents.append(t)
        f.where = {"stack": [], "module": "backward"}
        try:
            grads = torch.autograd.grad([result[i] for i in outputs], [inputs[i] for i in grad_inputs], tangents, allow_unused=True)
        except RuntimeError as e:
            if "NYI SymInt equality" in str(e):         # autograd's formula of pow looks at the exponent
                raise CannotTrace("an exponent is a size or an int that changes") from None
            raise
        kept = [(i, g) for i, g in zip(grad_inputs, grads) if g is not None]
        joint = f.finish((*result, *(g for _, g in kept)), specs, captured.name)
    joint = finish(joint, opts)
    n_out = len(result)
    return JointGraph(partition(joint, len(captured.inputs), n_out), n_out, outputs, [i for i, _ in kept], joint)


def _aliases_input(f: Functionalizer, t: torch.Tensor) -> bool:
    return f.alias_of(t).memory.input is not None


def _is_input(f: Functionalizer, t: torch.Tensor, inputs: list[Any]) -> bool:
    return any(t is x for x in inputs)
