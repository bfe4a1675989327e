"""CUDA graphs: a plan's launches recorded once and replayed by one call (`reduce-overhead`, `max-autotune`, backend `cudagraphs`).

The first two calls run plainly and show which inputs keep their address (parameters, buffers, anything that stays): those are read where
they are and never copied; the others are copied into memory of the graph's before each replay. Results are copied out, so that they
stay valid. Inputs that are written must keep their address. Sizes and numbers that vary have a graph each, up to MOST.

All graphs of a device share one pool of memory; replays on another stream than the last one wait for it. Where a replay measured
slower than plain launches, or costs more to feed than it saves, the plain plan is kept; what is not captured says why.
"""
from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

import torch

from ... import events
from ...fusion.schedule import Extern, Launch, Schedule
from ...lowering.ir import Buffer
from ...native import native
from ...symbolic.expr import Expr
from ..program import DTYPE_CODES

__all__ = ["CudaGraphs", "why_not_captured"]

MOST = 16                        # graphs of one plan
RECAPTURES = 3                   # of one graph, as inputs turn out to move
GAIN = 0.98                      # a replay takes less than this part of plain launches, or is not kept
LAUNCH_S, COPY_S, BANDWIDTH = 4e-6, 3e-6, 3e12      # seconds, bytes a second: for plans that can't be run twice to be measured

_lock = threading.RLock()
_pools: dict[int, tuple] = {}
_last_stream: dict[int, tuple[int, torch.cuda.Stream]] = {}     # the raw handle and the stream of the last replay
_stopped = ""                    # why nothing is captured any more


def why_not_captured(s: Schedule, index: int) -> str | None:
    """What of a plan can't be part of a CUDA graph; None where nothing is known to be in the way."""
    device = torch.device("cuda", index)
    for b in s.inputs:
        if isinstance(b, Buffer) and torch.device(b.device) != device:
            return f"input {b.name} is on {b.device}"
    for step in s.steps:
        if isinstance(step, Extern):
            tags = {str(t).rpartition(".")[2] for t in step.op.tags}
            if tags & {"dynamic_output_shape", "data_dependent_output"}:
                return f"the size of a result of {step.op} depends on values"
            for b in step.outputs:
                if b is not None and torch.device(b.device or "cpu") != device:
                    return f"{step.op} gives a tensor on {b.device}"
    for o in s.outputs:
        if o.kind == "view":
            return "a result is a view that must alias its base"
    if not any(isinstance(step, (Launch, Extern)) for step in s.steps):
        return "there is nothing to launch"
    return None


@dataclass
class _Graph:
    """One capture: sizes and numbers are fixed."""
    calls: int = 0
    seen: list[tuple] = field(default_factory=list)        # addresses of the inputs, call by call
    moving: set[int] = field(default_factory=set)
    reason: str = ""                                        # why plain launches are kept
    captures: int = 0
    graph: Any = None
    static: Any = None
    keep: list[Any] = field(default_factory=list)           # results and copied inputs, in memory that the graph writes


class CudaGraphs:
    """`call(*inputs) -> tuple` as `plan` does it, by replays. `captured` tells how many graphs there are, `reasons` why others are not."""

    def __init__(self, plan: Callable[..., tuple], s: Schedule, index: int):
        self.plan, self.s, self.index = plan, s, index
        self.tensors = [i for i, b in enumerate(s.inputs) if isinstance(b, Buffer)]
        self.written = sorted({i for i, _ in s.mutations} | set(s.written))
        self.random = _draws_random_numbers(s)
        self.key = _key_function(s)
        self.entries: dict[Any, _Graph] = {}
        self.reasons: list[str] = []

    @property
    def captured(self) -> int:
        return sum(g.graph is not None for g in self.entries.values())

    def __call__(self, *inputs: Any) -> tuple:
        g = self.entries.get(None if self.key is None else self.key(*inputs))
        if g is not None and g.graph is not None and not torch._C._cuda_isCurrentStreamCapturing() and not (_stopped and self.random):
            with _lock:
                _in_order(self.index)
                moved = g.static.load(inputs)
                if moved < 0:
                    g.graph.replay()
                    out = g.static.results(inputs)
                    if self.written:
                        torch.autograd.graph.increment_version([inputs[i] for i in self.written])
                    return out
            self._moved(g, moved)
        return self._plainly(g, inputs)

    # ---- calls without a replay
    def _plainly(self, g: _Graph | None, inputs: tuple) -> tuple:
        if g is None:
            if len(self.entries) >= MOST:
                return self.plan(*inputs)
            g = self.entries[None if self.key is None else self.key(*inputs)] = _Graph()
        if g.reason or torch._C._cuda_isCurrentStreamCapturing():
            return self.plan(*inputs)
        if _stopped:
            self._give_up(g, _stopped)
            return self.plan(*inputs)
        g.calls += 1
        here = tuple(inputs[i].data_ptr() for i in self.tensors)
        if g.calls <= 2 and not g.captures:
            g.seen.append(here)
            return self.plan(*inputs)
        g.moving |= {i for k, i in enumerate(self.tensors) if any(s[k] != here[k] for s in g.seen)}
        g.seen = [here]
        with _lock:
            out = self._capture(g, inputs)
        return self.plan(*inputs) if out is None else out

    def _moved(self, g: _Graph, i: int) -> None:
        """An input that seemed to keep its address does not: it will be copied from now on."""
        g.moving.add(i)
        g.graph = g.static = None
        g.keep = []
        if g.captures > RECAPTURES:
            self._give_up(g, "inputs keep changing their addresses")

    def _give_up(self, g: _Graph, reason: str) -> None:
        g.reason, g.graph, g.static, g.keep = reason, None, None, []
        self.reasons.append(reason)
        events.emit("fallback", what="CUDA graph", reason=f"plain launches: {reason}", count=1)

    # ---- capture
    def _capture(self, g: _Graph, inputs: tuple) -> tuple | None:
        """Record the graph and decide about it. Gives this call's results, or None where the plan is to give them."""
        if set(self.written) & g.moving:
            self._give_up(g, "an input that is written changes its address from call to call")
            return None
        fed = list(inputs)
        copied: list[tuple[int, torch.Tensor]] = []
        for i in sorted(g.moving):
            fed[i] = _own_copy(inputs[i])
            copied.append((i, fed[i]))
        g.captures += 1
        try:
            graph, outs = self._record(fed)
        except Exception as e:
            torch.cuda.synchronize(self.index)
            self._give_up(g, f"capture failed: {type(e).__name__}: {str(e).splitlines()[0][:200]}")
            return None
        outputs, objects, why = _describe_outputs(outs, fed)
        if why:
            self._give_up(g, why)
            return None
        sizes = {i: _span(t) * t.element_size() for i, t in copied}
        rows = tuple((i, fed[i].data_ptr(), sizes.get(i, -1)) for i in self.tensors)
        g.static = native.CudaStatic(self.index, rows, tuple(outputs), tuple(objects))
        g.graph, g.keep = graph, [outs, [t for _, t in copied]]
        out_bytes = sum(o[1] for o in outputs if o[0] == 0)
        n_copies = len(copied) + sum(o[0] == 0 for o in outputs)
        why = self._worth_it(g, inputs, sum(sizes.values()), out_bytes, n_copies)
        if why:
            self._give_up(g, why)
            return None
        events.emit("cudagraph", captured=True, copied_inputs=len(copied), copied_bytes=sum(sizes.values()), result_bytes=out_bytes,
                    launches=sum(isinstance(s, (Launch, Extern)) for s in self.s.steps))
        return self(*inputs)

    def _record(self, inputs: Sequence[Any]) -> tuple[Any, tuple]:
        index = self.index
        with torch.cuda.device(index):
            pool, side = _pool_of(index)
            torch.cuda.synchronize(index)
            graph = torch.cuda.CUDAGraph()
            before = torch.cuda.default_generators[index].clone_state()
            collecting = gc.isenabled()
            gc.disable()                     # a graph or a tensor of another pool that is freed now would end the capture
            try:
                with torch.cuda.stream(side):
                    try:
                        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                        outs = self.plan(*inputs)
                    except BaseException:
                        _abandon(graph, index, before)
                        raise
                    graph.capture_end()
            finally:
                if collecting:
                    gc.enable()
            torch.cuda.current_stream(index).wait_stream(side)
        return graph, outs

    def _worth_it(self, g: _Graph, inputs: tuple, in_bytes: int, out_bytes: int, n_copies: int) -> str:
        """Why plain launches are better; "" where replays are."""
        launches = sum(isinstance(s, (Launch, Extern)) for s in self.s.steps)
        if self.written or self.random:         # can't be run to be measured
            cost = (2 * in_bytes + 2 * out_bytes) / BANDWIDTH + n_copies * COPY_S
            if cost > launches * LAUNCH_S:
                return f"copying {in_bytes + out_bytes} bytes in and out takes longer than {launches} launches"
            return ""

        def replay() -> None:
            g.static.load(inputs)
            g.graph.replay()
            g.static.results(inputs)
        _in_order(self.index)
        best = {"replay": float("inf"), "plain": float("inf")}
        began = time.perf_counter()
        for round_ in range(5):
            for name, f in (("replay", replay), ("plain", lambda: self.plan(*inputs))):
                torch.cuda.synchronize(self.index)
                n = 5
                t = time.perf_counter()
                for _ in range(n):
                    f()
                torch.cuda.synchronize(self.index)
                best[name] = min(best[name], (time.perf_counter() - t) / n)
            if round_ and time.perf_counter() - began > 0.3:
                break
        if best["replay"] > GAIN * best["plain"]:
            return f"a replay took {best['replay'] * 1e6:.1f} us, plain launches {best['plain'] * 1e6:.1f} us"
        return ""


def _pool_of(index: int) -> tuple[Any, torch.cuda.Stream]:
    """The device's pool of graph memory and the stream that captures run on. A graph that stays keeps the pool alive: torch forgets
    the pool with its last graph."""
    found = _pools.get(index)
    if found is None:
        handle, side = torch.cuda.graph_pool_handle(), torch.cuda.Stream(index)
        torch.cuda.synchronize(index)
        anchor = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            anchor.capture_begin(pool=handle, capture_error_mode="thread_local")
            kept = torch.empty(1, device=torch.device("cuda", index)).zero_()
            anchor.capture_end()
        found = _pools[index] = (handle, side, anchor, kept)
    return found[0], found[1]


def _abandon(graph: Any, index: int, before: torch.Generator) -> None:
    """End a capture that failed. torch leaves its random generator inside of it then, so the generator gets back the state from before, which
    graphs that were captured earlier do not share: nothing is captured any more, and those that draw random numbers are not replayed."""
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


def _key_function(s: Schedule) -> Callable[..., Any] | None:
    """`(*inputs) -> sizes and numbers that the plan depends on`; None where there are none."""
    parts = []
    for _, (i, kind, dim) in s.symbols.items():
        parts.append(f"x{i}" if kind == "value" else f"x{i}.{'shape' if kind == 'size' else 'stride()'}[{dim}]")
    parts += [f"x{i}" for i, b in enumerate(s.inputs) if not isinstance(b, (Buffer, Expr))]
    if not parts:
        return None
    return eval(f"lambda {', '.join(f'x{i}' for i in range(len(s.inputs)))}: ({', '.join(dict.fromkeys(parts))},)")


def _draws_random_numbers(s: Schedule) -> bool:
    return any(isinstance(x, Extern) and torch.Tag.nondeterministic_seeded in x.op.tags for x in s.steps)


def _span(t: torch.Tensor) -> int:
    """Elements from the first to the last that the strides reach."""
    return 1 + sum((n - 1) * st for n, st in zip(t.shape, t.stride())) if t.numel() else 0


def _own_copy(t: torch.Tensor) -> torch.Tensor:
    """Memory of the same layout, gaps included, with the tensor's contents."""
    n = _span(t)
    flat = torch.empty(n, dtype=t.dtype, device=t.device)
    with torch.no_grad():
        flat.copy_(t.detach().as_strided((n,), (1,), t.storage_offset()))
    return flat.as_strided(t.shape, t.stride())


def _describe_outputs(outs: tuple, fed: Sequence[Any]) -> tuple[list[tuple], list[Any], str]:
    """Rows for native.CudaStatic, the objects they name, and why the results can't be copied out."""
    rows: list[tuple] = []
    objects: list[Any] = []
    memory = {x.untyped_storage().data_ptr() for x in fed if isinstance(x, torch.Tensor) and x.numel()}
    for o in outs:
        same = next((i for i, x in enumerate(fed) if x is o), None) if isinstance(o, torch.Tensor) else None
        if same is not None:
            rows.append((1, same, 0, (), (), 0))
        elif not isinstance(o, torch.Tensor):
            rows.append((2, len(objects), 0, (), (), 0))
            objects.append(o)
        else:
            if o.dtype not in DTYPE_CODES:
                return [], [], f"a result is of {o.dtype}"
            where = o.untyped_storage().data_ptr()
            if o.numel() and where in memory:
                return [], [], "a result shares its memory with an input or another result"
            memory.add(where)
            rows.append((0, _span(o) * o.element_size(), o.data_ptr(), tuple(o.shape), tuple(o.stride()), DTYPE_CODES[o.dtype]))
    return rows, objects, ""
