"""The bridge to torch's autograd engine: one autograd.Function per compiled graph.

A call runs the compiled forward graph, hands what it kept to the engine, and a compiled backward graph runs when the
engine asks. Backward is compiled at its first use, for the tangents that there are and the gradients that are wanted
(`backward_variants.py`). The likely one is generated before, while forward's kernels are compiled for a GPU. What can't
be traced, and double backward, run by eager kernels, and an event says so.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, Callable, Sequence

import torch

from .. import events, stages
from ..capture.breaks.failing import undone
from ..capture.entry.result import SkipFrame
from ..base import meanwhile
from ..graph.captured import CapturedGraph
from ..config import Options
from ..errors import InternalError, TCompileError
from ..graph.aten import AtenGraph
from ..graph.aten_interpreter import interpret
from ..graph.higher_order import HookCall
from ..graph.own_writes import counted, move_on
from ..graph.meta.core import TensorMeta
from ..graph.tensor import DataDependentError
from ..graph.wrappers import gradients_cross
from ..native import autograd_node, native
from ..runtime.dispatch import disabled
from .saved_versions import refuse_changed, remember, taken_from
from .joint import CannotTrace, JointGraph, NoGradient
from .modes import tracing_modes
from .partition import bytes_of
from .outputs import OutputPlan
from .engine_order import hears_order
from .independent_parts import Part, PartedCall
from .staged_backward import Stage, StagedCall, StagedGraph, bucket_bytes, groups_of, stages_of
from .backward_variants import variant, without_unused_inputs

__all__ = ["aot_eager", "compile_with_grad", "wants_gradients", "GradGraph"]

CompileAten = Callable[[AtenGraph, Options], Callable[..., tuple]]

_GIVE = {"side": 0, "diff": 1, "alias": 1, "input": 2}  # numbers shared with compiler/native/bridge.c
SMALL_BYTES = 1 << 16  # inputs of this size are kept for double backward; larger ones are only looked for
_BUGS = (AssertionError, RuntimeError, TypeError, ValueError, LookupError, AttributeError)
VARIANT_LIMIT = 8  # backward graphs per forward graph; past it missing tangents are zeros


def wants_gradients(captured: CapturedGraph) -> bool:
    """Whether anything that the graph computes may require grad, when it is called under the present grad mode."""
    nodes = captured.graph_module.graph.nodes
    if any(node.kwargs.get("requires_grad") or node.target == "requires_grad_" for node in nodes):
        return True  # without grad mode, too: such a leaf may be a result
    if not any(
        given.kind == "tensor" and given.spec is not None and given.spec.requires_grad for given in captured.inputs
    ):
        return False
    if torch._C.is_grad_enabled():
        return True
    return any(node.target is torch._C._set_grad_enabled and node.args == (True,) for node in nodes)


def aot_eager(captured: CapturedGraph, opts: Options) -> Callable[..., tuple]:
    """The backend of this name: the functional graphs, forward and backward, by torch's own kernels. It tells a wrong
    graph from wrong code.
    """

    def by_eager(graph: AtenGraph, opts: Options) -> Callable[..., tuple]:
        return _by_eager_kernels(graph)

    if wants_gradients(captured):
        return compile_with_grad(captured, opts, by_eager)
    aten = stages.run("graph", captured, opts=opts)
    events.emit("aten", graph_module=aten, name=captured.name)
    return _by_eager_kernels(aten)


def compile_with_grad(
    captured: CapturedGraph, opts: Options, compile_aten: CompileAten | None = None
) -> Callable[..., tuple]:
    """callable(*inputs) -> tuple, differentiable with respect to the inputs that require grad. compile_aten: what makes
    a callable of each of the two graphs, the stages behind this one by default."""
    compile_aten = compile_aten or stages.compile_aten
    if captured.reads_nodes:
        why = "autograd nodes are read (`grad_fn`), or hooks put on what other results were computed from"
        events.fallback(f"gradients of {captured.name}", f"{why}; the graph runs with eager kernels and eager autograd")
        return undone(captured)
    try:
        joint: JointGraph = stages.run("autograd", captured, opts=opts)
    except NoGradient as only:
        with torch.no_grad():
            aten = only.aten if only.aten is not None else stages.run("graph", captured, opts=opts)
            events.emit("aten", graph_module=aten, name=captured.name)
            return _with_views(compile_aten(aten, opts), only.plan)
    except (CannotTrace, DataDependentError, NotImplementedError) as why:
        if gradients_cross(captured):
            raise SkipFrame(
                f"the gradients of a tensor of a wrapper subclass can't be traced: {why}; the frame runs as it is"
            ) from None
        events.fallback(f"gradients of {captured.name}", f"{why}; the graph runs with eager kernels and eager autograd")
        return undone(captured)
    return GradGraph(captured, joint, opts, compile_aten)


class _Backward:
    """One compiled backward graph: `graph` takes the tangents that are there; `decided` are predicates on sizes that
    hold for it alone. `reads`: positions of its inputs among those, where it takes only what it reads."""

    def __init__(
        self, graph: AtenGraph, call: Callable[..., tuple], decided: list[Any], reads: list[int] | None = None
    ):
        self.graph, self.call, self.decided, self.reads = graph, call, decided, reads


class GradGraph:
    """A compiled graph with gradients; see `compile_with_grad`. `backwards` maps (tangents there, gradients wanted) to
    compiled graphs.
    """

    def __init__(self, captured: CapturedGraph, joint: JointGraph, opts: Options, compile_aten: CompileAten):
        self.captured, self.joint, self.opts, self.compile_aten = captured, joint, opts, compile_aten
        partition, plan = joint.partition, joint.outputs
        events.emit("partition", name=captured.name, partition=partition)
        events.emit("aten", graph_module=partition.forward, name=partition.forward.name)
        self.backwards: dict[tuple, _Backward] = {}
        self.copied: set[tuple[int, int]] = set()  # (number of a pass, call) whose copy for double backward it came to
        self._variants: dict[tuple, AtenGraph] = {}  # made before they are compiled (independent_parts.py)
        self.n_tangents, self.n_inputs = len(plan.tensors), len(captured.inputs)
        self.tangent_metas = [
            placeholder.meta["val"]
            for placeholder in partition.backward.placeholders[len(partition.backward.inputs) - self.n_tangents :]
        ]
        self.parted: PartedCall | None = None
        with torch.no_grad(), meanwhile.offered(self._generate_backward):
            self.forward = compile_aten(partition.forward, opts)
        begin = getattr(getattr(self.forward, "call", None), "begin_step", None)
        # of CUDA graphs (runtime/gpu/step_memory.py): what forward and backward share
        self.step = begin(joint.n_outputs) if begin is not None else None
        views = [k for k, spec in enumerate(partition.forward.plan) if spec.kind == "view"]
        self.hidden_views = [k for k in plan.at if k in views]
        # made inside of the Function, without gradients: autograd would refuse to record a write into such a view
        fresh = {view for view in views if partition.forward.plan[view].value[0] != "input"}
        plan.recipes = [
            ("detach", recipe[1]) if recipe[0] == "side" and recipe[1] in fresh else recipe for recipe in plan.recipes
        ]
        self.sizes = [_size_reader(name, partition.forward) for name in partition.symbols]
        floats = {i.name for i in partition.backward.inputs if i.kind == "float"}
        self.scalars = [k for k, i in enumerate(captured.inputs) if f"scalar_{i.name}" in floats]
        self.grad_mode = torch._C.is_grad_enabled()
        self.at, self.saved_inputs, self.n_outputs = plan.at, partition.saved_inputs, joint.n_outputs
        hints = captured.env.hints if captured.env is not None else {}
        small = [_is_small(placeholder, hints) for placeholder in partition.forward.placeholders]
        # (what follows the inputs' numbers are outputs')
        self.remembered = [
            *[(i, strong) for i, strong in enumerate(small) if i not in partition.saved_inputs],
            *[(self.n_inputs + k, False) for k in joint.watched[1]],
        ]
        self.watched = self.to_watch(self.remembered)
        self.function = type("TCompiled", (_Bridge,), {"graph": self})
        told = bucket_bytes() is None and any(map(hears_order, captured.example_inputs))
        apart = told or len(joint.parts) > 1 or _has_idle_inputs(captured, joint.grad_inputs)
        self.parted = PartedCall(self, joint.parts, small, told) if apart else None
        self.cut: list[Stage] | None = None  # the whole backward graph in stages, until these are compiled
        self.staged = self._staged_call()
        self.frees = any(part.frees for part in joint.parts) or len(partition.backward.placeholders) > self.n_tangents
        self.call = self._native_call() or self._python_call
        plan.tensors = []  # traced tensors are of no more use
        if captured.env is not None and captured.env.hints:
            # what it decides about sizes must be known before the entry's guards are made
            self.backward(*self._likely())

    def __call__(self, *inputs: Any) -> tuple:
        return self.call(*inputs)

    def _staged_call(self) -> StagedCall | None:
        """Where DistributedDataParallel waits for gradients: backward in stages of a bucket each."""
        sizes = bucket_bytes()
        backward = self.joint.partition.backward
        if sizes is None or self.parted is not None or self.step is not None or not self.grad_mode:
            return None
        groups = groups_of(backward, sizes)
        self.cut = stages_of(backward, groups) if len(groups) > 1 else None
        if self.cut is None:
            return None
        self.groups = groups
        return StagedCall(self, [[self.joint.grad_inputs[j] for j in group] for group in groups])

    def _native_call(self) -> Callable[..., tuple] | None:
        """The call in C, where nothing is left to do after the Function but to put its results in order."""
        plan = self.joint.outputs
        if native is None or not hasattr(native, "GradCall") or not self.grad_mode or not plan.plain or self.staged:
            return None
        if self.parted is not None and self.parted.ordered:
            return None
        graph = getattr(self.forward, "call", self.forward)
        rest = (lambda *inputs: self.rest(inputs)) if self.sizes or self.scalars else None
        kept = [*self.saved_inputs, *range(self.n_outputs, self.n_outputs + len(self.joint.partition.saved))]

        def part(
            outputs: Sequence[int],
            inputs: Sequence[int] | None,
            saved: Sequence[int],
            remembered: Sequence[tuple[int, bool]],
            backward: Callable,
        ) -> tuple:
            """(apply, forward, inputs, outputs); `saved` are positions among what forward keeps: inputs, then
            results.
            """
            n = len(self.saved_inputs)
            forward = native.GradForward(
                graph,
                rest,
                self.n_outputs,
                tuple([self.at[output] for output in outputs]),
                tuple([kept[i] for i in saved if i < n]),
                tuple([kept[i] for i in saved if i >= n]),
                tuple(self.hidden_views),
                tuple([2 * i + strong for i, strong in remembered]),
            )
            return _apply_of(forward, backward), forward, None if inputs is None else tuple(inputs), tuple(outputs)

        if self.parted is None:
            parts = [part(range(self.n_tangents), None, range(len(kept)), self.remembered, partial(_backward, self))]
        else:
            parts = [
                part(p.outputs, p.inputs, p.saved, p.remembered, partial(self.parted.backward, p))
                for p in self.parted.parts
            ]
        return native.GradCall(
            tuple(parts),
            self.n_inputs,
            self.n_tangents,
            tuple([number for kind, k in plan.recipes for number in (_GIVE[kind], k)]),
            tuple([self._aliasing(k) for k in range(len(plan.recipes))]),
        )

    def _aliasing(self, k: int) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """What makes the result k of a differentiable output, where that is a view of it."""
        plan = self.joint.outputs
        return partial(_all_of, plan.parts.get(k, "")) if plan.recipes[k][0] == "alias" else None

    def to_watch(self, remembered: Sequence[tuple[int, bool]]) -> list[int]:
        """Positions among what is remembered whose versions eager looks at before backward."""
        return [k for k, (i, _) in enumerate(remembered) if i >= self.n_inputs or i in self.joint.watched[0]]

    def _python_call(self, *inputs: Any) -> tuple:
        if self.grad_mode:
            return self._call(inputs)
        with torch.enable_grad():  # the graph itself turns gradients on, in a part of it
            return self._call(inputs)

    def run_forward(self, everything: list, inputs: tuple) -> list:
        """What backward gets of forward; `everything` gets the graph's own results."""
        with torch.no_grad():
            results = self.forward(*inputs)
        everything.extend(results[: self.n_outputs])
        for hidden_view in self.hidden_views:
            # to autograd no view: nobody else can reach the rest of its memory
            everything[hidden_view] = everything[hidden_view].detach()
        return [*[inputs[place] for place in self.saved_inputs], *results[self.n_outputs :]]

    def rest(self, inputs: tuple) -> list:
        """What backward gets besides tensors: the values of size symbols and of scalar inputs."""
        return [read(inputs) for read in self.sizes] + [inputs[scalar] for scalar in self.scalars]

    def _call(self, inputs: tuple) -> tuple:
        everything: list[Any] = []
        try:
            if self.parted is not None:
                diff = self.parted.run(everything, inputs)
            elif self.staged is not None:
                diff = self.staged.run(everything, inputs)
            else:
                diff = self.function.apply((everything, inputs), *inputs)  # type: ignore[attr-defined]
        except Exception as error:
            if everything:  # raised by a hook for saved tensors: not the graph's
                error._tcompile_final = True  # type: ignore[attr-defined]
            raise
        plan = self.joint.outputs
        for i, result in plan.writes:
            inputs[i].copy_(diff[result])
            torch.autograd.graph.increment_version([inputs[i]] * (self.joint.aten.writes.get(i, 1) - 1))
            if own := [
                own_write for own_write in self.joint.aten.own_writes if own_write.of_input and own_write.position == i
            ]:
                move_on(inputs[i], own)
        out = []
        aliases: dict[int, torch.Tensor] = {}  # differentiable output -> the view of it, each object once
        whole: dict[int, torch.Tensor] = {}  # first of the results that share memory -> all of that memory
        for k, recipe in enumerate(plan.recipes):
            kind = recipe[0]
            if kind == "side":
                out.append(everything[recipe[1]])
            elif kind == "diff":
                out.append(diff[recipe[1]])
            elif kind == "alias":
                if recipe[1] not in aliases:
                    aliases[recipe[1]] = _all_of(plan.parts.get(k, ""), diff[recipe[1]])
                out.append(aliases[recipe[1]])
            elif kind == "input":
                out.append(inputs[recipe[1]])
            elif kind == "detach":
                out.append(everything[recipe[1]].detach())
            elif kind == "part":
                like = everything[recipe[2]]
                if recipe[1] not in whole:
                    count = like.untyped_storage().nbytes() // like.itemsize
                    whole[recipe[1]] = like.detach().as_strided((count,), (1,), 0).detach()
                out.append(whole[recipe[1]].as_strided(like.shape, like.stride(), like.storage_offset()))
            else:
                out.append(
                    _view(
                        diff[recipe[1]] if kind == "view" else inputs[recipe[1]],
                        everything[recipe[2]],
                        plan.parts.get(k, ""),
                    )
                )
        return tuple(out)

    # ---- backward
    def _likely(self) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """The tangents that the first backward will probably have: the loss's alone where one result looks like a
        loss.
        """
        scalars = [not tangent_meta.shape for tangent_meta in self.tangent_metas]
        present = tuple(scalars) if sum(scalars) == 1 else (True,) * self.n_tangents
        if self.parted is not None:  # no call has tangents of two parts
            part = self.parted.part_of[present.index(True)]
            present = tuple(here and k in part.outputs for k, here in enumerate(present))
        return present, self._reachable(present)

    def _reachable(self, present: tuple[bool, ...]) -> tuple[bool, ...]:
        """Which gradients there are for these tangents: eager gives None for the others."""
        reached = frozenset().union(*(reach for reach, here in zip(self.joint.reach, present) if here))
        return tuple(j in reached for j in range(len(self.joint.grad_inputs)))

    def backward(self, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> _Backward:
        """The compiled backward graph for these tangents and gradients."""
        compiled = self.backwards.get((present, wanted))
        if compiled is None:
            with stages.compiling(), disabled():
                compiled = self.backwards.get((present, wanted))
                if compiled is None:
                    compiled = self.backwards[present, wanted] = self._compile_backward(present, wanted)
        return compiled

    def variant(self, present: tuple[bool, ...], wanted: tuple[bool, ...], keep: bool = False) -> AtenGraph:
        """The backward graph for these tangents and gradients, before it is compiled. keep: it will be asked for
        again.
        """
        partition = self.joint.partition
        graph = (
            partition.backward
            if all(present) and all(wanted)
            else variant(partition.backward, self.n_tangents, present, wanted, self.opts)
        )
        if keep:
            self._variants[present, wanted] = graph
        return graph

    def _generate_backward(self, done: Callable[[], bool]) -> None:
        """What can be done for the first backward while forward's kernels are compiled."""
        whole = len(self.joint.parts) == 1 and bucket_bytes() is None and self.compile_aten is stages.compile_aten
        if not whole or self.opts.get("max_autotune"):  # (a search changes the graph first, and times its kernels)
            return
        likely = self._likely()
        graph = self.variant(*likely, keep=True)
        graph.ahead = stages.Ahead(graph, self.opts)
        try:
            with torch.no_grad(), tracing_modes():
                graph.ahead(done)
        except (TCompileError, NotImplementedError, OSError, *_BUGS):
            graph.ahead = None  # (it is raised again, and said, where backward is asked for)

    def _compile_backward(self, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> _Backward:
        partition, env = self.joint.partition, self.captured.env
        graph = self._variants.pop((present, wanted), None) or self.variant(present, wanted)
        if self.parted is None:
            for other in self._variants.values():
                other.ahead = None
            self._variants.clear()
        reads, tangents = None, len(graph.placeholders) - sum(present)
        if self.parted is not None:
            graph, reads = without_unused_inputs(graph)
        events.emit("aten", graph_module=graph, name=graph.name, backward_of=partition)
        known = len(env.guards) if env is not None else 0
        with torch.no_grad(), tracing_modes():
            try:
                call = self._compile_stages(graph) or self.compile_aten(graph, self.opts)
            except (TCompileError, NotImplementedError, *_BUGS) as error:
                if not isinstance(error, NotImplementedError) and not self.opts.get("suppress_errors"):
                    raise (
                        error
                        if isinstance(error, TCompileError)
                        else InternalError(f"compiling {graph.name}: {type(error).__name__}: {error}")
                    ) from error
                events.fallback(graph.name, f"{type(error).__name__}: {error}; the graph runs with torch's own kernels")
                call = _by_eager_kernels(graph)
        decided = [guard[0] for guard in env.guards[known:]] if env is not None and self.backwards else []
        call = getattr(call, "call", call)
        if hasattr(call, "end_step"):
            call.end_step(self.step, sum(i >= tangents for i in reads or range(len(graph.placeholders))))
        return _Backward(graph, call, decided, reads)

    def _compile_stages(self, graph: AtenGraph) -> StagedGraph | None:
        if self.staged is None:
            return None
        known = self.cut if graph is self.joint.partition.backward else None  # (others are variants of it)
        stages_ = known or stages_of(graph, self.groups)
        if stages_ is None:
            return None
        self.cut = None
        calls = [self.compile_aten(stage.graph, self.opts) for stage in stages_]
        return StagedGraph(stages_, [getattr(call, "call", call) for call in calls], len(graph.plan))

    def run_backward(
        self,
        saved: list,
        rest: list,
        tangents: tuple,
        needs: tuple[bool, ...],
        part: Part | None = None,
        begin: Callable | None = None,
    ) -> list:
        """One gradient or None per input of the graph. Of a part, `saved` and `tangents` hold None where they are
        another's. `saved` is emptied: what nobody else holds is freed after its last use. `begin` takes over where the
        graph runs in stages."""
        grads_of = self.joint.grad_inputs
        present = tuple([tangent is not None for tangent in tangents])
        reachable = self._reachable(present)
        wanted = tuple([reached and needs[i] for reached, i in zip(reachable, grads_of)])
        out: list[Any] = [None] * self.n_inputs
        if not any(wanted):
            return out
        if (present, wanted) not in self.backwards and len(self.backwards) >= VARIANT_LIMIT:
            present = tuple(part is None or k in part.outputs for k in range(self.n_tangents))
            wanted = self._reachable(present)
            tangents = tuple(
                [
                    _zeros(k, rest, self) if tangent is None and present[k] else tangent
                    for k, tangent in enumerate(tangents)
                ]
            )
        compiled = self.backward(present, wanted)
        events.emit("backward", graph=compiled.graph)
        call = compiled.call
        sizes = dict(zip(self.joint.partition.symbols, rest))
        if any(_is_wrapped(tangent) for tangent in tangents if tangent is not None):
            events.fallback(
                compiled.graph.name,
                "the tangents are batched, or of a subclass of Tensor: the graph runs with torch's own kernels",
            )
            call, fixed = _by_eager_kernels(compiled.graph), [tangent for tangent in tangents if tangent is not None]
        else:
            fixed = [
                _as_traced(tangent, tangent_meta.stride, sizes)
                for tangent, tangent_meta in zip(tangents, self.tangent_metas)
                if tangent is not None
            ]
        if compiled.decided:
            if not all(expr.eval(sizes) for expr in compiled.decided):
                call = _by_eager_kernels(compiled.graph)
        given = [*saved, *rest, *fixed]
        if compiled.reads is not None:
            given = [given[read] for read in compiled.reads]
        saved.clear()
        if begin is not None and isinstance(call, StagedGraph):
            begin(call, given, grads_of)
            return out
        for i, grad, reached in zip(
            grads_of, call.consume(given) if hasattr(call, "consume") else call(*given), reachable
        ):
            if reached:
                out[i] = grad
        return out

    def double(
        self, ctx: Any, saved: Sequence[Any], remembered: Sequence[tuple[int, bool]], tangents: Sequence[Any]
    ) -> list:
        """One gradient or None per input, with gradients of their own."""
        if self.joint.watched[1] and getattr(ctx, "hooked", False):
            raise RuntimeError(_HOOKED)
        found = _double(self, saved, remembered, ctx.remembered if remembered else (), tangents)
        if any(isinstance(node.target, HookCall) for node in self.captured.graph_module.graph.nodes):
            for grad in found:  # (who differentiates this gradient comes to the hook's copy)
                if grad is not None and grad.grad_fn is not None:
                    grad.register_hook(lambda _, call=id(ctx): self._note_copy(call))
        return found

    def _note_copy(self, call: int) -> None:
        task = torch._C._current_graph_task_id()
        self.copied = {copy for copy in self.copied if copy[0] == task} | {(task, call)}

    def refuse_copied(self, ctx: Any) -> None:
        """A hook in the graph is not linear, maybe, and this pass has been in a copy of it."""
        if self.copied and (torch._C._current_graph_task_id(), id(ctx)) in self.copied:
            raise RuntimeError(_HOOKED)


def _all_of(part: str, tensor: torch.Tensor) -> torch.Tensor:
    """A view of all of `tensor`. part: by this operator, which makes several views, so that autograd treats it so."""
    if part == "split" and tensor.ndim:
        return tensor.split(max(1, tensor.shape[0]))[0]
    return tensor.unsqueeze(0).unbind(0)[0] if part else tensor.view_as(tensor)


def _view(base: torch.Tensor, like: torch.Tensor, part: str) -> torch.Tensor:
    """The view of `base` that lies as `like` does; part: as of `_all_of`."""
    if part == "split":
        return _all_of(part, base.as_strided(like.shape, like.stride(), like.storage_offset()))
    if part:
        return base.as_strided((1, *like.shape), (0, *like.stride()), like.storage_offset()).unbind(0)[0]
    return base.as_strided(like.shape, like.stride(), like.storage_offset())


def _with_views(call: Callable[..., tuple], plan: OutputPlan) -> Callable[..., tuple]:
    """A graph without gradients of its own, some results of which are views of inputs that require grad, or are
    detached from such.
    """
    views = [(k, recipe[1]) for k, recipe in enumerate(plan.recipes) if recipe[0] == "input_view"]
    detached = [k for k, recipe in enumerate(plan.recipes) if recipe[0] == "detach"]
    if not views and not detached:
        return call

    def run(*inputs: Any) -> tuple:
        results = list(call(*inputs))
        for k in detached:
            results[k] = results[k].detach()
        for k, i in views:
            if inputs[i].requires_grad:
                results[k] = _view(inputs[i], results[k], plan.parts.get(k, ""))
        return tuple(results)

    return run


def _by_eager_kernels(graph: AtenGraph) -> Callable[..., tuple]:
    def run(*inputs: Any) -> tuple:
        with torch.no_grad():
            return interpret(graph, inputs)

    return counted(run, graph)


def _zeros(k: int, rest: list, graph: GradGraph) -> torch.Tensor:
    """A tangent that is not there, as zeros: where there are too many variants already."""
    meta = graph.tangent_metas[k]
    sizes = dict(zip(graph.joint.partition.symbols, rest))
    shape = [size if isinstance(size, int) else size.eval(sizes) for size in meta.shape]
    return torch.zeros(shape, dtype=meta.dtype, device=meta.device)


def _size_reader(name: str, forward: Any) -> Callable[[tuple], int]:
    """How a size symbol's value is read from forward's inputs."""
    from ..symbolic.expr import symbol

    size_symbol = symbol(name)
    for i, placeholder in enumerate(forward.placeholders):
        val = placeholder.meta.get("val")
        if val is size_symbol:
            return lambda inputs: inputs[i]
        for dim, size in enumerate(getattr(val, "shape", ())):
            if size is size_symbol:
                return _reader(i, dim, False)
        for dim, stride in enumerate(getattr(val, "stride", ())):
            if stride is size_symbol:
                return _reader(i, dim, True)
    raise CannotTrace(f"no input gives the size {name} by itself")


def _apply_of(forward: Any, backward: Callable) -> Callable:
    """What applies a Function of these: node.cpp, or the part of `Function.apply` that is in C. What Function.apply
    does before (functorch's transforms, keyword arguments) does not arise: guards keep transforms out, and inputs come
    by position."""
    node = autograd_node()
    if node is not None:
        return node.Apply(forward, backward)
    # where torch looks first
    function = type(
        "TCompiled",
        (torch.autograd.Function,),
        {
            "forward": forward,
            "backward": staticmethod(backward),
            "setup_context": staticmethod(torch.autograd.Function.setup_context),
        },
    )
    return torch._C._FunctionBase.__dict__["apply"].__get__(None, function)


def _backward(graph: GradGraph, ctx: Any, *tangents: torch.Tensor | None) -> tuple:
    saved = taken_from(ctx) if graph.frees else []
    if graph.watched:
        refuse_changed(graph.watched, ctx.remembered)
    if torch._C.is_grad_enabled():
        return tuple(graph.double(ctx, saved, graph.remembered, tangents))
    graph.refuse_copied(ctx)
    return tuple(graph.run_backward(saved, getattr(ctx, "rest", []), tangents, ctx.needs_input_grad))


def _reader(i: int, dim: int, stride: bool) -> Callable[[tuple], int]:
    if stride:
        return lambda inputs: inputs[i].stride(dim)
    return lambda inputs: inputs[i].shape[dim]


class _Bridge(torch.autograd.Function):
    """The same in Python: what GradForward and `_backward` do, with `everything` as the way around torch for what has
    no gradient.
    """

    graph: GradGraph

    @classmethod
    def forward(cls, ctx: Any, call: tuple[list, tuple], *inputs: Any) -> tuple:
        everything, given = call
        graph = cls.graph
        ctx.save_for_backward(*graph.run_forward(everything, inputs))
        ctx.rest = graph.rest(inputs)
        ctx.remembered = remember(graph.remembered, (*given, *everything))
        ctx.set_materialize_grads(False)
        return tuple([everything[k] for k in graph.at])

    @classmethod
    def backward(cls, ctx: Any, *tangents: torch.Tensor | None) -> tuple:
        graph = cls.graph
        saved = taken_from(ctx) if graph.frees else []
        refuse_changed(graph.watched, ctx.remembered)
        if torch._C.is_grad_enabled():
            return (None, *graph.double(ctx, saved, graph.remembered, tangents))
        graph.refuse_copied(ctx)
        return (None, *graph.run_backward(saved, ctx.rest, tangents, ctx.needs_input_grad[1:]))


def _has_idle_inputs(captured: CapturedGraph, grad_inputs: list[int]) -> bool:
    """Whether inputs require grad that no result depends on differentiably: they are only read detached, or under
    no_grad. The Function must not be joined to them: a backward pass through it would visit their history, call hooks
    without a gradient, and free what was saved there.
    """
    return any(
        i not in grad_inputs and spec.kind == "tensor" and spec.spec is not None and spec.spec.requires_grad
        for i, spec in enumerate(captured.inputs)
    )


def _is_small(node: Any, hints: dict[str, int]) -> bool:
    """Whether an input may stay alive with the results, only because double backward might ask for it."""
    meta = node.meta.get("val")
    return not isinstance(meta, TensorMeta) or bytes_of(meta, hints) <= SMALL_BYTES


def _is_wrapped(tensor: torch.Tensor) -> bool:
    """A tangent that stands for others: of a subclass, or batched (torch.autograd.grad(..., is_grads_batched=True))."""
    return (
        type(tensor) not in (torch.Tensor, torch.nn.Parameter)
        or tensor.layout is torch.strided
        and not torch._C._has_storage(tensor)
    )


def _as_traced(tensor: torch.Tensor, stride: tuple, sizes: dict[str, int]) -> torch.Tensor:
    """The tangent in the layout that the backward graph was traced for; `sizes` are the values of the symbols in it."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if sizes:
        stride = tuple([size if isinstance(size, int) else size.eval(sizes) for size in stride])
    return (
        tensor
        if tensor.stride() == stride
        else torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    )


class _Same(torch.autograd.Function):
    """A tensor as another one, which is no view of it, and has none of its hooks."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad


_HOOKED = (
    "tcompile: double backward (create_graph=True) through a compiled graph with a hook inside, or on a result, which"
    " would be told two parts of the gradient one by one; run this part eager with tcompile.disable"
)


def _double(
    graph: GradGraph,
    saved: Sequence[Any],
    remembered: Sequence[tuple[int, bool]],
    held: Sequence[Any],
    tangents: Sequence[Any],
) -> list:
    """Double backward: the graph once more under eager autograd, so that gradients have gradients. `held` are the
    `remembered` inputs.
    """
    joint, plan = graph.joint, graph.joint.outputs
    inputs: list[Any] = [None] * graph.n_inputs
    for i, tensor in zip(graph.saved_inputs, saved):
        inputs[i] = tensor
    for (i, _), kept in zip(remembered, held):
        if i >= graph.n_inputs:
            continue
        if isinstance(kept, tuple):
            tensor = kept[0]() if isinstance(kept[0], weakref.ref) else kept[0]
            if tensor is None or tensor._version != kept[1]:
                raise RuntimeError(
                    "tcompile: double backward (create_graph=True) needs the inputs of the compiled call, but one of"
                    " them is gone or was changed in place since; keep them alive, or run this part eager with"
                    " tcompile.disable"
                )
            inputs[i] = tensor
        else:
            inputs[i] = kept
    if any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in joint.aten.graph.nodes):
        raise RuntimeError(
            "tcompile: double backward (create_graph=True) through a compiled graph with random numbers (dropout): they"
            " can't be drawn again; run this part eager with tcompile.disable"
        )
    events.fallback(f"double backward of {graph.captured.name}", "gradients of gradients run by eager kernels")
    written = {i for i, _ in joint.partition.forward.mutation_slots} | {i for i, _ in plan.writes}
    with torch.enable_grad():
        # The engine runs hooks of what gradients are asked for, and it does so for the inputs themselves, too.
        own = {grad_input: _Same.apply(inputs[grad_input]) for grad_input in joint.grad_inputs}
        run = [own.get(i, tensor) for i, tensor in enumerate(inputs)]
        run = [tensor.clone() if i in written else tensor for i, tensor in enumerate(run)]
        outs = graph.captured.graph_module(*run)
        ends, given = [], []
        for (kind, k), tensor in zip(plan.origin, tangents):
            end = run[k] if kind == "write" else outs[k] if kind == "result" else outs[k]._base
            if end is None:
                raise RuntimeError(
                    "tcompile: double backward through results that share memory; run this part eager with"
                    " tcompile.disable"
                )
            if tensor is not None:
                ends.append(end)
                given.append(tensor)
        wanted = [own[grad_input] for grad_input in joint.grad_inputs]
        grads = torch.autograd.grad(ends, wanted, given, create_graph=True, allow_unused=True)
    result: list[Any] = [None] * graph.n_inputs
    for i, grad in zip(joint.grad_inputs, grads):
        result[i] = grad
    return result
