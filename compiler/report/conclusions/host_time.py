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


def host_time(report: Any) -> HostTime | None:
    """Of the longest call that was profiled; None where what its kernels take is not known."""
    profile = next((profile for profile in report.profiles if profile.how == "call" and profile.columns), None)
    if profile is None or profile.lost:
        return None
    # A clock makes a call longer, never shorter: a call without one that took longer met a busy machine.
    rows, length = profile.rows(), min(profile.plain_seconds or profile.seconds, profile.seconds)
    work = (
        sum(row.seconds for row in rows if row.kind in _STEPS)
        if profile.device == "cpu"
        else _on_the_device(report, rows)
    )
    if work is None or not length:
        return None
    broken = sum((brk.share or 0.0) * length for brk in report.graph_breaks)  # what a break costs is told of the break
    host = max(0.0, length - work - broken)
    if profile.device != "cpu":
        return HostTime(profile.name, profile.line, profile.device, length, host)
    around: dict[str, float] = {}
    for row in rows:
        if row.kind in _AROUND:
            around[_AROUND[row.kind]] = around.get(_AROUND[row.kind], 0.0) + row.seconds
    most = max(around, key=lambda name: around[name], default="")
    return HostTime(profile.name, profile.line, profile.device, length, host, most, min(around.get(most, 0.0), host))


def _on_the_device(report: Any, rows: list[s.ProfileSpan]) -> float | None:
    """For how long kernels of the graphs that a call ran are at work, by their times one by one."""
    total = 0.0
    for graph in (row.graph for row in rows if row.kind == "graph"):
        if graph is None:
            return None
        kernels = [report.kernels[k] for k in report.graphs[graph].kernels]
        library = [extern for extern in report.externs if extern.graph == graph]
        if any(timed.seconds is None for timed in (*kernels, *library)):
            return None
        total += sum(kernel.seconds * kernel.launches for kernel in kernels) + sum(x.seconds for x in library)
    return total
