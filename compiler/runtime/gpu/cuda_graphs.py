"""CUDA graphs: a plan's launches recorded once and replayed by one call (`reduce-overhead`, `max-autotune`, backend
`cudagraphs`).

The first calls (WATCHED) run plainly and show which inputs keep their address (parameters, buffers, anything that
stays): those are read where they are and never copied. The others are copied into memory of the graph's before each
replay. Results are copied out, so that they stay valid. Inputs that are written must keep their address for PAID
replays: then the graph is recorded again where they lie now. Sizes and numbers that vary have a graph each, up to MOST.

A plan may serve several modules: each set of parameters has graphs of its own (`graph_sets.py`).

What the forward of a training step keeps for its backward stays in the graph's memory (`step_memory.py`). The backward
is captured reading it there, as soon as the forward is a graph. A call whose forward ran plainly, because results of an
earlier one were still needed, has a plain backward.

The other graphs of a device share one pool of memory; replays on another stream than the last one wait for it. Where a
replay measured slower than plain launches, or costs more to feed than it saves, the plain plan is kept; what is not
captured says why.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ... import events
from ...ops import philox
from ...ops.collectives import communicates
from ...base import forks, unseen_writes
from ...base.generations import generation_of, has
from ...codegen.plan_functions import changed
from ...fusion.schedule import Extern, Launch, Schedule
from ...lowering.ir import Buffer
from ...native import native
from ...symbolic.expr import Expr
from .counters import Counters
from .graph_results import Results, with_views
from .graph_sets import GraphSets
from .step_memory import Held, Pool, Step, can_hold, common_pool, held_bytes, most_bytes, own_copy, place_of, span

__all__ = ["CudaGraphs", "why_not_captured"]

WATCHED = 2  # calls that show which inputs keep their address
MOST = 16  # graphs of one plan, for one set of parameters
RECAPTURES = 3  # of one graph, as inputs turn out to move
PAID = 32  # replays that pay for a capture: one more is worth it, where a written input lies elsewhere now
PATIENCE = 2  # calls that wait for lent gradients
GRACE_S = 5e-3  # torch's backward thread lets its last gradient go a little after the caller has it
GAIN = 0.98  # a replay takes less than this part of plain launches, or is not kept
# seconds, bytes a second: for plans that can't be run twice to be measured
LAUNCH_S, COPY_S, BANDWIDTH = 4e-6, 3e-6, 3e12

_lock = forks.lock()
_last_stream: dict[int, tuple[int, torch.cuda.Stream]] = {}  # the raw handle and the stream of the last replay
_stopped = ""  # why nothing is captured any more


def why_not_captured(schedule: Schedule, index: int) -> str | None:
    """What of a plan can't be part of a CUDA graph; None where nothing is known to be in the way."""
    device = torch.device("cuda", index)
    for buffer in schedule.inputs:
        if isinstance(buffer, Buffer) and torch.device(buffer.device) != device:
            return f"input {buffer.name} is on {buffer.device}"
    for step in schedule.steps:
        if isinstance(step, Extern):
            if communicates(step.op):
                return f"{step.op} exchanges tensors with other processes"
            tags = {str(tag).rpartition(".")[2] for tag in step.op.tags}
            if tags & {"dynamic_output_shape", "data_dependent_output"}:
                return f"the size of a result of {step.op} depends on values"
            if "_efficient_attention" in str(step.op) and philox.dropout_of(step.op, step.args, step.kwargs):
                # (on the host, or the device where it was captured)
                return f"where {step.op} keeps the seed of its dropout, its backward looks for it"
            if str(step.op).startswith("aten._grouped_mm") and not _groups_stay(step, index):
                return f"{step.op} asks the host for the sizes of its groups, but for bfloat16 on newer devices"
            for buffer in step.outputs:
                if buffer is not None and torch.device(buffer.device or "cpu") != device:
                    return f"{step.op} gives a tensor on {buffer.device}"
    if not any(isinstance(step, (Launch, Extern)) for step in schedule.steps):
        return "there is nothing to launch"
    return None


def _groups_stay(step: Extern, index: int) -> bool:
    """Whether one kernel reads where groups end; elsewhere torch's function does, and multiplies group by group."""
    return step.args[0].dtype is torch.bfloat16 and has("groups read on the device", generation_of(index))


@dataclass
class _Graph:
    """One capture: sizes and numbers are fixed."""

    calls: int = 0
    seen: list[tuple] = field(default_factory=list)  # addresses of the inputs, call by call
    moving: set[int] = field(default_factory=set)
    reason: str = ""  # why plain launches are kept
    captures: int = 0
    replays: int = 0  # since it was captured
    graph: Any = None
    static: Any = None
    keep: list[Any] = field(default_factory=list)  # results and copied inputs, in memory that the graph writes
    # results that are copied out by one call
    together: list[tuple[list[int], list[torch.Tensor]]] = field(default_factory=list)
    views: list[tuple] = field(default_factory=list)  # results that are views: of an input, or of another result
    held: Held | None = None  # of a forward: what its replays leave for backward
    kept_bytes: int = 0  # of a forward that was not captured yet: what it keeps
    # of a backward: its inputs that a forward's graph holds, over that memory
    read: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    destroys: bool = False  # of a backward: its replay writes to that memory
    rows: tuple = ()  # where the inputs are read
    states: Any = None  # of random numbers, where kernels of ours alone draw
    results: Any = None  # of a backward that lends: how they are handed out
    lent: Held | None = None  # of a backward: gradients that are handed out where they are


class CudaGraphs:
    """`call(*inputs) -> tuple` as `plan` does it, by replays. `captured` tells how many graphs there are, `reasons` why
    others are not.
    """

    def __init__(self, plan: Callable[..., tuple], schedule: Schedule, index: int):
        self.plan, self.s, self.index = plan, schedule, index
        self.tensors = [i for i, given in enumerate(schedule.inputs) if isinstance(given, Buffer)]
        copied = [i for i, _ in schedule.mutations]
        self.written = sorted({*copied, *schedule.written})
        self.counted = [
            *schedule.counted,
            *(i for i in copied if i not in schedule.uncounted),
        ]  # as often as the program does
        self.changed = schedule.changed_results()
        self.random = _draws_random_numbers(schedule)
        self.draws = _own_draws(schedule)
        self.key = _key_function(schedule)
        self.entries: dict[Any, _Graph] = {}
        self.reasons: list[str] = []
        self.step: Step | None = None
        self.backward = False
        self.n_tangents = 0
        self.holder: tuple[dict[str, Any], str] | None = None
        self.sets: GraphSets = GraphSets(self)
        self.parameter: weakref.ref[torch.nn.Parameter] | None = None  # the first of the set that the graphs are for

    @property
    def captured(self) -> int:
        return sum(graph.graph is not None for one in self.sets.members for graph in one.entries.values())

    def sibling(self) -> CudaGraphs:
        """The plan's graphs for another set of parameters."""
        other = CudaGraphs(self.plan, self.s, self.index)
        other.reasons, other.sets = self.reasons, self.sets
        if self.step is not None and not self.backward:
            other.step = self.step.sibling()
        self.sets.members.append(other)
        return other

    @property
    def paid(self) -> bool:
        """Whether replays have paid for a capture."""
        return any(graph.replays >= PAID for graph in self.entries.values())

    def forget(self) -> None:
        """The parameters are no more: neither are the graphs."""
        for graph in self.entries.values():
            self._drop(graph)
        self.entries.clear()
        if self.step is not None:
            self.step.leave()
            self.step.reason = ""

    def held_by(self, names: dict[str, Any], name: str) -> None:
        """Where the caller finds this object: once plain launches are kept for good, the plan stands there, and calls
        do not pass here any more.
        """
        self.holder = names, name

    def begin_step(self, n_outputs: int) -> Step | None:
        """This is the forward of a training step: results from n_outputs on are for its backward alone."""
        inputs = {id(buffer) for buffer in self.s.inputs}
        if can_hold() and any(
            output.kind == "buffer" and id(output.value) not in inputs for output in self.s.outputs[n_outputs:]
        ):
            self.step = Step(n_outputs, self.index)
        return self.step

    def end_step(self, step: Step | None, n_tangents: int) -> None:
        """This is a backward of the step that a forward began; None: of one that leaves nothing in graphs. The last
        inputs are tangents.
        """
        self.step, self.backward, self.n_tangents = step, True, n_tangents

    def __call__(self, *inputs: Any) -> tuple:
        if (place := self.sets.place(inputs)) >= 0 and (
            self.parameter is None or self.parameter() is not inputs[place]
        ):
            mine = self.sets.of(inputs[place])
            if mine is not self:
                return self.plan(*inputs) if mine is None else mine(*inputs)
        graph = self.entries.get(None if self.key is None else self.key(*inputs))
        if graph is not None and graph.graph is not None and not _capturing() and not (_stopped and self.random):
            with _lock:
                moved = None
                if self.step is None or not self._busy():
                    _in_order(self.index)
                    moved = graph.static.load(inputs)
                    if moved < 0:
                        return self._replay(graph, inputs)
            if moved is None:
                return self.plan(*inputs)
            self._moved(graph, moved)
        return self._plainly(graph, inputs)

    def consume(self, given: list) -> tuple:
        """The same of a backward, whose caller gives the inputs away: each leaves the list after its last use."""
        step = self.step
        if step is None:
            graph = self.entries.get(None if self.key is None else self.key(*given))
            return self._consume_plainly(given) if graph is not None and graph.reason else self(*given)
        if len(step.family) > 1 and (found := step.holder(given)) is not None and found is not step:
            return self.sets.of_step(found, self.n_tangents).consume(given)
        held = step.last
        if held is None or not held.alive or _capturing():
            if step.reason and not self.reasons:
                self._say(f"plain launches: those of the forward are, too: {step.reason}")
            return self._consume_plainly(given)
        with _lock:
            graph = None if self._still_lent(step) else self._captured_over(held, given)
            if graph is not None:
                if graph.lent is not None and not step.lends:
                    self._hand_out(graph, None)
                _in_order(self.index)
                if graph.static.load(tuple(given)) < 0:
                    if not graph.destroys or self._alone(graph, held, given):
                        for i, _ in graph.read:
                            given[i] = None
                        return self._replay(graph, tuple(given))
                    self._say(
                        "plain launches in some calls: what forward kept is needed after the backward pass, too (by"
                        " another one, or a hook)"
                    )
            _in_order(self.index)  # a forward that is replayed on another stream waits for what reads its memory
        return self._consume_plainly(given)

    def _replay(self, graph: _Graph, inputs: tuple) -> tuple:
        if graph.held is not None:
            assert self.step is not None
            self.step.last = graph.held
        if graph.states is not None:
            graph.states.fill()
        graph.replays += 1
        graph.graph.replay()
        out = graph.static.results(inputs)
        for at, results in graph.together:
            torch._foreach_copy_([out[k] for k in at], results)
        if graph.views:
            out = with_views(out, inputs, graph.views, len(self.s.outputs))
        if self.counted:
            torch.autograd.graph.increment_version([inputs[i] for i in self.counted])
        if self.s.uncounted:
            unseen_writes.note()
        for key, n in self.changed.items():
            changed(out[key], n)
        return out

    def _busy(self) -> bool:
        """Whether an earlier call's results are still needed where this one's would lie."""
        if self.step is None:
            return False
        if self.step.busy:
            self._say("plain launches in some calls: what an earlier call kept for its backward was still needed")
            return True
        if not self._still_lent(self.step):
            return False
        self.step.waited += 1
        if self.step.waited == PATIENCE:  # somebody keeps them: they have that memory, and new graphs get another
            for graph in self.entries.values():
                self._drop(graph)
            self.step.leave()
        return True

    def _still_lent(self, step: Step) -> bool:
        """Whether gradients of an earlier call are still needed where this one writes; the next ones are copied
        then.
        """
        if not step.still_lent:
            return False
        if step.lends:
            end = time.perf_counter() + GRACE_S
            while time.perf_counter() < end:
                time.sleep(1e-4)  # (that thread needs the interpreter's lock)
                if not step.still_lent:
                    return False
        step.lends = False
        self._say("gradients are copied: those of an earlier call were still held when the next one began")
        return True

    def _alone(self, graph: _Graph, held: Held, given: list) -> bool:
        """Whether nobody but the list holds what this backward reads. What it reads leaves the list, and comes back
        where the plan is to run.
        """
        for i, _ in graph.read:
            given[i] = None
        if not held.alive:
            return True
        for i, view in graph.read:
            given[i] = view.detach()
        return False

    # ---- calls without a replay
    def _consume_plainly(self, given: list) -> tuple:
        return self.plan.consume(given) if hasattr(self.plan, "consume") else self.plan(*given)

    def _plainly(self, graph: _Graph | None, inputs: tuple) -> tuple:
        if graph is None:
            if len(self.entries) >= MOST:
                return self.plan(*inputs)
            graph = self.entries[None if self.key is None else self.key(*inputs)] = _Graph()
        if graph.reason or _capturing():
            return self.plan(*inputs)
        if _stopped:
            self._give_up(graph, _stopped)
            return self.plan(*inputs)
        graph.calls += 1
        here = tuple(inputs[i].data_ptr() for i in self.tensors)
        if graph.calls <= WATCHED and not graph.captures:
            graph.seen.append(here)
            out = self.plan(*inputs)
            if self.step is not None:
                graph.kept_bytes = sum(
                    tensor.numel() * tensor.element_size()
                    for tensor in out[self.step.first :]
                    if isinstance(tensor, torch.Tensor)
                )
            return out
        graph.moving |= {i for k, i in enumerate(self.tensors) if any(places[k] != here[k] for places in graph.seen)}
        graph.seen = [here]
        with _lock:
            out = None if self._busy() else self._capture(graph, inputs)
        return self.plan(*inputs) if out is None else out

    def _moved(self, graph: _Graph, i: int) -> None:
        """An input that seemed to keep its address does not: it will be copied from now on. One that is written can't
        be: it must have stayed for long enough. (Each generation makes a cache anew.)
        """
        paid, graph.replays = graph.replays >= PAID, 0
        if paid:
            graph.seen, graph.captures = [], 1
        if not paid or i not in self.written:
            graph.moving.add(i)
        self._drop(graph)
        if graph.captures > RECAPTURES:
            self._give_up(graph, "inputs keep changing their addresses")

    def _drop(self, graph: _Graph) -> None:
        if graph.held is not None:
            graph.held.dropped = True
        graph.graph = graph.static = graph.held = graph.results = graph.lent = graph.states = None
        graph.keep, graph.together, graph.views, graph.read = [], [], [], []

    def _give_up(self, graph: _Graph, reason: str) -> None:
        self._drop(graph)
        graph.reason = reason
        if self.step is not None and not self.backward:
            self.step.reason = reason
        self._say(f"plain launches: {reason}")
        if self.key is None and self.holder is not None and len(self.sets.members) == 1:
            names, name = self.holder
            if names.get(name) is self:  # (not where something stands around it)
                names[name] = self.plan

    def _say(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)
            events.fallback("CUDA graph", reason)

    # ---- capture
    def _capture(self, graph: _Graph, inputs: tuple) -> tuple | None:
        """Record the graph and decide about it. Gives this call's results, or None where the plan is to give them."""
        if set(self.written) & graph.moving:
            self._give_up(graph, "an input that is written changes its address from call to call")
            return None
        step = None if self.backward else self.step
        if step is not None:
            if held_bytes(self.index) - step.reserved + max(step.reserved, graph.kept_bytes) > most_bytes(self.index):
                self._give_up(
                    graph,
                    f"what it keeps for backward ({graph.kept_bytes >> 20} MB) would pass a quarter of the device's"
                    " memory",
                )
                return None
            if not step.reserved:
                # what plain calls left to the allocator: the pool takes as much from the device
                torch.cuda.empty_cache()
        fed = list(inputs)
        return (
            self(*inputs)
            if self._record_and_decide(graph, inputs, fed, step.pool if step else common_pool(self.index))
            else None
        )

    def _captured_over(self, held: Held, given: list) -> _Graph | None:
        """The backward's graph for what a forward graph holds, captured now where it was not; None: it runs plainly."""
        key = (None if self.key is None else self.key(*given), held)
        graph = self.entries.get(key)
        if graph is not None and (graph.graph is not None or graph.reason):
            return graph if graph.graph is not None and not (_stopped and self.random) else None
        places = [(i, place) for i in self.tensors if (place := place_of(given[i])) in held.views]
        for old in [k for k in self.entries if k[1].dropped]:
            del self.entries[old]
        if not places or held.dropped or len(self.entries) >= MOST:
            return None  # of a call whose forward ran plainly
        graph = self.entries[key] = _Graph()
        if _stopped:
            self._give_up(graph, _stopped)
            return None
        assert self.step is not None
        graph.read = [(i, held.views[place]) for i, place in places]
        first = len(given) - self.n_tangents
        graph.moving = {
            i for i in self.tensors if i >= first or i not in dict(places) and given[i].data_ptr() not in held.static
        }
        graph.destroys = self._alone(graph, held, given) and bool(held.own)
        fed, inputs = list(given), [None] * len(given)
        for i, place in places:
            given[i] = held.views[place].detach()
            fed[i] = held.own.pop(place, None) if graph.destroys else given[i]
            if fed[i] is None:  # given twice: the first has it
                fed[i] = held.views[place].detach()
        if graph.destroys:
            held.own.clear()
        for i in graph.moving:
            inputs[i] = given[i]
        return (
            graph
            if self._record_and_decide(
                graph, inputs, fed, self.step.pool if graph.destroys else common_pool(self.index)
            )
            else None
        )

    def _record_and_decide(self, g: _Graph, inputs: Sequence[Any], fed: list, pool: Pool) -> bool:
        """Whether there is a graph now. `fed`: the inputs as the plan gets them; those that move are copied. Of a
        backward the list is emptied.
        """
        copied: list[tuple[int, torch.Tensor]] = []
        for i in sorted(g.moving):
            fed[i] = own_copy(inputs[i])
            copied.append((i, fed[i]))
        sizes = {i: span(tensor) * tensor.element_size() for i, tensor in copied}
        rows = tuple((i, fed[i].data_ptr(), sizes.get(i, -1)) for i in self.tensors)
        given = {
            StorageWeakRef(x.untyped_storage())
            for x in fed
            if isinstance(x, torch.Tensor) and x.layout is torch.strided
        }
        g.captures += 1
        try:
            states = philox.States(self.draws, torch.device("cuda", self.index)) if self.draws else None
            graph, outs = self._record(pool, fed, states)
        except Exception as e:
            torch.cuda.synchronize(self.index)
            self._give_up(g, f"capture failed: {type(e).__name__}: {str(e).splitlines()[0][:200]}")
            return False
        first = len(outs) if self.step is None or self.backward else self.step.first
        g.rows, g.results = rows, Results(self.s, outs, fed, given, first, self.backward, {i for i, _ in g.read}, pool)
        results = g.results
        if results.why:
            self._give_up(g, results.why)
            return False
        if results.kept:
            g.held = Held(results.kept, pool, frozenset(address for _, address, n in rows if n < 0 and address))
        g.states = states
        g.views, g.graph, g.keep = results.views, graph, [results.copied, [t for _, t in copied]]
        n_copies = len(copied) + self._hand_out(g, None)
        if results.lendable and self.step is not None and self.step.lends:
            self._hand_out(g, Held(results.lendable, pool, frozenset()))
        else:
            g.results = None  # (with what a forward keeps: its backward gives that memory back)
        why = self._worth_it(g, tuple(inputs), sum(sizes.values()), results.bytes, n_copies)
        if why:
            self._give_up(g, why)
            return False
        events.emit(
            "cudagraph",
            captured=True,
            copied_inputs=len(copied),
            copied_bytes=sum(sizes.values()),
            result_bytes=results.bytes,
            held_bytes=g.held.bytes if g.held else 0,
            launches=sum(isinstance(step, (Launch, Extern)) for step in self.s.steps),
        )
        return True

    def _hand_out(self, graph: _Graph, lent: Held | None) -> int:
        """Results are copied, but for those that are lent; how many launches that takes."""
        if lent is not None and self.step is not None:
            self.step.lent.append(lent)
        outputs, objects, graph.together = graph.results.rows(graph.held, lent)
        graph.static, graph.lent = native.CudaStatic(self.index, graph.rows, outputs, objects), lent
        return sum(output[0] == 0 for output in outputs) - sum(len(at) - 1 for at, _ in graph.together)

    def _record(self, pool: Pool, fed: list, states: philox.States | None) -> tuple[Any, tuple]:
        index, side = self.index, pool.side
        with torch.cuda.device(index):
            torch.cuda.synchronize(index)
            before = torch.cuda.default_generators[index].clone_state()
            reserved = torch.cuda.memory_reserved(index)
            with Counters(index) as counters, torch.cuda.stream(side), philox.recording(states):
                graph = counters.graph
                try:
                    graph.capture_begin(pool=pool.handle, capture_error_mode="thread_local")
                    outs = self._consume_plainly(fed) if self.backward else self.plan(*fed)
                except BaseException:
                    _abandon(graph, index, before)
                    raise
                graph.capture_end()
            torch.cuda.current_stream(index).wait_stream(side)
        if self.step is not None and pool is not common_pool(index):
            self.step.reserved += torch.cuda.memory_reserved(index) - reserved
        return graph, outs

    def _worth_it(self, graph: _Graph, inputs: tuple, in_bytes: int, out_bytes: int, n_copies: int) -> str:
        """Why plain launches are better; "" where replays are."""
        launches = sum(isinstance(step, (Launch, Extern)) for step in self.s.steps)
        if self.written or self.random or graph.held is not None or graph.read:  # can't be run to be measured
            cost = (2 * in_bytes + 2 * out_bytes) / BANDWIDTH + n_copies * COPY_S
            if cost > launches * LAUNCH_S:
                return f"copying {in_bytes + out_bytes} bytes in and out takes longer than {launches} launches"
            return ""

        def replay() -> None:
            graph.static.load(inputs)
            self._replay(graph, inputs)

        _in_order(self.index)
        best = {"replay": float("inf"), "plain": float("inf")}
        began = time.perf_counter()
        for round_ in range(5):
            for name, run in (("replay", replay), ("plain", lambda: self.plan(*inputs))):
                torch.cuda.synchronize(self.index)
                n = 5
                t = time.perf_counter()
                for _ in range(n):
                    run()
                torch.cuda.synchronize(self.index)
                best[name] = min(best[name], (time.perf_counter() - t) / n)
            if round_ and time.perf_counter() - began > 0.3:
                break
        if best["replay"] > GAIN * best["plain"]:
            return f"a replay took {best['replay'] * 1e6:.1f} us, plain launches {best['plain'] * 1e6:.1f} us"
        return ""


def _capturing() -> bool:
    """Whether the user records a graph."""
    return torch._C._cuda_isCurrentStreamCapturing()


def _abandon(graph: Any, index: int, before: torch.Generator) -> None:
    """End a capture that failed. torch leaves its random generator inside of it then, so the generator gets back the
    state from before, which graphs that were captured earlier do not share: nothing is captured any more, and those
    that draw random numbers are not replayed.
    """
    global _stopped
    try:
        graph.capture_end()
    except RuntimeError as e:
        _stopped = f"an earlier capture failed: {str(e).splitlines()[0][:150]}"
        torch.cuda.default_generators[index].graphsafe_set_state(before)


def _in_order(index: int) -> None:
    """Replays share memory: one on another stream waits for the last."""
    stream = torch._C._cuda_getCurrentRawStream(index)
    last = _last_stream.get(index)
    if last is None or last[0] != stream:
        now = torch.cuda.current_stream(index)
        if last is not None:
            now.wait_event(last[1].record_event())
        _last_stream[index] = (stream, now)


def _key_function(schedule: Schedule) -> Callable[..., Any] | None:
    """`(*inputs) -> sizes and numbers that the plan depends on`; None where there are none."""
    parts = []
    for _, (i, kind, dim) in schedule.symbols.items():
        parts.append(f"x{i}" if kind == "value" else f"x{i}.{'shape' if kind == 'size' else 'stride()'}[{dim}]")
    parts += [f"x{i}" for i, given in enumerate(schedule.inputs) if not isinstance(given, (Buffer, Expr))]
    if not parts:
        return None
    return eval(
        f"lambda {', '.join(f'x{i}' for i in range(len(schedule.inputs)))}: ({', '.join(dict.fromkeys(parts))},)"
    )


def _draws_random_numbers(schedule: Schedule) -> bool:
    return any(
        isinstance(step, Extern) and torch.Tag.nondeterministic_seeded in step.op.tags for step in schedule.steps
    )


def _own_draws(schedule: Schedule) -> int:
    """How often kernels of ours draw random numbers, where torch's kernels do not."""
    draws = [
        step for step in schedule.steps if isinstance(step, Extern) and philox.draws(step.op, step.args, step.kwargs)
    ]
    return sum(len(step.args[1]) for step in draws) if all(step.op is philox.STATE for step in draws) else 0
