"""A report as plain text: the closed line, then short tables with Unicode bars. 100 columns, no colours."""

from __future__ import annotations

from collections import Counter
from typing import Any

from . import schema as s
from ..base.quoting import printed
from ..base.labels import frame_words, stage_name
from ..base.figures import against, count, interval, per_cent, plural, ratio, scientific, seconds, seconds_range, size
from .conclusions.wall import by_kind
from .ranks.ranks_text import ranks_lines

__all__ = ["render", "render_short", "bar", "gain_words", "table"]

_WIDTH = 100
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int = 24) -> str:
    """A horizontal bar for a share in 0..1, in eighths of a character."""
    n = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (n // 8) + (_EIGHTHS[n % 8] if n % 8 else "")


def table(rows: list[list[str]], head: list[str] | None = None, right: tuple[int, ...] = ()) -> list[str]:
    """Rows as aligned lines; columns in `right` are right-aligned; the last column is cut to the width."""
    every = ([head] if head else []) + rows
    if not every:
        return []
    widths = [max(len(r[i]) for r in every) for i in range(len(every[0]))]
    out = []
    for r in every:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(r, widths))]
        line = "  " + "  ".join(cells).rstrip()
        out.append(line if len(line) <= _WIDTH + 40 else line[: _WIDTH + 39] + "…")
    return out


def render_short(r: Any) -> str:
    """The closed line, and under it what can be done about breaks and recompiles: for a terminal."""
    out = [r.summary.line]
    for a in r.answers:
        if a.gain is not None and a.action and r.summary.status != "nothing":
            out.append(f"  {a.text} ({gain_words(a)})")
            out.append(f"    → {a.action}")
    told = {a.ref for a in r.answers if a.gain is not None and a.action}
    for f in r.findings:
        if f.ref in told:
            continue
        out.append(f"  {f.text}")
        if f.action:
            out.append(f"    → {f.action}")
    if (
        r.speedups.status in ("partial", "unavailable")
        and r.speedups.reason
        and r.summary.status != "nothing"
        and not r.raised
    ):
        out.append(f"  timing: {r.speedups.reason}")
    return printed("\n".join(out))


def render(r: Any) -> str:
    """Everything, section by section; empty sections are left out."""
    out = [r.summary.line or f"tcompile report: {r.title}"]
    for title, lines in (
        ("What would make it faster" if any(a.gain or a.action for a in r.answers) else "In short", _answers(r)),
        ("Ranks", ranks_lines(r.ranks, table)),
        ("Where the time went", _wall(r)),
        ("Findings", _findings(r)),
        ("Since the last run of this cell", _previous(r)),
        ("Speed", _speed(r)),
        ("What was compiled, and what was left alone", _decisions(r)),
        ("Stages", _stages(r.stages)),
        ("Graph breaks", _breaks(r)),
        ("Recompiles", _recompiles(r)),
        ("Functions", _frames(r)),
        ("Graphs", _graphs(r)),
        ("Kept for backward", _partitions(r)),
        ("Guards", _guards(r)),
        ("Kernels", _kernels(r)),
        ("Library calls", _externs(r)),
        ("Memory", _memory(r)),
        ("Cache", _cache(r)),
        ("Ran eager", _fallbacks(r)),
        ("Numerics", _numerics(r)),
        ("Errors", [f"  {e}" for e in r.errors]),
        ("Left out", [f"  {o.what}: {o.count}, {o.why}" for o in r.omitted]),
        ("Environment", ["  " + " · ".join(f"{k} {v}" for k, v in r.environment.items())] if r.environment else []),
    ):
        if lines:
            out += ["", title, *lines]
    return printed("\n".join(out))


def _previous(r: Any) -> list[str]:
    words = {True: " (better)", False: " (worse)", None: ""}
    rows = [
        f"  {c.what}: {c.before or '–'} → {c.after or '–'}{words[c.better]}{'; ' * bool(c.why)}{c.why}"
        for c in r.previous.changes
    ]
    return rows + [f"  {sign} {line}" for sign, line in r.previous.source]


def _findings(r: Any) -> list[str]:
    out = []
    for f in r.findings:
        out.append(f"  {'▲' if f.severity == 'warning' else '·'} {f.text}")
        if f.action:
            out.append(f"    → {f.action}")
    return out


def gain_words(a: s.Answer) -> str:
    """`1.3× [1.2–1.4], measured`, `at most 1.5×`; empty where no gain is told."""
    if a.gain is None:
        return ""
    if a.how == "measured" and a.lo is not None and a.hi is not None:
        return f"{interval(a.gain, a.lo, a.hi)}, measured"
    return f"{a.how} {ratio(a.gain)}".strip()


def _answers(r: Any) -> list[str]:
    out = []
    for i, a in enumerate(r.answers, 1):
        words = gain_words(a)
        out.append(f"  {i}. {a.text}{f'   ({words})' if words else ''}")
        if a.action:
            out.append(f"     → {a.action}")
    return out


def _wall(r: Any) -> list[str]:
    w = r.wall
    if not w.seconds:
        return []
    rows = [[words, seconds(t), per_cent(t / w.seconds), bar(t / w.seconds)] for _, words, t in by_kind(w)]
    parts = [
        [
            "  " + p.name,
            seconds(p.seconds),
            per_cent(p.seconds / w.seconds),
            (f"{count(p.count)}×  " if p.count else "") + (f"{p.file}:{p.line}" if p.line else ""),
        ]
        for p in w.parts[:12]
        if p.kind not in ("compiling", "rest", "starved")
    ]
    how = f"{plural(w.samples, 'look')} at the stack" if w.how == "sampled" else "too short to be looked at"
    return [f"  {seconds(w.seconds)} of wall time, {how}", *table([*rows, *parts], right=(1, 2))]


def _decisions(r: Any) -> list[str]:
    rows = [
        [d.decision, d.what, seconds(d.seconds) if d.seconds else "", f"{count(d.calls)}×" if d.calls else "", d.why]
        for d in r.decisions
    ]
    return table(rows, right=(2, 3))


def _speed(r: Any) -> list[str]:
    sp = r.speedups
    if not sp.calls:
        return [f"  not measured: {sp.reason}"] if sp.reason else []
    out = []
    for c in sp.calls:
        what = c.what(r)
        out.append(f"  {c.name}{f' (line {c.line})' if c.line else ''}: {what}{'; ' + c.why_not if c.why_not else ''}")
        longest = max((e.median or 0.0 for e in c.engines), default=0.0)
        rows = []
        for e in c.engines:
            if e.median is None:
                rows.append([e.label, "–", "", e.status + (f": {e.reason}" if e.reason else "")])
            else:
                extra = "".join(f"  {k} {seconds(v)}" for k, v in (("cold", e.cold), ("warm", e.warm)) if v is not None)
                rows.append(
                    [
                        e.label,
                        seconds(e.median),
                        f"[{seconds_range(e.lo, e.hi)}]",
                        bar(e.median / longest if longest else 0) + extra,
                    ]
                )
        out += ["  " + line for line in table(rows, right=(1,))]
        for x in c.speedups:
            out.append(f"    {x.engine}: {against(x.ratio, x.lo, x.hi, x.over)}")
        if c.break_even_calls is not None:
            out.append(f"    pays off after {plural(c.break_even_calls, 'call')}")
        elif c.break_even_reason:
            out.append(f"    {c.break_even_reason}")
    out += [f"  {words}" for words in (sp.reason if sp.status != "measured" else "", sp.note) if words]
    return out


def _stages(stages: list[s.Stage]) -> list[str]:
    total = sum(st.self_seconds for st in stages)
    rows = [
        [
            ("  " if st.parent else "") + stage_name(st),
            seconds(st.self_seconds),
            f"{st.count}×",
            bar(st.self_seconds / total if total else 0),
        ]
        for st in stages
    ]
    return table(rows, right=(1, 2))


def _breaks(r: Any) -> list[str]:
    out = []
    for b in r.graph_breaks:
        out.append(f"  {b.file}:{b.line}{f' in {frame_words(b.function)}' if b.function else ''}: {b.reason}")
        if b.code:
            out.append(f"      {b.code.strip()}")
            if b.col is not None and b.end_col is not None and b.end_line in (None, b.line):
                lead = len(b.code) - len(b.code.lstrip())
                out.append(
                    "      "
                    + " " * min(len(b.code), max(0, b.col - lead))
                    + "^" * min(len(b.code), max(1, b.end_col - b.col))
                )
        if b.remedy:
            out.append(f"    → {b.remedy}")
    return out


def _recompiles(r: Any) -> list[str]:
    out = []
    for c in r.recompiles:
        what = f"{c.source}.{c.detail}" if c.source and c.detail else c.source or c.detail or c.kind
        out.append(
            f"  {frame_words(c.frame_name)}: {what}: expected {c.expected}, got {c.got}"
            + (f"   ({c.file}:{c.line})" if c.line else "")
        )
        if c.suggestion:
            out.append(f"    → {c.suggestion}")
    return out


def _frames(r: Any) -> list[str]:
    return table(
        [
            [frame_words(f.name), f"{f.file}:{f.line}", f.status, plural(len(f.entries), "entry", "entries"), f.reason]
            for f in r.frames
        ]
    )


def _graphs(r: Any) -> list[str]:
    return table(
        [
            [
                g.name,
                plural(g.ops, "operation"),
                plural(len(g.kernels), "kernel"),
                "inputs " + ", ".join(g.inputs[:6]) + (", …" if len(g.inputs) > 6 else ""),
            ]
            for g in r.graphs
        ]
    )


def _partitions(r: Any) -> list[str]:
    """What each forward graph keeps for backward, the largest values first."""
    out = []
    for p in r.partitions:
        name = r.graphs[p.graph].name if p.graph is not None and p.graph < len(r.graphs) else "?"
        eager = f"; eager keeps {size(p.eager_bytes)}" if p.eager_bytes is not None else ""
        budget = f"; memory budget {p.budget:g}" if p.budget < 1 else ""
        out.append(
            f"  {name}: {size(p.saved_bytes)} in {plural(len(p.saved), 'value')}, {plural(len(p.recomputed), 'value')}"
            f" computed again (without that {size(p.read_bytes)}){eager}{budget}"
        )
        rows = [[v.name, v.op, size(v.bytes), f"{v.dtype}{v.shape}", v.kind, v.module] for v in p.saved[:8]]
        out += ["  " + line for line in table(rows, right=(2,))]
        if len(p.saved) > 8:
            out.append(f"    … and {len(p.saved) - 8} more")
    return out


def _guards(r: Any) -> list[str]:
    rows = [
        [
            "✕" if g.failed else "",
            str(g.entry),
            g.cls,
            "" if g.ns is None else f"{g.ns:.0f}" if g.ns >= 10 else f"{g.ns:.1f}",
            f"{g.file}:{g.line}" if g.line else "",
            g.text,
        ]
        for g in r.guards[:40]
    ]
    return (
        []
        if not rows
        else _guard_totals(r)
        + table(rows, ["", "entry", "", "ns", "line", "what has to hold"])
        + ([f"  … and {len(r.guards) - 40} more"] if len(r.guards) > 40 else [])
    )


def _guard_totals(r: Any) -> list[str]:
    """What a call pays for its guards, as measured on the call that each entry was made for, and how many the program
    left out."""
    unguarded = Counter[int]()
    for g in r.guards:
        unguarded[g.entry] += g.count * (g.cls == "dropped")
    return [
        f"  entry {i}: {plural(e.guards, 'guard')}, {e.guard_seconds * 1e6:.2f} µs a call"
        + f", {unguarded[i]} more left out by guard_filter_fn" * (unguarded[i] > 0)
        for i, e in enumerate(r.entries[:8])
        if e.guard_seconds is not None
    ]


def _kernels(r: Any) -> list[str]:
    rows = [
        [
            k.name,
            k.language,
            size(k.bytes),
            f"{k.launches}×",
            seconds(k.seconds) if k.seconds else "",
            ", ".join(k.origins),
        ]
        for k in r.kernels
    ]
    return table(rows, right=(2, 3, 4)) + (["  source: r.kernels[0].source"] if rows else [])


def _externs(r: Any) -> list[str]:
    return table([[e.op, f"{e.count}×", e.reason] for e in r.externs], right=(1,))


def _memory(r: Any) -> list[str]:
    rows = []
    for m in r.memory:
        name = r.graphs[m.graph].name if m.graph is not None and m.graph < len(r.graphs) else ""
        rows.append(
            [
                name,
                f"peak {size(m.peak_bytes)}",
                f"without reuse {size(m.without_reuse_bytes)}" if m.without_reuse_bytes else "",
                f"eager {size(m.eager_peak_bytes)}" if m.eager_peak_bytes else "",
            ]
        )
    return table(rows)


def _cache(r: Any) -> list[str]:
    return table([[c.what, c.result, c.key, f"{c.count}×", c.reason] for c in r.cache], right=(3,))


def _fallbacks(r: Any) -> list[str]:
    return table([[f.what, f"{f.count}×", f.reason] for f in r.fallbacks], right=(1,))


def _numerics(r: Any) -> list[str]:
    return (
        table(
            [
                [
                    n.name,
                    n.op,
                    scientific(n.max_abs),
                    scientific(n.rms_vs_float64),
                    scientific(n.eager_rms_vs_float64),
                    n.verdict,
                    n.why,
                ]
                for n in r.numerics
            ],
            ["node", "operator", "max |difference|", "RMS to float64", "eager's", "", ""],
            right=(2, 3, 4),
        )
        if r.numerics
        else []
    )
