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
    timed = [c for c in speedups.calls if c.measured in ("call", "cell") and _median(c, "eager") is not None]
    whole = [c for c in timed if c.measured == "cell"]
    return whole[0] if whole else max(timed, key=lambda c: _median(c, "eager") or 0.0, default=None)


def _median(call: s.CallTiming, engine: str) -> float | None:
    return next((e.median for e in call.engines if e.engine == engine), None)


def share_of_run(r: Any) -> float | None:
    """The share of the program's own time that the timed calls took; None where they are the cell, or unknown. Where
    they are all that was compiled, what the run spent in compiled calls is theirs: a first call takes longer."""
    run = own_seconds(r)
    timed = [c for c in r.speedups.calls if c.measured == "call" and _median(c, "tcompile") is not None]
    if run <= 0 or not timed or not r.speedups.of:
        return None
    calls = {
        frame_words(f.name): sum(r.entries[n].hits or 0 for n in f.entries if n < len(r.entries)) for f in r.frames
    }
    took = sum((_median(c, "tcompile") or 0.0) * max(1, calls.get(c.name, 1)) for c in timed)
    if {frame_words(f.name) for f in r.frames if f.entries} <= {c.name for c in timed}:
        took = max(took, sum(p.seconds for p in r.wall.parts if p.kind in _IN_CALLS))
    return min(1.0, took / run)


def fell_back(r: Any) -> bool:
    """Whether a function of the report ran as plain Python because its compiled form could not, or was switched off.
    Single operators that torch's own kernels compute are library calls, no fallback."""
    return any(
        f.what in _WHOLE
        or (f.what, "switched off") in r.decided
        or f.frame is not None
        and f.what in (r.frames[f.frame].name, f"`{r.frames[f.frame].name}`")
        for f in r.fallbacks
    )


def without_tensors(r: Any) -> bool:
    """Whether nothing was captured, and the program was not seen at work on tensors, by capture or in any look at its
    stack: it had nothing to compile."""
    seen = r.met_tensors or any(p.kind == "torch" or p.name.endswith("(torch)") for p in r.wall.parts)
    return r.wall.how == "sampled" and not seen and not r.graphs


def excuse_breaks(r: Any) -> None:
    """Breaks that are nothing to change. One where no tensor was computed; and one in library code, which a user can't
    change, where next to nothing of the run's time is spent outside of compiled code."""
    if without_tensors(r):
        for b in r.graph_breaks:
            b.harmless, b.fix, b.remedy = True, None, "no change is needed: nothing here computes with tensors"
    run = r.wall.seconds - sum(p.seconds for p in r.wall.parts if p.kind in ("compiling", "starved"))
    outside = sum(p.seconds for p in r.wall.parts if p.kind in ("torch", "python", "rest"))
    if run <= 0 or outside > _LITTLE * run:
        return
    for b in r.graph_breaks:
        if b.library and not b.harmless:
            b.harmless, b.fix = True, None
            b.remedy = "no change is needed: it lies in library code, and costs next to nothing"


def name_first_breaks(r: Any) -> None:
    """A backward() that breaks because the graph that computed the loss had ended: what to change is what ended it.
    Where nothing of the cell did, the loss was computed before: a cell can't be called from outside of itself."""
    for i, b in enumerate(r.graph_breaks):
        if b.kind != "backward" or b.harmless or "goes on into what computed" not in b.reason:
            continue
        owner = _owner(r, b)
        before = (c for c in r.graph_breaks[:i] if _owner(r, c) == owner and c.kind != "backward" and not c.harmless)
        first = next(before, None)
        if first is None and owner == "<module>" and all(c.harmless or c.kind == "backward" for c in r.graph_breaks):
            b.harmless, b.fix = True, None
            b.remedy = (
                "no change is needed: forward and backward are compiled, and autograd runs the one after the other"
            )
        if first is not None:
            where = f"line {first.line}" if first.file == b.file else f"{first.file}:{first.line}"
            b.remedy = f"change {where} first: without the break there, backward() is part of the graph"


def _owner(r: Any, b: Any) -> str:
    """The function that a break is in; a loop of it is compiled as a function of its own."""
    return "" if b.frame is None else r.frames[b.frame].name.partition(".<loop at line ")[0]


def unused_share(r: Any) -> tuple[float, str]:
    """The largest share of a graph's work whose results nobody reads, 0 where it is too small to matter; and whose work
    that is: `the work`, or that of one of several graphs."""
    most = max(r.graphs, key=lambda g: g.unused, default=None)
    if most is None or most.unused < _LEAST_UNUSED:
        return 0.0, ""
    return most.unused, "the work" if len(r.graphs) == 1 else f"{most.name}'s work"


def forget_unused(r: Any) -> None:
    """Where a large part of the work was left out because nobody reads its results, a comparison with eager, which does
    that work, says nothing of speed. The times stay."""
    share, _ = unused_share(r)
    if not share or not r.speedups.calls:
        return
    why = (
        f"eager also computes {share * 100:.0f} % that nobody reads; it was left out here, which is no speedup"
        " (use the results to compare)"
    )
    r.speedups.overall = [x for x in r.speedups.overall if "eager" not in (x.engine, x.over)]
    for c in r.speedups.calls:
        c.speedups = [x for x in c.speedups if "eager" not in (x.engine, x.over)]
        c.break_even_calls, c.break_even_reason = None, why
    if why not in r.speedups.reason:
        r.speedups.reason = "; ".join(filter(None, (r.speedups.reason, why)))
        r.speedups.status = "partial"
