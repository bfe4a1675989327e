"""Which calls waited for the compiler, and how long: of a function's entries, and of backward passes."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from .. import schema as s

__all__ = ["FOLLOWS", "causes", "change_words", "joined", "recompile_seconds", "subject", "tell_waits", "then_and_now"]

FOLLOWS = "no change is needed: it follows from"  # how the remedy begins of what another recompile explains


def tell_waits(report: Any, waits: Sequence[tuple[float, float]]) -> None:
    """Put a "compile" event for each wait (begin and end, in seconds since the report began) into the timeline, in the
    lane of the entry that it ended with, and its length into that entry. A wait without one is that of a backward pass
    of the entry before, where that has one: else the compiler looked at what follows, and left it alone.
    """
    with_backward = {partition.graph for partition in report.partitions if partition.backward}
    events = [event for event in report.timeline if event.kind != "compile"]
    made = [event for event in events if event.kind == "entry"]
    told: list[s.TimelineEvent] = []
    for begin, end in waits:
        inside = [event for event in made if begin <= event.time <= end]
        at = begin
        for event in inside:
            told.append(s.TimelineEvent(at, "compile", event.frame, event.entry, "compiling", event.time - at))
            if event.entry is not None:
                report.entries[event.entry].seconds = event.time - at
            at = event.time
        before = [event for event in made if event.time <= begin]
        if not inside and before:
            last = before[-1]
            graph = report.entries[last.entry].graph if last.entry is not None else None
            text = f"looking at what follows entry {last.entry}"
            if graph is not None and graph in with_backward:
                text = f"compiling what follows entry {last.entry}, a backward pass"
            told.append(s.TimelineEvent(begin, "compile", last.frame, last.entry, text, end - begin))
    report.timeline = sorted([*events, *told], key=lambda event: event.time) if told else events


def recompile_seconds(report: Any) -> list[float]:
    """What each recompile took: the wait for the entry that it led to. Its backward pass is not in it."""
    led_to = [event.entry for event in report.timeline if event.kind == "recompile"]
    took = [report.entries[n].seconds if n is not None and n < len(report.entries) else 0.0 for n in led_to]
    took += [0.0] * (len(report.recompiles) - len(took))
    for i, n in enumerate(led_to):
        if n in led_to[:i]:  # of several that led to one entry the first has its time
            took[i] = 0.0
    return took[: len(report.recompiles)]


def causes(report: Any) -> list[s.Recompile]:
    """The recompiles that no other one explains."""
    return [recompile for recompile in report.recompiles if not recompile.suggestion.startswith(FOLLOWS)]


def subject(recompile: s.Recompile) -> str:
    """The thing that changed: `x.shape[0]`, or in words where it has no name: `shape[0] of the result of line 4`."""
    if not recompile.source or not recompile.detail:
        return recompile.source or recompile.detail or recompile.kind
    return (
        f"{recompile.detail} of {recompile.source}"
        if " " in recompile.source
        else f"{recompile.source}.{recompile.detail}"
    )


def then_and_now(recompile: s.Recompile) -> str:
    """`8 → 16`; of a condition, which says itself what was expected: `true → n = 3`."""
    return f"{'true' if recompile.expected == subject(recompile) else recompile.expected} → {recompile.got}"


def change_words(recompile: s.Recompile, what: str = "") -> str:
    """`x.shape[0] changed (8 → 16)`; of a condition `n % 2 == 0 holds no more (n = 3)`. `what`: the subject in other
    words."""
    what = what or subject(recompile)
    if recompile.expected == subject(recompile):
        return f"{what} holds no more ({recompile.got})"
    return f"{what} changed ({recompile.expected} → {recompile.got})"


def joined(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same time as intervals that do not overlap, in order."""
    out: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if out and begin <= out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((begin, end))
    return out
