"""What changed from one run of a cell to the next: figures that differ, options, and lines of the code."""

from __future__ import annotations

import difflib
from collections import Counter
from typing import Any

from ..base.figures import count, plural, seconds, size
from ..base.labels import frame_words
from .conclusions.waits import causes, change_words, subject
from .schema import Change, RunDiff

__all__ = ["diff"]

_MOST_LINES = 80
_CONTEXT = 1
_ALIKE = 0.8  # times whose ratio is nearer to 1 are the same
_BUSY = 0.1  # part of a run that waited for a core: its times are those of the machine
_NAMED = 3


def diff(before: Any, after: Any) -> RunDiff:
    """Compare two reports. Times count as changed where their 95 % intervals do not meet."""
    out = RunDiff(before.id, before.created)
    add = out.changes.append
    if before.summary.status != after.summary.status:
        order = ["error", "nothing", "eager", "partly", "compiled"]
        known = before.summary.status in order and after.summary.status in order
        better = order.index(after.summary.status) > order.index(before.summary.status) if known else None
        add(Change("outcome", before.summary.status, after.summary.status, better))
    out.changes += _run_times(before, after)
    served = after.summary.compile_seconds == 0 < before.summary.compile_seconds
    if served:  # what was compiled before serves: it has not gone
        add(Change("compile time", seconds(before.summary.compile_seconds), "none: earlier entries served", True))
        _times(out, before.speedups, after.speedups)
        out.source = _lines(before.source.text, after.source.text)
        _options(out, before, after)
        return out
    # of code that stayed as it was, another run uses other versions of the same functions: more or fewer, not better
    fewer = None if before.source.text == after.source.text else True
    versions = _versions(before, after)
    for name, words, why in (
        ("graphs", "graphs", versions),
        ("breaks", "graph breaks", ""),
        ("recompiles", "recompiles", _again(after)),
    ):
        _number(out, words, getattr(before.summary, name), getattr(after.summary, name), fewer, why)
    _number(out, "kernels", before.summary.kernels, after.summary.kernels, why=versions)
    _number(out, "calls of torch's kernels", before.summary.externs, after.summary.externs)
    _number(out, "guards", _guards(before), _guards(after), fewer, versions)
    _number(out, "work that ran eager", _total(before.fallbacks), _total(after.fallbacks), fewer=True)
    _times(out, before.speedups, after.speedups)
    a, b = before.summary.compile_seconds, after.summary.compile_seconds
    if a and b and not 0.8 < b / a < 1.25:
        add(Change("compile time", seconds(a), seconds(b), b < a, _compiled_anew(after)))
    peak = [max((m.peak_bytes or 0 for m in report.memory), default=0) for report in (before, after)]
    if peak[0] != peak[1] and [graph.name for graph in before.graphs] == [graph.name for graph in after.graphs]:
        add(Change("peak memory of a plan", size(peak[0]), size(peak[1]), peak[1] < peak[0]))
    _options(out, before, after)
    for b_ in after.graph_breaks:
        if not any(_same_break(b_, a_) for a_ in before.graph_breaks):
            add(Change("new graph break", "", f"line {b_.line}: {b_.code.strip()}", False))
    for a_ in before.graph_breaks:
        if not any(_same_break(a_, b_) for b_ in after.graph_breaks):
            add(Change("graph break gone", f"line {a_.line}: {a_.code.strip()}", "", True))
    out.source = _lines(before.source.text, after.source.text)
    return out


def _guards(report: Any) -> int:
    """Guards that are checked; not those that guard_filter_fn left out."""
    return sum(guard.count for guard in report.guards if guard.cls != "dropped")


def _options(out: RunDiff, before: Any, after: Any) -> None:
    for name in sorted({*before.options, *after.options}):
        old, new = before.options.get(name), after.options.get(name)
        if old != new:
            out.changes.append(Change(f"option {name}", _value(old), _value(new)))


def _number(out: RunDiff, what: str, before: int, after: int, fewer: bool | None = None, why: str = "") -> None:
    if before != after:
        better = None if fewer is None else after < before
        out.changes.append(Change(what, count(before), count(after), better, why))


def _run_times(before: Any, after: Any) -> list[Change]:
    """The run's wall time, and what of it was the program's own, where these differ clearly. One run says of no code
    that it is faster: what else ran on the machine is told beside it."""
    taken = {"compiling": "compiling", "starved": "waiting for a core"}
    out = []
    parts = [
        {kind: sum(part.seconds for part in report.wall.parts if part.kind == kind) for kind in taken}
        for report in (before, after)
    ]
    whole = [before.wall.seconds, after.wall.seconds]
    own = [took - sum(part.values()) for took, part in zip(whole, parts)]
    if all(whole) and not _ALIKE < whole[1] / whole[0] < 1 / _ALIKE:
        most = max(taken, key=lambda kind: abs(parts[1][kind] - parts[0][kind]))
        a, b = parts[0][most], parts[1][most]
        why = f"{taken[most]}: {seconds(a)} then, {seconds(b)} now" if abs(b - a) > abs(own[1] - own[0]) else ""
        out.append(Change("time of the run", seconds(whole[0]), seconds(whole[1]), None, why))
    if all(took > 0 for took in own) and not _ALIKE < own[1] / own[0] < 1 / _ALIKE:
        starved = [part["starved"] / took for part, took in zip(parts, whole)]
        busy = (
            f"other programs had the cores for {100 * starved[0]:.0f} % of that run, {100 * starved[1]:.0f} % of this"
        )
        why = busy if max(starved) > _BUSY else _calls(before, after)
        out.append(Change("the program's own time", seconds(own[0]), seconds(own[1]), None, why))
    return out


def _calls(before: Any, after: Any) -> str:
    before_calls, now_calls = (sum(entry.hits or 0 for entry in report.entries) for report in (before, after))
    return f"{count(before_calls)} compiled calls then, {count(now_calls)} now" if before_calls != now_calls else ""


def _versions(before: Any, after: Any) -> str:
    """Functions of which more or fewer versions were at work."""
    a, b = (
        Counter(frame_words(report.frames[entry.frame].name) for entry in report.entries) for report in (before, after)
    )
    rows = [f"`{name}` {a[name]} → {b[name]}" for name in dict.fromkeys([*a, *b]) if a[name] != b[name]]
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f"compiled versions at work: {', '.join(rows[:_NAMED])}{more}" if rows else ""


def _again(report: Any) -> str:
    """What made this run compile again."""
    return "; ".join(
        dict.fromkeys(change_words(recompile, f"`{subject(recompile)}`") for recompile in causes(report)[:_NAMED])
    )


def _compiled_anew(report: Any) -> str:
    made = len({e.entry for e in report.timeline if e.kind == "entry"})
    there = len(report.entries) - made
    return f"{plural(made, 'entry', 'entries')} compiled, {there} were there" if there > 0 else ""


def _total(rows: Any) -> int:
    return sum(row.count for row in rows)


def _times(out: RunDiff, before: Any, after: Any) -> None:
    for call in after.calls:
        old = next((c for c in before.calls if c.name == call.name and c.measured == call.measured), None)
        if old is None:
            continue
        for engine in call.engines:
            o = next((x for x in old.engines if x.engine == engine.engine), None)
            if o is None or o.median is None or engine.median is None or None in (o.lo, o.hi, engine.lo, engine.hi):
                continue
            if engine.hi < o.lo or engine.lo > o.hi:
                what = f"time of {call.name}" + ("" if engine.engine == "tcompile" else f" under {engine.engine}")
                few = min(o.n, engine.n) < 2  # of one sample nobody knows how certain it is
                better = engine.median < o.median if engine.engine == "tcompile" and not few else None
                why = "one sample of each: other programs may have been at work" if few else ""
                out.changes.append(Change(what, seconds(o.median), seconds(engine.median), better, why))


def _same_break(a: Any, b: Any) -> bool:
    return a.kind == b.kind and a.code.strip() == b.code.strip() and a.function == b.function


def _value(value: Any) -> str:
    return "not given" if value is None else str(value)


def _lines(before: str, after: str) -> list[list[str]]:
    """Rows of [sign, line]: "-" gone, "+" new, " " beside them, "…" some left out."""
    if before == after:
        return []
    rows: list[list[str]] = []
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), n=_CONTEXT, lineterm=""):
        if line.startswith(("---", "+++")) and len(rows) == 0:
            continue
        if line.startswith("@@"):
            if rows:
                rows.append(["…", ""])
            continue
        rows.append([line[:1], line[1:]])
    return rows[:_MOST_LINES] + ([["…", ""]] if len(rows) > _MOST_LINES else [])
