"""What a report concludes from its facts: marks beside lines, findings, status, and the closed line."""

from __future__ import annotations

from typing import Any

from . import schema as s
from ..base.labels import cell_number, frame_words
from .conclusions.answers import NO_CHANGE, answers_of, most_without_breaks, raise_peaks
from .conclusions.decisions import decisions_of
from ..base.figures import against, count, plural, seconds, size
from .conclusions.truth import (
    excuse_breaks,
    fell_back,
    forget_unused,
    main_call,
    name_first_breaks,
    share_of_run,
    unused_share,
    without_tensors,
)
from .facts.own_words import NO_NAME
from .conclusions.waits import FOLLOWS, causes, change_words, recompile_seconds, subject, then_and_now
from .conclusions.wall import split_compiled

__all__ = ["finish", "bound_words", "closed_line", "RERAN"]

_OWN_ERROR = "correct what the message says: eager raises the same error at this line"
RERAN = "a graph of it raised; the call ran as plain Python"
SYMBOLS = {"compiled": "●", "partly": "▲", "eager": "○", "nothing": "·", "error": "✕"}
# Of several marks on one line the first of these wins: what a person can act on comes first.
_PRIORITY = ("break", "eager", "captured", "guard")
_MAX_FINDINGS = 3
_LITTLE_COMPILING, _LITTLE = 0.05, 0.02  # seconds, and part of the run: compiling again that is nothing to avoid
_NO_TENSORS = "nothing to compile: no tensor code to speak of"
_MOST_WORDS = 400  # characters of a sentence that holds what the program said


def finish(r: Any, served: int = 0) -> None:
    """Fill marks, findings and summary of a CompileReport. `served`: calls that entries of an earlier run served."""
    _forget_own_error(r)
    excuse_breaks(r)
    name_first_breaks(r)
    for i, f in enumerate(r.frames):  # (harmless or not is known only now)
        ended = [b for b in r.graph_breaks if b.frame == i]
        if f.status == "partly" and not f.reason and ended and all(b.harmless for b in ended):
            f.status = "compiled"
    r.marks = _marks(r)
    found = _findings(r)
    loud = [f for f in found if f.severity == "warning"][: _MAX_FINDINGS - min(len(r.notes), 1)]
    # what a person can act on comes first, then a note at least
    first = sorted([*r.notes, *loud], key=lambda f: f.severity != "warning")
    r.findings = [*first, *(f for f in found if f.severity != "warning")][:_MAX_FINDINGS]
    m = r.summary = s.Summary()
    backward = {b for p in r.partitions for b in p.backward}  # part of what was captured, not captured themselves
    m.graphs = sum(i not in backward for i in range(len(r.graphs)))
    m.breaks = sum(not _is_own_error(r, b) for b in r.graph_breaks)
    m.kernels = len(r.kernels)
    m.externs = sum(e.count for e in r.externs)
    m.recompiles = len(r.recompiles)
    m.compile_seconds = sum(st.seconds for st in r.stages if not st.parent) if r.waited is None else r.waited
    forget_unused(r)
    r.speedups.share = share_of_run(r)
    m.status, m.note = _status(r, served)
    if r.raised == "FullGraphError" and r.graph_breaks:  # the one break that ended it is the whole story
        b = r.graph_breaks[-1]
        asked = "error_on_graph_break" if r.raised_words.startswith("error_on_graph_break") else "fullgraph"
        m.status, m.note = "error", f"{asked}: the graph breaks at line {b.line} ({_code_word(b)})"
    elif r.raised == "KeyboardInterrupt":
        m.note = "interrupted"
        m.status = "partly" if any(f.entries for f in r.frames) else "error"
    elif r.raised:
        m.note = (
            f"{m.note} · " * (m.status not in ("nothing", "error") and bool(m.note)) + f"the cell raised {r.raised}"
        )
        m.status = "partly" if m.status == "compiled" else m.status
    m.symbol = SYMBOLS[m.status]
    split_compiled(r)
    raise_peaks(r)
    r.decisions = decisions_of(r)
    r.answers = answers_of(r)
    m.line = closed_line(r)


def _status(r: Any, served: int) -> tuple[str, str]:
    """The word of the summary, and the note beside it."""
    for f in r.frames:
        if f.name in r.reran and f.status == "compiled":
            f.status, f.reason = "partly", RERAN
    if r.raised and r.why_nothing:
        return "error", ""
    if without_tensors(r) and not r.raised and not r.errors:
        return "nothing", r.why_nothing or _NO_TENSORS
    skipped = [r.frames[f.frame] for f in r.fallbacks if f.frame is not None and r.frames[f.frame].status == "skipped"]
    if r.graphs or not r.raised and any(f.entries for f in r.frames):
        return _status_with_graphs(r, skipped)
    return _status_without_graphs(r, skipped, served)


def _status_with_graphs(r: Any, skipped: list) -> tuple[str, str]:
    """How much of what was captured ran compiled. `skipped`: the frames that ran as plain Python."""
    limit = _at_its_limit(r)
    if limit is not None:
        return "partly", f"{limit.reason} in `{limit.name}`, which runs eager from there on"
    eager = [g for g in r.graphs if g.ran == "eager"]
    if eager and len(eager) == len(r.graphs):
        if r.raised:  # whose kernels would have run is of no interest any more
            return "error", ""
        why = next((f.reason for f in r.fallbacks if f.frame is None or not skipped), "")
        return "eager", f"captured, but run with torch's own kernels: {why}"
    if r.reran:
        return "partly", f"a graph raised: {plural(sum(r.reran.values()), 'call')} ran as plain Python"
    if any(not b.harmless for b in r.graph_breaks) or skipped or r.errors or eager or fell_back(r):
        return "partly", ""
    return "compiled", ""


def _status_without_graphs(r: Any, skipped: list, served: int) -> tuple[str, str]:
    """Why nothing was captured."""
    limit = _at_its_limit(r)
    if limit is not None:
        return "eager", f"{limit.reason} in `{limit.name}`"
    if r.errors:
        return "error", r.errors[0]
    if skipped:
        return "eager", f"ran as plain Python: `{skipped[0].name}`: {skipped[0].reason}"
    if r.graph_breaks:
        return "eager", f"ran as plain Python: {r.graph_breaks[0].reason}"
    if served:
        return "compiled", f"{plural(served, 'call')} served by entries compiled before"
    anywhere = next((f.reason for f in r.fallbacks if f.frame is None), "")
    if anywhere:  # no frame was seen: the extension that sees them is missing
        return "eager", anywhere
    return "nothing", r.why_nothing or _NO_TENSORS


def _at_its_limit(r: Any) -> Any:
    """The first frame that is compiled no more, because it was so often."""
    return next((f for f in r.frames if f.status == "limit"), None)


def _forget_own_error(r: Any) -> None:
    """What the program raises, capture may have met first, as an error of its own: the cell's error is told once, as
    the program's.
    """
    words = f"{r.raised}: {r.raised_words.splitlines()[0] if r.raised_words else ''}".rstrip(": ")
    if not r.raised_words:
        return
    own = [f for f in r.fallbacks if "internal error" in f.reason and words in f.reason]
    for f in own:
        r.fallbacks.remove(f)
        frame = r.frames[f.frame] if f.frame is not None else None
        if frame is not None and frame.status == "skipped" and words in frame.reason:
            frame.status, frame.reason = "error", f"it raises {r.raised}"
    r.errors = [e for e in r.errors if words not in e]
    if own:
        r.why_nothing = f"the cell raised {r.raised}"


def _is_own_error(r: Any, b: s.Break) -> bool:
    """What ended the cell would have ended it in eager, too: it is no break that anything costs."""
    return bool(r.raised) and b.kind == "exception"


def _marks(r: Any) -> list[s.Mark]:
    """One mark a line, of what became of it; and one of guards that rely on it, whatever became of it."""
    best: dict[tuple[str, int, bool], s.Mark] = {}

    def put(file: str, line: int | None, kind: str, text: str, ref: str, end_line: int | None = None) -> None:
        if not line or not _is_user_code(r, file):
            return
        at = (file, line, kind == "guard")
        if at not in best or _PRIORITY.index(kind) < _PRIORITY.index(best[at].kind):
            best[at] = s.Mark(line, kind, text, file, cell_number(file), end_line, ref)

    passes = {tuple(g.called_at) for g in r.graphs if g.called_at}
    for i, b in enumerate(r.graph_breaks):
        words = b.reason + (f" {b.remedy[0].upper()}{b.remedy[1:]}" if b.remedy else "")
        if b.harmless:  # (a backward pass that autograd calls is compiled)
            put(b.file, b.line, "captured" if (b.file, b.line) in passes else "eager", words, f"breaks/{i}")
        else:
            put(b.file, b.line, "break", words, f"breaks/{i}", b.end_line)
    for i, c in enumerate(r.recompiles):
        put(
            c.file,
            c.line,
            "guard",
            f"{subject(c)}: {then_and_now(c)}; {_called(c.frame_name)} was compiled again",
            f"recompiles/{i}",
        )
    for i, f in enumerate(r.fallbacks):
        if f.frame is not None:
            frame = r.frames[f.frame]
            if frame.status not in ("skipped", "limit", "error"):
                # an operator by eager's kernel is no function that runs eager
                continue
            put(frame.file, frame.line, "eager", f"runs as plain Python: {f.reason}", f"fallbacks/{i}")
    for i, g in enumerate(r.guards):
        if g.kind in ("EQUALS", "PREDICATE", "LEN") and g.why:
            put(g.file, g.line, "guard", f"pinned: {g.text} ({g.why})", f"guards/{i}")
    for i, g in enumerate(r.graphs):
        for file, line in g.lines:
            put(file, line, "captured", f"compiled into {g.name}", f"graphs/{i}")
        for file, line in (g.captured or g.lowered).lines():
            put(file, line, "captured", f"compiled into {g.name}", f"graphs/{i}")
        called = [(file, line) for _, _, file, line in g.callers]
        if g.frame is not None and r.frames[g.frame].file != r.source.file:
            called.append((r.source.file, r.frames[g.frame].cell_line))
        for file, line in called:
            put(file, line, "captured", f"what it calls is compiled into {g.name}", f"graphs/{i}")
    return sorted(best.values(), key=lambda m: (m.file, m.line, _PRIORITY.index(m.kind)))


def _is_user_code(r: Any, file: str) -> bool:
    return bool(file) and (file == r.source.file or cell_number(file) is not None)


def _called(frame: str) -> str:
    words = frame_words(frame)
    return words if words != frame else f"`{frame}`"


def numerics_findings(r: Any) -> list[s.Finding]:
    """Where digits are lost, the first node that is further from float64 than eager is, beyond rounding, and the first
    with NaN. What follows from the first of these is told without a remedy of its own."""
    first = next((i for i, n in enumerate(r.numerics) if n.cause), len(r.numerics))
    return [*_lost(r, first), *_divergence(r, first), *_not_a_number(r)]


_KEEP = {  # how digits are kept: in which dtype, or by which formula
    "overflow": "subtract the largest value before it, as torch.softmax does, or compute it in {0}",
    "underflow": "compute it in {0}, or scale it up before, as torch.amp.GradScaler does",
    "cancellation": "compute it in {0}, or by a formula without this difference: torch.var for a variance",
}


def _lost(r: Any, first: int) -> list[s.Finding]:
    if first == len(r.numerics):
        return []
    n = r.numerics[first]
    wide = "float32" if n.dtype in ("float16", "bfloat16") else "float64"
    text = f"{_at(r, n)}`{n.node}` ({n.op}) loses what float64 keeps: {n.why}"
    return [s.Finding("warning", text, _KEEP[n.cause].format(wide), "numerics", n.line)]


def _at(r: Any, n: s.NumericError) -> str:
    """`line 3: `, with the cell where it is another than the report's."""
    if not n.line:
        return ""
    return f"line {n.line}: " if n.file in ("", r.source.file) else f"{n.file}:{n.line}: "


def _not_a_number(r: Any) -> list[s.Finding]:
    n = next((n for n in r.numerics if n.nan), None)
    if n is None:
        return []
    eager = "" if n.verdict == "diverges" else ", as in eager"
    text = f"{_at(r, n)}`{n.node}` ({n.op}) is the first value with NaN: {n.nan} of {n.count}{eager}"
    return [s.Finding("warning", text, "", "numerics", n.line)]


def _divergence(r: Any, cause: int) -> list[s.Finding]:
    i, worst = next(((i, n) for i, n in enumerate(r.numerics) if n.verdict == "diverges"), (0, None))
    if worst is None:
        return []
    what = f"{_at(r, worst)}`{worst.node}` ({worst.op})"
    text = f"{what} is the first value that differs from eager's beyond rounding: {worst.why}"
    action = "compile with options={'emulate_precision': True}" if i < cause else ""
    return [s.Finding("warning" if action else "info", text, action, "numerics", worst.line)]


_PING_PONG = 8  # switches between entries, and one in so many calls, from which on it is worth a word


def _ping_pong(r: Any) -> list[s.Finding]:
    """Frames whose calls go back and forth between entries: each switch first evaluates the guards of the entry
    before.
    """
    out = []
    for i, f in enumerate(r.frames):
        entries = [r.entries[n] for n in f.entries]
        switches, calls = sum(e.switches or 0 for e in entries), sum(e.hits or 0 for e in entries)
        if switches < _PING_PONG or switches * _PING_PONG < calls:
            continue
        last = next((c for c in reversed(r.recompiles) if c.frame == i), None)
        what = f": {subject(last)} goes back and forth ({last.expected} ↔ {last.got})" if last is not None else ""
        text = (
            f"{_called(f.name)} switched {plural(switches, 'time')} between its {len(entries)} entries in"
            f" {plural(calls, 'call')}{what}"
        )
        cost = max((e.guard_seconds or 0.0 for e in entries), default=0.0) * switches
        out.append(
            s.Finding(
                "info",
                *_with_action(text, last.suggestion if last is not None else ""),
                f"frames/{i}",
                f.line,
                cost or None,
            )
        )
    return out


_MORE_MEMORY = 1.1  # of eager's peak, from which on it is worth a word


def _memory(r: Any) -> list[s.Finding]:
    """Graphs that hold more at once than eager would."""
    return [
        s.Finding(
            "info",
            f"a call holds {size(m.peak_bytes)} at its peak, where eager holds {size(m.eager_peak_bytes)}",
            "",
            "speed",
        )
        for m in r.memory
        if m.peak_bytes and m.eager_peak_bytes and m.peak_bytes > max(_MORE_MEMORY * m.eager_peak_bytes, 1 << 20)
    ]


def _with_action(text: str, remedy: str) -> tuple[str, str]:
    """A finding's text and what to change. A remedy that is none is part of the text."""
    return (f"{text.removesuffix('.')}; {remedy}", "") if remedy.startswith(NO_CHANGE) else (text, remedy)


def _where(r: Any, b: s.Break) -> str:
    return f"line {b.line}" if b.file == r.source.file else f"{b.file}:{b.line}"


def _findings(r: Any) -> list[s.Finding]:
    found = [
        *_limits(r),
        *numerics_findings(r),
        *_broken(r),
        *_ping_pong(r),
        *_memory(r),
        *_compiled_again(r),
        *_ran_eager(r),
    ]
    return sorted(found, key=lambda f: f.severity != "warning")[:_MAX_FINDINGS]  # what a person can act on comes first


def _broken(r: Any) -> list[s.Finding]:
    """Graph breaks; several that nobody has to change are one finding."""
    out = []
    told: dict[tuple[str, str], dict[str, int]] = {}  # reason and remedy -> where, and the first break there
    harmless = list(dict.fromkeys(_where(r, b) for b in r.graph_breaks if b.harmless and not _is_ours(b)))
    bounded = False
    same: set[tuple[str, str]] = set()  # one line may break in two ways (with gradients, without) for one remedy
    for i, b in enumerate(r.graph_breaks):
        if not b.harmless or len(harmless) == 1 and not _is_ours(b):
            alike = b.reason, b.remedy + (b.code if b.fix else "")
            if b.remedy and (_where(r, b), b.remedy) in same and alike not in told:
                continue
            same.add((_where(r, b), b.remedy))
            told.setdefault(alike, {}).setdefault(_where(r, b), i)
    for places in told.values():
        i = next(iter(places.values()))
        b = r.graph_breaks[i]
        remedy = _OWN_ERROR if _is_own_error(r, b) else b.remedy
        text, action = _with_action(f"{_places(list(places))}: {b.reason}", remedy)
        if action and b.kind == "print" and (most := _guards_after(r, b)):
            text += (
                f" Elsewhere it takes as long: a change wins the guards of what follows, {seconds(most)} of this run."
            )
        elif action and not b.harmless and not bounded and (gain := most_without_breaks(r)) is not None:
            bounded = True  # it is for all breaks together
            text += f" Without the breaks the run is at most {max(gain, 1.01):.3g}\u00d7 as fast."
        out.append(s.Finding("info" if b.harmless else "warning", text, action, f"breaks/{i}", b.line, None))
    if len(harmless) > 1:
        first = next(i for i, b in enumerate(r.graph_breaks) if b.harmless and not _is_ours(b))
        text = f"{_places(harmless)} ran as plain Python; the code around them is compiled, and no change is needed"
        out.append(s.Finding("info", text, "", f"breaks/{first}", r.graph_breaks[first].line, None))
    return out


def _is_ours(b: s.Break) -> bool:
    """In code of this package, which stands for a step of an optimizer: nobody's line."""
    return b.file.startswith("tcompile/")


def _guards_after(r: Any, b: s.Break) -> float:
    """What guards took in this run of the function's entries, and of its loops', beside the one that the break ends:
    they go on after it."""
    if b.frame is None:
        return 0.0
    name = r.frames[b.frame].name
    frames = [f for f in r.frames if f.name == name or f.name.startswith(f"{name}.<loop at line ")]
    after = [r.entries[n] for f in frames for n in f.entries if n != b.entry]
    return sum((e.guard_seconds or 0.0) * max(1, e.hits or 0) for e in after)


def _places(names: list[str]) -> str:
    """`line 3`, `lines 3, 5 and 2 more`."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    if len(names) > 1 and all(n.startswith("line ") for n in names):
        return "lines " + ", ".join(n.removeprefix("line ") for n in names[:4]) + more
    return ", ".join(names[:4]) + more


def _limits(r: Any) -> list[s.Finding]:
    """Functions that were compiled so often that they are not any more, the latest first."""
    out = []
    for i, f in enumerate(r.frames):
        if f.status != "limit":
            continue
        last = next((c for c in reversed(r.recompiles) if c.frame == i), None)
        why = f": {subject(last)} changes every call" if last is not None else ""
        advice = last.suggestion if last is not None else ""
        action = advice or "raise tcompile.config.recompile_limit, or pass dynamic=True"
        text = f"`{f.name}` reached the {f.reason.removesuffix(')')}){why}"
        out.append(s.Finding("warning", text, action, f"frames/{i}", f.line))
    return out[::-1]


def _compiled_again(r: Any) -> list[s.Finding]:
    took = recompile_seconds(r)
    by_cause: dict[tuple, list[int]] = {}
    for i, c in enumerate(r.recompiles):
        if c.suggestion.startswith(FOLLOWS):  # told with its cause
            continue
        by_cause.setdefault((c.frame, subject(c)), []).append(i)
    out = []
    named = {(c.frame, c.suggestion) for c in r.recompiles if NO_NAME not in c.source}
    for (_, what), which in by_cause.items():
        c = r.recompiles[which[-1]]
        if NO_NAME in what and (c.frame, c.suggestion) in named:  # the same, seen after a break
            continue
        times = f" {len(which)} times" if len(which) > 1 else ""
        cost = sum(took[n] for n in which) or None
        text = f"{_called(c.frame_name)} was compiled again{times} because {change_words(c)}"
        if cost is not None and len(which) < 3 and cost < max(_LITTLE_COMPILING, _LITTLE * r.wall.seconds):
            text, action = f"{text}; nothing to avoid", ""
        else:
            text, action = _with_action(text, c.suggestion)
        severity = "info" if len(which) < 3 else "warning"
        out.append(s.Finding(severity, text, action, f"recompiles/{which[-1]}", c.line, cost))
    return out


def _ran_eager(r: Any) -> list[s.Finding]:
    out = []
    for i, f in enumerate(r.fallbacks):
        if f.frame is not None and without_tensors(r):
            continue
        times = f" {f.count} times" if f.count > 1 else ""
        text = f.reason if f.reason.startswith(f.what) else f"{f.what} ran eager{times}: {f.reason}"
        out.append(s.Finding("info", text, "", f"fallbacks/{i}"))
    return out


def _breaks_told(r: Any) -> str:
    """How many breaks, and where: those that nobody has to change are counted apart."""
    told = [b for b in r.graph_breaks if not b.harmless]
    lines = list(dict.fromkeys(b.line for b in told))
    at = ""
    if len(told) == 1:
        at = f" (line {told[0].line}: {_code_word(told[0])})"
    elif told:
        at = f" (line{'s' * (len(lines) > 1)} {', '.join(map(str, lines[:4]))}{', …' if len(lines) > 4 else ''})"
    rest = r.summary.breaks - len(told)
    if rest and told:
        at += f" + {rest} harmless"
    elif rest:
        at = " (no change needed)"
    return plural(len(told) or r.summary.breaks, "break") + at


def closed_line(r: Any) -> str:
    """The one line under a cell: did it compile, was it faster, what did it cost."""
    m = r.summary
    head = f"{m.symbol} {m.status if m.status != 'nothing' else 'tcompile'}"
    if m.status in ("nothing", "error", "eager"):
        return f"{head}   {m.note}" + (
            "  — what to do ▸" if m.status == "eager" and r.findings and r.findings[0].action else ""
        )
    stock = r.options.get("engine") == "torch.compile"
    facts = [("under torch.compile: " if stock else "") + plural(m.graphs, "graph")]
    facts.append(_breaks_told(r))
    if (m.kernels or not m.externs) and not stock:
        facts.append(plural(m.kernels, "kernel"))
    if m.externs:
        facts.append(plural(m.externs, "library call"))
    if m.recompiles:
        what = list(dict.fromkeys(subject(c) for c in causes(r)))
        facts.append(f"recompiled {m.recompiles}× ({', '.join(what[:2])}{', …' if len(what) > 2 else ''})")
    parts = [" · ".join(facts) if m.graphs or not m.note else m.note]
    if m.note and m.graphs:
        parts.append(m.note)
    parts += _compared(r)
    if r.speedups.overall and r.speedups.note:
        parts[-1] += " (busy machine)"
    unused, whose = unused_share(r)
    if unused:
        parts.append(f"{unused * 100:.0f} % of {whose} left out: nobody reads its results")
    if m.graphs:
        cost = f"{seconds(m.compile_seconds)} to compile"
        main = main_call(r.speedups)
        even = main.break_even_calls if main is not None else None
        if even is not None:
            cost += f" · pays off after {count(even)} call{'' if even == 1 else 's'}"
        parts.append(cost)
    return f"{head}   " + "   ".join(parts)


def _compared(r: Any) -> list[str]:
    """How the cell's speed compares with eager's and stock's. Where there was one sample of each, that is told once."""
    timed = [(words, r.speedups.over(over)) for over, words in (("eager", "eager"), ("torch", "torch.compile"))]
    several = [(words, x) for words, x in timed if x is not None and x.lo != x.hi]
    single = [(words, x) for words, x in timed if x is not None and x.lo == x.hi]
    told = [against(x.ratio, x.lo, x.hi, words) + _of(r.speedups) for words, x in several]
    if single:
        x = single[0][1]
        told.append(against(x.ratio, x.lo, x.hi, " and ".join(words for words, _ in single)) + _of(r.speedups))
    return told


def _of(speedups: s.Speedups) -> str:
    """What a figure is of, where that is not the cell: ` in f`, and how much of the run that is where it is little."""
    if not speedups.of:
        return ""
    little = speedups.share is not None and speedups.share < 0.5
    words = "" if speedups.share is None else "under 1" if speedups.share < 0.01 else f"{100 * speedups.share:.0f}"
    return f" in {speedups.of}" + (f" ({words} % of the run)" if little else "")


def _code_word(b: s.Break) -> str:
    """The few characters that ended the graph: `.item()`, or the kind in words."""
    if b.code and b.col is not None and b.end_col is not None and b.end_line in (None, b.line):
        piece = b.code.encode()[b.col : b.end_col].decode(errors="ignore").strip()
        if piece and len(piece) <= 24:
            return piece
    return b.kind.replace("_", " ")


def bound_words(r: Any) -> None:
    """What the program said (an error's message, a value's text) may be of any length: a report keeps the beginning."""
    r.errors = [_beginning(e) for e in r.errors]
    rows = [*r.graph_breaks, *r.fallbacks, *r.frames, *r.recompiles, *r.timeline]
    for row in rows:
        for name in ("reason", "remedy", "what", "expected", "got", "suggestion", "text"):
            value = getattr(row, name, None)
            if value and len(value) > _MOST_WORDS:
                setattr(row, name, _beginning(value))
    for b in r.graph_breaks:
        if len(b.code) > _MOST_WORDS and b.fix is None:
            b.code = _beginning(b.code)


def _beginning(text: str) -> str:
    return text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]} … ({len(text)} characters)"
