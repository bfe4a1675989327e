"""Cells that compiling makes slower run plain.

What a cell itself holds is compiled at first sight, so that its plain time is not known. A cell that is run again and
again tells it: its first run compiles, and the second is timed. The third runs plain, as the cell would without the
compiler, unless library code in it was measured before and pays. Where neither was clearly slower, one more of each is
timed. A cell that is slower is switched off: it runs without the frame hook from then on. No run is slower than plain
for that, and nothing runs twice.

Of some cells counts tell as much after the first run (policy.counted_gain): turns of a loop that break after each
second operator lose, whatever the machine does meanwhile.

    between runs     what runs is one thing or the other for a whole run, so training changes between steps alone
    deterministic    under torch's deterministic algorithms nothing is decided by time
    process groups   nothing is decided where there are several ranks: each would wait for what others left out
    other data       a plain run that takes far longer or shorter than those before: all is forgotten
"""

from __future__ import annotations

import time
import types
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import events
from ..capture.bytecode.memo import CodeMemo
from .ranks import several

__all__ = ["CellTimes"]

SETTLED = 4  # the run from which a run counts even though it compiled: the cell does so each time
MOST_CAPTURED = 2000  # instructions that capture may have interpreted in a run that counts: about 2 ms
CLEAR = 0.8  # share of the other run below which one pair of runs is enough
COUNTED, LEAST_COUNTED = 2.0, 3e-4  # a cell is off by counts from this ratio of loss to gain on, and this many seconds
SLOWER = 1.02  # a cell is slower from this ratio on: one that runs plain by mistake has lost next to nothing,
LEAST = 1e-3  # and from this many seconds on
LONGEST = 10.0  # seconds of a run: longer ones are not run plain to find out
ANOTHER = 3.0  # a plain run that differs by this factor from the quickest
PAYS = 0.5  # share of a run that library code must have saved by its own measurements: no plain run is needed (its
# plain calls are measured when they run for the first time, which is slow)


@dataclass
class _Cell:
    runs: int = 0
    compiled: list[float] = field(default_factory=list)  # seconds of runs
    plain: list[float] = field(default_factory=list)
    pays: bool = False
    off: bool = False
    words: str = ""  # why it is off, where counts have told

    def forget(self) -> None:
        self.runs, self.compiled, self.plain, self.pays, self.off, self.words = 0, [], [], False, False, ""

    def next_is_plain(self) -> bool:
        if self.off:
            return True
        if self.pays or not self.compiled or max(self.compiled) > LONGEST:
            return False
        return len(self.plain) < (1 if len(self.compiled) < 2 else 2)

    def decide(self) -> None:
        if self.off or self.pays or not self.compiled or not self.plain:
            return
        if min(self.compiled) < CLEAR * min(self.plain):
            self.pays = True
        elif min(self.plain) < CLEAR * min(self.compiled) and self.slower():
            self.off = True
        elif len(self.compiled) > 1 and len(self.plain) > 1:
            self.off = self.slower()
            self.pays = not self.off

    def slower(self) -> bool:
        return min(self.compiled) > min(self.plain) * SLOWER + LEAST


class CellTimes:
    """The times of the cells that one engine runs, by their code. `cells` is where they are kept."""

    def __init__(self, engine: Any, cells: CodeMemo[_Cell]) -> None:
        self._engine, self._cells = weakref.proxy(engine), cells

    def reset(self) -> None:
        self._cells.clear()

    def run_of(self, code: types.CodeType) -> "CellRun":
        """The next run of a cell, to be run in `with`: plain, or compiled."""
        if not self._engine.times.active() or several():
            return CellRun(self, None)
        cell = self._cells.get(code)
        if cell is None:
            cell = self._cells[code] = _Cell()
        cell.runs += 1
        return CellRun(self, cell)

    def saw_compiled(self, cell: _Cell, seconds: float, saved: float) -> None:
        work = self._engine.work
        if cell.runs >= SETTLED or work is not None and work.instructions <= MOST_CAPTURED:
            cell.compiled.append(seconds)
            cell.pays = saved > PAYS * seconds
            cell.decide()

    @staticmethod
    def saw_plain(cell: _Cell, seconds: float) -> None:
        best = min(cell.plain, default=seconds)
        if cell.off and not best / ANOTHER < seconds < best * ANOTHER:
            cell.forget()
            return
        cell.plain = [*cell.plain[-3:], seconds] if cell.off else [*cell.plain, seconds]
        cell.decide()

    def hits(self) -> list[tuple[Any, int]]:
        """All entries, with the calls that each has served."""
        return [(entry, entry.hits) for cache in self._engine.caches.values() for entry in cache.entries]

    def count(self, cell: _Cell, before: list[tuple[Any, int]]) -> None:
        """Switch a cell off that loses by its counts. Its calls since `before` were those of its first run."""
        served = [(entry.meta, n) for entry, n in self._served(before) if entry.meta is not None and n > 0]
        calls = [(n, meta.counted) for meta, n in served]
        if any(counted is None for _, counted in calls):
            return
        if not any(meta.graph is not None and meta.counted < 0 for meta, _ in served):
            return  # lines around library code: that is switched off by itself
        gain, loss = sum(n * max(x, 0.0) for n, x in calls), -sum(n * min(x, 0.0) for n, x in calls)
        if loss > COUNTED * gain and loss > LEAST_COUNTED:
            cell.off = True
            n = sum(n for n, _ in calls)
            cell.words = f"its {n} compiled calls hold too few operators to pay for their guards and breaks"

    def _served(self, before: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        was = {id(e): n for e, n in before}
        return [(e, n - was.get(id(e), 0)) for e, n in self.hits()]

    def saved(self, before: list[tuple[Any, int]]) -> float:
        """Seconds that calls of entries have saved since `before`, as far as that was measured. An entry may have taken
        another's place meanwhile, for classes that the cell defined again.
        """
        return sum(n * entry.meta.gain for entry, n in self._served(before) if entry.meta is not None)


class CellRun:
    """One run of a cell. `plain`: whether it runs without the compiler. `cell`: None where time decides nothing."""

    def __init__(self, times: CellTimes, cell: _Cell | None) -> None:
        self._times, self._cell = times, cell
        self.plain = cell is not None and cell.next_is_plain()
        self._counted = cell is not None and cell.runs == 1 and not self.plain
        self._timed = cell is not None and (self.plain or not cell.pays and cell.runs > 1)
        self._hits: list[tuple[Any, int]] = []
        self._began = 0.0

    def __enter__(self) -> "CellRun":
        if self._cell is not None and self.plain:
            _say(self._cell)
        if self._timed or self._counted:
            self._hits, self._began = self._times.hits(), _now()
        return self

    def __exit__(self, kind: type | None, *rest: Any) -> None:
        if kind is not None or self._cell is None:
            return
        if self._counted:
            self._times.count(self._cell, self._hits)
            self._hits.clear()
        if not self._timed:
            return
        seconds = _now() - self._began
        if self.plain:
            self._times.saw_plain(self._cell, seconds)
        else:
            self._times.saw_compiled(self._cell, seconds, self._times.saved(self._hits))
            self._hits.clear()


def _say(cell: _Cell) -> None:
    if cell.words:
        words = f"switched off: {cell.words}"
    elif cell.off:
        quick, plain = min(cell.compiled), min(cell.plain)
        words = f"switched off: its runs took {quick * 1e3:.3g} ms compiled, and {plain * 1e3:.3g} ms as plain Python"
    else:
        words = "this run is plain, to know whether compiling the cell gains anything; the next ones go by that"
    events.fallback("the cell", words)


def _now() -> float:
    """This thread's own time: what else the machine does is none of the cell's. Where a GPU works, the time that it is
    waited for counts, too."""
    return time.perf_counter() if torch.cuda.is_initialized() else time.thread_time()
