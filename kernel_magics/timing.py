"""Timing engines against each other, by running again only what is safe to run again.

Captured calls without side effects are timed end to end on the user's own inputs. Calls with effects are timed by their
graphs alone, with the backward passes that the cell ran of them, and labelled so. The whole cell runs again only where
the user asks (repeat=N). Engines run in turn, round by round, and medians carry bootstrap intervals. Eager runs without
the frame hook. Stock torch.compile comes last, because its first call can take minutes, and can be interrupted. Random
state, module buffers and whatever a call writes to in place are as before afterwards. Other inputs are not copied.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import torch

from ..compiler.backends import stock
from ..compiler.base.forks import resting
from ..compiler.report import schema as s
from ..compiler.frontend.entry_calls import EntryCall
from ..compiler.base.figures import plural
from .graph_runs import backward_seen, run_graphs
from .precision import autocast, difference, tensors_of
from .stats import Bootstrap, interval_of
from .tracebacks import in_one_line
from .waiting import WAITED, RunQueue, steady

__all__ = ["measure", "measure_cell", "compare_options", "Contender", "names_put_back", "preserved", "again_of", "Say"]

_MIN_SAMPLE = 3e-4  # a sample lasts at least that long, in seconds, so that the clock does not matter
_SLOW = 0.02  # seconds a call: from there on a sample is one call, and nothing needs to settle
_MAX_ROUNDS = 200
_MIN_ROUNDS = 5
_PATIENCE = 0.5  # seconds: a call that takes longer at first is not made twice where the time is short
_MAX_CALLS = 4
_KEPT_SAMPLES = 100
MOST_COPIES = 1 << 28  # bytes of inputs that are kept to be put back
Say = Callable[[str], None]


@dataclass
class Contender:
    """One engine's way to do one call, and what is known of it so far."""

    engine: str
    run: Callable[[], Any] | None
    around: Callable[[], Any] = nullcontext  # entered around the calls of a sample, outside of the clock
    status: str = "ok"
    reason: str = ""
    cold: float | None = None
    warm: float | None = None
    fresh: bool = False  # its first call compiles, which is no part of the time of a call
    inner: int = 1
    detail: str = ""
    queue: RunQueue | None = None
    starved: float | None = None  # waiting of threads for a core, as a part of the sample that had least of it


@dataclass
class _Job:
    """One call with its contenders, and the rounds timed so far."""

    call: EntryCall
    measured: str
    contenders: dict[str, Contender] = field(default_factory=dict)
    rounds: list[dict[str, float]] = field(default_factory=list)
    why_not: str = ""
    waited: str = ""  # which rounds are left out, in words


def measure(
    calls: Sequence[EntryCall],
    engine: Any,
    options: Any,
    compare: Sequence[str],
    budget: float | None,
    say: Say = lambda text: None,
) -> s.Speedups:
    """Time `calls` under eager, tcompile (`engine`) and the engines in `compare`, within `budget` seconds (without
    what stock torch.compile takes to compile). Never raises for what a call raises: a figure that could not be
    measured has its reason. An interrupt ends the timing and keeps what was measured."""
    engines = ["eager", "tcompile", *(timing for timing in compare if timing not in ("eager", "tcompile"))]
    out = s.Speedups("off", "timing is off (time=off)", budget, 0.0, engines)
    if budget is None:
        return out
    if not calls:
        out.status, out.reason = (
            "unavailable",
            "no call into compiled code was seen that could be run again; repeat=N times the whole cell",
        )
        return out
    t0 = time.perf_counter()
    jobs = [_job(call, engine, options) for call in calls[:_MAX_CALLS]]
    reasons = [] if len(calls) <= _MAX_CALLS else [f"{len(calls) - _MAX_CALLS} further calls were not timed"]
    written = [tensor for call in calls for graph in call.graphs for tensor in graph.changed()]
    if sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in written}.values()) > MOST_COPIES:
        out.status, out.reason = (
            "unavailable",
            "it changes its inputs in place, and they are too large to keep copies of them",
        )
        return out
    with preserved(touched(calls), written), names_put_back(calls):
        live = [job for job in jobs if job.measured]
        try:
            share = budget / max(1, len(live)) / (2 if "torch" in engines else 1)
            for job in live:
                say(f"timing {job.call.name}")
                _rounds(job, share)
            if "torch" in engines:
                with stock.beside():
                    for job in live:
                        _add_stock(job, say)
                        _rounds(job, share)
        except KeyboardInterrupt:
            reasons.append(f"timing was interrupted after {time.perf_counter() - t0:.1f} s")
    for job in live:
        job.rounds, job.waited = steady(job.rounds)
    out.calls = [_result(job, engines) for job in jobs]
    doubts = [*map(_doubt, jobs)]
    for call, doubt in zip(out.calls, doubts):
        if doubt:  # the times are shown, and no figure is made of them
            call.speedups, call.break_even_calls, call.break_even_reason = [], None, doubt
    reasons += dict.fromkeys(filter(None, doubts))
    out.overall = [] if any(doubts) else _overall(jobs, engines)
    out.spent_seconds = time.perf_counter() - t0
    out.note = "; ".join(filter(None, dict.fromkeys((busy_words(), *(job.waited for job in live)))))
    missing = [words for call in out.calls for words in _failed(call)]
    missing += [f"{call.name}: {call.why_not}" for call in out.calls if not call.measured]
    apart: dict[str, list[str]] = {}  # reason -> names
    for call in out.calls:
        if (
            call.measured == "graphs"
            and any(timing.median is not None for timing in call.engines)
            and call.name not in apart.setdefault(call.why_not, [])
        ):
            apart[call.why_not].append(call.name)
    missing += [
        f"{' and '.join(names)} could not be timed as a whole: {why}; "
        f"{'its' if len(names) == 1 else 'their'} graphs alone are timed under Speed"
        for why, names in apart.items()
    ]
    reasons += list(dict.fromkeys(missing))
    timed = any(timing.median is not None for call in out.calls for timing in call.engines)
    out.status = "measured" if out.overall and not reasons else "partial" if timed else "unavailable"
    out.reason = "; ".join(reasons)
    out.of = _names([job.call for job in jobs if job.measured == "call" and job.rounds])
    return out


def _failed(call: s.CallTiming) -> list[str]:
    """Which engines could not run a call again. What none of them could says nothing of the program: the cell ran."""
    out = [engine for engine in call.engines if engine.status != "ok"]
    if out and all(engine.status == "failed" for engine in call.engines):
        return [f"{call.name} could not be timed: {out[0].reason}, which it had not done in the cell"]
    return [f"{call.name}: {engine.engine} {engine.reason or engine.status}" for engine in out]


def _names(calls: Sequence[EntryCall]) -> str:
    """What a figure of these calls is of; empty where it is the cell. A loop of a cell's is not the cell."""
    if any(_is_cell(call) for call in calls):
        return ""
    names = [f"`{call.name}`" for call in calls]
    return " and ".join(names) if len(names) < 3 else plural(len(names), "function")


def _is_cell(call: EntryCall) -> bool:
    return getattr(getattr(call.fn, "__code__", None), "co_name", "") == "<module>"


def measure_cell(
    eager: Callable[[], Any],
    compiled: Callable[[], Any],
    repeat: int,
    name: str,
    compare: Sequence[str] = (),
    compile_seconds: float | None = None,
) -> s.Speedups:
    """Time a whole cell `repeat` times under each engine, in turn. Its side effects happen again: the user asked."""
    call = EntryCall(name, eager, safe=False, compile_seconds=compile_seconds)
    job = _Job(
        call,
        "cell",
        {"eager": Contender("eager", eager), "tcompile": Contender("tcompile", compiled)},
        why_not=f"the cell ran again {plural(repeat, 'time')} under each engine",
    )
    t0 = time.perf_counter()
    reasons = []
    try:
        for _ in range(repeat):
            job.rounds.append(
                {contender.engine: _sample(contender, settle=False) for contender in job.contenders.values()}
            )
    except KeyboardInterrupt:
        reasons.append(f"interrupted after {len(job.rounds)} of {repeat} runs")
    except Exception as e:
        reasons.append(f"running the cell again raised {type(e).__name__}: {e}")
    if "torch" in compare:
        reasons.append("stock torch.compile compiles functions, not cells: it was not timed")
    if len(job.rounds) == 1:
        reasons.append("one run gives no interval")
    engines = ["eager", "tcompile"]
    overall = _overall([job], engines)
    return s.Speedups(
        "measured" if overall and not reasons else "partial" if overall else "unavailable",
        "; ".join(reasons),
        None,
        time.perf_counter() - t0,
        engines,
        [_result(job, engines)],
        overall,
        busy_words(),
    )


def busy_words() -> str:
    """Words for a machine that has much else to do, whose times are those of waiting for it; empty on a quiet one."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return (
        f"the machine was busy with other programs: {load:.0f} wanted to run on {plural(cores, 'core')}"
        if load > 2 * cores + 1
        else ""
    )


def compare_options(
    calls: Sequence[EntryCall],
    engine: Any,
    options: dict[str, Any],
    budget: float,
    say: Say = lambda text: None,
    precision: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Time calls under several sets of options and eager, in turn; of those that are not safe to run again the graphs
    that one call runs. Gives plain data: for each call its engines as `EngineTime` fields under the names in `options`,
    and the ratio of the first to each, with intervals. `precision`: dtypes of autocast by the same names; `error` says
    by how much results differ under the last of them.
    """
    first, *others = options
    rows = []
    written = [tensor for call in calls if not call.safe for graph in call.latest for tensor in graph.changed()]
    with preserved(touched(calls), written), names_put_back(calls):
        for call in calls[:_MAX_CALLS]:
            call = call if call.safe else replace(call, graphs=call.latest)
            job = _job(call, engine, options[first])
            base = job.contenders.pop("tcompile")
            base.engine = first
            job.contenders[first] = base
            for name in others:
                say(f"compiling {call.name}: {name}")
                job.contenders[name] = _under(call, engine, options[name], name, precision.get(name, ""))
            say(f"timing {call.name}")
            _rounds(job, budget / min(len(calls), _MAX_CALLS))
            names = ["eager", *options]
            timing = _result(job, names)
            ratios = {}
            for name in ("eager", *others):
                rounds = [run for run in job.rounds if first in run and name in run]
                if rounds:
                    ratios[name] = Bootstrap(rounds, [first, name]).ratio(first, name)
            error = _error(job, first, others[-1], written) if precision else None
            engines = [vars(row) for row in timing.engines]
            rows.append(
                {"name": call.name, "measured": job.measured, "engines": engines, "ratios": ratios, "error": error}
            )
    return {"calls": rows, "base": first}


def _under(call: EntryCall, engine: Any, options: Any, name: str, dtype: str) -> Contender:
    """The call compiled anew under other options, and under autocast with `dtype` where one is named."""
    if call.safe:
        out = _job(replace(call, compiled=None, compile_seconds=None), engine, options).contenders["tcompile"]
        out.engine = name
    else:
        fns = {id(graph): engine.compiled(graph.eager, options) for graph in call.graphs}
        out = Contender(name, lambda: run_graphs(call.graphs, lambda graph: fns[id(graph)]))
    before = out.around

    @contextmanager
    def around() -> Iterator[None]:
        with autocast(dtype), before():
            yield

    out.around = around if dtype else before
    out.fresh = True
    return out


def _error(job: _Job, base: str, other: str, written: Sequence[torch.Tensor]) -> float | None:
    """By how much the results of two contenders differ. Each run begins as the first did."""
    call = job.call

    def run_of(contender: Contender) -> Callable[[], list[torch.Tensor]]:
        def run() -> list[torch.Tensor]:
            assert contender.run is not None
            with preserved(touched([call]), written), call.state.apply(), contender.around():
                result = contender.run()
                return tensors_of([result, [call.fn.__globals__.get(name) for name in call.sets]])

        return run

    pair = [job.contenders[name] for name in (base, other)]
    return difference(*map(run_of, pair)) if all(contender.run is not None for contender in pair) else None


def _job(call: EntryCall, engine: Any, options: Any) -> _Job:
    if call.safe:
        job = _Job(call, "call")
        job.contenders["eager"] = Contender("eager", _from_the_start(call, call.fn))
        try:
            run, around = again_of(call, engine, options)
            job.contenders["tcompile"] = Contender(
                "tcompile",
                run,
                around,
                cold=call.compile_seconds,
                detail=_backend(options),
            )
        except Exception as e:
            job.contenders["tcompile"] = Contender("tcompile", None, status="failed", reason=f"{type(e).__name__}: {e}")
        return job
    if call.graphs:
        call = replace(call, graphs=call.latest or call.graphs)  # what one call runs, not each version of it
        job = _Job(call, "graphs", why_not=call.why_not or "it has side effects")
        job.contenders["eager"] = Contender("eager", lambda: run_graphs(call.graphs, lambda graph: graph.eager))
        job.contenders["tcompile"] = Contender(
            "tcompile",
            lambda: run_graphs(call.graphs, lambda graph: graph.compiled),
            cold=call.compile_seconds,
            detail=_backend(options),
        )
        return job
    return _Job(
        call, "", why_not=f"not timed: {call.why_not or 'it has side effects'}; repeat=N runs the whole cell again"
    )


def again_of(call: EntryCall, engine: Any, options: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The call again through its compiled entries, and the context to do so in."""
    compiled, around = (call.compiled, nullcontext) if call.compiled else engine.again(call.fn, options)
    return _from_the_start(call, compiled), around


def _backend(options: Any) -> str:
    """Words for another's backend behind tcompile's capture; empty for its own."""
    backend = options.backend
    return (
        ""
        if backend == "tcompile"
        else f"backend={backend if isinstance(backend, str) else getattr(backend, '__name__', type(backend).__name__)}"
    )


def _add_stock(job: _Job, say: Say) -> None:
    """Compile a call with stock torch.compile. An interrupt stops this engine alone."""
    say(f"compiling {job.call.name} with stock torch.compile, which can take a while (interrupt to stop it)")
    contender = job.contenders["torch"] = Contender("torch", None)
    t0 = time.perf_counter()
    try:
        why = stock.available()
        if why:
            contender.status, contender.reason = "unavailable", why
            return
        if job.measured == "call":
            fn = stock.compile(job.call.fn)
            contender.run = _from_the_start(job.call, fn)
        else:
            fns = {id(graph): stock.compile(graph.eager) for graph in job.call.graphs}
            contender.run = lambda: run_graphs(job.call.graphs, lambda graph: fns[id(graph)])
        with job.call.state.apply():
            contender.cold, contender.warm = _once(contender), _once(contender)
        contender.detail = stock.said()
    except KeyboardInterrupt:
        contender.status, contender.reason, contender.run = (
            "stopped",
            f"interrupted after {time.perf_counter() - t0:.1f} s of compiling",
            None,
        )
    except Exception as e:
        contender.status, contender.reason, contender.run = (
            "failed",
            f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}",
            None,
        )


def _rounds(job: _Job, budget: float) -> None:
    """Time the contenders in turn until the budget is spent; calls that are slow for the budget are timed once or
    twice, and their interval says so. What raises is out, with its reason."""
    end = time.perf_counter() + budget
    with job.call.state.apply(), resting():
        first: dict[str, float] = {}
        compiles = any(contender.fresh for contender in job.contenders.values())
        for contender in job.contenders.values():
            if contender.run is None:
                continue
            try:
                first[contender.engine] = _warm_up(contender, budget)
            except Exception as e:
                contender.status, contender.reason, contender.run = (
                    "failed",
                    f"running it again raised {in_one_line(e)}",
                    None,
                )
        if compiles:  # the budget is for timing
            end = time.perf_counter() + budget
        live = [contender for contender in job.contenders.values() if contender.run is not None]
        done = 0
        if sum(first.values()) > budget / 2:
            job.rounds.append(first)
            done = 1
        with RunQueue() as queue:
            for contender in live:
                contender.queue = queue
            while live and done < _MAX_ROUNDS:
                now = time.perf_counter()
                last = job.rounds[-1] if done else first
                if now > end and (done >= _MIN_ROUNDS or now + sum(last.values()) > end + budget):
                    break
                order = live[done % len(live) :] + live[: done % len(live)]  # no engine always follows the same one
                job.rounds.append({contender.engine: _sample(contender) for contender in order})
                done += 1
        if live and not done:
            job.rounds.append(first)
        if done >= 4 and first in job.rounds:  # enough without the calls that came first
            job.rounds.remove(first)


def _doubt(job: _Job) -> str:
    """Why the times of a call say nothing of how fast it is; empty where they do."""
    starved = [contender.engine for contender in job.contenders.values() if (contender.starved or 0.0) > 1 / WAITED]
    return (
        f"{starved[0]} waited for other programs in each round of {job.call.name}, so that no figure is made"
        if starved
        else ""
    )


def _warm_up(contender: Contender, budget: float) -> float:
    """First calls, and how many calls make a sample. Gives the seconds of a call that is not the first, but for slow
    ones: what is loaded or allocated once would count against the engine that runs first."""
    first = _once(contender)
    if contender.cold is None:
        contender.cold = first
    if contender.fresh:
        contender.fresh, first = False, _once(contender)
    if first > max(budget / 4, _PATIENCE):
        return first
    second = _once(contender)
    contender.warm = second if contender.warm is None else contender.warm
    quick = second if second > _SLOW else min(_once(contender) for _ in range(3))
    contender.inner = max(1, min(10_000, int(min(_MIN_SAMPLE, max(budget / 4, 1e-5)) / max(quick, 1e-8))))
    return second


def _once(contender: Contender) -> float:
    return _sample(replace(contender, inner=1), settle=False)


def _sample(contender: Contender, settle: bool = True) -> float:
    """Seconds a call, over `inner` calls. `settle`: an untimed call before the clock starts, unless calls are slow:
    another engine ran before, and caches, those of the interpreter included, adapt again."""
    run, steps = contender.run, range(contender.inner)
    assert run is not None
    with contender.around():
        if settle and (contender.warm or 0.0) < _SLOW:
            run()
        _synchronize()
        queued = contender.queue.seconds() if contender.queue is not None else 0.0
        t0 = time.perf_counter()
        for _ in steps:
            run()
        _synchronize()
        took = time.perf_counter() - t0
        if contender.queue is not None:
            share = (contender.queue.seconds() - queued) / max(took, 1e-9)
            contender.starved = share if contender.starved is None else min(share, contender.starved)
        return took / contender.inner


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _result(job: _Job, engines: Sequence[str]) -> s.CallTiming:
    call = job.call
    out = s.CallTiming(
        call.name,
        call.line,
        call.safe,
        job.why_not if not call.safe else "",
        job.measured,
        compile_seconds=call.compile_seconds,
        backward=job.measured == "graphs" and any(map(backward_seen, call.graphs)),
    )
    for name in engines:
        contender = job.contenders.get(name)
        if contender is None:
            if job.measured:
                out.engines.append(
                    s.EngineTime(
                        name,
                        "skipped",
                        "timing ended before its turn" if job.measured != "cell" else "not timed for a whole cell",
                    )
                )
            continue
        rounds = [run for run in job.rounds if name in run]
        if not rounds:
            out.engines.append(
                s.EngineTime(
                    name,
                    contender.status if contender.status != "ok" else "skipped",
                    contender.reason or "timing ended before its turn",
                    cold=contender.cold,
                    warm=contender.warm,
                )
            )
            continue
        bootstrap = Bootstrap(rounds, [name])
        median, lo, hi = bootstrap.interval(name)
        samples = [run[name] for run in rounds]
        step = max(1, len(samples) // _KEPT_SAMPLES)
        out.engines.append(
            s.EngineTime(
                name,
                contender.status,
                contender.reason,
                median,
                lo,
                hi,
                len(samples),
                contender.inner,
                contender.cold
                if contender.cold is None or contender.cold is not job.call.compile_seconds
                else contender.cold + median,
                contender.warm,
                samples[::step][:_KEPT_SAMPLES],
                contender.detail,
            )
        )
    for engine, over in (("tcompile", "eager"), ("tcompile", "torch"), ("torch", "eager")):
        rounds = [run for run in job.rounds if engine in run and over in run]
        if rounds:
            out.speedups.append(s.Speedup(engine, over, *Bootstrap(rounds, [engine, over]).ratio(over, engine)))
    _break_even(out)
    return out


def _break_even(out: s.CallTiming) -> None:
    times = {engine.engine: engine.median for engine in out.engines if engine.median is not None}
    if "eager" not in times or "tcompile" not in times:
        return
    gain = times["eager"] - times["tcompile"]
    speedup = next(
        (speedup for speedup in out.speedups if (speedup.engine, speedup.over) == ("tcompile", "eager")), None
    )
    if out.measured == "graphs":
        out.break_even_reason = "its graphs alone were timed: when compiling pays off is not known"
    elif gain <= 0 or speedup is not None and speedup.lo <= 1:
        out.break_even_reason = "no gain per call was measured, so compiling does not pay off here"
    elif min(engine.n for engine in out.engines if engine.median is not None) < 2:
        out.break_even_reason = (
            "timed once each: too little to say when compiling pays off (time=10s gives it more time)"
        )
    elif out.compile_seconds is None:
        out.break_even_reason = "its entry was compiled in an earlier cell"
    else:
        out.break_even_calls = max(1, math.ceil(out.compile_seconds / gain))


def _overall(jobs: Sequence[_Job], engines: Sequence[str]) -> list[s.Speedup]:
    """Speedups of all timed calls together: sums of medians, intervals from sums of resampled medians. Of what a user
    would time: whole calls, or the whole cell. Times of graphs alone do not count.
    """
    out = []
    kinds = [job.measured for job in jobs if job.rounds and job.measured in ("call", "cell")]
    kind = kinds[0] if kinds else ""
    for engine, over in (("tcompile", "eager"), ("tcompile", "torch"), ("torch", "eager")):
        if engine not in engines or over not in engines:
            continue
        boots = []
        for k, job in enumerate(jobs):
            rounds = [run for run in job.rounds if engine in run and over in run]
            if rounds and job.measured == kind:
                boots.append(Bootstrap(rounds, [engine, over], seed=k))
        if boots:
            a, b = sum(boot.point[over] for boot in boots), sum(boot.point[engine] for boot in boots)
            spread = torch.stack([boot.medians[over] for boot in boots]).sum(0) / torch.stack(
                [boot.medians[engine] for boot in boots]
            ).sum(0)
            # nobody knows how far that call's times spread
            once = any(len(job.rounds) == 1 for job in jobs if job.rounds and job.measured == kind)
            out.append(s.Speedup(engine, over, a / b, *((a / b, a / b) if once else interval_of(a / b, spread))))
    return out


def touched(calls: Iterable[EntryCall]) -> list[Any]:
    """What running the calls again may change the state of."""
    return [
        held
        for call in calls
        for held in (call.fn, getattr(call.fn, "__self__", None), *call.args, *call.kwargs.values())
    ]


@contextmanager
def names_put_back(calls: Iterable[EntryCall]) -> Iterator[None]:
    """Globals and attributes that the calls set are afterwards as they were, and so is what they set of a context."""
    missing = object()
    calls = list(calls)
    kept = [(call.fn.__globals__, name) for call in calls for name in call.sets]
    kept += [(owner.__dict__, name) for call in calls for ref, name in call.attributes if (owner := ref()) is not None]
    values = [namespace.get(name, missing) for namespace, name in kept]
    try:
        yield
    finally:
        for (namespace, name), value in zip(kept, values):
            if value is missing:
                namespace.pop(name, None)
            else:
                namespace[name] = value


def _from_the_start(call: EntryCall, fn: Callable) -> Callable[[], Any]:
    """A run of the call that begins as the others do: what it sets and reads is put back first."""
    args, kwargs = call.args, call.kwargs
    missing = object()
    places = [(call.fn.__globals__, name) for name in call.reads]
    places += [(owner.__dict__, name) for ref, name in call.attributes if (owner := ref()) is not None]
    if not places:
        return lambda: fn(*args, **kwargs)
    kept = [(namespace, name, namespace.get(name, missing)) for namespace, name in places]

    def run() -> Any:
        for namespace, name, value in kept:
            if value is missing:
                namespace.pop(name, None)
            else:
                namespace[name] = value
        return fn(*args, **kwargs)

    return run


@contextmanager
def preserved(objects: Iterable[Any] = (), tensors: Iterable[torch.Tensor] = ()) -> Iterator[None]:
    """Random number generators, the buffers of the modules among `objects`, and `tensors` are afterwards as they were,
    versions
    included: a backward pass of the user's may still need them."""
    modules = {id(module): module for module in objects if isinstance(module, torch.nn.Module)}
    kept = {
        id(tensor): tensor
        for tensor in (*tensors, *(buffer for module in modules.values() for buffer in module.buffers()))
    }
    copies = [
        (tensor, None if tensor.is_inference() else tensor._version, tensor.detach().clone())
        for tensor in kept.values()
    ]
    cpu, python = torch.get_rng_state(), random.getstate()
    gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    numpy = sys.modules.get("numpy")
    np_state = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        random.setstate(python)
        if gpu is not None:
            torch.cuda.set_rng_state_all(gpu)
        if numpy is not None:
            numpy.random.set_state(np_state)
        for tensor, version, value in copies:
            _put_back(tensor, version, value)


def _put_back(tensor: torch.Tensor, version: int | None, value: torch.Tensor) -> None:
    if version is None:
        with torch.inference_mode():
            tensor.copy_(value)
    elif tensor._version != version or not torch.equal(tensor, value):  # (not each write moves a version)
        with torch.no_grad():
            tensor.copy_(value)
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
