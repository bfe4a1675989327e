"""The wall time of a run, by parts: compiling, compiled kernels, torch's own kernels, Python, data loading, waiting.

Compiling is known from the compiler's clock. What compiled calls spend in kernels is known from the kernels' own times
and the number of calls. All else comes from samples of the program's stack (`shares`: what was seen, and for how long).
"""

from __future__ import annotations

import bisect
import itertools
import re
from dataclasses import dataclass
from typing import Any, Iterable, Sequence

from .. import schema as s
from ...base.figures import plural

__all__ = [
    "IMPORTING",
    "KINDS",
    "Seen",
    "by_kind",
    "graph_calls",
    "is_joined",
    "kernels_of",
    "own_seconds",
    "split_compiled",
    "untimed",
    "wall_of",
]

IMPORTING = "importing modules"  # the name of that part of Python's time, which the next run does not pay

KINDS = {
    "kernels": "compiled kernels",
    "library": "torch's own kernels, in compiled calls",
    "compiled": "guards, launches and the rest of compiled calls",
    "torch": "torch's operators outside of compiled code",
    "python": "Python",
    "data": "data loading",
    "waiting": "waiting",
    "starved": "waiting for a core",
    "compiling": "in the compiler",
    "rest": "Python, and what could not be told apart",
}
_FEWEST = 8  # samples from which a share is told
_MOST_ROWS = 24
_ROUNDING = 1e-9  # of the wall time: less is what adding up leaves
_LEAST = 0.005  # of the time without compiling, and without waiting for a core: smaller rows of a kind are joined


@dataclass(frozen=True)
class Seen:
    """What the program was seen doing at one look."""

    kind: str  # one of KINDS
    name: str
    file: str = ""
    line: int | None = None


def wall_of(
    begin: float, end: float, waits: Sequence[tuple[float, float]], looks: Iterable[tuple[float, float, float, Seen]]
) -> s.Wall:
    """The parts of the time from `begin` to `end`. `waits`: when the program waited for the compiler; `looks`: end and
    length of a stretch of time, and what was seen at its end, with its share of the stretch."""
    total = max(0.0, end - begin)
    waited = _Waited(waits)
    compiling = waited.within(begin, end) if end > begin else 0.0
    found: dict[Seen, tuple[float, int]] = {}
    samples = own = 0
    for at, seconds, share, seen in looks:
        left = seconds - waited.within(at - seconds, at)
        if left > 0 and share > 0:
            took, seen_at = found.get(seen, (0.0, 0))
            found[seen] = took + left * share, seen_at + 1
            samples += 1
            own += seen.kind != "starved"
    rest = max(0.0, total - compiling)
    parts = [s.WallPart("compiling", "compiling", compiling)] if compiling else []
    if samples < _FEWEST:
        if rest:
            parts.append(s.WallPart("rest", "the rest", rest))
        return s.Wall(total, "counted", 0, parts)
    scale = rest / (sum(took for took, _ in found.values()) or 1.0)
    starved = scale * sum(took for seen, (took, _) in found.items() if seen.kind == "starved")
    parts += _rows({seen: (took * scale, looks) for seen, (took, looks) in found.items()}, rest - starved)
    return s.Wall(total, "sampled", samples, sorted(parts, key=lambda part: -part.seconds), own)


class _Waited:
    """How long the program had waited at a time; `waits` may overlap no more than touch."""

    def __init__(self, waits: Sequence[tuple[float, float]]):
        ordered = sorted(waits)
        self._begins, self._ends = [begin for begin, _ in ordered], [end for _, end in ordered]
        self._sums = [0.0, *itertools.accumulate(end - begin for begin, end in ordered)]

    def within(self, begin: float, end: float) -> float:
        return self._until(end) - self._until(begin)

    def _until(self, moment: float) -> float:
        i = bisect.bisect_right(self._begins, moment)
        return self._sums[i] - max(0.0, self._ends[i - 1] - moment) if i else 0.0


def by_kind(wall: s.Wall) -> list[tuple[str, str, float]]:
    """Kind, its words and its seconds, in the order of KINDS."""
    sums = {kind: sum(part.seconds for part in wall.parts if part.kind == kind) for kind in KINDS}
    return [(kind, words, sums[kind]) for kind, words in KINDS.items() if sums[kind] > 0]


def _rows(found: dict[Seen, tuple[float, int]], total: float) -> list[s.WallPart]:
    """One row for each name; its line is the one that took most. Small ones of a kind become one."""
    rows: dict[tuple[str, str], s.WallPart] = {}
    most: dict[tuple[str, str], float] = {}
    for seen, (took, looks) in found.items():
        key = seen.kind, seen.name
        row = rows.setdefault(key, s.WallPart(seen.kind, seen.name, 0.0))
        row.seconds += took
        row.looks += looks
        if took > most.get(key, 0.0):
            most[key], row.file, row.line = took, seen.file, seen.line
    return _joined(list(rows.values()), total)


def _joined(parts: list[s.WallPart], total: float) -> list[s.WallPart]:
    """The longest first; of each kind those that took next to nothing become one, if there are several. The longest of
    a kind keeps its name.
    """
    ordered = sorted(parts, key=lambda part: -part.seconds)
    small: dict[str, list[s.WallPart]] = {}
    named: set[str] = set()
    for i, part in enumerate(ordered):
        if part.kind in named and (i >= _MOST_ROWS or part.seconds < _LEAST * total):
            small.setdefault(part.kind, []).append(part)
        named.add(part.kind)
    for kind, few in small.items():
        if len(few) > 1:
            ordered = [part for part in ordered if not any(part is other for other in few)]
            calls = sum(part.count for part in few if part.count) or None
            took, looks = sum(part.seconds for part in few), sum(part.looks for part in few)
            ordered.append(s.WallPart(kind, plural(len(few), "other"), took, calls, looks=looks))
    return ordered


def own_seconds(report: Any) -> float:
    """The run's wall time, without compiling and importing, which the next run does not pay, and without waiting for a
    core."""
    rest = (
        part.seconds for part in report.wall.parts if part.kind in ("compiling", "starved") or part.name == IMPORTING
    )
    return max(0.0, report.wall.seconds - sum(rest))


def is_joined(part: s.WallPart) -> bool:
    """Whether a part stands for several whose names are not told."""
    return re.fullmatch(r"\d+ others?", part.name) is not None


def split_compiled(report: Any) -> None:
    """Part what compiled calls took by the times of their kernels, as far as these were timed one by one."""
    wall = report.wall
    whole = [part for part in wall.parts if part.kind in ("kernels", "library", "compiled")]
    known = _kernel_parts(report)
    if not known:
        return
    if wall.how == "sampled":
        room = sum(part.seconds for part in whole)
    else:
        room = sum(part.seconds for part in wall.parts if part.kind != "compiling")
    took = sum(part.seconds for part in known)
    if wall.how == "sampled":  # looks are milliseconds apart, and kernels have clocks of their own
        for part in (part for part in wall.parts if part.kind == "compiling" and part.name != "compiling"):
            moved = min(part.seconds, max(0.0, took - room))
            part.seconds -= moved
            room += moved
    scale = min(1.0, room / took) if took else 0.0
    for part in known:
        part.seconds *= scale
    known = [part for part in known if part.seconds]  # no look saw them: what they take is nothing beside the rest
    left = room - took * scale
    parts = [part for part in wall.parts if part not in whole and part.kind != "rest"]
    known = _joined(known, sum(part.seconds for part in wall.parts if part.kind not in ("compiling", "starved")))
    if wall.how == "sampled":
        lines = max(whole, key=lambda part: part.seconds, default=None)
        others = f"{plural(untimed(report), 'kernel')} without a time, " if untimed(report) else ""
        rest = s.WallPart("compiled", f"{others}guards, launches and the rest of compiled calls", left)
        if lines is not None:
            rest.file, rest.line = lines.file, lines.line
    else:
        rest = s.WallPart("rest", "Python, guards and launches", left)
    told = [*parts, *known, *([rest] if left > _ROUNDING * wall.seconds else [])]
    wall.parts = sorted(told, key=lambda part: (is_joined(part), -part.seconds))


def untimed(report: Any) -> int:
    """How many kernels and library calls of graphs that ran have no time of their own."""
    calls = graph_calls(report)
    return sum(
        kernel.seconds is None and bool(calls.get(kernel.graph)) for kernel in (*report.kernels, *report.externs)
    )


def graph_calls(report: Any) -> dict[int, int]:
    """How often each graph ran: as often as entries with it served; at least once, by the call it was made for. The
    runs of backward graphs were counted, each for itself: not every forward call is followed by one."""
    calls: dict[int, int] = {}
    for entry in report.entries:
        if entry.graph is not None:
            calls[entry.graph] = calls.get(entry.graph, 0) + (entry.hits or 0)
    calls = {graph: max(1, count) for graph, count in calls.items()}
    for partition in report.partitions:
        for backward in partition.backward:
            runs = report.graphs[backward].runs if backward < len(report.graphs) else None
            calls[backward] = calls.get(partition.graph, 1) if runs is None else runs
    return calls


def _line_of(report: Any, k: s.Kernel) -> tuple[str, int | None]:
    called = report.graphs[k.graph].called_at if k.graph is not None else None
    file, line = called or (k.lines[0] if k.lines else ("", None))
    return file, line


def kernels_of(report: Any, part: s.WallPart) -> list[s.Kernel]:
    """The kernels whose time a row is: one for each version of a function that ran."""
    if not part.ref.startswith("kernels/"):
        return []
    first = report.kernels[int(part.ref.split("/")[1])]
    calls = graph_calls(report)
    at = first.name, *_line_of(report, first)
    return [
        kernel
        for kernel in report.kernels
        if kernel is first or (kernel.name, *_line_of(report, kernel)) == at and calls.get(kernel.graph)
    ]


def _kernel_parts(report: Any) -> list[s.WallPart]:
    """Seconds of the run in each kernel, and in each of torch's own that plans call. Kernels of one name and line are
    one row: each version of a function has its own."""
    kernels: dict[tuple, s.WallPart] = {}
    calls = graph_calls(report)
    library: dict[str, s.WallPart] = {}
    for i, kernel in enumerate(report.kernels):
        calls_of_graph = calls.get(kernel.graph, 0)
        if kernel.seconds is not None and calls_of_graph:
            at = kernel.name, *_line_of(report, kernel)
            _, file, line = at
            row = kernels.setdefault(at, s.WallPart("kernels", kernel.name, 0.0, 0, file, line, f"kernels/{i}"))
            row.seconds += kernel.seconds * kernel.launches * calls_of_graph
            row.count = (row.count or 0) + kernel.launches * calls_of_graph
    for extern in report.externs:
        calls_of_graph = calls.get(extern.graph, 0)
        if extern.seconds is not None and calls_of_graph:
            file, line = report.graphs[extern.graph].called_at or (extern.lines[0] if extern.lines else ("", None))
            row = library.setdefault(extern.op, s.WallPart("library", extern.op, 0.0, 0, file, line, "speed"))
            row.seconds += extern.seconds * calls_of_graph
            row.count = (row.count or 0) + extern.count * calls_of_graph
    return [*kernels.values(), *library.values()]
