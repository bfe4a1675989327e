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
    widths = [max(len(row[i]) for row in every) for i in range(len(every[0]))]
    out = []
    for row in every:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths))
        ]
        line = "  " + "  ".join(cells).rstrip()
        out.append(line if len(line) <= _WIDTH + 40 else line[: _WIDTH + 39] + "…")
    return out


def render_short(report: Any) -> str:
    """The closed line, and under it what can be done about breaks and recompiles: for a terminal."""
    out = [report.summary.line]
    for answer in report.answers:
        if answer.gain is not None and answer.action and report.summary.status != "nothing":
            out.append(f"  {answer.text} ({gain_words(answer)})")
            out.append(f"    → {answer.action}")
    told = {answer.ref for answer in report.answers if answer.gain is not None and answer.action}
    for finding in report.findings:
        if finding.ref in told:
            continue
        out.append(f"  {finding.text}")
        if finding.action:
            out.append(f"    → {finding.action}")
    if (
        report.speedups.status in ("partial", "unavailable")
        and report.speedups.reason
        and report.summary.status != "nothing"
        and not report.raised
    ):
        out.append(f"  timing: {report.speedups.reason}")
    return printed("\n".join(out))


def render(report: Any) -> str:
    """Everything, section by section; empty sections are left out."""
    out = [report.summary.line or f"tcompile report: {report.title}"]
    for title, lines in (
        (
            "What would make it faster"
            if any(answer.gain or answer.action for answer in report.answers)
            else "In short",
            _answers(report),
        ),
        ("Ranks", ranks_lines(report.ranks, table)),
        ("Where the time went", _wall(report)),
        ("Findings", _findings(report)),
        ("Since the last run of this cell", _previous(report)),
        ("Speed", _speed(report)),
        ("What was compiled, and what was left alone", _decisions(report)),
        ("Stages", _stages(report.stages)),
        ("Graph breaks", _breaks(report)),
        ("Recompiles", _recompiles(report)),
        ("Functions", _frames(report)),
        ("Graphs", _graphs(report)),
        ("Kept for backward", _partitions(report)),
        ("Guards", _guards(report)),
        ("Kernels", _kernels(report)),
        ("Library calls", _externs(report)),
        ("Memory", _memory(report)),
        ("Cache", _cache(report)),
        ("Ran eager", _fallbacks(report)),
        ("Numerics", _numerics(report)),
        ("Errors", [f"  {error}" for error in report.errors]),
        ("Left out", [f"  {omitted.what}: {omitted.count}, {omitted.why}" for omitted in report.omitted]),
        (
            "Environment",
            ["  " + " · ".join(f"{name} {value}" for name, value in report.environment.items())]
            if report.environment
            else [],
        ),
    ):
        if lines:
            out += ["", title, *lines]
    return printed("\n".join(out))


def _previous(report: Any) -> list[str]:
    words = {True: " (better)", False: " (worse)", None: ""}
    rows = [
        f"  {change.what}: {change.before or '–'} → {change.after or '–'}{words[change.better]}"
        f"{'; ' * bool(change.why)}{change.why}"
        for change in report.previous.changes
    ]
    return rows + [f"  {sign} {line}" for sign, line in report.previous.source]


def _findings(report: Any) -> list[str]:
    out = []
    for finding in report.findings:
        out.append(f"  {'▲' if finding.severity == 'warning' else '·'} {finding.text}")
        if finding.action:
            out.append(f"    → {finding.action}")
    return out


def gain_words(answer: s.Answer) -> str:
    """`1.3× [1.2–1.4], measured`, `at most 1.5×`; empty where no gain is told."""
    if answer.gain is None:
        return ""
    if answer.how == "measured" and answer.lo is not None and answer.hi is not None:
        return f"{interval(answer.gain, answer.lo, answer.hi)}, measured"
    return f"{answer.how} {ratio(answer.gain)}".strip()


def _answers(report: Any) -> list[str]:
    out = []
    for i, answer in enumerate(report.answers, 1):
        words = gain_words(answer)
        out.append(f"  {i}. {answer.text}{f'   ({words})' if words else ''}")
        if answer.action:
            out.append(f"     → {answer.action}")
    return out


def _wall(report: Any) -> list[str]:
    wall = report.wall
    if not wall.seconds:
        return []
    rows = [
        [words, seconds(took), per_cent(took / wall.seconds), bar(took / wall.seconds)]
        for _, words, took in by_kind(wall)
    ]
    parts = [
        [
            "  " + part.name,
            seconds(part.seconds),
            per_cent(part.seconds / wall.seconds),
            (f"{count(part.count)}×  " if part.count else "") + (f"{part.file}:{part.line}" if part.line else ""),
        ]
        for part in wall.parts[:12]
        if part.kind not in ("compiling", "rest", "starved")
    ]
    how = f"{plural(wall.samples, 'look')} at the stack" if wall.how == "sampled" else "too short to be looked at"
    return [f"  {seconds(wall.seconds)} of wall time, {how}", *table([*rows, *parts], right=(1, 2))]


def _decisions(report: Any) -> list[str]:
    rows = [
        [
            decision.decision,
            decision.what,
            seconds(decision.seconds) if decision.seconds else "",
            f"{count(decision.calls)}×" if decision.calls else "",
            decision.why,
        ]
        for decision in report.decisions
    ]
    return table(rows, right=(2, 3))


def _speed(report: Any) -> list[str]:
    sp = report.speedups
    if not sp.calls:
        return [f"  not measured: {sp.reason}"] if sp.reason else []
    out = []
    for call in sp.calls:
        what = call.what(report)
        line = f" (line {call.line})" if call.line else ""
        out.append(f"  {call.name}{line}: {what}{'; ' + call.why_not if call.why_not else ''}")
        longest = max((engine.median or 0.0 for engine in call.engines), default=0.0)
        rows = []
        for engine in call.engines:
            if engine.median is None:
                rows.append([engine.label, "–", "", engine.status + (f": {engine.reason}" if engine.reason else "")])
            else:
                extra = "".join(
                    f"  {name} {seconds(took)}"
                    for name, took in (("cold", engine.cold), ("warm", engine.warm))
                    if took is not None
                )
                rows.append(
                    [
                        engine.label,
                        seconds(engine.median),
                        f"[{seconds_range(engine.lo, engine.hi)}]",
                        bar(engine.median / longest if longest else 0) + extra,
                    ]
                )
        out += ["  " + line for line in table(rows, right=(1,))]
        for speedup in call.speedups:
            out.append(f"    {speedup.engine}: {against(speedup.ratio, speedup.lo, speedup.hi, speedup.over)}")
        if call.break_even_calls is not None:
            out.append(f"    pays off after {plural(call.break_even_calls, 'call')}")
        elif call.break_even_reason:
            out.append(f"    {call.break_even_reason}")
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


def _breaks(report: Any) -> list[str]:
    out = []
    for brk in report.graph_breaks:
        out.append(f"  {brk.file}:{brk.line}{f' in {frame_words(brk.function)}' if brk.function else ''}: {brk.reason}")
        if brk.code:
            out.append(f"      {brk.code.strip()}")
            if brk.col is not None and brk.end_col is not None and brk.end_line in (None, brk.line):
                lead = len(brk.code) - len(brk.code.lstrip())
                out.append(
                    "      "
                    + " " * min(len(brk.code), max(0, brk.col - lead))
                    + "^" * min(len(brk.code), max(1, brk.end_col - brk.col))
                )
        if brk.remedy:
            out.append(f"    → {brk.remedy}")
    return out


def _recompiles(report: Any) -> list[str]:
    out = []
    for recompile in report.recompiles:
        what = (
            f"{recompile.source}.{recompile.detail}"
            if recompile.source and recompile.detail
            else recompile.source or recompile.detail or recompile.kind
        )
        out.append(
            f"  {frame_words(recompile.frame_name)}: {what}: expected {recompile.expected}, got {recompile.got}"
            + (f"   ({recompile.file}:{recompile.line})" if recompile.line else "")
        )
        if recompile.suggestion:
            out.append(f"    → {recompile.suggestion}")
    return out


def _frames(report: Any) -> list[str]:
    return table(
        [
            [
                frame_words(frame.name),
                f"{frame.file}:{frame.line}",
                frame.status,
                plural(len(frame.entries), "entry", "entries"),
                frame.reason,
            ]
            for frame in report.frames
        ]
    )


def _graphs(report: Any) -> list[str]:
    return table(
        [
            [
                graph.name,
                plural(graph.ops, "operation"),
                plural(len(graph.kernels), "kernel"),
                "inputs " + ", ".join(graph.inputs[:6]) + (", …" if len(graph.inputs) > 6 else ""),
            ]
            for graph in report.graphs
        ]
    )


def _partitions(report: Any) -> list[str]:
    """What each forward graph keeps for backward, the largest values first."""
    out = []
    for partition in report.partitions:
        name = (
            report.graphs[partition.graph].name
            if partition.graph is not None and partition.graph < len(report.graphs)
            else "?"
        )
        eager = f"; eager keeps {size(partition.eager_bytes)}" if partition.eager_bytes is not None else ""
        budget = f"; memory budget {partition.budget:g}" if partition.budget < 1 else ""
        out.append(
            f"  {name}: {size(partition.saved_bytes)} in {plural(len(partition.saved), 'value')},"
            f" {plural(len(partition.recomputed), 'value')} computed again"
            f" (without that {size(partition.read_bytes)}){eager}{budget}"
        )
        rows = [
            [value.name, value.op, size(value.bytes), f"{value.dtype}{value.shape}", value.kind, value.module]
            for value in partition.saved[:8]
        ]
        out += ["  " + line for line in table(rows, right=(2,))]
        if len(partition.saved) > 8:
            out.append(f"    … and {len(partition.saved) - 8} more")
    return out


def _guards(report: Any) -> list[str]:
    rows = [
        [
            "✕" if guard.failed else "",
            str(guard.entry),
            guard.cls,
            "" if guard.ns is None else f"{guard.ns:.0f}" if guard.ns >= 10 else f"{guard.ns:.1f}",
            f"{guard.file}:{guard.line}" if guard.line else "",
            guard.text,
        ]
        for guard in report.guards[:40]
    ]
    return (
        []
        if not rows
        else _guard_totals(report)
        + table(rows, ["", "entry", "", "ns", "line", "what has to hold"])
        + ([f"  … and {len(report.guards) - 40} more"] if len(report.guards) > 40 else [])
    )


def _guard_totals(report: Any) -> list[str]:
    """What a call pays for its guards, as measured on the call that each entry was made for, and how many the program
    left out."""
    unguarded = Counter[int]()
    for guard in report.guards:
        unguarded[guard.entry] += guard.count * (guard.cls == "dropped")
    return [
        f"  entry {i}: {plural(entry.guards, 'guard')}, {entry.guard_seconds * 1e6:.2f} µs a call"
        + f", {unguarded[i]} more left out by guard_filter_fn" * (unguarded[i] > 0)
        for i, entry in enumerate(report.entries[:8])
        if entry.guard_seconds is not None
    ]


def _kernels(report: Any) -> list[str]:
    rows = [
        [
            kernel.name,
            kernel.language,
            size(kernel.bytes),
            f"{kernel.launches}×",
            seconds(kernel.seconds) if kernel.seconds else "",
            ", ".join(kernel.origins),
        ]
        for kernel in report.kernels
    ]
    return table(rows, right=(2, 3, 4)) + (["  source: r.kernels[0].source"] if rows else [])


def _externs(report: Any) -> list[str]:
    return table([[extern.op, f"{extern.count}×", extern.reason] for extern in report.externs], right=(1,))


def _memory(report: Any) -> list[str]:
    rows = []
    for memory in report.memory:
        name = (
            report.graphs[memory.graph].name if memory.graph is not None and memory.graph < len(report.graphs) else ""
        )
        rows.append(
            [
                name,
                f"peak {size(memory.peak_bytes)}",
                f"without reuse {size(memory.without_reuse_bytes)}" if memory.without_reuse_bytes else "",
                f"eager {size(memory.eager_peak_bytes)}" if memory.eager_peak_bytes else "",
            ]
        )
    return table(rows)


def _cache(report: Any) -> list[str]:
    return table([[row.what, row.result, row.key, f"{row.count}×", row.reason] for row in report.cache], right=(3,))


def _fallbacks(report: Any) -> list[str]:
    return table([[fallback.what, f"{fallback.count}×", fallback.reason] for fallback in report.fallbacks], right=(1,))


def _numerics(report: Any) -> list[str]:
    return (
        table(
            [
                [
                    numeric.name,
                    numeric.op,
                    scientific(numeric.max_abs),
                    scientific(numeric.rms_vs_float64),
                    scientific(numeric.eager_rms_vs_float64),
                    numeric.verdict,
                    numeric.why,
                ]
                for numeric in report.numerics
            ],
            ["node", "operator", "max |difference|", "RMS to float64", "eager's", "", ""],
            right=(2, 3, 4),
        )
        if report.numerics
        else []
    )
