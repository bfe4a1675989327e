"""What one call does, when: the entries it runs, their guards, the plans, and each kernel and library call in them.

`trace(run)` calls `run()` with the C extension's clock on. A span's parent is the span that it lies in. Backward runs
on a thread of torch's on a GPU, and a call waits for it, so that nesting is by time alone. What no span of a parent's
covers is Python, torch's autograd engine, and the rest. Plans that run as Python text have no steps that are seen.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Callable

from ..fusion.schedule import Extern, Launch
from ..native import native

__all__ = ["WRITE_BACK", "Span", "Trace", "available", "label_steps", "trace"]

MOST_ROWS = 1 << 16
# numbers shared with compiler/native/trace.h
ENTRY, GUARDS, PLAN, STEP = range(4)
WRITE_BACK = -2  # the place of a step that copies a result into an input that the program changes


@dataclass
class Span:
    """Something that ran. `kind`: "call" (the whole), "entry", "guards", "graph", "kernel", "library", "memory"
    (made or given back). `begin` and `seconds` count from the call's begin; `parent` is a position in the list of
    spans, -1 for the call itself."""

    kind: str
    name: str
    begin: float
    seconds: float
    parent: int = -1
    entry: Any = None  # of "entry" and "guards": the compiled Entry
    schedule: Any = None  # of what runs in a plan
    step: Any = None  # of the schedule: a Launch or an Extern


@dataclass
class Trace:
    """What the clock wrote down in one call. `lost`: rows without room."""

    rows: list[tuple]
    begin: int  # nanoseconds
    end: int
    lost: int = 0

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) * 1e-9

    @cached_property
    def spans(self) -> list[Span]:
        """Parents before what lies in them; the first is the call. Made when asked for: of many traced calls one is
        looked at."""
        rows = sorted(self.rows, key=lambda r: (r[3], -r[4]))
        spans = [Span("call", "", 0.0, self.seconds)]
        spans += [s for s in (_span(row, self.begin) for row in rows) if s is not None]
        return _nested(spans)


def available() -> bool:
    """Whether calls can be traced: the C extension has the clock."""
    return native is not None and hasattr(native, "trace_start")


def label_steps(program: Any, generated: Any, places: list[int]) -> None:
    """Keep with a plan in C what its steps are: `places` are positions in the schedule's steps, WRITE_BACK, or -1 for
    memory that is made or given back."""
    program.labels = generated, tuple(places)


def trace(run: Callable[[], Any], most: int = MOST_ROWS) -> Trace:
    """Call `run()` and tell what it did. Raises RuntimeError without the C extension, or where a call is being traced
    already, and whatever `run` raises."""
    if not available():
        raise RuntimeError("trace: a call is traced by the C extension, which is not built here")
    native.trace_start(most)
    begin = time.perf_counter_ns()
    try:
        run()
    finally:
        end = time.perf_counter_ns()
        rows, lost = native.trace_stop()
    return Trace(rows, begin, end, lost)


def _span(row: tuple, origin: int) -> Span | None:
    kind, what, index, begin, end, _ = row
    at, seconds = (begin - origin) * 1e-9, (end - begin) * 1e-9
    if kind in (ENTRY, GUARDS):
        return Span("entry" if kind == ENTRY else "guards", "", at, seconds, entry=what)
    generated, places = getattr(what, "labels", None) or (None, ())
    schedule = getattr(generated, "schedule", None)
    if kind == PLAN:
        return Span("graph", "", at, seconds, schedule=schedule)
    place = places[index] if index < len(places) else -1
    step = schedule.steps[place] if place >= 0 else None
    if isinstance(step, Launch):
        return Span("kernel", generated.of(step).name, at, seconds, schedule=schedule, step=step)
    if isinstance(step, Extern):
        return Span("library", step.shown_name(), at, seconds, schedule=schedule, step=step)
    if place == WRITE_BACK:
        return Span("library", "copy_", at, seconds, schedule=schedule)
    return Span("memory", "memory", at, seconds, schedule=schedule)


def _nested(spans: list[Span]) -> list[Span]:
    """Give each span its parent: the innermost that has not ended when it begins. Spans come by their begin."""
    opened: list[int] = []
    for i, span in enumerate(spans):
        while opened and i and spans[opened[-1]].begin + spans[opened[-1]].seconds <= span.begin:
            opened.pop()
        span.parent = opened[-1] if opened else (0 if i else -1)
        opened.append(i)
    return spans
