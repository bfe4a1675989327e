"""A backward pass in stages, so that gradients are exchanged while later ones are computed.

DistributedDataParallel exchanges a bucket of gradients as soon as autograd's engine has handed all of them on. One node
that gives every gradient at its end leaves nothing to compute meanwhile. So where a model is compiled inside of it,
backward is a chain of nodes. Each one runs a piece of the backward graph, gives the gradients that are ready by then,
a bucket of them, and leads to the next. The engine runs what accumulates gradients before any other node, hooks
included, so that a bucket leaves before the next piece is launched. Who asks for gradients in another way (others than
all of them, gradients of gradients) gets the same ones, from one piece.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from ..base.fx_nodes import is_constant
from ..graph.aten import AtenGraph, GraphOutput
from ..graph.meta.core import TensorMeta
from ..graph.opinfo import op_info
from .saved_versions import refuse_changed, remember, taken_from
from .forward_backward import ancestors, slot_of

if TYPE_CHECKING:
    from .bridge import GradGraph

__all__ = ["Stage", "StagedCall", "StagedGraph", "bucket_bytes", "groups_of", "stages_of"]

MOST_STAGES = 8  # more would overlap little more, and each costs launches and fusion across its borders


def bucket_bytes() -> tuple[int, int] | None:
    """(the first bucket's bytes, those of any other), where a model runs inside of DistributedDataParallel."""
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    module = None if parallel is None else parallel.DistributedDataParallel._get_active_ddp_module()
    if module is None:
        return None
    most = module.bucket_bytes_cap
    return (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES if module.bucket_bytes_cap_default else most), most


def groups_of(backward: AtenGraph, sizes: tuple[int, int]) -> list[list[int]]:
    """The gradients (positions in the plan) in groups of a bucket's bytes or more, in the order in which they are
    computed.
    """
    order = {node: k for k, node in enumerate(backward.graph.nodes)}
    results = backward.results

    def ready(j: int) -> int:
        slot = slot_of(backward.plan[j])
        return -1 if slot is None else order[results[slot]]

    taken = [_bytes_of(spec.meta) for spec in backward.plan]
    least = sum(taken) // MOST_STAGES
    groups: list[list[int]] = [[]]
    held, limit = 0, max(sizes[0], least)
    for j in sorted(range(len(backward.plan)), key=lambda j: (ready(j), j)):
        if held >= limit:
            groups.append([])
            held, limit = 0, max(sizes[1], least)
        groups[-1].append(j)
        held += taken[j]
    return groups


def _bytes_of(meta: TensorMeta | None) -> int:
    return 0 if meta is None else meta.dtype.itemsize * math.prod(size for size in meta.shape if isinstance(size, int))


@dataclass
class Stage:
    """A piece of a backward graph. It takes the values at `reads`, and gives gradients, then what later pieces read:
    the values at `gives`. `frees` are values that nobody reads after it. Values are numbered: the whole graph's inputs,
    then what pieces give.
    """

    graph: AtenGraph
    reads: list[int]
    gives: list[int]
    frees: frozenset[int]
    gradients: list[int]


def stages_of(aten_graph: AtenGraph, groups: Sequence[Sequence[int]]) -> list[Stage] | None:
    """The backward graph `aten_graph` in pieces, the gradients of a group each; None where it has to run as a whole."""
    results = aten_graph.results
    calls = list(aten_graph.calls())
    if (
        aten_graph.mutation_slots
        or aten_graph.no_overlap
        or aten_graph.writes
        or aten_graph.whole is not None
        or aten_graph.generated_products
    ):
        return None
    if any(not isinstance(call.target, torch._ops.OpOverload) and not _is_part(call) for call in calls):
        return None
    if any(_is_drawn(call) for call in calls):
        return None
    needed = []
    for group in groups:
        slots = [slot_of(aten_graph.plan[j]) for j in group]
        needed.append(_with_parts(ancestors([results[slot] for slot in slots if slot is not None])))
    if not set(calls) <= set().union(*needed):
        return None  # what is there to raise, or to be exchanged, has its place in the order
    places = aten_graph.placeholders
    number = {place: k for k, place in enumerate(places)}
    pieces: list[list[torch.fx.Node]] = []
    done: set[torch.fx.Node] = set()
    for own in needed:
        pieces.append([call for call in calls if call in own and call not in done])
        done |= own
    made_in = {node: k for k, piece in enumerate(pieces) for node in piece}
    read_by: dict[torch.fx.Node, set[int]] = {}
    for k, (piece, group) in enumerate(zip(pieces, groups)):
        for n in piece:
            for node in n.all_input_nodes:
                read_by.setdefault(node, set()).add(k)
        for j in group:
            source = _source(aten_graph, j)
            if source is not None:
                read_by.setdefault(source, set()).add(k)
    crossing = [call for call in calls if any(k > made_in[call] for k in read_by.get(call, ()))]
    if any(not isinstance(node.meta.get("val"), TensorMeta) for node in crossing):
        return None
    for n in crossing:
        number[n] = len(number)
    # sizes: any piece may name them
    numbers = {place for place, given in zip(places, aten_graph.inputs) if given.kind != "tensor"}
    last = {node: max(read_by.get(node, {-1})) for node in number}
    stages = []
    for k, (piece, group) in enumerate(zip(pieces, groups)):
        gives = [node for node in crossing if made_in[node] == k]
        reads = [node for node in number if node in numbers or k in read_by.get(node, ()) and made_in.get(node, -1) < k]
        frees = frozenset(number[node] for node in number if last[node] == k)
        graph = _piece(aten_graph, k, piece, reads, group, gives)
        stages.append(
            Stage(graph, [number[node] for node in reads], [number[node] for node in gives], frees, list(group))
        )
    return stages


def _is_part(node: torch.fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _is_drawn(node: torch.fx.Node) -> bool:
    """Whether an operator draws random numbers, whose order counts, or gives nothing."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return torch.Tag.nondeterministic_seeded in node.target.tags or not op_info(node.target).n_results


def _with_parts(nodes: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """With all results of operators that have several: these don't go from one piece to another as a tuple."""
    return nodes | {user for node in nodes for user in node.users if _is_part(user)}


def _source(aten_graph: AtenGraph, j: int) -> torch.fx.Node | None:
    """The value that a gradient is, or lies in."""
    output = aten_graph.plan[j]
    if (slot := slot_of(output)) is not None:
        return aten_graph.results[slot]
    if output.kind == "input" or output.kind == "view":
        return aten_graph.placeholders[output.value if output.kind == "input" else output.value[1]]
    return None


def _piece(aten_graph: AtenGraph, k: int, piece: list, reads: list, group: Sequence[int], gives: list) -> AtenGraph:
    graph = torch.fx.Graph()
    new: dict[torch.fx.Node, torch.fx.Node] = {}
    inputs = []
    kinds = dict(zip(aten_graph.placeholders, aten_graph.inputs))
    for n in reads:
        placeholder = new[n] = graph.placeholder(n.name)
        placeholder.meta["val"] = n.meta["val"]
        inputs.append(kinds[n] if n in kinds else _tensor_input(aten_graph, placeholder.name))
    for n in piece:
        for node in n.all_input_nodes:
            if is_constant(node) and node not in new:
                new[node] = graph.node_copy(node)
        new[n] = graph.node_copy(n, new.__getitem__)
    outs: list[torch.fx.Node] = []
    slots: dict[torch.fx.Node, int] = {}
    entered = {read: i for i, read in enumerate(reads)}

    def slot(node: torch.fx.Node) -> int:
        if node not in slots:
            slots[node] = len(outs)
            outs.append(new[node])
        return slots[node]

    plan = []
    for j in group:
        output, source = aten_graph.plan[j], _source(aten_graph, j)
        if source is None:
            plan.append(output)
        elif source in entered:  # an input, or what an earlier piece gave
            at = entered[source]
            is_view = output.kind == "view"
            plan.append(
                GraphOutput("view", ("input", at), output.meta, output.changes, output.detached)
                if is_view
                else GraphOutput("input", at, output.meta, output.changes, output.detached)
            )
        elif output.kind == "view":
            plan.append(GraphOutput("view", ("node", slot(source)), output.meta, output.changes, output.detached))
        else:
            plan.append(GraphOutput("buffer", slot(source), output.meta, output.changes, output.detached))
    plan += [GraphOutput("buffer", slot(node), node.meta["val"]) for node in gives]
    graph.output(tuple(outs))
    constants = aten_graph.constants_in(graph)
    return AtenGraph(graph, inputs, plan, [], aten_graph.env, constants, [], f"{aten_graph.name}_{k}")


def _tensor_input(aten_graph: AtenGraph, name: str) -> Any:
    """Like the tangents: a tensor without a guard of its own."""
    return type(aten_graph.inputs[-1])(name, None, "tensor")


class StagedGraph:
    """The compiled pieces of a backward graph. Called, it runs them all."""

    def __init__(self, stages: list[Stage], calls: list[Callable[..., tuple]], n_gradients: int):
        self.stages, self.calls, self.n_gradients = stages, calls, n_gradients

    def begin(self, given: Sequence[Any]) -> "_Run":
        return _Run(self, dict(enumerate(given)))

    def __call__(self, *given: Any) -> tuple:
        run = self.begin(given)
        out: list[Any] = [None] * self.n_gradients
        for k in range(len(self.stages)):
            for j, grad in run.stage(k):
                out[j] = grad
        return tuple(out)


class _Run:
    """One backward pass: the values between pieces."""

    def __init__(self, graph: StagedGraph, values: dict[int, Any]):
        self.graph, self.values = graph, values

    def stage(self, k: int) -> list[tuple[int, Any]]:
        """[(gradient, its value)] of a piece; those before it have run."""
        stage, call, values = self.graph.stages[k], self.graph.calls[k], self.values
        given = [values[read] for read in stage.reads]
        for i in stage.frees:
            values.pop(i, None)
        results = call.consume(given) if hasattr(call, "consume") else call(*given)
        count = len(stage.gradients)
        for i, result in zip(stage.gives, results[count:]):
            values[i] = result
        return list(zip(stage.gradients, results[:count]))


class _Pass:
    """What the nodes of one call have in common: per backward pass, the gradients that are there, and what is left."""

    def __init__(self) -> None:
        self.gradients: dict[int, dict[int, Any]] = {}  # the engine's number of the pass -> input -> gradient
        self.runs: dict[int, Callable[[int], list[tuple[int, Any]]]] = {}


class StagedCall:
    """The call of a compiled graph with gradients whose backward runs in stages. `groups`: the inputs of each."""

    def __init__(self, graph: GradGraph, groups: list[list[int]]):
        self.graph, self.groups = graph, groups
        self.link = torch.empty(0, device=graph.tangent_metas[0].device)
        self.function = type("TCompiled", (_First,), {"call": self})
        self.later = [type("TCompiled", (_Later,), {"call": self, "stage": k}) for k in range(len(groups))]

    def run(self, everything: list, inputs: tuple) -> list:
        """The differentiable outputs; `everything` gets the graph's own results."""
        graph = self.graph
        kept = graph.run_forward(everything, inputs)
        shared, link = _Pass(), None
        for k in range(len(self.groups) - 1, 0, -1):
            link = self.later[k].apply(shared, link, *[inputs[i] for i in self.groups[k]])
        outputs = [everything[k] for k in graph.at]
        call = outputs, kept, graph.rest(inputs), (*inputs, *everything), shared
        return list(self.function.apply(call, link, *[inputs[i] for i in self.groups[0]]))

    def first(self, ctx: Any, *tangents: torch.Tensor | None) -> tuple:
        graph, shared, number = self.graph, ctx.shared, torch._C._current_graph_task_id()
        saved = taken_from(ctx) if graph.frees else []
        if graph.watched:
            refuse_changed(graph.watched, ctx.remembered)
        gradients = shared.gradients[number] = {}
        if torch._C.is_grad_enabled():
            found = graph.double(ctx, saved, graph.remembered, tangents)
            gradients.update((i, grad) for i, grad in enumerate(found) if grad is not None)
        else:
            needs = (True,) * graph.n_inputs  # (those that need none have no gradients in the graph)
            found = graph.run_backward(saved, ctx.rest, tangents, needs, begin=partial_begin(shared, number))
            gradients.update((i, grad) for i, grad in enumerate(found) if grad is not None)
        return None, self.link, *self._taken(shared, number, 0)

    def _taken(self, shared: _Pass, number: int, k: int) -> list:
        """The gradients of a stage, which nobody else holds."""
        gradients, run = shared.gradients[number], shared.runs.get(number)
        if run is not None:
            gradients.update((i, grad) for i, grad in run(k) if grad is not None)
        taken = [gradients.pop(i, None) for i in self.groups[k]]
        if k == len(self.groups) - 1:
            shared.gradients.pop(number)
            shared.runs.pop(number, None)
        return taken


def partial_begin(shared: _Pass, number: int) -> Callable:
    """For GradGraph.run_backward: how it begins a graph of stages, instead of running it."""

    def begin(graph: StagedGraph, given: Sequence[Any], inputs: Sequence[int]) -> None:
        run = graph.begin(given)
        shared.runs[number] = lambda k: [(inputs[j], grad) for j, grad in run.stage(k)]

    return begin


class _First(torch.autograd.Function):
    """The node that gets the tangents, and runs the first stage. Its results are there already."""

    call: StagedCall

    @classmethod
    def forward(cls, ctx: Any, call: tuple, link: torch.Tensor, *inputs: Any) -> tuple:
        outputs, kept, ctx.rest, given, ctx.shared = call
        ctx.save_for_backward(*kept)
        ctx.remembered = remember(cls.call.graph.remembered, given)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @classmethod
    def backward(cls, ctx: Any, *tangents: torch.Tensor | None) -> tuple:
        return cls.call.first(ctx, *tangents)


class _Later(torch.autograd.Function):
    """The node of a later stage. It follows the one before it by a tensor without elements."""

    call: StagedCall
    stage: int

    @classmethod
    def forward(cls, ctx: Any, shared: _Pass, link: torch.Tensor | None, *inputs: Any) -> torch.Tensor:
        ctx.shared = shared
        return cls.call.link.detach()

    @classmethod
    def backward(cls, ctx: Any, grad: torch.Tensor) -> tuple:  # type: ignore[override]
        call, number = cls.call, torch._C._current_graph_task_id()
        following = None if cls.stage == len(call.groups) - 1 else call.link
        return None, following, *call._taken(ctx.shared, number, cls.stage)
