"""What keeps a report's figures true: which speedups count, which cells fell back, what was left out."""

from __future__ import annotations

from typing import Any

from .. import schema as s
from ...base.labels import frame_words
from .wall import own_seconds

__all__ = [
    "excuse_breaks",
    "fell_back",
    "forget_unused",
    "main_call",
    "name_first_breaks",
    "share_of_run",
    "unused_share",
    "without_tensors",
]

_LEAST_UNUSED = 0.1  # share of a graph's work: less than that changes no figure
_LITTLE = 0.05  # of a run's time outside of compiled code
_IN_CALLS = ("kernels", "library", "compiled")
_WHOLE = ("frame hook", "toolchain", "the rest of the cell")  # fallbacks of these leave much of a cell to eager


def main_call(speedups: s.Speedups) -> s.CallTiming | None:
    """The call whose figures stand for the cell: the whole cell, else the call that takes eager longest. Graphs alone
    stand for nothing."""
    timed = [
        call for call in speedups.calls if call.measured in ("call", "cell") and _median(call, "eager") is not None
    ]
    whole = [call for call in timed if call.measured == "cell"]
    return whole[0] if whole else max(timed, key=lambda call: _median(call, "eager") or 0.0, default=None)


def _median(call: s.CallTiming, engine: str) -> float | None:
    return next((e.median for e in call.engines if e.engine == engine), None)


def share_of_run(report: Any) -> float | None:
    """The share of the program's own time that the timed calls took; None where they are the cell, or unknown. Where
    they are all that was compiled, what the run spent in compiled calls is theirs: a first call takes longer."""
    run = own_seconds(report)
    timed = [
        call for call in report.speedups.calls if call.measured == "call" and _median(call, "tcompile") is not None
    ]
    if run <= 0 or not timed or not report.speedups.of:
        return None
    calls = {
        frame_words(frame.name): sum(
            report.entries[number].hits or 0 for number in frame.entries if number < len(report.entries)
        )
        for frame in report.frames
    }
    took = sum((_median(call, "tcompile") or 0.0) * max(1, calls.get(call.name, 1)) for call in timed)
    if {frame_words(frame.name) for frame in report.frames if frame.entries} <= {call.name for call in timed}:
        took = max(took, sum(part.seconds for part in report.wall.parts if part.kind in _IN_CALLS))
    return min(1.0, took / run)


def fell_back(report: Any) -> bool:
    """Whether a function of the report ran as plain Python because its compiled form could not, or was switched off.
    Single operators that torch's own kernels compute are library calls, no fallback."""
    return any(
        fallback.what in _WHOLE
        or (fallback.what, "switched off") in report.decided
        or fallback.frame is not None
        and fallback.what in (report.frames[fallback.frame].name, f"`{report.frames[fallback.frame].name}`")
        for fallback in report.fallbacks
    )


def without_tensors(report: Any) -> bool:
    """Whether nothing was captured, and the program was not seen at work on tensors, by capture or in any look at its
    stack: it had nothing to compile."""
    seen = report.met_tensors or any(
        part.kind == "torch" or part.name.endswith("(torch)") for part in report.wall.parts
    )
    return report.wall.how == "sampled" and not seen and not report.graphs


def excuse_breaks(report: Any) -> None:
    """Breaks that are nothing to change. One where no tensor was computed; and one in library code, which a user can't
    change, where next to nothing of the run's time is spent outside of compiled code."""
    if without_tensors(report):
        for brk in report.graph_breaks:
            brk.harmless, brk.fix, brk.remedy = True, None, "no change is needed: nothing here computes with tensors"
    run = report.wall.seconds - sum(part.seconds for part in report.wall.parts if part.kind in ("compiling", "starved"))
    outside = sum(part.seconds for part in report.wall.parts if part.kind in ("torch", "python", "rest"))
    if run <= 0 or outside > _LITTLE * run:
        return
    for brk in report.graph_breaks:
        if brk.library and not brk.harmless:
            brk.harmless, brk.fix = True, None
            brk.remedy = "no change is needed: it lies in library code, and costs next to nothing"


def name_first_breaks(report: Any) -> None:
    """A backward() that breaks because the graph that computed the loss had ended: what to change is what ended it.
    Where nothing of the cell did, the loss was computed before: a cell can't be called from outside of itself."""
    for i, brk in enumerate(report.graph_breaks):
        if brk.kind != "backward" or brk.harmless or "goes on into what computed" not in brk.reason:
            continue
        owner = _owner(report, brk)
        before = (
            earlier
            for earlier in report.graph_breaks[:i]
            if _owner(report, earlier) == owner and earlier.kind != "backward" and not earlier.harmless
        )
        first = next(before, None)
        if (
            first is None
            and owner == "<module>"
            and all(earlier.harmless or earlier.kind == "backward" for earlier in report.graph_breaks)
        ):
            brk.harmless, brk.fix = True, None
            brk.remedy = (
                "no change is needed: forward and backward are compiled, and autograd runs the one after the other"
            )
        if first is not None:
            where = f"line {first.line}" if first.file == brk.file else f"{first.file}:{first.line}"
            brk.remedy = f"change {where} first: without the break there, backward() is part of the graph"


def _owner(report: Any, brk: Any) -> str:
    """The function that a break is in; a loop of it is compiled as a function of its own."""
    return "" if brk.frame is None else report.frames[brk.frame].name.partition(".<loop at line ")[0]


def unused_share(report: Any) -> tuple[float, str]:
    """The largest share of a graph's work whose results nobody reads, 0 where it is too small to matter; and whose work
    that is: `the work`, or that of one of several graphs."""
    most = max(report.graphs, key=lambda g: g.unused, default=None)
    if most is None or most.unused < _LEAST_UNUSED:
        return 0.0, ""
    return most.unused, "the work" if len(report.graphs) == 1 else f"{most.name}'s work"


def forget_unused(report: Any) -> None:
    """Where a large part of the work was left out because nobody reads its results, a comparison with eager, which does
    that work, says nothing of speed. The times stay."""
    share, _ = unused_share(report)
    if not share or not report.speedups.calls:
        return
    why = (
        f"eager also computes {share * 100:.0f} % that nobody reads; it was left out here, which is no speedup"
        " (use the results to compare)"
    )
    report.speedups.overall = [x for x in report.speedups.overall if "eager" not in (x.engine, x.over)]
    for call in report.speedups.calls:
        call.speedups = [speedup for speedup in call.speedups if "eager" not in (speedup.engine, speedup.over)]
        call.break_even_calls, call.break_even_reason = None, why
    if why not in report.speedups.reason:
        report.speedups.reason = "; ".join(filter(None, (report.speedups.reason, why)))
        report.speedups.status = "partial"
