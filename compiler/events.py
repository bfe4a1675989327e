"""The event stream: every stage says what it does here, once. Reports, logs and progress lines are listeners.

`stage(name)` times a stage of the pipeline; `emit(kind, **facts)` states a fact. Listeners are per thread of work (a
context variable), so that two threads that compile at once do not mix their reports; `subscribe` adds one for all.
Threads that Python did not start work for one that waits, as autograd's do for backward() on a GPU: where one thread
alone listens, it hears them.

Kinds and their facts (what listeners may rely on):
  stage         name, phase "begin"|"end", seconds (end), frame; where the stage is replaced: by, the function's name
  declined      name (of a stage), by, reason                 a replacement left this one to the compiler's own function
  capture_begin frame (qualified name), file, line, code, func    capture_end  result (CaptureResult)
  graph         graph (CapturedGraph), frame                  aten         graph_module, name, backward_of (its
                                                                           Partition)
  pass          name, point, seconds, before, after (operations), removed, added (texts of nodes), unused (share of a
                recorded graph's work whose results nobody reads)
  library       frame, file, line, decision (what frontend/policy.py says of this library code from now on), reason
  break         brk (GraphBreak)                              skip         frame, reason
  backward      graph (AtenGraph): a compiled backward graph begins to run
  partition     name, partition (autograd.partition.Partition): what forward keeps for backward, what is computed again
  recompile     frame, failures (list of GuardFailure, that of the nearest entry first), hits (id of an entry -> calls
                that it served)                               limit        frame, limit
  kernel        name, kernel (ir.Kernel), source, language, bytes, flops, origins, choices, names (variable -> node)
  binary        name (of a GPU kernel), source, language and names as compiled, registers, spills (bytes a thread),
                shared (bytes), occupancy (0 to 1), assembly (text)
  schedule      kernels, extern (list of op names), memory (dict)
  fallback      what, reason, count [, reran]                 an eager kernel call, a skipped frame, a missing extension
  cache         key, hit, reason, what                        autotune     kernel, trials
  cudagraph     captured, copied_inputs, copied_bytes, result_bytes (copied out), held_bytes (what a forward leaves in
                its memory), launches
  compile_c     seconds, flags, units (names of kernels that were compiled together)
  entry         frame, entry                                  renamed      old, entry: one made for the same code anew
  progress      text, done, total
  error         where, error
  call          frame, call (report.calls.EntryCall)
"""

from __future__ import annotations

import contextvars
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from .base import forks

__all__ = ["emit", "fallback", "heard", "kept", "stage", "listen", "subscribe", "tell", "unsubscribe", "Event"]


class Event:
    __slots__ = ("kind", "time", "facts")

    def __init__(self, kind: str, facts: dict[str, Any]):
        self.kind, self.time, self.facts = kind, time.perf_counter(), facts

    def __getattr__(self, name: str) -> Any:
        try:
            return self.facts[name]
        except KeyError:
            raise AttributeError(f"event {self.kind!r} has no fact {name!r}; it has {sorted(self.facts)}") from None

    def __repr__(self) -> str:
        return f"<event {self.kind} {self.facts}>"


Listener = Callable[[Event], None]


_OF_TIME = ("stage", "declined")  # kinds that are heard when they are stated, whatever is kept


class _Kept(tuple):
    """The listeners, while all but `_OF_TIME` is kept for later."""

    events: list[Event]
    always: bool

    def __bool__(self) -> bool:
        return bool(self.always or len(self) or _global)


_local: contextvars.ContextVar[tuple[Listener, ...]] = contextvars.ContextVar("tcompile_listeners", default=())
_global: list[Listener] = []
_listening: list[tuple[int, Listener]] = []  # those of every context, with the thread of each


def emit(kind: str, **facts: Any) -> None:
    """State a fact. Costs one check where nobody listens."""
    local = _local.get() or _listening and _of_who_waits()
    if local or _global:
        event = Event(kind, facts)
        if isinstance(local, _Kept) and kind not in _OF_TIME:
            local.events.append(event)
            return
        for f in (*local, *_global):
            f(event)


def fallback(what: str, reason: str, count: int = 1, **facts: Any) -> None:
    """State that something ran in another way than it was asked for: reports count these."""
    emit("fallback", what=what, reason=reason, count=count, **facts)


def heard() -> bool:
    """Whether anybody listens: for facts that cost something to gather."""
    return bool(_local.get() or _global or _listening and _of_who_waits())


def _of_who_waits() -> tuple[Listener, ...]:
    """The listeners of the thread that this one works for, where this one is not Python's."""
    foreign = isinstance(threading.current_thread(), threading._DummyThread)
    return tuple(f for _, f in _listening) if foreign and len({thread for thread, _ in _listening}) == 1 else ()


@contextmanager
def stage(name: str, **facts: Any) -> Iterator[None]:
    """Time one stage; nests. The end is said also when the stage raises."""
    emit("stage", name=name, phase="begin", seconds=0.0, **facts)
    t0 = time.perf_counter()
    try:
        yield
    finally:
        emit("stage", name=name, phase="end", seconds=time.perf_counter() - t0, **facts)


@contextmanager
def listen(f: Listener) -> Iterator[None]:
    """Hear the events of this context for the length of a with-block."""
    token, here = _local.set((*_local.get(), f)), (threading.get_ident(), f)
    _listening.append(here)
    try:
        yield
    finally:
        _listening.remove(here)
        _local.reset(token)


@forks.in_child
def _forget_others() -> None:
    """Threads that a child does not have wait for nobody."""
    _listening[:] = [here for here in _listening if here[0] == threading.get_ident()]


@contextmanager
def kept(events: list[Event], always: bool = False) -> Iterator[None]:
    """What is stated in a with-block is heard when it is told (`tell`), but for the time that stages take. `always`: it
    is kept also where nobody listens."""
    listeners = _Kept(_local.get() or _listening and _of_who_waits())
    listeners.events, listeners.always = events, always
    token = _local.set(listeners)
    try:
        yield
    finally:
        _local.reset(token)


def tell(events: list[Event]) -> None:
    """Let who listens now hear what was kept, with the times at which it was."""
    local = _local.get() or _listening and _of_who_waits()
    if isinstance(local, _Kept):
        local.events += events if local else ()
        return
    listeners = (*local, *_global)
    for event in events:
        for listener in listeners:
            listener(event)


def subscribe(f: Listener) -> Listener:
    _global.append(f)
    return f


def unsubscribe(f: Listener) -> None:
    if f in _global:
        _global.remove(f)
