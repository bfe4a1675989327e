"""A picture of one call: each call that is safe to run again is run a few times more with the clock on, the others by
their graphs alone. What runs after the call in the cell, a backward pass from its one result, follows it here, where
the cell had one: gradients are computed, and dropped."""

from __future__ import annotations

import time
from contextlib import nullcontext
from statistics import median
from typing import Any, Callable, Sequence

import torch

from ..compiler.base.forks import resting
from ..compiler.base.labels import label
from ..compiler.frontend.entry_calls import EntryCall
from ..compiler.report.profiles import encode_spans, on_the_device, profile_rows, tell_break_costs
from ..compiler.report.schema import CallProfile, Finding
from ..compiler.stages import kernels_made
from ..compiler.runtime.trace import Trace, available, trace
from .graph_runs import backward_seen, run_graphs
from .tracebacks import in_one_line
from .timing import MOST_COPIES, again_of, names_put_back, preserved, touched

__all__ = ["profile_calls"]

_SHARE = 0.15  # of the timing budget
_MOST_CALLS = 3
_MOST_RUNS = 15
_MOST_ANEW = 3


def profile_calls(calls: Sequence[EntryCall], builder: Any, engine: Any, options: Any, budget: float) -> None:
    """Fill the report's `profiles`. Calls whose inputs are written, and too large to keep copies of, are left out."""
    report = builder.r
    earlier = [p for p in report.profiles if p.earlier]  # of functions that entries of an earlier run served
    report.profiles = []
    if not available():
        return
    for call in calls:
        written = [*{id(t): t for g in call.graphs for t in g.changed()}.values()]
        if len(report.profiles) == _MOST_CALLS or sum(t.nbytes for t in written) > MOST_COPIES:
            continue
        how, run, around = _again(call, engine, options)
        if run is None:
            continue
        try:
            with preserved(touched([call]), written), names_put_back([call]), call.state.apply(), resting(), around():
                then = _backward_of(call, report) if how == "call" else None
                plain, traced = _traced(run, then, budget * _SHARE / min(len(calls), _MOST_CALLS))
        except (Exception, SystemExit, GeneratorExit) as e:  # code of the program's may run in there
            why = f"running it again raised {in_one_line(e)}"
            report.notes.append(Finding("info", f"there is no profile of {call.name}: {why}"))
            continue
        profile = CallProfile(
            call.name, label(call.file) if call.file else "", call.line, how, _device(call), traced.seconds, plain
        )
        profile.backward = then is not None or how == "graphs" and any(backward_seen(g) for g in call.latest)
        _fill(profile, traced, builder)
        report.profiles.append(profile)
    report.profiles += [p for p in earlier if all(p.name != made.name for made in report.profiles)]
    report.profiles.sort(key=lambda p: -p.seconds)


def _fill(profile: CallProfile, traced: Trace, builder: Any) -> None:
    """What the clock saw in the call, as rows of the profile; and what kernels took in it that have no time yet."""
    report = builder.r
    graph_of = {id(s): graph for ref, graph in builder.schedules if (s := ref()) is not None}
    entry_of = {id(m): entry for ref, entry in builder.known_entries if (m := ref()) is not None}
    profile.lost = traced.lost
    if profile.how == "call":
        tell_break_costs(traced.spans, report, entry_of, profile.plain_seconds)
    rows = profile_rows(traced.spans, report, graph_of, entry_of, profile.name)
    encode_spans(profile, rows if profile.device == "cpu" else on_the_device(rows, report))
    if profile.device == "cpu":
        _kernel_seconds(profile, report)


def _again(call: EntryCall, engine: Any, options: Any) -> tuple[str, Callable[[], Any] | None, Callable[[], Any]]:
    """How the call is run again: end to end, or its graphs alone, each with its backward; and the context to do so
    in."""
    if call.safe:
        return "call", *again_of(call, engine, options)
    if call.latest:
        return "graphs", lambda: run_graphs(call.latest, lambda g: g.compiled), nullcontext
    return "", None, nullcontext


def _kernel_seconds(profile: CallProfile, report: Any) -> None:
    """Kernels and library calls that could not be timed one by one, those of backward: what they took in the traced
    call."""
    kernels: dict[int, list[float]] = {}
    library: dict[tuple[int, str], list[float]] = {}
    for row in profile.rows():
        if row.kind == "kernel" and row.kernel is not None:
            kernels.setdefault(row.kernel, []).append(row.seconds)
            if row.line is not None and not report.kernels[row.kernel].lines:
                report.kernels[row.kernel].lines = [[row.file, row.line]]
        elif row.kind == "library" and row.graph is not None:
            library.setdefault((row.graph, row.name), []).append(row.seconds)
    for i, took in kernels.items():
        if report.kernels[i].seconds is None:
            report.kernels[i].seconds = sum(took) / len(took)
    for x in report.externs:
        if x.seconds is None:
            name = x.op.removeprefix("aten.").removesuffix(".default")
            x.seconds = sum(library[x.graph, name]) if (x.graph, name) in library else None


def _traced(run: Callable[[], Any], then: Callable[[Any], Any] | None, budget: float) -> tuple[float, Trace]:
    """The median of calls without the clock, and of the calls with it the one of median length."""
    whole = run if then is None else lambda: then(run())
    end = time.perf_counter() + budget
    times: list[float] = []
    traces: list[Trace] = []
    whole()
    anew = 0
    while not traces or len(traces) < _MOST_RUNS and time.perf_counter() < end:
        made = kernels_made()
        seconds, traced = _seconds(whole), trace(lambda: _seconds(whole))
        if kernels_made() != made and anew < _MOST_ANEW:  # random numbers led it elsewhere: compiling is no part of it
            anew += 1
            continue
        times.append(seconds)
        traces.append(traced)
    return median(times), sorted(traces, key=lambda t: t.seconds)[len(traces) // 2]


def _seconds(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _backward_of(call: EntryCall, report: Any) -> Callable[[Any], Any] | None:
    """A backward pass like the cell's: where the cell ran one, from a call's one differentiable result to its graphs'
    leaves. None where there was none, it can't be told which one it was, or it would run hooks of the program's."""
    graphs = {g.number for g in call.graphs}
    if not any(p.backward and p.graph in graphs for p in report.partitions) or not torch._C.is_grad_enabled():
        return None
    inputs = {id(t): t for g in call.graphs for t in g.inputs if isinstance(t, torch.Tensor)}
    wanted = [t for t in inputs.values() if t.requires_grad]
    if any(not t.is_leaf or t._backward_hooks for t in wanted):
        return None

    def backward(result: Any) -> None:
        results = [t for t in _tensors(result) if t.requires_grad]
        if len(results) == 1:
            torch.autograd.grad(results[0], wanted, torch.ones_like(results[0]), allow_unused=True)

    return backward if wanted else None


def _tensors(x: Any) -> list[torch.Tensor]:
    """The tensors in a result, by torch's own reading of containers."""
    return [t for t in torch.utils._pytree.tree_leaves(x) if isinstance(t, torch.Tensor)]


def _device(call: EntryCall) -> str:
    tensors = [t for g in call.graphs for t in g.inputs if isinstance(t, torch.Tensor)]
    return "cuda" if any(t.is_cuda for t in tensors) else "cpu"
