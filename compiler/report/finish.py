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


def finish(report: Any, served: int = 0) -> None:
    """Fill marks, findings and summary of a CompileReport. `served`: calls that entries of an earlier run served."""
    _forget_own_error(report)
    excuse_breaks(report)
    name_first_breaks(report)
    for i, frame in enumerate(report.frames):  # (harmless or not is known only now)
        ended = [brk for brk in report.graph_breaks if brk.frame == i]
        if frame.status == "partly" and not frame.reason and ended and all(brk.harmless for brk in ended):
            frame.status = "compiled"
    report.marks = _marks(report)
    found = _findings(report)
    loud = [finding for finding in found if finding.severity == "warning"][: _MAX_FINDINGS - min(len(report.notes), 1)]
    # what a person can act on comes first, then a note at least
    first = sorted([*report.notes, *loud], key=lambda finding: finding.severity != "warning")
    report.findings = [*first, *(finding for finding in found if finding.severity != "warning")][:_MAX_FINDINGS]
    summary = report.summary = s.Summary()
    backward = {
        b for partition in report.partitions for b in partition.backward
    }  # part of what was captured, not captured themselves
    summary.graphs = sum(i not in backward for i in range(len(report.graphs)))
    summary.breaks = sum(not _is_own_error(report, brk) for brk in report.graph_breaks)
    summary.kernels = len(report.kernels)
    summary.externs = sum(extern.count for extern in report.externs)
    summary.recompiles = len(report.recompiles)
    summary.compile_seconds = (
        sum(st.seconds for st in report.stages if not st.parent) if report.waited is None else report.waited
    )
    forget_unused(report)
    report.speedups.share = share_of_run(report)
    summary.status, summary.note = _status(report, served)
    if report.raised == "FullGraphError" and report.graph_breaks:  # the one break that ended it is the whole story
        brk = report.graph_breaks[-1]
        asked = "error_on_graph_break" if report.raised_words.startswith("error_on_graph_break") else "fullgraph"
        summary.status, summary.note = "error", f"{asked}: the graph breaks at line {brk.line} ({_code_word(brk)})"
    elif report.raised == "KeyboardInterrupt":
        summary.note = "interrupted"
        summary.status = "partly" if any(frame.entries for frame in report.frames) else "error"
    elif report.raised:
        summary.note = (
            f"{summary.note} · " * (summary.status not in ("nothing", "error") and bool(summary.note))
            + f"the cell raised {report.raised}"
        )
        summary.status = "partly" if summary.status == "compiled" else summary.status
    summary.symbol = SYMBOLS[summary.status]
    split_compiled(report)
    raise_peaks(report)
    report.decisions = decisions_of(report)
    report.answers = answers_of(report)
    summary.line = closed_line(report)


def _status(report: Any, served: int) -> tuple[str, str]:
    """The word of the summary, and the note beside it."""
    for frame in report.frames:
        if frame.name in report.reran and frame.status == "compiled":
            frame.status, frame.reason = "partly", RERAN
    if report.raised and report.why_nothing:
        return "error", ""
    if without_tensors(report) and not report.raised and not report.errors:
        return "nothing", report.why_nothing or _NO_TENSORS
    skipped = [
        report.frames[fallback.frame]
        for fallback in report.fallbacks
        if fallback.frame is not None and report.frames[fallback.frame].status == "skipped"
    ]
    if report.graphs or not report.raised and any(frame.entries for frame in report.frames):
        return _status_with_graphs(report, skipped)
    return _status_without_graphs(report, skipped, served)


def _status_with_graphs(report: Any, skipped: list) -> tuple[str, str]:
    """How much of what was captured ran compiled. `skipped`: the frames that ran as plain Python."""
    limit = _at_its_limit(report)
    if limit is not None:
        return "partly", f"{limit.reason} in `{limit.name}`, which runs eager from there on"
    eager = [graph for graph in report.graphs if graph.ran == "eager"]
    if eager and len(eager) == len(report.graphs):
        if report.raised:  # whose kernels would have run is of no interest any more
            return "error", ""
        why = next((fallback.reason for fallback in report.fallbacks if fallback.frame is None or not skipped), "")
        return "eager", f"captured, but run with torch's own kernels: {why}"
    if report.reran:
        return "partly", f"a graph raised: {plural(sum(report.reran.values()), 'call')} ran as plain Python"
    if any(not brk.harmless for brk in report.graph_breaks) or skipped or report.errors or eager or fell_back(report):
        return "partly", ""
    return "compiled", ""


def _status_without_graphs(report: Any, skipped: list, served: int) -> tuple[str, str]:
    """Why nothing was captured."""
    limit = _at_its_limit(report)
    if limit is not None:
        return "eager", f"{limit.reason} in `{limit.name}`"
    if report.errors:
        return "error", report.errors[0]
    if skipped:
        return "eager", f"ran as plain Python: `{skipped[0].name}`: {skipped[0].reason}"
    if report.graph_breaks:
        return "eager", f"ran as plain Python: {report.graph_breaks[0].reason}"
    if served:
        return "compiled", f"{plural(served, 'call')} served by entries compiled before"
    anywhere = next((fallback.reason for fallback in report.fallbacks if fallback.frame is None), "")
    if anywhere:  # no frame was seen: the extension that sees them is missing
        return "eager", anywhere
    return "nothing", report.why_nothing or _NO_TENSORS


def _at_its_limit(report: Any) -> Any:
    """The first frame that is compiled no more, because it was so often."""
    return next((frame for frame in report.frames if frame.status == "limit"), None)


def _forget_own_error(report: Any) -> None:
    """What the program raises, capture may have met first, as an error of its own: the cell's error is told once, as
    the program's.
    """
    words = f"{report.raised}: {report.raised_words.splitlines()[0] if report.raised_words else ''}".rstrip(": ")
    if not report.raised_words:
        return
    own = [
        fallback for fallback in report.fallbacks if "internal error" in fallback.reason and words in fallback.reason
    ]
    for fallback in own:
        report.fallbacks.remove(fallback)
        frame = report.frames[fallback.frame] if fallback.frame is not None else None
        if frame is not None and frame.status == "skipped" and words in frame.reason:
            frame.status, frame.reason = "error", f"it raises {report.raised}"
    report.errors = [error for error in report.errors if words not in error]
    if own:
        report.why_nothing = f"the cell raised {report.raised}"


def _is_own_error(report: Any, brk: s.Break) -> bool:
    """What ended the cell would have ended it in eager, too: it is no break that anything costs."""
    return bool(report.raised) and brk.kind == "exception"


def _marks(report: Any) -> list[s.Mark]:
    """One mark a line, of what became of it; and one of guards that rely on it, whatever became of it."""
    best: dict[tuple[str, int, bool], s.Mark] = {}

    def put(file: str, line: int | None, kind: str, text: str, ref: str, end_line: int | None = None) -> None:
        if not line or not _is_user_code(report, file):
            return
        at = (file, line, kind == "guard")
        if at not in best or _PRIORITY.index(kind) < _PRIORITY.index(best[at].kind):
            best[at] = s.Mark(line, kind, text, file, cell_number(file), end_line, ref)

    passes = {tuple(graph.called_at) for graph in report.graphs if graph.called_at}
    for i, brk in enumerate(report.graph_breaks):
        words = brk.reason + (f" {brk.remedy[0].upper()}{brk.remedy[1:]}" if brk.remedy else "")
        if brk.harmless:  # (a backward pass that autograd calls is compiled)
            put(brk.file, brk.line, "captured" if (brk.file, brk.line) in passes else "eager", words, f"breaks/{i}")
        else:
            put(brk.file, brk.line, "break", words, f"breaks/{i}", brk.end_line)
    for i, recompile in enumerate(report.recompiles):
        put(
            recompile.file,
            recompile.line,
            "guard",
            f"{subject(recompile)}: {then_and_now(recompile)}; {_called(recompile.frame_name)} was compiled again",
            f"recompiles/{i}",
        )
    for i, fallback in enumerate(report.fallbacks):
        if fallback.frame is not None:
            frame = report.frames[fallback.frame]
            if frame.status not in ("skipped", "limit", "error"):
                # an operator by eager's kernel is no function that runs eager
                continue
            put(frame.file, frame.line, "eager", f"runs as plain Python: {fallback.reason}", f"fallbacks/{i}")
    for i, guard in enumerate(report.guards):
        if guard.kind in ("EQUALS", "PREDICATE", "LEN") and guard.why:
            put(guard.file, guard.line, "guard", f"pinned: {guard.text} ({guard.why})", f"guards/{i}")
    for i, guard in enumerate(report.graphs):
        for file, line in guard.lines:
            put(file, line, "captured", f"compiled into {guard.name}", f"graphs/{i}")
        for file, line in (guard.captured or guard.lowered).lines():
            put(file, line, "captured", f"compiled into {guard.name}", f"graphs/{i}")
        called = [(file, line) for _, _, file, line in guard.callers]
        if guard.frame is not None and report.frames[guard.frame].file != report.source.file:
            called.append((report.source.file, report.frames[guard.frame].cell_line))
        for file, line in called:
            put(file, line, "captured", f"what it calls is compiled into {guard.name}", f"graphs/{i}")
    return sorted(best.values(), key=lambda mark: (mark.file, mark.line, _PRIORITY.index(mark.kind)))


def _is_user_code(report: Any, file: str) -> bool:
    return bool(file) and (file == report.source.file or cell_number(file) is not None)


def _called(frame: str) -> str:
    words = frame_words(frame)
    return words if words != frame else f"`{frame}`"


def numerics_findings(report: Any) -> list[s.Finding]:
    """Where digits are lost, the first node that is further from float64 than eager is, beyond rounding, and the first
    with NaN. What follows from the first of these is told without a remedy of its own."""
    first = next((i for i, numeric in enumerate(report.numerics) if numeric.cause), len(report.numerics))
    return [*_lost(report, first), *_divergence(report, first), *_not_a_number(report)]


_KEEP = {  # how digits are kept: in which dtype, or by which formula
    "overflow": "subtract the largest value before it, as torch.softmax does, or compute it in {0}",
    "underflow": "compute it in {0}, or scale it up before, as torch.amp.GradScaler does",
    "cancellation": "compute it in {0}, or by a formula without this difference: torch.var for a variance",
}


def _lost(report: Any, first: int) -> list[s.Finding]:
    if first == len(report.numerics):
        return []
    numeric = report.numerics[first]
    wide = "float32" if numeric.dtype in ("float16", "bfloat16") else "float64"
    text = f"{_at(report, numeric)}`{numeric.node}` ({numeric.op}) loses what float64 keeps: {numeric.why}"
    return [s.Finding("warning", text, _KEEP[numeric.cause].format(wide), "numerics", numeric.line)]


def _at(report: Any, numeric: s.NumericError) -> str:
    """`line 3: `, with the cell where it is another than the report's."""
    if not numeric.line:
        return ""
    return f"line {numeric.line}: " if numeric.file in ("", report.source.file) else f"{numeric.file}:{numeric.line}: "


def _not_a_number(report: Any) -> list[s.Finding]:
    numeric = next((numeric for numeric in report.numerics if numeric.nan), None)
    if numeric is None:
        return []
    eager = "" if numeric.verdict == "diverges" else ", as in eager"
    value = f"{_at(report, numeric)}`{numeric.node}` ({numeric.op})"
    text = f"{value} is the first value with NaN: {numeric.nan} of {numeric.count}{eager}"
    return [s.Finding("warning", text, "", "numerics", numeric.line)]


def _divergence(report: Any, cause: int) -> list[s.Finding]:
    i, worst = next(
        ((i, numeric) for i, numeric in enumerate(report.numerics) if numeric.verdict == "diverges"), (0, None)
    )
    if worst is None:
        return []
    what = f"{_at(report, worst)}`{worst.node}` ({worst.op})"
    text = f"{what} is the first value that differs from eager's beyond rounding: {worst.why}"
    action = "compile with options={'emulate_precision': True}" if i < cause else ""
    return [s.Finding("warning" if action else "info", text, action, "numerics", worst.line)]


_PING_PONG = 8  # switches between entries, and one in so many calls, from which on it is worth a word


def _ping_pong(report: Any) -> list[s.Finding]:
    """Frames whose calls go back and forth between entries: each switch first evaluates the guards of the entry
    before.
    """
    out = []
    for i, frame in enumerate(report.frames):
        entries = [report.entries[number] for number in frame.entries]
        switches, calls = sum(entry.switches or 0 for entry in entries), sum(entry.hits or 0 for entry in entries)
        if switches < _PING_PONG or switches * _PING_PONG < calls:
            continue
        last = next((recompile for recompile in reversed(report.recompiles) if recompile.frame == i), None)
        what = f": {subject(last)} goes back and forth ({last.expected} ↔ {last.got})" if last is not None else ""
        text = (
            f"{_called(frame.name)} switched {plural(switches, 'time')} between its {len(entries)} entries in"
            f" {plural(calls, 'call')}{what}"
        )
        cost = max((entry.guard_seconds or 0.0 for entry in entries), default=0.0) * switches
        out.append(
            s.Finding(
                "info",
                *_with_action(text, last.suggestion if last is not None else ""),
                f"frames/{i}",
                frame.line,
                cost or None,
            )
        )
    return out


_MORE_MEMORY = 1.1  # of eager's peak, from which on it is worth a word


def _memory(report: Any) -> list[s.Finding]:
    """Graphs that hold more at once than eager would."""
    return [
        s.Finding(
            "info",
            f"a call holds {size(memory.peak_bytes)} at its peak, where eager holds {size(memory.eager_peak_bytes)}",
            "",
            "speed",
        )
        for memory in report.memory
        if memory.peak_bytes
        and memory.eager_peak_bytes
        and memory.peak_bytes > max(_MORE_MEMORY * memory.eager_peak_bytes, 1 << 20)
    ]


def _with_action(text: str, remedy: str) -> tuple[str, str]:
    """A finding's text and what to change. A remedy that is none is part of the text."""
    return (f"{text.removesuffix('.')}; {remedy}", "") if remedy.startswith(NO_CHANGE) else (text, remedy)


def _where(report: Any, brk: s.Break) -> str:
    return f"line {brk.line}" if brk.file == report.source.file else f"{brk.file}:{brk.line}"


def _findings(report: Any) -> list[s.Finding]:
    found = [
        *_limits(report),
        *numerics_findings(report),
        *_broken(report),
        *_ping_pong(report),
        *_memory(report),
        *_compiled_again(report),
        *_ran_eager(report),
    ]
    return sorted(found, key=lambda finding: finding.severity != "warning")[
        :_MAX_FINDINGS
    ]  # what a person can act on comes first


def _broken(report: Any) -> list[s.Finding]:
    """Graph breaks; several that nobody has to change are one finding."""
    out = []
    told: dict[tuple[str, str], dict[str, int]] = {}  # reason and remedy -> where, and the first break there
    harmless = list(
        dict.fromkeys(_where(report, brk) for brk in report.graph_breaks if brk.harmless and not _is_ours(brk))
    )
    bounded = False
    same: set[tuple[str, str]] = set()  # one line may break in two ways (with gradients, without) for one remedy
    for i, brk in enumerate(report.graph_breaks):
        if not brk.harmless or len(harmless) == 1 and not _is_ours(brk):
            alike = brk.reason, brk.remedy + (brk.code if brk.fix else "")
            if brk.remedy and (_where(report, brk), brk.remedy) in same and alike not in told:
                continue
            same.add((_where(report, brk), brk.remedy))
            told.setdefault(alike, {}).setdefault(_where(report, brk), i)
    for places in told.values():
        i = next(iter(places.values()))
        brk = report.graph_breaks[i]
        remedy = _OWN_ERROR if _is_own_error(report, brk) else brk.remedy
        text, action = _with_action(f"{_places(list(places))}: {brk.reason}", remedy)
        if action and brk.kind == "print" and (most := _guards_after(report, brk)):
            text += (
                f" Elsewhere it takes as long: a change wins the guards of what follows, {seconds(most)} of this run."
            )
        elif action and not brk.harmless and not bounded and (gain := most_without_breaks(report)) is not None:
            bounded = True  # it is for all breaks together
            text += f" Without the breaks the run is at most {max(gain, 1.01):.3g}\u00d7 as fast."
        out.append(s.Finding("info" if brk.harmless else "warning", text, action, f"breaks/{i}", brk.line, None))
    if len(harmless) > 1:
        first = next(i for i, brk in enumerate(report.graph_breaks) if brk.harmless and not _is_ours(brk))
        text = f"{_places(harmless)} ran as plain Python; the code around them is compiled, and no change is needed"
        out.append(s.Finding("info", text, "", f"breaks/{first}", report.graph_breaks[first].line, None))
    return out


def _is_ours(brk: s.Break) -> bool:
    """In code of this package, which stands for a step of an optimizer: nobody's line."""
    return brk.file.startswith("tcompile/")


def _guards_after(report: Any, brk: s.Break) -> float:
    """What guards took in this run of the function's entries, and of its loops', beside the one that the break ends:
    they go on after it."""
    if brk.frame is None:
        return 0.0
    name = report.frames[brk.frame].name
    frames = [frame for frame in report.frames if frame.name == name or frame.name.startswith(f"{name}.<loop at line ")]
    after = [report.entries[number] for frame in frames for number in frame.entries if number != brk.entry]
    return sum((entry.guard_seconds or 0.0) * max(1, entry.hits or 0) for entry in after)


def _places(names: list[str]) -> str:
    """`line 3`, `lines 3, 5 and 2 more`."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    if len(names) > 1 and all(name.startswith("line ") for name in names):
        return "lines " + ", ".join(name.removeprefix("line ") for name in names[:4]) + more
    return ", ".join(names[:4]) + more


def _limits(report: Any) -> list[s.Finding]:
    """Functions that were compiled so often that they are not any more, the latest first."""
    out = []
    for i, frame in enumerate(report.frames):
        if frame.status != "limit":
            continue
        last = next((recompile for recompile in reversed(report.recompiles) if recompile.frame == i), None)
        why = f": {subject(last)} changes every call" if last is not None else ""
        advice = last.suggestion if last is not None else ""
        action = advice or "raise tcompile.config.recompile_limit, or pass dynamic=True"
        text = f"`{frame.name}` reached the {frame.reason.removesuffix(')')}){why}"
        out.append(s.Finding("warning", text, action, f"frames/{i}", frame.line))
    return out[::-1]


def _compiled_again(report: Any) -> list[s.Finding]:
    took = recompile_seconds(report)
    by_cause: dict[tuple, list[int]] = {}
    for i, recompile in enumerate(report.recompiles):
        if recompile.suggestion.startswith(FOLLOWS):  # told with its cause
            continue
        by_cause.setdefault((recompile.frame, subject(recompile)), []).append(i)
    out = []
    named = {
        (recompile.frame, recompile.suggestion) for recompile in report.recompiles if NO_NAME not in recompile.source
    }
    for (_, what), which in by_cause.items():
        recompile = report.recompiles[which[-1]]
        if NO_NAME in what and (recompile.frame, recompile.suggestion) in named:  # the same, seen after a break
            continue
        times = f" {len(which)} times" if len(which) > 1 else ""
        cost = sum(took[number] for number in which) or None
        text = f"{_called(recompile.frame_name)} was compiled again{times} because {change_words(recompile)}"
        if cost is not None and len(which) < 3 and cost < max(_LITTLE_COMPILING, _LITTLE * report.wall.seconds):
            text, action = f"{text}; nothing to avoid", ""
        else:
            text, action = _with_action(text, recompile.suggestion)
        severity = "info" if len(which) < 3 else "warning"
        out.append(s.Finding(severity, text, action, f"recompiles/{which[-1]}", recompile.line, cost))
    return out


def _ran_eager(report: Any) -> list[s.Finding]:
    out = []
    for i, fallback in enumerate(report.fallbacks):
        if fallback.frame is not None and without_tensors(report):
            continue
        times = f" {fallback.count} times" if fallback.count > 1 else ""
        text = (
            fallback.reason
            if fallback.reason.startswith(fallback.what)
            else f"{fallback.what} ran eager{times}: {fallback.reason}"
        )
        out.append(s.Finding("info", text, "", f"fallbacks/{i}"))
    return out


def _breaks_told(report: Any) -> str:
    """How many breaks, and where: those that nobody has to change are counted apart."""
    told = [brk for brk in report.graph_breaks if not brk.harmless]
    lines = list(dict.fromkeys(brk.line for brk in told))
    at = ""
    if len(told) == 1:
        at = f" (line {told[0].line}: {_code_word(told[0])})"
    elif told:
        at = f" (line{'s' * (len(lines) > 1)} {', '.join(map(str, lines[:4]))}{', …' if len(lines) > 4 else ''})"
    rest = report.summary.breaks - len(told)
    if rest and told:
        at += f" + {rest} harmless"
    elif rest:
        at = " (no change needed)"
    return plural(len(told) or report.summary.breaks, "break") + at


def closed_line(report: Any) -> str:
    """The one line under a cell: did it compile, was it faster, what did it cost."""
    summary = report.summary
    head = f"{summary.symbol} {summary.status if summary.status != 'nothing' else 'tcompile'}"
    if summary.status in ("nothing", "error", "eager"):
        return f"{head}   {summary.note}" + (
            "  — what to do ▸" if summary.status == "eager" and report.findings and report.findings[0].action else ""
        )
    stock = report.options.get("engine") == "torch.compile"
    facts = [("under torch.compile: " if stock else "") + plural(summary.graphs, "graph")]
    facts.append(_breaks_told(report))
    if (summary.kernels or not summary.externs) and not stock:
        facts.append(plural(summary.kernels, "kernel"))
    if summary.externs:
        facts.append(plural(summary.externs, "library call"))
    if summary.recompiles:
        what = list(dict.fromkeys(subject(cause) for cause in causes(report)))
        facts.append(f"recompiled {summary.recompiles}× ({', '.join(what[:2])}{', …' if len(what) > 2 else ''})")
    parts = [" · ".join(facts) if summary.graphs or not summary.note else summary.note]
    if summary.note and summary.graphs:
        parts.append(summary.note)
    parts += _compared(report)
    if report.speedups.overall and report.speedups.note:
        parts[-1] += " (busy machine)"
    unused, whose = unused_share(report)
    if unused:
        parts.append(f"{unused * 100:.0f} % of {whose} left out: nobody reads its results")
    if summary.graphs:
        cost = f"{seconds(summary.compile_seconds)} to compile"
        main = main_call(report.speedups)
        even = main.break_even_calls if main is not None else None
        if even is not None:
            cost += f" · pays off after {count(even)} call{'' if even == 1 else 's'}"
        parts.append(cost)
    return f"{head}   " + "   ".join(parts)


def _compared(report: Any) -> list[str]:
    """How the cell's speed compares with eager's and stock's. Where there was one sample of each, that is told once."""
    timed = [(words, report.speedups.over(over)) for over, words in (("eager", "eager"), ("torch", "torch.compile"))]
    several = [(words, speedup) for words, speedup in timed if speedup is not None and speedup.lo != speedup.hi]
    single = [(words, speedup) for words, speedup in timed if speedup is not None and speedup.lo == speedup.hi]
    told = [against(speedup.ratio, speedup.lo, speedup.hi, words) + _of(report.speedups) for words, speedup in several]
    if single:
        speedup = single[0][1]
        told.append(
            against(speedup.ratio, speedup.lo, speedup.hi, " and ".join(words for words, _ in single))
            + _of(report.speedups)
        )
    return told


def _of(speedups: s.Speedups) -> str:
    """What a figure is of, where that is not the cell: ` in f`, and how much of the run that is where it is little."""
    if not speedups.of:
        return ""
    little = speedups.share is not None and speedups.share < 0.5
    words = "" if speedups.share is None else "under 1" if speedups.share < 0.01 else f"{100 * speedups.share:.0f}"
    return f" in {speedups.of}" + (f" ({words} % of the run)" if little else "")


def _code_word(brk: s.Break) -> str:
    """The few characters that ended the graph: `.item()`, or the kind in words."""
    if brk.code and brk.col is not None and brk.end_col is not None and brk.end_line in (None, brk.line):
        piece = brk.code.encode()[brk.col : brk.end_col].decode(errors="ignore").strip()
        if piece and len(piece) <= 24:
            return piece
    return brk.kind.replace("_", " ")


def bound_words(report: Any) -> None:
    """What the program said (an error's message, a value's text) may be of any length: a report keeps the beginning."""
    report.errors = [_beginning(error) for error in report.errors]
    rows = [*report.graph_breaks, *report.fallbacks, *report.frames, *report.recompiles, *report.timeline]
    for row in rows:
        for name in ("reason", "remedy", "what", "expected", "got", "suggestion", "text"):
            value = getattr(row, name, None)
            if value and len(value) > _MOST_WORDS:
                setattr(row, name, _beginning(value))
    for brk in report.graph_breaks:
        if len(brk.code) > _MOST_WORDS and brk.fix is None:
            brk.code = _beginning(brk.code)


def _beginning(text: str) -> str:
    return text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]} … ({len(text)} characters)"
