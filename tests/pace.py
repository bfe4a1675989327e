"""Bounds on time that hold on a slow or busy machine: ratios to Python work of the same kind, measured in turn.

A bound in nanoseconds says as much of the machine as of the code. The absolute budgets are `make bench`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def seconds(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def least(*works: Callable[[], object], rounds: int) -> list[float]:
    """The least seconds of each of several calls, timed in turn for `rounds` rounds."""
    best = [float("inf")] * len(works)
    for _ in range(rounds):
        for i, work in enumerate(works):
            best[i] = min(best[i], seconds(work))
    return best


def within(measure: Callable[[], float], limit: float, tries: int = 6) -> float:
    """The least figure of a few measurements. The first that keeps `limit` ends them."""
    figure = float("inf")
    for _ in range(tries):
        figure = min(figure, measure())
        if figure <= limit:
            break
    return figure
