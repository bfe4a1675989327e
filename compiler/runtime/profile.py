"""Where the time of one compiled graph goes: seconds of each generated kernel and of torch's own kernels, on given
inputs.

The host plan's text runs with a clock around every kernel; the plan in C has none. On a GPU the clock is the device's:
events in the stream, which is kept busy until all are in it, so that no kernel waits for the host. Kernels write their
own outputs anew in each run, so that running again is harmless as long as the graph writes to none of its inputs: that
is the caller's to know.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Callable

import torch

from .compiled_graph import CompiledGraph, python_plan

__all__ = ["Profile", "profile"]

_MOST_RUNS = 200
_ALLOCATIONS = ("empty_strided", "as_strided")
_BUSY_CYCLES = 20_000_000  # some 10 ms of a GPU: longer than a host plan takes to enqueue its kernels


@dataclass
class Profile:
    """Seconds per run of the graph. `kernels`: by kernel name, summed over its launches; `library`: by function."""

    kernels: dict[str, float] = field(default_factory=dict)
    library: dict[str, float] = field(default_factory=dict)
    runs: int = 0


def profile(graph: CompiledGraph, inputs: tuple, budget: float = 0.05) -> Profile:
    """Run `graph` for about `budget` seconds with a clock around each kernel; medians over the runs. Raises ValueError
    where its kernels can't be timed so: on a GPU they run on after the call, and without a C++ compiler there are
    none."""
    if not isinstance(graph, CompiledGraph) or graph.how == "eager":
        raise ValueError("kernels are timed one by one in a graph that was compiled")
    library = {name: f for name, f in graph.generated.host.names.items() if callable(f) and name not in _ALLOCATIONS}
    run = _on_device if graph.generated.cuda is not None else _on_host
    rounds = run(graph, library, inputs, budget)
    middle = {n: median(r.get(n, 0.0) for r in rounds) for n in rounds[0]}
    return Profile(
        {key: value for key, value in middle.items() if key in graph.kernels},
        {key: value for key, value in middle.items() if key in library},
        len(rounds),
    )


def _on_host(
    graph: CompiledGraph, library: dict[str, Callable], inputs: tuple, budget: float
) -> list[dict[str, float]]:
    """Seconds by name, for each run."""
    spent: dict[str, float] = {}

    def timed(name: str, fn: Callable) -> Callable:
        def run(*args: Any, **kwargs: Any) -> Any:
            t0 = time.perf_counter()
            out = fn(*args, **kwargs)
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - t0 - clock
            return out

        return run

    clock = 0.0
    empty = timed("", lambda: None)
    for _ in range(1000):
        empty()
    clock = spent.pop("") / 1000
    plan = python_plan(
        graph.generated,
        {key: timed(key, kernel) for key, kernel in graph.kernels.items()},
        {key: timed(key, value) for key, value in library.items()},
    )
    plan(*inputs)
    rounds: list[dict[str, float]] = []
    end = time.perf_counter() + budget
    while len(rounds) < _MOST_RUNS and (time.perf_counter() < end or not rounds):
        spent.clear()
        plan(*inputs)
        rounds.append({key: max(0.0, value) for key, value in spent.items()})
    return rounds


def _on_device(
    graph: CompiledGraph, library: dict[str, Callable], inputs: tuple, budget: float
) -> list[dict[str, float]]:
    """Seconds by name, for each run, by the GPU's clock."""
    marks: list[tuple[str, Any, Any]] = []

    def timed(name: str, fn: Callable) -> Callable:
        def run(*args: Any, **kwargs: Any) -> Any:
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            out = fn(*args, **kwargs)
            after.record()
            marks.append((name, before, after))
            return out

        return run

    plan = python_plan(graph.generated, {key: timed(key, value) for key, value in {**library, **graph.kernels}.items()})
    rounds: list[dict[str, float]] = []
    with torch.cuda.device(graph.generated.cuda):
        plan(*inputs)
        torch.cuda.synchronize()
        end = time.perf_counter() + budget
        while len(rounds) < _MOST_RUNS and (time.perf_counter() < end or not rounds):
            marks.clear()
            torch.cuda._sleep(_BUSY_CYCLES)
            plan(*inputs)
            torch.cuda.synchronize()
            spent: dict[str, float] = {}
            for name, before, after in marks:
                spent[name] = spent.get(name, 0.0) + before.elapsed_time(after) / 1e3
            rounds.append(spent)
    return rounds
