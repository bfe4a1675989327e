"""Adapter: stock torch.compile, run beside tcompile as a comparison (compare=eager,torch), and its graphs, breaks and
guards as a report.

One of the two files that may import torch._dynamo (the other is registered.py).
"""

from __future__ import annotations

import sys
import time
import types
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

import torch

from ..base.figures import plural

__all__ = ["compile", "available", "beside", "said", "explain", "Observer"]


def available() -> str | None:
    """None if stock torch.compile can run here, else why not."""
    try:
        import torch._dynamo  # noqa: F401
    except Exception as e:
        return f"torch._dynamo can't be imported: {type(e).__name__}: {e}"
    return None


@contextmanager
def beside() -> Iterator[None]:
    """Where stock's compiled code runs: torch.distributions check no arguments, as stock has it. Its first compile
    switches the checks off for the whole process and for good; after a comparison they are as the user had them."""
    checks = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(checks)


def compile(fn: Callable, **kwargs: Any) -> Callable:
    """torch.compile(fn, **kwargs) with stock's own defaults; state of earlier comparisons is forgotten first."""
    import torch._dynamo

    _forget_ended_traces()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(fn, **kwargs)


def _forget_ended_traces() -> None:
    """Up to torch 2.13, torch.fx has one flag for all threads that says that somebody traces; stock refuses to run
    while it is set. Traces that overlap in two threads leave it set for good: where nobody traces any more, it is taken
    down. From 2.14 on each thread has its own.
    """
    from torch.fx import _symbolic_trace

    if not getattr(_symbolic_trace, "_is_fx_tracing_flag", False):
        return
    code = _symbolic_trace.Tracer.trace.__code__
    for frame in sys._current_frames().values():
        at: types.FrameType | None = frame
        while at is not None:
            if at.f_code is code:
                return
            at = at.f_back
    vars(_symbolic_trace)["_is_fx_tracing_flag"] = False


def said() -> str:
    """What stock says of its captures since the last `compile`: `2 graphs, 1 break (Data-dependent branching)`."""
    from torch._dynamo.utils import counters

    graphs = sum(value for key, value in counters["stats"].items() if key == "unique_graphs")
    breaks = counters["graph_break"]
    words = plural(graphs, "graph")
    if breaks:
        first = next(iter(breaks)).strip().splitlines()[0]
        n = sum(breaks.values())
        words += f", {plural(n, 'break')} ({first[:100]})"
    return words


@dataclass
class Compiled:
    """One compilation of a frame: stock's id of it ("frame/entry"), where the frame is, the graphs, the guards,
    seconds; `failed`: why there is none.
    """

    id: str
    name: str = ""
    file: str = ""
    line: int = 0
    graphs: list[Any] = field(default_factory=list)
    guards: list[Any] = field(default_factory=list)
    time: float = 0.0
    seconds: float = 0.0
    failed: str = ""


@dataclass
class Miss:
    """A call that no entry of a frame served: the ids of the entries that were asked, the latest first, and why that
    one did not hold.
    """

    ids: list[str]
    reason: str
    time: float


class Observer:
    """Watches stock torch.compile capture the functions that it is given (`watch`), over any number of calls: what it
    makes of each frame, what it guards, where it breaks, why it compiles again. The graphs run as they were captured:
    inductor, which takes long and decides none of that, is left out. Stock's entries of earlier compilations are
    forgotten first. Raises RuntimeError where stock can't run."""

    def __init__(self) -> None:
        why = available()
        if why is not None:
            raise RuntimeError(why)
        import torch._dynamo

        _forget_ended_traces()
        torch._dynamo.reset()
        self.compiled: list[Compiled] = []
        self.misses: list[Miss] = []
        self.errors: list[str] = []
        self._by_id: dict[str, Compiled] = {}
        self._began = time.perf_counter()
        self._began_us = time.time_ns() // 1000
        self._latest: Miss | None = None

    def watch(self, fn: Callable) -> Callable[..., Any]:
        import torch._dynamo

        with beside():
            made = torch._dynamo.optimize(self._graph, guard_export_fn=self._guards, guard_fail_fn=self._miss)(fn)

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                with beside():
                    return made(*args, **kwargs)
            finally:
                self._read_metrics()

        return call

    def report(self, title: str, source: Any) -> Any:
        """What was seen so far, as a CompileReport."""
        from .stock_report import stock_report

        return stock_report(self, title, source)

    def guards_of(self, key: str) -> list[Any]:
        """The guards of an entry, by stock's id of it."""
        return self._by_id[key].guards if key in self._by_id else []

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def _of(self, key: str) -> Compiled:
        if key not in self._by_id:
            self._by_id[key] = Compiled(key)
            self.compiled.append(self._by_id[key])
        return self._by_id[key]

    def _graph(self, gm: Any, inputs: Any) -> Callable:
        self._of(_current()).graphs.append(gm)
        return gm.forward

    def _guards(self, guards: Any) -> None:
        self._read_metrics()
        entry = self._of(_current())
        entry.guards, entry.time, self._latest = list(guards), self._now(), None

    def _miss(self, fail: Any) -> None:
        """Stock states each entry of the frame that did not hold, the latest first."""
        key, _, reason = fail.reason.partition(": ")
        miss = self._latest
        if miss is not None and miss.ids[0].split("/")[0] == key.split("/")[0] and key not in miss.ids:
            miss.ids.append(key)
        else:
            self._latest = Miss([key], reason, self._now())
            self.misses.append(self._latest)

    def _read_metrics(self) -> None:
        """Names, places and seconds of what was compiled, as stock notes them; what it could not compile. Stock keeps
        the last 64 compilations of the process, those of others too: after a reset they have the same ids."""
        from torch._dynamo.utils import get_compilation_metrics

        for m in get_compilation_metrics():
            if (m.start_time_us or 0) < self._began_us:
                continue
            key = str(m.compile_id)
            if key not in self._by_id and not m.fail_type:
                continue
            entry = self._of(key)
            entry.name, entry.file, entry.line = m.co_name or entry.name, m.co_filename or "", m.co_firstlineno or 0
            entry.seconds = m.entire_frame_compile_time_s or 0.0
            entry.time = entry.time or self._now()
            entry.failed = (
                f"{m.fail_type}: {(m.fail_reason or '').strip().splitlines()[0]}"
                if m.fail_type and not entry.guards
                else ""
            )


def _current() -> str:
    """Stock's id of the compilation that is under way, "frame/entry"."""
    from torch._guards import CompileContext

    return str(CompileContext.current_compile_id())


def explain(fn: Callable) -> Callable[..., Any]:
    """`explain(fn)(*args)`: what stock torch.compile captures of a call, as a CompileReport with the same views: its
    graphs, its graph breaks with their lines and reasons, its guards. Called again, it tells of all calls so far,
    recompiles among them. Nothing of tcompile runs.
    """
    from .stock_report import title_and_source

    state: list[tuple[Observer, Callable]] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        if not state:
            observer = Observer()
            state.append((observer, observer.watch(fn)))
        observer, call = state[0]
        value = call(*args, **kwargs)
        report = observer.report(*title_and_source(fn))
        report.result = value
        return report

    return run
