"""The joint graph: forward and its gradients in one functional aten graph.

The captured graph and `torch.autograd.grad` run once on TraceTensors under one recorder, each under the modes that it
has in eager. Forward runs under those that the call finds. Backward runs with gradients on, without autocast, and
without saved-tensor hooks or anomaly checks of the user's.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Iterator

import torch

from .. import events
from ..graph.captured import CapturedGraph, GraphInput
from ..graph.aten import AtenGraph, GraphOutput
from ..graph.functionalize import Functionalizer, NewValue
from ..graph.higher_order import has_backward, noting
from ..graph.history import BACKWARD, gradients
from ..graph.meta.core import contiguous_strides
from ..graph.tensor import TraceTensor, from_meta, holds_outer, recording, tensor_meta
from ..graph.to_aten import finish, run_nodes
from ..rewrite.overlap import overlap_exchanges
from ..symbolic.places import disjoint
from ..graph.torch_modes import autocast_off
from .chunked_loss import chunk_losses
from .eager_saves import eager_kept
from .modes import tracing_modes
from .opaque_gradients import opaque_where_needed
from .outputs import CannotTrace, OutputPlan, plan_outputs
from .forward_backward import after_forward
from .saved_versions import kept_by_autograd, read_by_backward
from .partition import Partition, partition
from .independent_parts import Group, independent_parts

__all__ = ["JointGraph", "CannotTrace", "NoGradient", "joint_graph"]


class NoGradient(Exception):
    """Nothing that the graph computes requires grad: it is compiled like any graph (as under torch.no_grad()). `plan`
    says which results are views of inputs that require grad: those are taken with gradients recorded. `aten` is that
    graph where the captured one computes gradients
    itself: only here they are recorded."""

    def __init__(self, plan: OutputPlan, aten: AtenGraph | None = None):
        super().__init__()
        self.plan, self.aten = plan, aten


@dataclass
class JointGraph:
    """Forward and backward as two AtenGraphs.

    forward      returns the captured graph's results, then what `outputs` adds, then the tensors kept for backward
    backward     takes what forward kept, size symbols, then one tangent per differentiable output of `outputs`; returns
                 one gradient
                 per input in `grad_inputs`
    order        positions in `grad_inputs`, as a backward pass comes to their leaves
    reach        per differentiable output, the positions in `grad_inputs` that it depends on: the others have no
                 gradient from it
    parts        the differentiable outputs in groups whose backward passes are independent (independent_parts.py)
    watched      the inputs that eager keeps for backward, each with the differentiable outputs that it keeps it for,
                 and the outputs: it raises where one is changed in place before
    """

    partition: Partition
    n_outputs: int
    outputs: OutputPlan
    grad_inputs: list[int]
    order: list[int]
    reach: list[frozenset[int]]
    aten: AtenGraph
    parts: list[Group]
    watched: tuple[dict[int, set[int]], list[int]]

    def __str__(self) -> str:
        return f"forward:\n{self.partition.forward}\n\nbackward:\n{self.partition.backward}"


def joint_graph(captured: CapturedGraph, opts: Any) -> JointGraph:
    """Trace forward and `torch.autograd.grad` at once and part them. Raises CannotTrace where eager autograd has to
    serve.
    """
    captured = chunk_losses(captured, opts)
    try:
        try:
            return _joint_graph(captured, opts, leaves=True)
        except _LeafWritten:
            return _joint_graph(captured, opts, leaves=False)
    except NoGradient as known:
        raise NoGradient(known.plan, None if known.aten is None else finish(known.aten, opts)) from None


class _LeafWritten(Exception):
    """An input is changed in place under grad mode: in eager it can't be a leaf."""


def _joint_graph(captured: CapturedGraph, opts: Any, leaves: bool) -> JointGraph:
    functionalizer = Functionalizer(captured.env)
    with tracing_modes(), recording(functionalizer), opaque_where_needed(captured.graph_module.graph):
        try:
            inputs, result = run_nodes(
                functionalizer, captured, keep_grad=True, wrap_input=None if leaves else _not_a_leaf
            )
        except RuntimeError as e:
            if "leaf Variable that requires grad" in str(e) and leaves:
                raise _LeafWritten from None
            raise CannotTrace(f"eager autograd says: {_first_line(e)}") from None
        if any(
            alias.memory.constant and tensor.requires_grad
            for tensor in functionalizer.tensors()
            if (alias := functionalizer.alias_of(tensor)).tensor is tensor
        ):
            raise CannotTrace("a tensor that requires grad is part of the graph without being an input")
        try:
            plan = plan_outputs(functionalizer, inputs, result)
        except RuntimeError as e:  # a result that eager refuses to use: a view whose base was written into
            raise CannotTrace(f"eager autograd says: {_first_line(e)}") from None
        if not plan.tensors:
            whole = has_backward(captured.graph_module.graph)
            raise NoGradient(plan, functionalizer.finish(result, captured.inputs, captured.name) if whole else None)
        tangents, specs = [], list(captured.inputs)
        for k, tensor in enumerate(plan.tensors):
            meta = tensor_meta(tensor)
            shape, stride = (
                [int(captured.env.hint(size)) if captured.env is not None else size for size in sizes]
                for sizes in (meta.shape, meta.stride)
            )
            if all(shape) and not disjoint(shape, stride):
                # of an expanded result, of windows that overlap: elements of its own
                meta = meta.replace(stride=contiguous_strides(meta.shape))
            tangent = from_meta(meta.replace(requires_grad=False, storage_offset=0), captured.env)
            functionalizer.add_input(f"tangent_{k}", tangent, len(specs))
            specs.append(GraphInput(f"tangent_{k}", None, "tensor"))
            tangents.append(tangent)
        functionalizer.where = {"stack": [], "module": BACKWARD, "backward": True}
        sources = [_source(t) for t in inputs]
        grad_inputs = [i for i, source in enumerate(sources) if source is not None]
        leaves_of = [source for source in sources if source is not None]
        reach = [_reached(tensor, leaves_of) for tensor in plan.tensors]
        groups = independent_parts(plan.tensors, reach)
        hints = captured.env.hints if captured.env is not None else {}
        in_eager = eager_kept(functionalizer, plan.tensors, hints) if events.heard() else None
        if not leaves_of or not all(reach):
            raise CannotTrace("a result depends on no input that requires grad, but on a tensor made inside that does")
        order: dict[int, torch.Tensor] = {}
        with _backward_modes(), noting(leaves_of, order):
            try:
                grads = gradients(plan.tensors, leaves_of, tangents)
            except RuntimeError as e:
                if "NYI SymInt equality" in str(e):  # autograd's formula of pow looks at the exponent
                    raise CannotTrace("an exponent is a size or an int that changes") from None
                raise CannotTrace(f"eager autograd says: {_first_line(e)}") from None
        kept = [
            (j, grad_input, grad) for j, (grad_input, grad) in enumerate(zip(grad_inputs, grads)) if grad is not None
        ]
        if any(g.layout is not torch.strided for _, _, g in kept):
            raise CannotTrace("a gradient is sparse")
        if holds_outer([g for _, _, g in kept]):
            raise CannotTrace("the gradient of a plain tensor is a tensor of a wrapper subclass")
        extra = [NewValue(plan.write_of[d]) if d in plan.write_of else plan.tensors[d] for d in plan.extra]
        n_out = len(result) + len(extra)
        joint = functionalizer.finish((*result, *extra, *(g for *_, g in kept)), specs, captured.name)
    joint.plan = _unasked(joint.plan)
    n_in = len(captured.inputs)
    _refuse_late_writes(joint, n_in)
    read, watched = read_by_backward(joint, n_in), kept_by_autograd(joint, n_in, n_out, len(tangents))
    joint = finish(joint, opts)
    at = {j: k for k, (j, *_) in enumerate(kept)}
    written = {
        i for i, t in enumerate(inputs) if isinstance(t, torch.Tensor) and functionalizer.alias_of(t).memory.written
    }
    fragile = {
        i
        for i, t in enumerate(inputs)
        if isinstance(t, torch.Tensor) and i not in read and not _is_parameter(t, captured.example_inputs[i : i + 1])
    }
    parts = partition(joint, len(captured.inputs), n_out, written, fragile, opts)
    parts.eager_kept = in_eager
    overlap_exchanges(parts.backward)
    return JointGraph(
        partition=parts,
        n_outputs=n_out,
        outputs=plan,
        grad_inputs=[i for _, i, _ in kept],
        order=[at[j] for j in order if j in at],
        reach=[frozenset(at[j] for j in group if j in at) for group in reach],
        aten=joint,
        parts=groups,
        watched=({key: ks for key, ks in watched[0].items() if key not in written}, watched[1]),
    )


def _refuse_late_writes(joint: AtenGraph, n_in: int) -> None:
    """No backward graph writes to what forward was given."""
    late = after_forward(joint, n_in)
    if any(joint.results[slot] in late for _, slot in joint.mutation_slots):
        raise CannotTrace("the backward of a function writes to an input of the graph")


def _unasked(plan: list[GraphOutput]) -> list[GraphOutput]:
    """The results. Nobody asks whether they are views: autograd sees them through the bridge, which says so."""
    return [replace(spec, detached=spec.detached or None) for spec in plan]


def _is_parameter(tensor: torch.Tensor, example: list) -> bool:
    """A leaf that requires grad: between forward and backward nobody changes it but by stepping over autograd."""
    return isinstance(tensor, torch.nn.Parameter) or any(
        isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf for x in example
    )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _not_a_leaf(functionalizer: Functionalizer, tensor: Any) -> Any:
    """The input as eager sees one that was computed: its writes are recorded by autograd. The graph has nothing of the
    step between.
    """
    if not tensor.requires_grad:
        return tensor
    with recording(None), torch.enable_grad():
        inner: Any = tensor.clone()
    inner._tcompile_leaf = tensor
    inner._tcompile_step = inner.grad_fn
    functionalizer.rebind(tensor, inner)
    return inner


def _source(tensor: Any) -> torch.Tensor | None:
    """What to differentiate by for an input, or None where it has no gradient."""
    if not isinstance(tensor, TraceTensor):
        return None
    leaf = getattr(tensor, "_tcompile_leaf", None)
    if leaf is not None:
        return leaf
    return tensor if tensor.requires_grad and tensor.is_leaf else None


def _reached(output: torch.Tensor, leaves: list[torch.Tensor]) -> frozenset[int]:
    """Which leaves autograd's graph connects to `output`."""
    positions = {id(leaf): i for i, leaf in enumerate(leaves)}
    found: set[int] = set()
    if output.grad_fn is None:
        return frozenset((positions[id(output)],)) if id(output) in positions else frozenset()
    seen = {output.grad_fn}
    todo = [output.grad_fn]
    while todo:
        node = todo.pop()
        v = getattr(node, "variable", None)
        if v is not None and id(v) in positions:
            found.add(positions[id(v)])
        for m, _ in node.next_functions:
            if m is not None and m not in seen:
                seen.add(m)
                todo.append(m)
    return frozenset(found)


@contextmanager
def _backward_modes() -> Iterator[None]:
    """Backward's formulas run outside of the autocast region that forward was called in."""
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        # the formulas of tensors on a GPU would run in a thread of autograd's, where nothing is recorded
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(autocast_off())
        yield
