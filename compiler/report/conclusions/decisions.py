"""What became of each function of a run: what was compiled and why that pays, what was left alone and why."""

from __future__ import annotations

from typing import Any

from .. import schema as s
from ...base.labels import frame_line, frame_words
from ...base.figures import against, differs, plural

__all__ = ["decisions_of"]

_ORDER = ("compiled", "taken over", "switched off", "limit", "skipped", "not followed", "left alone")


def decisions_of(r: Any) -> list[s.Decision]:
    """Compiled functions first, those that cost most before others."""
    out = []
    off = {d.what for d in r.decided.values() if d.decision == "switched off"}
    for i, f in enumerate(r.frames):
        if f.name in off:  # whatever it was compiled to
            continue
        if f.entries:
            out.append(_compiled(r, i, f))
        elif f.status in ("skipped", "limit", "error") and f.reason:
            decision = "limit" if f.status == "limit" else "skipped"
            out.append(
                s.Decision(
                    frame_words(f.name),
                    decision,
                    f.reason,
                    f.seconds or None,
                    None,
                    f.file,
                    frame_line(f.name, f.line),
                    f"frames/{i}",
                )
            )
    known = {d.what for d in out}
    out += [d for d in r.decided.values() if d.what not in known]
    return sorted(out, key=lambda d: (_ORDER.index(d.decision), -(d.seconds or 0.0)))


def _compiled(r: Any, i: int, f: s.Frame) -> s.Decision:
    entries = [r.entries[n] for n in f.entries]
    graphs = [r.graphs[e.graph] for e in entries if e.graph is not None and e.graph < len(r.graphs)]
    operations, kernels = sum(g.ops for g in graphs), sum(len(g.kernels) for g in graphs)
    library = sum(
        x.count for x in r.externs if x.graph is not None and x.graph < len(r.graphs) and r.graphs[x.graph].frame == i
    )
    calls = sum(e.hits or 0 for e in entries)
    words = []
    if graphs:
        words.append(
            f"{plural(operations, 'operation')} in {plural(kernels, 'kernel')}"
            + (f" and {plural(library, 'library call')}" if library else "")
        )
    else:
        words.append("no tensor work of its own: what it calls is compiled")
    timed = next(
        (c for c in r.speedups.calls if c.name == frame_words(f.name) and c.measured in ("call", "cell")), None
    )
    x = next((x for x in timed.speedups if (x.engine, x.over) == ("tcompile", "eager")), None) if timed else None
    if x is not None:
        words.append(against(x.ratio, x.lo, x.hi, "eager"))
        if differs(x.lo, x.hi) and timed is not None and timed.break_even_calls is not None:
            words.append(f"pays off after {plural(timed.break_even_calls, 'call')}")
    versions = sum(e.goes_on is None for e in entries)
    parts = len(entries) - versions
    if versions > 1:
        words.append(f"{versions} versions")
    if parts:  # (they are compiled as often as what runs before the break)
        words.append(plural(parts, "entry after breaks", "entries after breaks"))
    return s.Decision(
        frame_words(f.name),
        "compiled",
        "; ".join(words),
        f.seconds or None,
        calls or None,
        f.file,
        frame_line(f.name, f.line),
        f"frames/{i}",
    )
