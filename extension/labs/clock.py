"""A limit of time in the kernel: what loops in a check or a puzzle is ended.

The main thread is ended by a signal. Other threads get none (a kernel answers widgets in one): there each line of
Python looks at the clock.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import contextmanager
from types import FrameType
from typing import Any, Callable, Iterator

__all__ = ["OutOfTime", "fastest", "limited"]


class OutOfTime(BaseException):
    """It took too long. No Exception, so that `except Exception` in a loop does not swallow it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End what takes longer."""
    if threading.current_thread() is not threading.main_thread():
        with _traced(seconds):
            yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime()

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@contextmanager
def _traced(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        if time.monotonic() > end:
            raise OutOfTime()
        return look

    old = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(old)


def fastest(call: Callable[[], Any], seconds: float = 0.5) -> float:
    """Seconds of the fastest of many calls: what the machine does besides makes a call slower only."""
    for _ in range(3):
        call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best
