"""A report as self-contained HTML: no JavaScript, no request, readable in an untrusted notebook, in nbconvert and at
500 px.

Structure carries the meaning (headings, tables, `<details>`), so that it reads where a site removes all styles; colour
repeats what words say. Every text of the user's is escaped: sections are made of `elements.py`.
"""

from __future__ import annotations

import math
from typing import Any, Collection, Sequence

from ...compiler.base.quoting import html_text
from ...compiler.report import schema as s
from ...compiler.report.finish import SYMBOLS
from ...compiler.base.labels import frame_words, stage_name
from ...compiler.base.figures import against, count, per_cent, plural, scientific, seconds, seconds_range, size
from ...compiler.report.plain_text import gain_words
from ...compiler.report.conclusions.wall import by_kind
from . import svg
from .elements import ROWS, STYLE, Raw, code, dim, esc, fold, prose, sign, table
from .ranks_html import HEAD, ranks_parts

__all__ = ["render_html", "speed_html", "STYLE", "esc"]

_SOURCE_BUDGET = 20_000  # characters of kernel and entry sources in all
_NODE_BUDGET = 160  # rows of graph tables in all
_ROOM = 500  # characters of a summary for the names of what it leaves out
# The sections of a summary, those first that have their place also where there is little.
_TELLS_MOST = (
    "Ranks",
    "Answers",
    "Findings",
    "Errors",
    "Where the time went",
    "Code",
    "Graph breaks",
    "Recompiles",
    "Speed",
    "Since the last run of this cell",
    "Numerics",
    "What was compiled",
    "One call",
    "Where the compile time went",
    "Kept for backward",
    "Functions",
    "Guards",
    "Memory",
    "Kernels",
)


def render_html(report: Any, limit: int | None = None) -> str:
    """The whole report of a CompileReport, closed to its one line. With a `limit` of characters it is a summary: the
    sections that tell most, as far as they fit, and the names of the others.
    """
    parts = _sections(report, 1.0 if limit is None else 0.0)
    head = f'<style>{STYLE}</style><div class="tcr"><details><summary>{_line(report)}</summary>'
    if limit is not None:
        parts = _fitting(parts, limit - len(head) - _ROOM)
    return f"{head}{''.join(html for _, html in parts)}</details></div>"


def _fitting(parts: list[tuple[str, str]], room: int) -> list[tuple[str, str]]:
    """The parts that tell most, in their order; those without room are named at the end."""
    rank = {title: i for i, title in enumerate(_TELLS_MOST)}
    kept = set()
    for i, (_, html) in sorted(enumerate(parts), key=lambda numbered: rank.get(numbered[1][0], len(rank))):
        if len(html) <= room:
            room -= len(html)
            kept.add(i)
    left = [title.lower() for i, (title, html) in enumerate(parts) if html and i not in kept]
    words = f'not in this summary: {", ".join(left)}. JupyterLab shows them, and r.save("report.html") writes them.'
    return [part for i, part in enumerate(parts) if i in kept] + [("", f"<div>{dim(words)}</div>" if left else "")]


def _sections(report: Any, share: float) -> list[tuple[str, str]]:
    """Title and HTML of each section. `share`: how much of sources, graphs and buffers is told, from 0 to 1."""
    compiled = sum(decision.decision == "compiled" for decision in report.decisions)
    settings = {**report.environment, **{f"option {name}": option for name, option in report.options.items()}}
    folds: list[tuple[str, str, str, bool]] = [
        ("Ranks", _ranks(report.ranks), str(len(report.ranks.rows)), True),
        ("Where the time went", _wall(report), seconds(report.wall.seconds), True),
        ("Findings", _findings(report), "", False),
        ("Since the last run of this cell", _previous(report), str(len(report.previous.changes)), False),
        ("Code", _code(report), _marks_note(report), True),
        ("Speed", _speed(report), _speed_note(report.speedups), True),
        ("One call", _profile(report), seconds(report.profiles[0].seconds) if report.profiles else "", False),
        ("What was compiled", _decisions(report, True), str(compiled), False),
        ("What was left alone", _decisions(report, False), str(len(report.decisions) - compiled), False),
        ("Where the compile time went", _stages(report), seconds(report.summary.compile_seconds), False),
        ("Graph breaks", _breaks(report), str(len(report.graph_breaks)), bool(report.graph_breaks)),
        ("Recompiles", _recompiles(report), str(len(report.recompiles)), bool(report.recompiles)),
        ("Guards", _guards(report), str(sum(guard.count for guard in report.guards)), False),
        ("Functions", _frames(report), str(len(report.frames)), False),
        ("Graphs", _graphs(report, share), str(len(report.graphs)), False),
        ("Kernels", _kernels(report, share), str(len(report.kernels)), False),
        ("Library calls", _externs(report), str(sum(extern.count for extern in report.externs)), False),
        ("Memory", _memory(report, share), "", False),
        ("Kept for backward", _partitions(report), plural(len(report.partitions), "graph"), False),
        ("Numerics", _numerics(report), "", False),
        ("Timeline", _timeline(report), str(len(report.timeline)), False),
        ("Cache", _cache(report), _cache_note(report), False),
        ("Ran eager", _fallbacks(report), str(len(report.fallbacks)), False),
        ("Errors", "".join(f"<div>{esc(error)}</div>" for error in report.errors), "", False),
        ("Environment", table([[name, setting] for name, setting in settings.items()]), "", False),
    ]
    out = [("Answers", _answers(report))]
    for title, body, note, opened in folds:
        out.append((title, body if title == "Findings" else fold(title, body, note, opened)))
    omitted = "".join(
        f"<div>{dim(f'left out: {omitted.what} ({omitted.count}), {omitted.why}')}</div>" for omitted in report.omitted
    )
    return [*out, ("Left out", omitted)]


def speed_html(report: Any) -> str:
    return _speed(report)


def _line(report: Any) -> str:
    """The closed line; the symbol carries the status's colour, the status its weight."""
    summary = report.summary
    tone = {"compiled": svg.MARK_COLOURS["captured"], "partly": svg.MARK_COLOURS["break"], "error": "#d14b4b"}.get(
        summary.status, svg.MARK_COLOURS["eager"]
    )
    head, _, rest = summary.line.partition("   ")
    symbol, _, word = head.partition(" ")
    return (
        f"{sign(symbol or SYMBOLS['nothing'], tone)} <b>{esc(word)}</b> &nbsp; {esc(rest).replace('   ', ' &nbsp; ')}"
    )


def _answers(report: Any) -> str:
    """The ranked answer: where the time went and what would change it."""
    out = []
    for answer in report.answers:
        gain = gain_words(answer)
        won = f"<b>{esc(gain)}</b>" if answer.how == "measured" else dim(gain)
        action = f'<div class="act">→ {prose(answer.action)}</div>' if answer.action else ""
        out.append(f"<li>{prose(answer.text)} {won if gain else ''}{action}</li>")
    return f'<ol class="find">{"".join(out)}</ol>' if out else ""


def _wall(report: Any) -> str:
    wall = report.wall
    if not wall.seconds:
        return ""
    kinds = by_kind(wall)
    rows = [[words, seconds(took), per_cent(took / wall.seconds), "", ""] for _, words, took in kinds]
    rows += [
        [
            Raw(f"&nbsp;&nbsp;{code(part.name)}"),
            seconds(part.seconds),
            per_cent(part.seconds / wall.seconds),
            f"{count(part.count)}×" if part.count else "",
            _where(part.file, part.line) if part.file else "",
        ]
        for part in wall.parts[:10]
        if part.kind not in ("compiling", "rest", "starved")
    ]
    how = "from looks at the stack" if wall.how == "sampled" else "the run was too short to be looked at"
    return (
        svg.stacked_bar([(words, took) for _, words, took in kinds])
        + table(rows, ["what", "time", "share", "calls", "line"], (1, 2, 3))
        + f"<div>{dim(how)}</div>"
    )


def _decisions(report: Any, compiled: bool) -> str:
    rows = [
        [
            code(decision.what),
            "" if compiled else decision.decision,
            seconds(decision.seconds) if decision.seconds else "",
            count(decision.calls) if decision.calls else "",
            decision.why,
        ]
        for decision in report.decisions
        if (decision.decision == "compiled") == compiled
    ]
    return table(rows, ["function", "", "compiled in", "calls", "why"], (2, 3)) if rows else ""


def _findings(report: Any) -> str:
    out = []
    for finding in report.findings:
        mark = sign("▲", svg.MARK_COLOURS["break"]) if finding.severity == "warning" else Raw("·")
        cost = dim(f" (about {seconds(finding.cost_seconds)})") if finding.cost_seconds else ""
        said = code(finding.action) if _is_code(finding.action) else prose(finding.action)
        action = f'<div class="act">→ {said}</div>' if finding.action else ""
        out.append(f'<div class="find">{mark} {prose(finding.text)}{cost}{action}</div>')
    return "".join(out)


def _ranks(report: Any) -> str:
    if not report:
        return ""
    picture, sentences, rows, notes = ranks_parts(report)
    said = "".join(f'<div class="find">{esc(text)}</div>' for text in sentences)
    below = "".join(f"<div>{dim(text)}</div>" for text in notes)
    return picture + said + table(rows, HEAD, range(2, 12)) + below


def _previous(report: Any) -> str:
    """What differs from the run before; empty where there was none, or nothing does."""
    words = {True: "better", False: "worse", None: ""}
    rows = [
        [change.what, code(change.before), code(change.after), words[change.better], change.why]
        for change in report.previous.changes
    ]
    lines = "".join(f"<div>{code(f'{way} {line}')}</div>" for way, line in report.previous.source)
    return (table(rows, ["what", "before", "now", "", "why"]) if rows else "") + lines


def _is_code(text: str) -> bool:
    return bool(text) and " " not in text.split("(")[0].split("=")[0].strip()


_GLYPHS = {"captured": "●", "eager": "○", "break": "▲", "guard": "◎"}


def _code(report: Any) -> str:
    text = report.source.text
    if not text.strip():
        return ""
    marks = {
        mark.line: mark for mark in reversed(report.marks) if mark.file == report.source.file
    }  # (the first of a line counts)
    lines = text.rstrip("\n").split("\n")
    rows = []
    for i, line in enumerate(lines[:200], report.source.first_line):
        mark = marks.get(i)
        glyph = (
            f'<span title="{html_text(mark.text)}" style="color:{svg.MARK_COLOURS[mark.kind]}">'
            f"{_GLYPHS[mark.kind]}</span>"
            if mark
            else ""
        )
        note = f'<div class="dim">{esc(mark.text)}</div>' if mark and mark.kind in ("break", "eager") else ""
        rows.append(
            f'<tr><td>{glyph}</td><td class="r dim">{i}</td><td'
            f' class="src"><code>{html_text(line) or " "}</code>{note}</td></tr>'
        )
    more = f"<div>{dim(f'and {len(lines) - 200} lines more')}</div>" if len(lines) > 200 else ""
    others = [mark for mark in report.marks if mark.file != report.source.file and mark.kind != "captured"]
    elsewhere = (
        table(
            [
                [sign(_GLYPHS[other.kind], svg.MARK_COLOURS[other.kind]), f"{other.file}:{other.line}", other.text]
                for other in others
            ]
        )
        if others
        else ""
    )
    return f"<table>{''.join(rows)}</table>{more}{elsewhere}"


def _marks_note(report: Any) -> str:
    marked = any(mark.file == report.source.file for mark in report.marks)
    return "● compiled  ○ eager  ▲ break  ◎ a guard relies on it" if marked else ""


def _speed_note(sp: s.Speedups) -> str:
    speedup = sp.over("eager")
    if speedup is None and any(call.measured == "graphs" for call in sp.calls):
        return "of graphs alone"
    return f"{against(speedup.ratio, speedup.lo, speedup.hi, 'eager')}, 95 % interval" if speedup else "not measured"


def _speed(report: Any) -> str:
    sp = report.speedups
    out = []
    for call in sp.calls:
        what = call.what(report)
        out.append(
            f"<div>{code(call.name)}{esc(f' · line {call.line}') if call.line else ''} ·"
            f" {esc(what)}{dim('; ' + call.why_not) if call.why_not else ''}</div>"
        )
        longest = max((engine.hi or engine.median or 0.0 for engine in call.engines), default=0.0)
        rows = []
        for engine in call.engines:
            name = sign("■", svg.ENGINE_COLOURS.get(engine.engine, "inherit"), f" {engine.label}")
            if engine.median is None:
                rows.append(
                    [name, "–", dim(engine.status + (f": {engine.reason}" if engine.reason else "")), "", "", ""]
                )
            else:
                rows.append(
                    [
                        name,
                        seconds(engine.median),
                        Raw(
                            svg.time_bar(
                                engine.median,
                                engine.lo or engine.median,
                                engine.hi or engine.median,
                                longest,
                                engine.engine,
                                engine.samples,
                            )
                        ),
                        seconds_range(engine.lo, engine.hi),
                        seconds(engine.cold),
                        seconds(engine.warm),
                    ]
                )
        if rows:
            out.append(table(rows, ["engine", "steady", "", "95 % interval", "first call", "second"], (1, 4, 5)))
        facts = [
            f"{speedup.engine} is {against(speedup.ratio, speedup.lo, speedup.hi, speedup.over)}"
            for speedup in call.speedups
        ]
        if call.break_even_calls is not None:
            facts.append(f"compiling pays off after {plural(call.break_even_calls, 'call')}")
        elif call.break_even_reason:
            facts.append(call.break_even_reason)
        out.append(f"<div>{esc(' · '.join(facts))}</div>" if facts else "")
    out += [f"<div>{dim(words)}</div>" for words in (sp.reason if sp.status != "measured" else "", sp.note) if words]
    return "".join(out)


def _profile(report: Any) -> str:
    """The longest of the profiled calls as a picture, and the steps that took most."""
    if not report.profiles:
        return ""
    profile = report.profiles[0]
    spans = profile.rows()
    rows: dict[tuple[str, str], list] = {}
    for span in spans:
        if span.kind in _STEP_WORDS:
            row = rows.setdefault((span.kind, span.name), [0.0, 0, span])
            row[0] += span.seconds
            row[1] += 1
    longest = sorted(rows.items(), key=lambda item: -item[1][0])
    what = (
        "end to end" if profile.how == "call" else "its graphs alone"
    ) + ", with its backward pass" * profile.backward
    return (
        f"<div>{code(profile.name)}{esc(f', {what}')}</div>"
        + svg.flame(spans)
        + table(
            [
                [
                    code(name) if kind in ("kernel", "library") else name,
                    _STEP_WORDS[kind],
                    seconds(took),
                    f"{100 * took / (profile.seconds or 1):.0f} %",
                    f"{count}×",
                    _where(text.file, text.line) if text.line else "",
                ]
                for (kind, name), (took, count, text) in longest[:_MOST_STEPS]
            ],
            ["step", "is", "time", "share", "times", "where"],
            (2, 3, 4),
        )
    )


def _stages(report: Any) -> str:
    by_name: dict[str, list] = {}
    for st in report.stages:
        row = by_name.setdefault(stage_name(st), [0.0, 0])
        row[0] += st.self_seconds
        row[1] += st.count
    total = sum(row[0] for row in by_name.values())
    if not total:
        return ""
    rows = [
        [
            Raw(f'<span style="color:{svg.STAGE_COLOURS[i % len(svg.STAGE_COLOURS)]}">■</span>'),
            name,
            seconds(took),
            f"{100 * took / total:.0f} %",
            f"{count}×",
        ]
        for i, (name, (took, count)) in enumerate(by_name.items())
    ]
    return svg.stacked_bar([(name, row[0]) for name, row in by_name.items()]) + table(
        rows, ["", "stage", "time", "share", "runs"], (2, 3, 4)
    )


def _where(file: str, line: int | None) -> str:
    return f"{file}:{line}" if line else file


def _breaks(report: Any) -> str:
    out = []
    for brk in report.graph_breaks:
        chain = " → ".join(
            f"{frame_words(caller.function)} ({_where(caller.file, caller.line)})" for caller in brk.call_chain
        )
        marked = ""
        if brk.code:
            text = brk.code.encode(errors="surrogatepass")
            if (
                brk.col is not None
                and brk.end_col is not None
                and brk.end_line in (None, brk.line)
                and brk.end_col <= len(text)
            ):
                parts = [
                    html_text(piece.decode(errors="replace"))
                    for piece in (text[: brk.col], text[brk.col : brk.end_col], text[brk.end_col :])
                ]
                line = f"border-bottom:2px solid {svg.MARK_COLOURS['break']}"
                marked = f'<pre>{parts[0]}<b style="{line}">{parts[1]}</b>{parts[2]}</pre>'
            else:
                marked = f"<pre>{html_text(brk.code)}</pre>"
        out.append(
            f"<div>{sign('▲', svg.MARK_COLOURS['break'])}"
            f" {esc(_where(brk.file, brk.line))}{esc(f' in {frame_words(brk.function)}') if brk.function else ''}:"
            f" {esc(brk.reason)}</div>{marked}"
            + (f'<div class="act">→ {esc(brk.remedy)}</div>' if brk.remedy else "")
            + (f'<div class="act">{dim(chain)}</div>' if len(brk.call_chain) > 1 else "")
        )
    return "".join(out)


def _recompiles(report: Any) -> str:
    rows = [
        [
            frame_words(recompile.frame_name),
            code(
                f"{recompile.source}.{recompile.detail}"
                if recompile.source and recompile.detail
                else recompile.source or recompile.detail or recompile.kind
            ),
            code(recompile.expected),
            code(recompile.got),
            Raw(f"{esc(_where(recompile.file, recompile.line))} {code(recompile.code.strip())}"),
            recompile.suggestion,
        ]
        for recompile in report.recompiles
    ]
    return table(rows, ["function", "what changed", "expected", "got", "your line", "what to change"]) if rows else ""


def _guards(report: Any) -> str:
    rows = [
        [
            sign("▲", svg.MARK_COLOURS["break"], f" failed {guard.failed}×") if guard.failed else "",
            guard.entry,
            guard.cls,
            guard.text + (f" (× {guard.count})" if guard.count > 1 and "guards of kind" not in guard.text else ""),
            _where(guard.file, guard.line) if guard.line else "",
            dim(guard.why),
        ]
        for guard in report.guards
    ]
    return table(rows, ["", "entry", "checked", "what has to hold", "line", "why"]) if rows else ""


def _frames(report: Any) -> str:
    rows = [
        [
            code(frame_words(frame.name)) if frame_words(frame.name) == frame.name else frame_words(frame.name),
            _where(frame.file, frame.line),
            frame.status + (f": {frame.reason}" if frame.reason else ""),
            len(frame.entries),
            ", ".join(
                str(report.entries[number].hits) if report.entries[number].hits is not None else "–"
                for number in frame.entries
            ),
        ]
        for frame in report.frames
    ]
    return table(rows, ["function", "where", "status", "entries", "calls served"], (3,)) if rows else ""


_STEP_WORDS = {
    "kernel": "kernel",
    "library": "library call",
    "guards": "guards",
    "python": "Python",
    "memory": "memory",
}
_MOST_STEPS = 8
_NODE_HEAD = ["value", "operation", "type", "line", "module", "kernel"]


def _node_rows(report: Any, nodes: Sequence[s.Node], hidden: Collection[int] = ()) -> list[list[Any]]:
    names = [node.name for node in nodes]
    rows = []
    for node in nodes:
        if node.index in hidden or node.op in ("parameter", "output"):
            continue
        args = node.args
        for k in reversed(range(len(node.inputs))):
            args = args.replace(f"%{k}", names[node.inputs[k]])
        shape = (
            f"{node.dtype}[{', '.join(map(str, node.shape))}]"
            if node.shape is not None and not any(isinstance(size, list) for size in node.shape)
            else node.dtype
        )
        rows.append(
            [
                code(node.name),
                code(f"{node.op.removeprefix('aten.')}({args})"),
                shape,
                _where(node.file, node.line) if node.line else "",
                node.module,
                report.kernels[node.kernel].name
                if node.kernel is not None and node.kernel < len(report.kernels)
                else "",
            ]
        )
    return rows


def _graphs(report: Any, share: float) -> str:
    budget, out = round(share * _NODE_BUDGET), []
    for graph in report.graphs[:ROWS]:
        data = graph.lowered or graph.captured
        nodes, repeats = data.nodes(), data.repeats
        hidden: set[int] = set()
        at = 0
        for rep in repeats:  # later copies of a repeated layer are not listed again
            start = rep["start"] + at
            hidden |= set(range(start + rep["length"], start + rep["length"] * rep["times"]))
            at += rep["length"] * (rep["times"] - 1)
        rows = _node_rows(report, nodes, hidden)
        take = max(0, min(len(rows), budget))
        budget -= take
        note = [plural(graph.ops, "operation"), plural(len(graph.kernels), "kernel")]
        note += [f"{' and '.join(rep['modules'][:1])} repeats {rep['times']} times" for rep in repeats]
        note += [
            f"{symbol.name} = {symbol.hint} at first, from {symbol.source or 'a size'}" for symbol in graph.symbols
        ]
        body = table(rows, _NODE_HEAD, limit=take) if take else dim(f"{len(rows)} operations, in the report object")
        unfused = (
            table(
                [
                    [code(one), code(other), why]
                    for one, other, why in (pair[:3] for pair in graph.unfused if len(pair) >= 3)
                ],
                ["not fused", "with", "because"],
                limit=12,
            )
            if graph.unfused and share
            else ""
        )
        out.append(fold(graph.name, body + unfused, " · ".join(note)))
    return "".join(out) + _more(len(report.graphs))


def _more(count: int) -> str:
    return f"<div>{dim(f'and {count - ROWS} more, in the report object')}</div>" if count > ROWS else ""


def _kernels(report: Any, share: float) -> str:
    budget, out = round(share * _SOURCE_BUDGET), []
    for n, kernel in enumerate(report.kernels[:ROWS]):
        facts = [
            f"{size(kernel.bytes)} moved" if kernel.bytes is not None else "",
            f"{count(kernel.flops)} operations" if kernel.flops else "",
            f"{kernel.launches}× a call" if kernel.launches != 1 else "",
            f"{seconds(kernel.seconds)} a launch" if kernel.seconds else "",
            f"compiled in {seconds(kernel.compile_seconds)}" if kernel.compile_seconds else "",
            f"{kernel.registers} registers" if kernel.registers else "",
            f"{size(kernel.spills)} a thread spilled" if kernel.spills else "",
            f"{size(kernel.shared)} shared memory" if kernel.shared else "",
            (
                f"at most {round(100 * kernel.occupancy)} % of the threads at work"
                if kernel.occupancy and math.isfinite(kernel.occupancy)
                else ""
            ),
            ", ".join(f"{name}={value}" for name, value in kernel.choices.items()),
        ]
        body = f"<div>{dim('computes')} {code(', '.join(kernel.origins))}</div>" if kernel.origins else ""
        body += (
            f"<div>{dim('one kernel because')} {esc('; '.join(kernel.fused_because))}</div>"
            if kernel.fused_because
            else ""
        )
        body += _trials(kernel.trials)
        if kernel.source and len(kernel.source) <= budget:
            body += f"<pre>{html_text(kernel.source)}</pre>"
            budget -= len(kernel.source)
        elif kernel.source:
            body += f"<div>{dim(f'source of {len(kernel.source)} characters: r.kernels[{n}].source')}</div>"
        out.append(fold(kernel.name, body, " · ".join(fact for fact in facts if fact)))
    out.append(_more(len(report.kernels)))
    entries = [entry for entry in report.entries if entry.source and len(entry.source) < budget]
    for entry in entries[:6]:
        budget -= len(entry.source)
        out.append(
            fold(
                f"entry of {report.frames[entry.frame].name if entry.frame < len(report.frames) else 'a function'}",
                f"<pre>{html_text(entry.source)}</pre>",
                "the Python around the graph",
            )
        )
    return "".join(out)


def _trials(trials: Sequence[s.Trial]) -> str:
    measured = [(trial.seconds, trial.chosen) for trial in trials if trial.seconds is not None]
    if not measured:
        return ""
    best = next((trial for trial in trials if trial.chosen), None)
    words = best.words() if best else ""
    return (
        f"<div>{dim(f'{len(trials)} candidates measured')} {svg.dots(measured)}"
        f" {esc(f'chosen: {words}, {seconds(best.seconds)}') if best else ''}</div>"
    )


def _externs(report: Any) -> str:
    return (
        table(
            [
                [
                    code(extern.op),
                    f"{extern.count}×",
                    extern.reason,
                    ", ".join(_where(*line) for line in extern.lines[:4]),
                ]
                for extern in report.externs
            ],
            ["operator", "calls", "why not generated", "lines"],
            (1,),
        )
        if report.externs
        else ""
    )


def _memory(report: Any, share: float) -> str:
    out = []
    for memory in report.memory:
        name = (
            report.graphs[memory.graph].name
            if memory.graph is not None and memory.graph < len(report.graphs)
            else "graph"
        )
        facts = (
            [f"peak {size(memory.peak_bytes)}" + (f" in {memory.peak_at}" if memory.peak_at else "")]
            + ([f"{size(memory.without_reuse_bytes)} without reuse"] if memory.without_reuse_bytes else [])
            + ([f"eager {size(memory.eager_peak_bytes)} at best"] if memory.eager_peak_bytes else [])
        )
        out.append(f"<div>{code(name)} {esc(' · '.join(facts))}</div>")
        if len(memory.plan_live) > 1 and len(memory.eager_live) > 1:
            legend = [sign("■", svg.ENGINE_COLOURS[name], f" {name}") for name in ("eager", "tcompile")]
            picture = svg.curves([("eager", memory.eager_live), ("tcompile", memory.plan_live)])
            out.append(f"<div>{picture} {dim('bytes alive over the call:')} {' '.join(legend)}</div>")
        if memory.buffers and share:
            lane: dict[str, int] = {}
            rows = []
            for buffer in memory.buffers[:60]:
                lane[buffer.name] = lane[buffer.reuse] if buffer.reuse in lane else len(set(lane.values()))
                rows.append((buffer.name, lane[buffer.name], buffer.start, buffer.end, buffer.kind == "output"))
            out.append(svg.lifetimes(rows, memory.steps or max(buffer.end for buffer in memory.buffers)))
    return "".join(out)


def _partitions(report: Any) -> str:
    """What each forward graph keeps for backward, and what backward computes again."""
    out = []
    for partition in report.partitions:
        name = (
            report.graphs[partition.graph].name
            if partition.graph is not None and partition.graph < len(report.graphs)
            else "graph"
        )
        facts = [
            f"{size(partition.saved_bytes)} kept in {plural(len(partition.saved), 'value')}",
            f"{plural(len(partition.recomputed), 'value')} computed again",
        ]
        facts.append(f"{size(partition.read_bytes)} if nothing were computed again")
        facts += [f"eager keeps {size(partition.eager_bytes)}"] if partition.eager_bytes is not None else []
        facts += [f"memory budget {partition.budget:g}"] if partition.budget < 1 else []
        out.append(f"<div>{code(name)} {esc(' · '.join(facts))}</div>")
        longest = max(partition.saved_bytes, partition.read_bytes, partition.eager_bytes or 0, 1)
        bars = [
            ("kept", partition.saved_bytes, "tcompile"),
            ("without computing again", partition.read_bytes, "eager"),
            ("eager", partition.eager_bytes, "eager"),
        ]
        out.append(
            table(
                [
                    [words, Raw(svg.share_bar(size_words / longest, svg.ENGINE_COLOURS[e], 240)), size(size_words)]
                    for words, size_words, e in bars
                    if size_words is not None
                ],
                right=(2,),
            )
        )
        for words, values in (("kept", partition.saved), ("computed again", partition.recomputed)):
            rows = [
                [
                    code(value.name),
                    code(value.op),
                    size(value.bytes),
                    f"{value.dtype}{value.shape}",
                    value.kind,
                    value.module,
                    _where(value.file, value.line),
                ]
                for value in values
            ]
            body = (
                table(rows, ["value", "operation", "bytes", "type", "kind", "module", "line"], (2,), limit=12)
                if rows
                else ""
            )
            out.append(fold(words, body, plural(len(values), "value")))
    return "".join(out)


def _numerics(report: Any) -> str:
    return (
        table(
            [
                [
                    code(numeric.name),
                    numeric.op,
                    scientific(numeric.max_abs),
                    scientific(numeric.rms_vs_float64),
                    scientific(numeric.eager_rms_vs_float64),
                    f"{numeric.verdict} {numeric.why}",
                ]
                for numeric in report.numerics
            ],
            ["node", "operator", "largest difference to eager", "RMS error to float64", "eager's RMS error", ""],
            (2, 3, 4),
        )
        if report.numerics
        else ""
    )


def _timeline(report: Any) -> str:
    return (
        table([[seconds(event.time), event.kind, event.text] for event in report.timeline], ["at", "", ""], (0,))
        if report.timeline
        else ""
    )


def _cache(report: Any) -> str:
    return (
        table(
            [[row.what, row.result, code(row.key), f"{row.count}×", row.reason] for row in report.cache],
            ["what", "", "key", "", "why"],
            (3,),
        )
        if report.cache
        else ""
    )


def _cache_note(report: Any) -> str:
    hits, total = sum(row.count for row in report.cache if row.hit), sum(row.count for row in report.cache)
    return f"{hits} of {total} found" if total else ""


def _fallbacks(report: Any) -> str:
    return (
        table(
            [[code(fallback.what), f"{fallback.count}×", fallback.reason] for fallback in report.fallbacks],
            ["what", "", "why"],
            (1,),
        )
        if report.fallbacks
        else ""
    )
