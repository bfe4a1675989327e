"""What the guards of an entry cost at each call, measured on a call that they hold for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

__all__ = ["GuardCost", "measure_cost"]


@dataclass
class GuardCost:
    """Nanoseconds a call.

    whole     one check of all guards
    watched   of it, the proof that nothing watched has changed: one run over memory words for all watched guards
              together
    each      guard index -> its own steps, for guards that are evaluated at each call; watched ones are not in it
    """

    whole: float
    watched: float = 0.0
    each: dict[int, float] = field(default_factory=dict)


def measure_cost(program: Any, func: Any, args: tuple, seconds: float = 0.002) -> GuardCost | None:
    """Time the guards of `program` for a call that they hold for, in about `seconds`; None where they do not hold.
    Guard programs in Python are timed as a whole."""
    start = time.perf_counter()
    if program.check(func, args) != -1:
        return None
    once = max(time.perf_counter() - start, 1e-7)
    n = max(3, min(1000, int(seconds / 6 / once)))
    if hasattr(program, "profile"):
        found = program.profile(func, args, n)
        return None if found is None else GuardCost(*found)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(n):
            program.check(func, args)
        best = min(best, (time.perf_counter() - start) / n)
    return GuardCost(best * 1e9)
