"""What a frame costs that the hook passes over: `python -m tests.benchmarks.hook`. Budget: 60 ns.

A call of a small function, timed bare and inside of `tcompile.enable()`, in turn; the least of many rounds of processor
time. Kinds of frame:
  plain      the user's function without a tensor among its parameters
  skipped    code that was marked (library code after its first call)
  container  a list of 16 numbers among the parameters: the most that is looked at
  outside    after the block: the hook is gone
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time

import torch

from tcompile.compiler.frontend import hook
from tcompile.compiler.native import native

__all__ = ["measure"]


def plain(x, y):
    return x


def skipped(x, y):
    return x


def container(x, y):
    return x


KINDS = {"plain": (plain, (1, "a")), "skipped": (skipped, (1, "a")), "container": (container, ([1] * 16, object()))}


def _ns(f, args, n=20_000):
    """Nanoseconds of processor time per call, the loop included."""
    a, b = args
    start = time.process_time_ns()
    for _ in range(n):
        f(a, b)
    return (time.process_time_ns() - start) / n


def measure(rounds: int = 40) -> dict[str, float]:
    """kind -> what the hook adds to a call, in ns."""
    native.skip_code(skipped.__code__)
    bare, inside, after = {}, {}, {}

    def least(found):
        for kind, (f, args) in KINDS.items():
            found[kind] = min(found.get(kind, 1e9), _ns(f, args))

    for _ in range(rounds):
        least(bare)
        with hook.enable(backend="eager"):
            least(inside)
        least(after)
    added = {kind: round(inside[kind] - bare[kind], 1) for kind in KINDS}
    return {**added, "outside": round(after["plain"] - bare["plain"], 1), "a bare call": round(bare["plain"], 1)}


if __name__ == "__main__":
    found = measure()
    print(
        json.dumps(
            {"python": platform.python_version(), "torch": torch.__version__, "load": os.getloadavg()[0], "ns": found}
        )
    )
    sys.exit(any(found[kind] > 60 for kind in KINDS))
