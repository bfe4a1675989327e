"""A report as self-contained HTML: no JavaScript, no request, readable in an untrusted notebook, in nbconvert and at
500 px.

Structure carries the meaning (headings, tables, `<details>`), so that it reads where a site removes all styles; colour
repeats what words say. Every text of the user's is escaped: sections build on `esc` and on `table`, which escapes plain
strings.
"""

from __future__ import annotations

import math
import re
from typing import Any, Collection, Sequence

from ...compiler.base.quoting import html_text
from ...compiler.report import schema as s
from ...compiler.report.finish import SYMBOLS
from ...compiler.base.labels import frame_words, stage_name
from ...compiler.base.figures import against, count, per_cent, plural, scientific, seconds, seconds_range, size
from ...compiler.report.plain_text import gain_words
from ...compiler.report.conclusions.wall import by_kind
from . import svg
from .ranks_html import HEAD, ranks_parts

__all__ = ["render_html", "speed_html", "STYLE", "esc"]

_SOURCE_BUDGET = 20_000  # characters of kernel and entry sources in all
_NODE_BUDGET = 160  # rows of graph tables in all
_ROWS = 40  # rows of any other table
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

STYLE = """\
.tcr{font-size:13px;line-height:1.45;max-width:1100px;font-variant-numeric:tabular-nums}
.tcr summary{display:list-item;cursor:pointer;padding:2px 0}.tcr>details>summary{font-size:13.5px}
.tcr details details{margin:4px 0 4px 12px}.tcr .sec{font-variant:small-caps;letter-spacing:.03em}
.tcr table{border-collapse:collapse;margin:4px 0 8px;font-size:12px;display:block;\
overflow-x:auto;max-width:100%;border:0;table-layout:auto}
.tcr th,.tcr td{text-align:left!important;padding:1px 10px 1px 0;border:0;vertical-align:top;\
white-space:normal;max-width:60ch}
.tcr tr{background:transparent!important}
.tcr th{font-weight:600;opacity:.7}.tcr td.r{text-align:right!important;white-space:nowrap}
.tcr pre,.tcr code{font-family:var(--jp-code-font-family,ui-monospace,Menlo,Consolas,monospace);font-size:12px;\
background:transparent!important;color:inherit}
.tcr code{padding:0!important}
.tcr pre{margin:4px 0;padding:6px 8px;overflow-x:auto;max-height:420px;border-left:2px solid rgba(128,128,128,.35)}
.tcr td code{white-space:pre-wrap;overflow-wrap:anywhere}.tcr td.src code{white-space:pre}
.tcr .dim{opacity:.7}.tcr .find{margin:2px 0 2px 12px}.tcr .act{margin-left:14px}
@media (max-width:600px){.tcr .wide{display:none}.tcr td,.tcr th{padding-right:6px}}
"""


class Raw(str):
    """HTML that is already safe."""


def esc(x: Any) -> Raw:
    return x if isinstance(x, Raw) else Raw(html_text(x))


def prose(x: Any) -> Raw:
    """A sentence, whose `names` in backticks are code."""
    return Raw(re.sub(r"`([^`]+)`", r"<code>\1</code>", esc(x)))


def code(x: Any) -> Raw:
    return Raw(f"<code>{html_text(x)}</code>") if x not in ("", None) else Raw("")


def dim(x: Any) -> Raw:
    return Raw(f'<span class="dim">{esc(x)}</span>')


def sign(glyph: str, colour: str, words: Any = "") -> Raw:
    """A sign in a mid-tone, and words in the page's own colour: a mid-tone is too faint for words."""
    return Raw(f'<span style="color:{colour}">{esc(glyph)}</span>{esc(words)}')


def table(
    rows: Sequence[Sequence[Any]], head: Sequence[str] = (), right: Sequence[int] = (), limit: int = _ROWS
) -> str:
    """A table of cells, escaped unless Raw; past `limit` rows it says how many there are more."""
    out = ["<table>"]
    if head:
        out.append("<tr>" + "".join(f"<th>{esc(h)}</th>" for h in head) + "</tr>")
    for r in rows[:limit]:
        out.append(
            "<tr>"
            + "".join(f'<td class="r">{esc(c)}</td>' if i in right else f"<td>{esc(c)}</td>" for i, c in enumerate(r))
            + "</tr>"
        )
    out.append("</table>")
    if len(rows) > limit:
        out.append(f"<div>{dim(f'and {len(rows) - limit} more, in the report object')}</div>")
    return "".join(out)


def fold(title: str, body: str, note: str = "", open_: bool = False) -> str:
    """A section; an empty one is left out."""
    if not body:
        return ""
    return (
        f'<details{" open" if open_ else ""}><summary><b class="sec">{esc(title)}</b>'
        f" {dim(note)}</summary>{body}</details>"
    )


def render_html(r: Any, limit: int | None = None) -> str:
    """The whole report of a CompileReport, closed to its one line. With a `limit` of characters it is a summary: the
    sections that tell most, as far as they fit, and the names of the others.
    """
    parts = _sections(r, 1.0 if limit is None else 0.0)
    head = f'<style>{STYLE}</style><div class="tcr"><details><summary>{_line(r)}</summary>'
    if limit is not None:
        parts = _fitting(parts, limit - len(head) - _ROOM)
    return f"{head}{''.join(html for _, html in parts)}</details></div>"


def _fitting(parts: list[tuple[str, str]], room: int) -> list[tuple[str, str]]:
    """The parts that tell most, in their order; those without room are named at the end."""
    rank = {title: i for i, title in enumerate(_TELLS_MOST)}
    kept = set()
    for i, (_, html) in sorted(enumerate(parts), key=lambda x: rank.get(x[1][0], len(rank))):
        if len(html) <= room:
            room -= len(html)
            kept.add(i)
    left = [title.lower() for i, (title, html) in enumerate(parts) if html and i not in kept]
    words = f'not in this summary: {", ".join(left)}. JupyterLab shows them, and r.save("report.html") writes them.'
    return [p for i, p in enumerate(parts) if i in kept] + [("", f"<div>{dim(words)}</div>" if left else "")]


def _sections(r: Any, share: float) -> list[tuple[str, str]]:
    """Title and HTML of each section. `share`: how much of sources, graphs and buffers is told, from 0 to 1."""
    compiled = sum(d.decision == "compiled" for d in r.decisions)
    settings = {**r.environment, **{f"option {k}": v for k, v in r.options.items()}}
    folds: list[tuple[str, str, str, bool]] = [
        ("Ranks", _ranks(r.ranks), str(len(r.ranks.rows)), True),
        ("Where the time went", _wall(r), seconds(r.wall.seconds), True),
        ("Findings", _findings(r), "", False),
        ("Since the last run of this cell", _previous(r), str(len(r.previous.changes)), False),
        ("Code", _code(r), _marks_note(r), True),
        ("Speed", _speed(r), _speed_note(r.speedups), True),
        ("One call", _profile(r), seconds(r.profiles[0].seconds) if r.profiles else "", False),
        ("What was compiled", _decisions(r, True), str(compiled), False),
        ("What was left alone", _decisions(r, False), str(len(r.decisions) - compiled), False),
        ("Where the compile time went", _stages(r), seconds(r.summary.compile_seconds), False),
        ("Graph breaks", _breaks(r), str(len(r.graph_breaks)), bool(r.graph_breaks)),
        ("Recompiles", _recompiles(r), str(len(r.recompiles)), bool(r.recompiles)),
        ("Guards", _guards(r), str(sum(g.count for g in r.guards)), False),
        ("Functions", _frames(r), str(len(r.frames)), False),
        ("Graphs", _graphs(r, share), str(len(r.graphs)), False),
        ("Kernels", _kernels(r, share), str(len(r.kernels)), False),
        ("Library calls", _externs(r), str(sum(e.count for e in r.externs)), False),
        ("Memory", _memory(r, share), "", False),
        ("Kept for backward", _partitions(r), plural(len(r.partitions), "graph"), False),
        ("Numerics", _numerics(r), "", False),
        ("Timeline", _timeline(r), str(len(r.timeline)), False),
        ("Cache", _cache(r), _cache_note(r), False),
        ("Ran eager", _fallbacks(r), str(len(r.fallbacks)), False),
        ("Errors", "".join(f"<div>{esc(e)}</div>" for e in r.errors), "", False),
        ("Environment", table([[k, v] for k, v in settings.items()]), "", False),
    ]
    out = [("Answers", _answers(r))]
    for title, body, note, opened in folds:
        out.append((title, body if title == "Findings" else fold(title, body, note, opened)))
    omitted = "".join(f"<div>{dim(f'left out: {o.what} ({o.count}), {o.why}')}</div>" for o in r.omitted)
    return [*out, ("Left out", omitted)]


def speed_html(r: Any) -> str:
    return _speed(r)


def _line(r: Any) -> str:
    """The closed line; the symbol carries the status's colour, the status its weight."""
    m = r.summary
    tone = {"compiled": svg.MARK_COLOURS["captured"], "partly": svg.MARK_COLOURS["break"], "error": "#d14b4b"}.get(
        m.status, svg.MARK_COLOURS["eager"]
    )
    head, _, rest = m.line.partition("   ")
    symbol, _, word = head.partition(" ")
    return (
        f"{sign(symbol or SYMBOLS['nothing'], tone)} <b>{esc(word)}</b> &nbsp; {esc(rest).replace('   ', ' &nbsp; ')}"
    )


def _answers(r: Any) -> str:
    """The ranked answer: where the time went and what would change it."""
    out = []
    for a in r.answers:
        gain = gain_words(a)
        won = f"<b>{esc(gain)}</b>" if a.how == "measured" else dim(gain)
        action = f'<div class="act">→ {prose(a.action)}</div>' if a.action else ""
        out.append(f"<li>{prose(a.text)} {won if gain else ''}{action}</li>")
    return f'<ol class="find">{"".join(out)}</ol>' if out else ""


def _wall(r: Any) -> str:
    w = r.wall
    if not w.seconds:
        return ""
    kinds = by_kind(w)
    rows = [[words, seconds(t), per_cent(t / w.seconds), "", ""] for _, words, t in kinds]
    rows += [
        [
            Raw(f"&nbsp;&nbsp;{code(p.name)}"),
            seconds(p.seconds),
            per_cent(p.seconds / w.seconds),
            f"{count(p.count)}×" if p.count else "",
            _where(p.file, p.line) if p.file else "",
        ]
        for p in w.parts[:10]
        if p.kind not in ("compiling", "rest", "starved")
    ]
    how = "from looks at the stack" if w.how == "sampled" else "the run was too short to be looked at"
    return (
        svg.stacked_bar([(words, t) for _, words, t in kinds])
        + table(rows, ["what", "time", "share", "calls", "line"], (1, 2, 3))
        + f"<div>{dim(how)}</div>"
    )


def _decisions(r: Any, compiled: bool) -> str:
    rows = [
        [
            code(d.what),
            "" if compiled else d.decision,
            seconds(d.seconds) if d.seconds else "",
            count(d.calls) if d.calls else "",
            d.why,
        ]
        for d in r.decisions
        if (d.decision == "compiled") == compiled
    ]
    return table(rows, ["function", "", "compiled in", "calls", "why"], (2, 3)) if rows else ""


def _findings(r: Any) -> str:
    out = []
    for f in r.findings:
        mark = sign("▲", svg.MARK_COLOURS["break"]) if f.severity == "warning" else Raw("·")
        cost = dim(f" (about {seconds(f.cost_seconds)})") if f.cost_seconds else ""
        said = code(f.action) if _is_code(f.action) else prose(f.action)
        action = f'<div class="act">→ {said}</div>' if f.action else ""
        out.append(f'<div class="find">{mark} {prose(f.text)}{cost}{action}</div>')
    return "".join(out)


def _ranks(r: Any) -> str:
    if not r:
        return ""
    picture, sentences, rows, notes = ranks_parts(r)
    said = "".join(f'<div class="find">{esc(text)}</div>' for text in sentences)
    below = "".join(f"<div>{dim(text)}</div>" for text in notes)
    return picture + said + table(rows, HEAD, range(2, 12)) + below


def _previous(r: Any) -> str:
    """What differs from the run before; empty where there was none, or nothing does."""
    words = {True: "better", False: "worse", None: ""}
    rows = [[c.what, code(c.before), code(c.after), words[c.better], c.why] for c in r.previous.changes]
    lines = "".join(f"<div>{code(f'{way} {line}')}</div>" for way, line in r.previous.source)
    return (table(rows, ["what", "before", "now", "", "why"]) if rows else "") + lines


def _is_code(text: str) -> bool:
    return bool(text) and " " not in text.split("(")[0].split("=")[0].strip()


_GLYPHS = {"captured": "●", "eager": "○", "break": "▲", "guard": "◎"}


def _code(r: Any) -> str:
    text = r.source.text
    if not text.strip():
        return ""
    marks = {m.line: m for m in reversed(r.marks) if m.file == r.source.file}  # (the first of a line counts)
    lines = text.rstrip("\n").split("\n")
    rows = []
    for i, line in enumerate(lines[:200], r.source.first_line):
        m = marks.get(i)
        glyph = (
            f'<span title="{html_text(m.text)}" style="color:{svg.MARK_COLOURS[m.kind]}">{_GLYPHS[m.kind]}</span>'
            if m
            else ""
        )
        note = f'<div class="dim">{esc(m.text)}</div>' if m and m.kind in ("break", "eager") else ""
        rows.append(
            f'<tr><td>{glyph}</td><td class="r dim">{i}</td><td'
            f' class="src"><code>{html_text(line) or " "}</code>{note}</td></tr>'
        )
    more = f"<div>{dim(f'and {len(lines) - 200} lines more')}</div>" if len(lines) > 200 else ""
    others = [m for m in r.marks if m.file != r.source.file and m.kind != "captured"]
    elsewhere = (
        table([[sign(_GLYPHS[m.kind], svg.MARK_COLOURS[m.kind]), f"{m.file}:{m.line}", m.text] for m in others])
        if others
        else ""
    )
    return f"<table>{''.join(rows)}</table>{more}{elsewhere}"


def _marks_note(r: Any) -> str:
    marked = any(m.file == r.source.file for m in r.marks)
    return "● compiled  ○ eager  ▲ break  ◎ pinned by a guard" if marked else ""


def _speed_note(sp: s.Speedups) -> str:
    x = sp.over("eager")
    if x is None and any(c.measured == "graphs" for c in sp.calls):
        return "of graphs alone"
    return f"{against(x.ratio, x.lo, x.hi, 'eager')}, 95 % interval" if x else "not measured"


def _speed(r: Any) -> str:
    sp = r.speedups
    out = []
    for c in sp.calls:
        what = c.what(r)
        out.append(
            f"<div>{code(c.name)}{esc(f' · line {c.line}') if c.line else ''} ·"
            f" {esc(what)}{dim('; ' + c.why_not) if c.why_not else ''}</div>"
        )
        longest = max((e.hi or e.median or 0.0 for e in c.engines), default=0.0)
        rows = []
        for e in c.engines:
            name = sign("■", svg.ENGINE_COLOURS.get(e.engine, "inherit"), f" {e.label}")
            if e.median is None:
                rows.append([name, "–", dim(e.status + (f": {e.reason}" if e.reason else "")), "", "", ""])
            else:
                rows.append(
                    [
                        name,
                        seconds(e.median),
                        Raw(svg.time_bar(e.median, e.lo or e.median, e.hi or e.median, longest, e.engine, e.samples)),
                        seconds_range(e.lo, e.hi),
                        seconds(e.cold),
                        seconds(e.warm),
                    ]
                )
        if rows:
            out.append(table(rows, ["engine", "steady", "", "95 % interval", "first call", "second"], (1, 4, 5)))
        facts = [f"{x.engine} is {against(x.ratio, x.lo, x.hi, x.over)}" for x in c.speedups]
        if c.break_even_calls is not None:
            facts.append(f"compiling pays off after {plural(c.break_even_calls, 'call')}")
        elif c.break_even_reason:
            facts.append(c.break_even_reason)
        out.append(f"<div>{esc(' · '.join(facts))}</div>" if facts else "")
    out += [f"<div>{dim(words)}</div>" for words in (sp.reason if sp.status != "measured" else "", sp.note) if words]
    return "".join(out)


def _profile(r: Any) -> str:
    """The longest of the profiled calls as a picture, and the steps that took most."""
    if not r.profiles:
        return ""
    p = r.profiles[0]
    spans = p.rows()
    rows: dict[tuple[str, str], list] = {}
    for x in spans:
        if x.kind in _STEP_WORDS:
            row = rows.setdefault((x.kind, x.name), [0.0, 0, x])
            row[0] += x.seconds
            row[1] += 1
    longest = sorted(rows.items(), key=lambda item: -item[1][0])
    what = ("end to end" if p.how == "call" else "its graphs alone") + ", with its backward pass" * p.backward
    return (
        f"<div>{code(p.name)}{esc(f', {what}')}</div>"
        + svg.flame(spans)
        + table(
            [
                [
                    code(name) if kind in ("kernel", "library") else name,
                    _STEP_WORDS[kind],
                    seconds(took),
                    f"{100 * took / (p.seconds or 1):.0f} %",
                    f"{n}×",
                    _where(x.file, x.line) if x.line else "",
                ]
                for (kind, name), (took, n, x) in longest[:_MOST_STEPS]
            ],
            ["step", "is", "time", "share", "times", "where"],
            (2, 3, 4),
        )
    )


def _stages(r: Any) -> str:
    by_name: dict[str, list] = {}
    for st in r.stages:
        row = by_name.setdefault(stage_name(st), [0.0, 0])
        row[0] += st.self_seconds
        row[1] += st.count
    total = sum(v[0] for v in by_name.values())
    if not total:
        return ""
    rows = [
        [
            Raw(f'<span style="color:{svg.STAGE_COLOURS[i % len(svg.STAGE_COLOURS)]}">■</span>'),
            name,
            seconds(t),
            f"{100 * t / total:.0f} %",
            f"{n}×",
        ]
        for i, (name, (t, n)) in enumerate(by_name.items())
    ]
    return svg.stacked_bar([(k, v[0]) for k, v in by_name.items()]) + table(
        rows, ["", "stage", "time", "share", "runs"], (2, 3, 4)
    )


def _where(file: str, line: int | None) -> str:
    return f"{file}:{line}" if line else file


def _breaks(r: Any) -> str:
    out = []
    for b in r.graph_breaks:
        chain = " → ".join(f"{frame_words(c.function)} ({_where(c.file, c.line)})" for c in b.call_chain)
        marked = ""
        if b.code:
            text = b.code.encode(errors="surrogatepass")
            if b.col is not None and b.end_col is not None and b.end_line in (None, b.line) and b.end_col <= len(text):
                parts = [
                    html_text(p.decode(errors="replace"))
                    for p in (text[: b.col], text[b.col : b.end_col], text[b.end_col :])
                ]
                line = f"border-bottom:2px solid {svg.MARK_COLOURS['break']}"
                marked = f'<pre>{parts[0]}<b style="{line}">{parts[1]}</b>{parts[2]}</pre>'
            else:
                marked = f"<pre>{html_text(b.code)}</pre>"
        out.append(
            f"<div>{sign('▲', svg.MARK_COLOURS['break'])}"
            f" {esc(_where(b.file, b.line))}{esc(f' in {frame_words(b.function)}') if b.function else ''}:"
            f" {esc(b.reason)}</div>{marked}"
            + (f'<div class="act">→ {esc(b.remedy)}</div>' if b.remedy else "")
            + (f'<div class="act">{dim(chain)}</div>' if len(b.call_chain) > 1 else "")
        )
    return "".join(out)


def _recompiles(r: Any) -> str:
    rows = [
        [
            frame_words(c.frame_name),
            code(f"{c.source}.{c.detail}" if c.source and c.detail else c.source or c.detail or c.kind),
            code(c.expected),
            code(c.got),
            Raw(f"{esc(_where(c.file, c.line))} {code(c.code.strip())}"),
            c.suggestion,
        ]
        for c in r.recompiles
    ]
    return table(rows, ["function", "what changed", "expected", "got", "your line", "what to change"]) if rows else ""


def _guards(r: Any) -> str:
    rows = [
        [
            sign("▲", svg.MARK_COLOURS["break"], f" failed {g.failed}×") if g.failed else "",
            g.entry,
            g.cls,
            g.text + (f" (× {g.count})" if g.count > 1 and "guards of kind" not in g.text else ""),
            _where(g.file, g.line) if g.line else "",
            dim(g.why),
        ]
        for g in r.guards
    ]
    return table(rows, ["", "entry", "checked", "what has to hold", "line", "why"]) if rows else ""


def _frames(r: Any) -> str:
    rows = [
        [
            code(frame_words(f.name)) if frame_words(f.name) == f.name else frame_words(f.name),
            _where(f.file, f.line),
            f.status + (f": {f.reason}" if f.reason else ""),
            len(f.entries),
            ", ".join(str(r.entries[e].hits) if r.entries[e].hits is not None else "–" for e in f.entries),
        ]
        for f in r.frames
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


def _node_rows(r: Any, nodes: Sequence[s.Node], hidden: Collection[int] = ()) -> list[list[Any]]:
    names = [n.name for n in nodes]
    rows = []
    for n in nodes:
        if n.index in hidden or n.op in ("parameter", "output"):
            continue
        args = n.args
        for k in reversed(range(len(n.inputs))):
            args = args.replace(f"%{k}", names[n.inputs[k]])
        shape = (
            f"{n.dtype}[{', '.join(map(str, n.shape))}]"
            if n.shape is not None and not any(isinstance(d, list) for d in n.shape)
            else n.dtype
        )
        rows.append(
            [
                code(n.name),
                code(f"{n.op.removeprefix('aten.')}({args})"),
                shape,
                _where(n.file, n.line) if n.line else "",
                n.module,
                r.kernels[n.kernel].name if n.kernel is not None and n.kernel < len(r.kernels) else "",
            ]
        )
    return rows


def _graphs(r: Any, share: float) -> str:
    budget, out = round(share * _NODE_BUDGET), []
    for g in r.graphs[:_ROWS]:
        data = g.lowered or g.captured
        nodes, repeats = data.nodes(), data.repeats
        hidden: set[int] = set()
        at = 0
        for rep in repeats:  # later copies of a repeated layer are not listed again
            start = rep["start"] + at
            hidden |= set(range(start + rep["length"], start + rep["length"] * rep["times"]))
            at += rep["length"] * (rep["times"] - 1)
        rows = _node_rows(r, nodes, hidden)
        take = max(0, min(len(rows), budget))
        budget -= take
        note = [plural(g.ops, "operation"), plural(len(g.kernels), "kernel")]
        note += [f"{' and '.join(rep['modules'][:1])} repeats {rep['times']} times" for rep in repeats]
        note += [f"{y.name} = {y.hint} at first, from {y.source or 'a size'}" for y in g.symbols]
        body = table(rows, _NODE_HEAD, limit=take) if take else dim(f"{len(rows)} operations, in the report object")
        unfused = (
            table(
                [[code(a), code(b), why] for a, b, why in (u[:3] for u in g.unfused if len(u) >= 3)],
                ["not fused", "with", "because"],
                limit=12,
            )
            if g.unfused and share
            else ""
        )
        out.append(fold(g.name, body + unfused, " · ".join(note)))
    return "".join(out) + _more(len(r.graphs))


def _more(n: int) -> str:
    return f"<div>{dim(f'and {n - _ROWS} more, in the report object')}</div>" if n > _ROWS else ""


def _kernels(r: Any, share: float) -> str:
    budget, out = round(share * _SOURCE_BUDGET), []
    for n, k in enumerate(r.kernels[:_ROWS]):
        facts = [
            f"{size(k.bytes)} moved" if k.bytes is not None else "",
            f"{count(k.flops)} operations" if k.flops else "",
            f"{k.launches}× a call" if k.launches != 1 else "",
            f"{seconds(k.seconds)} a launch" if k.seconds else "",
            f"compiled in {seconds(k.compile_seconds)}" if k.compile_seconds else "",
            f"{k.registers} registers" if k.registers else "",
            f"{size(k.spills)} a thread spilled" if k.spills else "",
            f"{size(k.shared)} shared memory" if k.shared else "",
            (
                f"at most {round(100 * k.occupancy)} % of the threads at work"
                if k.occupancy and math.isfinite(k.occupancy)
                else ""
            ),
            ", ".join(f"{a}={b}" for a, b in k.choices.items()),
        ]
        body = f"<div>{dim('computes')} {code(', '.join(k.origins))}</div>" if k.origins else ""
        body += f"<div>{dim('one kernel because')} {esc('; '.join(k.fused_because))}</div>" if k.fused_because else ""
        body += _trials(k.trials)
        if k.source and len(k.source) <= budget:
            body += f"<pre>{html_text(k.source)}</pre>"
            budget -= len(k.source)
        elif k.source:
            body += f"<div>{dim(f'source of {len(k.source)} characters: r.kernels[{n}].source')}</div>"
        out.append(fold(k.name, body, " · ".join(f for f in facts if f)))
    out.append(_more(len(r.kernels)))
    entries = [e for e in r.entries if e.source and len(e.source) < budget]
    for e in entries[:6]:
        budget -= len(e.source)
        out.append(
            fold(
                f"entry of {r.frames[e.frame].name if e.frame < len(r.frames) else 'a function'}",
                f"<pre>{html_text(e.source)}</pre>",
                "the Python around the graph",
            )
        )
    return "".join(out)


def _trials(trials: Sequence[s.Trial]) -> str:
    measured = [(t.seconds, t.chosen) for t in trials if t.seconds is not None]
    if not measured:
        return ""
    best = next((t for t in trials if t.chosen), None)
    words = best.words() if best else ""
    return (
        f"<div>{dim(f'{len(trials)} candidates measured')} {svg.dots(measured)}"
        f" {esc(f'chosen: {words}, {seconds(best.seconds)}') if best else ''}</div>"
    )


def _externs(r: Any) -> str:
    return (
        table(
            [[code(e.op), f"{e.count}×", e.reason, ", ".join(_where(*x) for x in e.lines[:4])] for e in r.externs],
            ["operator", "calls", "why not generated", "lines"],
            (1,),
        )
        if r.externs
        else ""
    )


def _memory(r: Any, share: float) -> str:
    out = []
    for m in r.memory:
        name = r.graphs[m.graph].name if m.graph is not None and m.graph < len(r.graphs) else "graph"
        facts = (
            [f"peak {size(m.peak_bytes)}" + (f" in {m.peak_at}" if m.peak_at else "")]
            + ([f"{size(m.without_reuse_bytes)} without reuse"] if m.without_reuse_bytes else [])
            + ([f"eager {size(m.eager_peak_bytes)} at best"] if m.eager_peak_bytes else [])
        )
        out.append(f"<div>{code(name)} {esc(' · '.join(facts))}</div>")
        if len(m.plan_live) > 1 and len(m.eager_live) > 1:
            legend = [sign("■", svg.ENGINE_COLOURS[n], f" {n}") for n in ("eager", "tcompile")]
            picture = svg.curves([("eager", m.eager_live), ("tcompile", m.plan_live)])
            out.append(f"<div>{picture} {dim('bytes alive over the call:')} {' '.join(legend)}</div>")
        if m.buffers and share:
            lane: dict[str, int] = {}
            rows = []
            for b in m.buffers[:60]:
                lane[b.name] = lane[b.reuse] if b.reuse in lane else len(set(lane.values()))
                rows.append((b.name, lane[b.name], b.start, b.end, b.kind == "output"))
            out.append(svg.lifetimes(rows, m.steps or max(b.end for b in m.buffers)))
    return "".join(out)


def _partitions(r: Any) -> str:
    """What each forward graph keeps for backward, and what backward computes again."""
    out = []
    for p in r.partitions:
        name = r.graphs[p.graph].name if p.graph is not None and p.graph < len(r.graphs) else "graph"
        facts = [
            f"{size(p.saved_bytes)} kept in {plural(len(p.saved), 'value')}",
            f"{plural(len(p.recomputed), 'value')} computed again",
        ]
        facts.append(f"{size(p.read_bytes)} if nothing were computed again")
        facts += [f"eager keeps {size(p.eager_bytes)}"] if p.eager_bytes is not None else []
        facts += [f"memory budget {p.budget:g}"] if p.budget < 1 else []
        out.append(f"<div>{code(name)} {esc(' · '.join(facts))}</div>")
        longest = max(p.saved_bytes, p.read_bytes, p.eager_bytes or 0, 1)
        bars = [
            ("kept", p.saved_bytes, "tcompile"),
            ("without computing again", p.read_bytes, "eager"),
            ("eager", p.eager_bytes, "eager"),
        ]
        out.append(
            table(
                [
                    [words, Raw(svg.share_bar(b / longest, svg.ENGINE_COLOURS[e], 240)), size(b)]
                    for words, b, e in bars
                    if b is not None
                ],
                right=(2,),
            )
        )
        for words, values in (("kept", p.saved), ("computed again", p.recomputed)):
            rows = [
                [
                    code(v.name),
                    code(v.op),
                    size(v.bytes),
                    f"{v.dtype}{v.shape}",
                    v.kind,
                    v.module,
                    _where(v.file, v.line),
                ]
                for v in values
            ]
            body = (
                table(rows, ["value", "operation", "bytes", "type", "kind", "module", "line"], (2,), limit=12)
                if rows
                else ""
            )
            out.append(fold(words, body, plural(len(values), "value")))
    return "".join(out)


def _numerics(r: Any) -> str:
    return (
        table(
            [
                [
                    code(n.name),
                    n.op,
                    scientific(n.max_abs),
                    scientific(n.rms_vs_float64),
                    scientific(n.eager_rms_vs_float64),
                    f"{n.verdict} {n.why}",
                ]
                for n in r.numerics
            ],
            ["node", "operator", "largest difference to eager", "RMS error to float64", "eager's RMS error", ""],
            (2, 3, 4),
        )
        if r.numerics
        else ""
    )


def _timeline(r: Any) -> str:
    return table([[seconds(t.time), t.kind, t.text] for t in r.timeline], ["at", "", ""], (0,)) if r.timeline else ""


def _cache(r: Any) -> str:
    return (
        table(
            [[c.what, c.result, code(c.key), f"{c.count}×", c.reason] for c in r.cache],
            ["what", "", "key", "", "why"],
            (3,),
        )
        if r.cache
        else ""
    )


def _cache_note(r: Any) -> str:
    hits, total = sum(c.count for c in r.cache if c.hit), sum(c.count for c in r.cache)
    return f"{hits} of {total} found" if total else ""


def _fallbacks(r: Any) -> str:
    return (
        table([[code(f.what), f"{f.count}×", f.reason] for f in r.fallbacks], ["what", "", "why"], (1,))
        if r.fallbacks
        else ""
    )
