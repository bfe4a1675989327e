"""What a call spends beside its kernels: guards, the plan's launches, Python between. Known of calls that were profiled
end to end.

On the CPU a span is its step's own time. On a GPU a span is the launch of a kernel that runs later: there the kernels'
times, taken one by one, say for how long the device works.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import schema as s

__all__ = ["BETWEEN", "HostTime", "host_time"]

BETWEEN = "Python between"
_STEPS = ("kernel", "library")
_AROUND = {"guards": "guards", "python": BETWEEN, "plan": "the plan itself", "memory": "the plan itself"}


@dataclass(frozen=True)
class HostTime:
    """Of one call: its length, what of it is no kernel, and which part of that is largest ("" where not known)."""

    call: str
    line: int | None
    device: str
    seconds: float
    host: float
    most: str = ""
    most_seconds: float = 0.0

    @property
    def share(self) -> float:
        return self.host / self.seconds if self.seconds else 0.0


def host_time(r: Any) -> HostTime | None:
    """Of the longest call that was profiled; None where what its kernels take is not known."""
    p = next((p for p in r.profiles if p.how == "call" and p.columns), None)
    if p is None or p.lost:
        return None
    # A clock makes a call longer, never shorter: a call without one that took longer met a busy machine.
    rows, length = p.rows(), min(p.plain_seconds or p.seconds, p.seconds)
    work = sum(x.seconds for x in rows if x.kind in _STEPS) if p.device == "cpu" else _on_the_device(r, rows)
    if work is None or not length:
        return None
    broken = sum((b.share or 0.0) * length for b in r.graph_breaks)  # what a break costs is told of the break
    host = max(0.0, length - work - broken)
    if p.device != "cpu":
        return HostTime(p.name, p.line, p.device, length, host)
    around: dict[str, float] = {}
    for x in rows:
        if x.kind in _AROUND:
            around[_AROUND[x.kind]] = around.get(_AROUND[x.kind], 0.0) + x.seconds
    most = max(around, key=lambda name: around[name], default="")
    return HostTime(p.name, p.line, p.device, length, host, most, min(around.get(most, 0.0), host))


def _on_the_device(r: Any, rows: list[s.ProfileSpan]) -> float | None:
    """For how long kernels of the graphs that a call ran are at work, by their times one by one."""
    total = 0.0
    for graph in (x.graph for x in rows if x.kind == "graph"):
        if graph is None:
            return None
        kernels = [r.kernels[k] for k in r.graphs[graph].kernels]
        library = [x for x in r.externs if x.graph == graph]
        if any(x.seconds is None for x in (*kernels, *library)):
            return None
        total += sum(k.seconds * k.launches for k in kernels) + sum(x.seconds for x in library)
    return total
