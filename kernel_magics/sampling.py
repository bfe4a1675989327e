"""Where a thread's time goes while a cell runs: its stack, looked at from another thread every few milliseconds.

Looking takes some 30 microseconds, and costs the program some 100: it hands the interpreter's lock over and takes it
back. The pauses grow with the time that has passed. A short cell is looked at about ten times, a long one some hundreds
of times: about 1 % of its time. Nothing of the program is changed or called.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

from ..compiler.base import forks

__all__ = ["Sample", "Sampler", "Samples"]

_SHORTEST, _LONGEST = 2e-3, 0.1  # seconds between two looks
_USUAL, _EARLY = 10e-3, 4  # they become so long, in a short cell that part of the time that has passed
_GROWTH = 150  # a pause is that part of the time that has passed at least
_RARE = 100  # a pause is so many times as long as a look, so that looks take 1 % also where they are interrupted
_DEEPEST = 80  # frames of a stack that are kept, from the innermost


class Sample(NamedTuple):
    """One look: `seconds` since the look before, of which the thread slept `asleep` and waited for a core `starved`."""

    end: float
    seconds: float
    asleep: float
    starved: float
    stack: tuple[tuple[CodeType, int], ...]  # innermost first: code and the position in its instructions


@dataclass
class Samples:
    begin: float
    end: float
    rows: list[Sample]


class Sampler:
    """Looks at the thread that makes it, from `start` to `stop`."""

    def __init__(self) -> None:
        from ..compiler.native import native  # here: it imports torch, which loading the magics does not

        self._native: Any = native
        self._thread = threading.get_ident()
        self._done = False
        self._rows: list[Sample] = []
        self._begin = 0.0
        try:  # Linux: time on a core and time in its queue
            self._stat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        except OSError:
            self._stat = -1

    def start(self) -> None:
        # Without the C extension a stack can't be read safely (native/stack.c); no cell is compiled then, either.
        # From Python 3.12 on a fork beside a second thread warns: a program without one keeps to itself.
        self._begin = time.perf_counter()
        if self._native is not None and (sys.version_info < (3, 12) or threading.active_count() > 1):
            forks.begin_thread(self._run)
        elif self._stat >= 0:
            os.close(self._stat)

    def stop(self) -> Samples:
        end = time.perf_counter()
        self._done = True
        return Samples(self._begin, end, self._rows)

    def _run(self) -> None:
        last, used, queued = self._begin, *self._clock()
        held = 0.0  # seconds for which the look before had the interpreter's lock
        while True:
            passed = last - self._begin
            pause = max(_SHORTEST, min(_USUAL, passed / _EARLY), passed / _GROWTH, held * _RARE)
            time.sleep(min(_LONGEST, pause))
            if self._done:
                break
            now = time.perf_counter()
            stack = self._stack()
            on_core, in_queue = self._clock()
            seconds, starved = now - last, in_queue - queued
            asleep = max(0.0, seconds - (on_core - used) - starved) if self._stat >= 0 else 0.0
            self._rows.append(Sample(now, seconds, asleep, starved, stack))
            last, used, queued = now, on_core, in_queue
            held = time.perf_counter() - now
        if self._stat >= 0:
            os.close(self._stat)

    def _clock(self) -> tuple[float, float]:
        """Seconds that the thread was on a core, and in the queue for one."""
        if self._stat < 0:
            return 0.0, 0.0
        used, queued, *_ = os.pread(self._stat, 100, 0).split()
        return int(used) * 1e-9, int(queued) * 1e-9

    def _stack(self) -> tuple[tuple[CodeType, int], ...]:
        return self._native.stack_of(self._thread, _DEEPEST)
