"""What became of each function of a run: what was compiled and why that pays, what was left alone and why."""

from __future__ import annotations

from typing import Any

from .. import schema as s
from ...base.labels import frame_line, frame_words
from ...base.figures import against, differs, plural

__all__ = ["decisions_of"]

_ORDER = ("compiled", "taken over", "switched off", "limit", "skipped", "not followed", "left alone")


def decisions_of(report: Any) -> list[s.Decision]:
    """Compiled functions first, those that cost most before others."""
    out = []
    off = {d.what for d in report.decided.values() if d.decision == "switched off"}
    for i, frame in enumerate(report.frames):
        if frame.name in off:  # whatever it was compiled to
            continue
        if frame.entries:
            out.append(_compiled(report, i, frame))
        elif frame.status in ("skipped", "limit", "error") and frame.reason:
            decision = "limit" if frame.status == "limit" else "skipped"
            out.append(
                s.Decision(
                    frame_words(frame.name),
                    decision,
                    frame.reason,
                    frame.seconds or None,
                    None,
                    frame.file,
                    frame_line(frame.name, frame.line),
                    f"frames/{i}",
                )
            )
    known = {d.what for d in out}
    out += [d for d in report.decided.values() if d.what not in known]
    return sorted(out, key=lambda d: (_ORDER.index(d.decision), -(d.seconds or 0.0)))


def _compiled(report: Any, i: int, frame: s.Frame) -> s.Decision:
    entries = [report.entries[number] for number in frame.entries]
    graphs = [
        report.graphs[entry.graph] for entry in entries if entry.graph is not None and entry.graph < len(report.graphs)
    ]
    operations, kernels = sum(graph.ops for graph in graphs), sum(len(graph.kernels) for graph in graphs)
    library = sum(
        extern.count
        for extern in report.externs
        if extern.graph is not None and extern.graph < len(report.graphs) and report.graphs[extern.graph].frame == i
    )
    calls = sum(entry.hits or 0 for entry in entries)
    words = []
    if graphs:
        words.append(
            f"{plural(operations, 'operation')} in {plural(kernels, 'kernel')}"
            + (f" and {plural(library, 'library call')}" if library else "")
        )
    else:
        words.append("no tensor work of its own: what it calls is compiled")
    timed = next(
        (
            call
            for call in report.speedups.calls
            if call.name == frame_words(frame.name) and call.measured in ("call", "cell")
        ),
        None,
    )
    x = (
        next((speedup for speedup in timed.speedups if (speedup.engine, speedup.over) == ("tcompile", "eager")), None)
        if timed
        else None
    )
    if x is not None:
        words.append(against(x.ratio, x.lo, x.hi, "eager"))
        if differs(x.lo, x.hi) and timed is not None and timed.break_even_calls is not None:
            words.append(f"pays off after {plural(timed.break_even_calls, 'call')}")
    versions = sum(entry.goes_on is None for entry in entries)
    parts = len(entries) - versions
    if versions > 1:
        words.append(f"{versions} versions")
    if parts:  # (they are compiled as often as what runs before the break)
        words.append(plural(parts, "entry after breaks", "entries after breaks"))
    return s.Decision(
        frame_words(frame.name),
        "compiled",
        "; ".join(words),
        frame.seconds or None,
        calls or None,
        frame.file,
        frame_line(frame.name, frame.line),
        f"frames/{i}",
    )
