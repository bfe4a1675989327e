"""Which calls waited for the compiler, and how long: of a function's entries, and of backward passes."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from .. import schema as s

__all__ = ["FOLLOWS", "causes", "change_words", "joined", "recompile_seconds", "subject", "tell_waits", "then_and_now"]

FOLLOWS = "no change is needed: it follows from"  # how the remedy begins of what another recompile explains


def tell_waits(r: Any, waits: Sequence[tuple[float, float]]) -> None:
    """Put a "compile" event for each wait (begin and end, in seconds since the report began) into the timeline, in the
    lane of the entry that it ended with, and its length into that entry. A wait without one is that of a backward pass
    of the entry before, where that has one: else the compiler looked at what follows, and left it alone.
    """
    with_backward = {p.graph for p in r.partitions if p.backward}
    events = [e for e in r.timeline if e.kind != "compile"]
    made = [e for e in events if e.kind == "entry"]
    told: list[s.TimelineEvent] = []
    for begin, end in waits:
        inside = [e for e in made if begin <= e.time <= end]
        at = begin
        for e in inside:
            told.append(s.TimelineEvent(at, "compile", e.frame, e.entry, "compiling", e.time - at))
            if e.entry is not None:
                r.entries[e.entry].seconds = e.time - at
            at = e.time
        before = [e for e in made if e.time <= begin]
        if not inside and before:
            last = before[-1]
            graph = r.entries[last.entry].graph if last.entry is not None else None
            text = f"looking at what follows entry {last.entry}"
            if graph is not None and graph in with_backward:
                text = f"compiling what follows entry {last.entry}, a backward pass"
            told.append(s.TimelineEvent(begin, "compile", last.frame, last.entry, text, end - begin))
    r.timeline = sorted([*events, *told], key=lambda e: e.time) if told else events


def recompile_seconds(r: Any) -> list[float]:
    """What each recompile took: the wait for the entry that it led to. Its backward pass is not in it."""
    led_to = [e.entry for e in r.timeline if e.kind == "recompile"]
    took = [r.entries[n].seconds if n is not None and n < len(r.entries) else 0.0 for n in led_to]
    took += [0.0] * (len(r.recompiles) - len(took))
    for i, n in enumerate(led_to):
        if n in led_to[:i]:  # of several that led to one entry the first has its time
            took[i] = 0.0
    return took[: len(r.recompiles)]


def causes(r: Any) -> list[s.Recompile]:
    """The recompiles that no other one explains."""
    return [c for c in r.recompiles if not c.suggestion.startswith(FOLLOWS)]


def subject(r: s.Recompile) -> str:
    """The thing that changed: `x.shape[0]`, or in words where it has no name: `shape[0] of the result of line 4`."""
    if not r.source or not r.detail:
        return r.source or r.detail or r.kind
    return f"{r.detail} of {r.source}" if " " in r.source else f"{r.source}.{r.detail}"


def then_and_now(r: s.Recompile) -> str:
    """`8 → 16`; of a condition, which says itself what was expected: `true → n = 3`."""
    return f"{'true' if r.expected == subject(r) else r.expected} → {r.got}"


def change_words(r: s.Recompile, what: str = "") -> str:
    """`x.shape[0] changed (8 → 16)`; of a condition `n % 2 == 0 holds no more (n = 3)`. `what`: the subject in other
    words."""
    what = what or subject(r)
    if r.expected == subject(r):
        return f"{what} holds no more ({r.got})"
    return f"{what} changed ({r.expected} → {r.got})"


def joined(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same time as intervals that do not overlap, in order."""
    out: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if out and begin <= out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((begin, end))
    return out
