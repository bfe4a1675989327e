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
    scale = rest / (sum(t for t, _ in found.values()) or 1.0)
    starved = scale * sum(t for seen, (t, _) in found.items() if seen.kind == "starved")
    parts += _rows({seen: (t * scale, n) for seen, (t, n) in found.items()}, rest - starved)
    return s.Wall(total, "sampled", samples, sorted(parts, key=lambda p: -p.seconds), own)


class _Waited:
    """How long the program had waited at a time; `waits` may overlap no more than touch."""

    def __init__(self, waits: Sequence[tuple[float, float]]):
        ordered = sorted(waits)
        self._begins, self._ends = [a for a, _ in ordered], [b for _, b in ordered]
        self._sums = [0.0, *itertools.accumulate(b - a for a, b in ordered)]

    def within(self, begin: float, end: float) -> float:
        return self._until(end) - self._until(begin)

    def _until(self, t: float) -> float:
        i = bisect.bisect_right(self._begins, t)
        return self._sums[i] - max(0.0, self._ends[i - 1] - t) if i else 0.0


def by_kind(wall: s.Wall) -> list[tuple[str, str, float]]:
    """Kind, its words and its seconds, in the order of KINDS."""
    sums = {kind: sum(p.seconds for p in wall.parts if p.kind == kind) for kind in KINDS}
    return [(kind, words, sums[kind]) for kind, words in KINDS.items() if sums[kind] > 0]


def _rows(found: dict[Seen, tuple[float, int]], total: float) -> list[s.WallPart]:
    """One row for each name; its line is the one that took most. Small ones of a kind become one."""
    rows: dict[tuple[str, str], s.WallPart] = {}
    most: dict[tuple[str, str], float] = {}
    for seen, (t, n) in found.items():
        key = seen.kind, seen.name
        row = rows.setdefault(key, s.WallPart(seen.kind, seen.name, 0.0))
        row.seconds += t
        row.looks += n
        if t > most.get(key, 0.0):
            most[key], row.file, row.line = t, seen.file, seen.line
    return _joined(list(rows.values()), total)


def _joined(parts: list[s.WallPart], total: float) -> list[s.WallPart]:
    """The longest first; of each kind those that took next to nothing become one, if there are several. The longest of
    a kind keeps its name.
    """
    ordered = sorted(parts, key=lambda p: -p.seconds)
    small: dict[str, list[s.WallPart]] = {}
    named: set[str] = set()
    for i, p in enumerate(ordered):
        if p.kind in named and (i >= _MOST_ROWS or p.seconds < _LEAST * total):
            small.setdefault(p.kind, []).append(p)
        named.add(p.kind)
    for kind, few in small.items():
        if len(few) > 1:
            ordered = [p for p in ordered if not any(p is q for q in few)]
            calls = sum(p.count for p in few if p.count) or None
            took, looks = sum(p.seconds for p in few), sum(p.looks for p in few)
            ordered.append(s.WallPart(kind, plural(len(few), "other"), took, calls, looks=looks))
    return ordered


def own_seconds(r: Any) -> float:
    """The run's wall time, without compiling and importing, which the next run does not pay, and without waiting for a
    core."""
    rest = (p.seconds for p in r.wall.parts if p.kind in ("compiling", "starved") or p.name == IMPORTING)
    return max(0.0, r.wall.seconds - sum(rest))


def is_joined(p: s.WallPart) -> bool:
    """Whether a part stands for several whose names are not told."""
    return re.fullmatch(r"\d+ others?", p.name) is not None


def split_compiled(r: Any) -> None:
    """Part what compiled calls took by the times of their kernels, as far as these were timed one by one."""
    wall = r.wall
    whole = [p for p in wall.parts if p.kind in ("kernels", "library", "compiled")]
    known = _kernel_parts(r)
    if not known:
        return
    if wall.how == "sampled":
        room = sum(p.seconds for p in whole)
    else:
        room = sum(p.seconds for p in wall.parts if p.kind != "compiling")
    took = sum(p.seconds for p in known)
    if wall.how == "sampled":  # looks are milliseconds apart, and kernels have clocks of their own
        for p in (p for p in wall.parts if p.kind == "compiling" and p.name != "compiling"):
            moved = min(p.seconds, max(0.0, took - room))
            p.seconds -= moved
            room += moved
    scale = min(1.0, room / took) if took else 0.0
    for p in known:
        p.seconds *= scale
    known = [p for p in known if p.seconds]  # no look saw them: what they take is nothing beside the rest
    left = room - took * scale
    parts = [p for p in wall.parts if p not in whole and p.kind != "rest"]
    known = _joined(known, sum(p.seconds for p in wall.parts if p.kind not in ("compiling", "starved")))
    if wall.how == "sampled":
        lines = max(whole, key=lambda p: p.seconds, default=None)
        others = f"{plural(untimed(r), 'kernel')} without a time, " if untimed(r) else ""
        rest = s.WallPart("compiled", f"{others}guards, launches and the rest of compiled calls", left)
        if lines is not None:
            rest.file, rest.line = lines.file, lines.line
    else:
        rest = s.WallPart("rest", "Python, guards and launches", left)
    told = [*parts, *known, *([rest] if left > _ROUNDING * wall.seconds else [])]
    wall.parts = sorted(told, key=lambda p: (is_joined(p), -p.seconds))


def untimed(r: Any) -> int:
    """How many kernels and library calls of graphs that ran have no time of their own."""
    calls = graph_calls(r)
    return sum(x.seconds is None and bool(calls.get(x.graph)) for x in (*r.kernels, *r.externs))


def graph_calls(r: Any) -> dict[int, int]:
    """How often each graph ran: as often as entries with it served; at least once, by the call it was made for. The
    runs of backward graphs were counted, each for itself: not every forward call is followed by one."""
    calls: dict[int, int] = {}
    for e in r.entries:
        if e.graph is not None:
            calls[e.graph] = calls.get(e.graph, 0) + (e.hits or 0)
    calls = {graph: max(1, n) for graph, n in calls.items()}
    for p in r.partitions:
        for b in p.backward:
            runs = r.graphs[b].runs if b < len(r.graphs) else None
            calls[b] = calls.get(p.graph, 1) if runs is None else runs
    return calls


def _line_of(r: Any, k: s.Kernel) -> tuple[str, int | None]:
    called = r.graphs[k.graph].called_at if k.graph is not None else None
    file, line = called or (k.lines[0] if k.lines else ("", None))
    return file, line


def kernels_of(r: Any, p: s.WallPart) -> list[s.Kernel]:
    """The kernels whose time a row is: one for each version of a function that ran."""
    if not p.ref.startswith("kernels/"):
        return []
    first = r.kernels[int(p.ref.split("/")[1])]
    calls = graph_calls(r)
    at = first.name, *_line_of(r, first)
    return [k for k in r.kernels if k is first or (k.name, *_line_of(r, k)) == at and calls.get(k.graph)]


def _kernel_parts(r: Any) -> list[s.WallPart]:
    """Seconds of the run in each kernel, and in each of torch's own that plans call. Kernels of one name and line are
    one row: each version of a function has its own."""
    kernels: dict[tuple, s.WallPart] = {}
    calls = graph_calls(r)
    library: dict[str, s.WallPart] = {}
    for i, k in enumerate(r.kernels):
        n = calls.get(k.graph, 0)
        if k.seconds is not None and n:
            at = k.name, *_line_of(r, k)
            _, file, line = at
            row = kernels.setdefault(at, s.WallPart("kernels", k.name, 0.0, 0, file, line, f"kernels/{i}"))
            row.seconds += k.seconds * k.launches * n
            row.count = (row.count or 0) + k.launches * n
    for x in r.externs:
        n = calls.get(x.graph, 0)
        if x.seconds is not None and n:
            file, line = r.graphs[x.graph].called_at or (x.lines[0] if x.lines else ("", None))
            row = library.setdefault(x.op, s.WallPart("library", x.op, 0.0, 0, file, line, "speed"))
            row.seconds += x.seconds * n
            row.count = (row.count or 0) + x.count * n
    return [*kernels.values(), *library.values()]
