"""The report's table of guards: collected entry by entry, made into rows at the end."""

from __future__ import annotations

from typing import Any, Callable

from ...base.labels import label
from ...guards.guard_cost import GuardCost
from .. import schema as s
from .relabel import row_with
from ..words import expected_text, fixed_words, guard_class, guard_text

__all__ = ["GuardTable", "DROPPED"]

DROPPED = "left out by guard_filter_fn"  # why a row is "dropped"
_GROUP_FROM = 12  # that many guards of one kind and text on parameters become one row
FrameOf = Callable[[int], "int | None"]  # an entry's frame
UsersWords = Callable[["int | None", str], str]  # a text of a frame, in the user's names


class GuardTable:
    def __init__(self) -> None:
        self._guards: list[tuple[int, Any]] = []  # (entry, Guard)
        self._dropped: list[tuple[int, Any]] = []  # those that guard_filter_fn left out
        self._costs: dict[int, GuardCost] = {}  # by entry
        self._failed: dict[tuple[int, int], int] = {}  # (entry, id of guard) -> times it was the first to fail
        self._adopted: list[s.GuardRow] = []
        self._by_entry: dict[int, dict[int, list[s.GuardRow]]] = {}  # of earlier reports, by the id of their rows

    def add(self, entry: int, result: Any, cost: GuardCost | None) -> None:
        """The guards of a new entry, as its capture stated them, and what they cost a call."""
        self._guards += [(entry, g) for g in getattr(result, "guards", ()) or ()]
        self._dropped += [(entry, g) for g in getattr(result, "dropped", ()) or ()]
        if cost is not None:
            self._costs[entry] = cost

    def adopt(self, old: list[s.GuardRow], entry: int, number: int, names: tuple[str, str]) -> None:
        """Rows of an earlier report's entry, which has this number here; `names`: the cell's then and now. There are
        hundreds of rows in each run of a cell.
        """
        known = self._by_entry.get(id(old))
        if known is None:
            known = self._by_entry[id(old)] = {}
            for g in old:
                known.setdefault(g.entry, []).append(g)
        then, now = names
        for g in known.get(entry, ()):
            self._adopted.append(row_with(g, entry=number, failed=0, file=now if g.file == then else g.file))

    def count_failure(self, guard: Any) -> None:
        """It was the first to fail."""
        for entry, g in self._guards:
            if g is guard or g == guard:
                self._failed[entry, id(g)] = self._failed.get((entry, id(g)), 0) + 1
                return

    def clear(self) -> None:
        """Let go of guards, and of what they hold; rows that were adopted stay."""
        self._guards.clear()
        self._by_entry.clear()
        self._dropped.clear()

    def rows(self, frame_of: FrameOf, words: UsersWords) -> list[s.GuardRow]:
        return self._made(frame_of, words) + self._adopted

    def _made(self, frame_of: FrameOf, words: UsersWords) -> list[s.GuardRow]:
        """One row per guard; many guards of one kind below one object (a model's parameters) become one row with a
        count.
        """
        # a big model has thousands: words are made only for those that are shown
        groups: dict[tuple, list[tuple[int, Any, str, int, float | None]]] = {}
        places: dict[int, int] = {}
        shares = {i: self._shares(i) for i in {entry for entry, _ in self._guards}}
        for n, (entry, g) in enumerate(self._guards):
            place = places[entry] = places.get(entry, -1) + 1
            cls, ns = shares[entry](place, guard_class(g))
            failed = self._failed.get((entry, id(g)), 0)
            below = g.source is not None and g.source.base is not None and not failed
            key = (entry, g.source.root, g.kind, cls) if below else (n,)
            groups.setdefault(key, []).append((entry, g, cls, failed, ns))
        for entry, g in self._dropped:
            below = g.source is not None and g.source.base is not None
            key = (entry, g.source.root, g.kind, "dropped") if below else ("dropped", entry, len(groups))
            groups.setdefault(key, []).append((entry, g, "dropped", 0, None))
        out: list[s.GuardRow] = []
        for rows in groups.values():
            if len(rows) < _GROUP_FROM:
                out += [self._row(*row, frame_of(row[0]), words) for row in rows]
                continue
            row = self._row(*rows[0], frame_of(rows[0][0]), words)
            root = words(frame_of(row.entry), rows[0][1].source.root.name())
            row.text = f"{len(rows)} guards of kind {row.kind} below `{root}`, such as: {row.text}"
            row.source, row.count = f"{root}…", len(rows)
            row.ns = sum(ns for *_, ns in rows if ns is not None) if row.ns is not None else None
            out.append(row)
        out.sort(key=lambda row: (-row.failed, row.entry))
        return out

    def _row(
        self, entry: int, g: Any, cls: str, failed: int, ns: float | None, frame: int | None, words: UsersWords
    ) -> s.GuardRow:
        name = g.source.name() if g.source is not None else ""
        return s.GuardRow(
            entry,
            words(frame, name),
            g.kind,
            words(frame, guard_text(g)),
            expected_text(g),
            label(g.file),
            g.line,
            g.why if cls != "dropped" else DROPPED,
            cls,
            failed,
            ns=ns,
            fixed=fixed_words(g),
        )

    def _shares(self, entry: int) -> Callable[[int, str], tuple[str, float | None]]:
        """For a guard's place in the entry's program and its class by its source: its class as it is evaluated, and its
        measured nanoseconds a call. Watched guards share the proof that nothing they read has changed."""
        cost = self._costs.get(entry)
        if cost is None or not cost.each:
            return lambda place, cls: (cls, None)
        watched = sum(e == entry for e, _ in self._guards) - len(cost.each)
        each = cost.watched / watched if watched > 0 else 0.0
        return lambda place, cls: ("checked", cost.each[place]) if place in cost.each else ("watched", each)
