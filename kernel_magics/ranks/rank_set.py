"""The ranks of a session, as the notebook's process sees them: a cell runs on all, or ends on all.

A cell ends in three steps, each for ranks that the step before left running. The cell's own code is interrupted. Then
the process group is broken off, so that nobody waits in a collective. Then the processes are ended, and with them their
variables; the next cell starts new ones.
"""

from __future__ import annotations

import atexit
import queue
import time
from dataclasses import dataclass, field
from typing import Any, Callable

from .labelled import Labelled
from .launcher import Launcher
from .plan import RanksPlan

__all__ = ["CellRun", "RankSet"]

_TO_INTERRUPT = 0.6  # seconds after which the process group is broken off
_TO_BREAK_OFF = 0.9  # seconds more after which the processes are ended
_TO_TELL = 10.0  # seconds that an interrupted rank gets for its report
_LIMIT = 4_000_000  # bytes of a rank's report
Say = Callable[[str], None]  # shows a line of progress


@dataclass
class CellRun:
    """What came of a cell on each rank."""

    cell: int
    done: dict[int, dict[str, Any]] = field(default_factory=dict)  # each rank's last message of the cell
    gone: dict[int, str] = field(default_factory=dict)  # ranks that ended, and how
    interrupted: bool = False  # by the notebook
    ended: bool = False  # the processes had to be
    parted: bool = False  # the process group was broken off, or ranks disagree on it
    first: int | None = None  # the rank that failed first
    agree: bool = True  # on how many collectives they called
    caught: set[int] = field(default_factory=set)  # ranks whose cell has had the interrupt


class RankSet:
    """N ranks, their cells counted. `start` them before the first cell."""

    def __init__(self, plan: RanksPlan):
        self.plan = plan
        self.launcher = Launcher(plan)
        self._group = 0  # the number of the process group that the next cell uses
        self._cells = 0  # that were run: a frontend may run several under one number
        atexit.register(self.stop)

    def start(self, say: Say) -> None:
        self.launcher.start(say)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        self.launcher.stop()

    @property
    def alive(self) -> bool:
        """Whether all ranks are there: one that ended meanwhile takes the others with it."""
        waiting, gone = [], False
        while not self.launcher.inbox.empty():
            waiting.append(self.launcher.inbox.get())
            gone |= waiting[-1][1]["kind"] == "gone"
        for message in waiting:
            self.launcher.inbox.put(message)
        return bool(self.launcher.channels) and not gone

    def run(self, text: str, number: int, settings: dict[str, Any], out: Labelled, say: Say) -> CellRun:
        """Run a cell on all ranks; output goes to `out`, progress to `say`."""
        self._cells += 1
        run = CellRun(self._cells)
        for channel in self.launcher.channels.values():
            channel.send("run", cell=run.cell, count=number, text=text, group=self._group, limit=_LIMIT, **settings)
        try:
            self._until(run, out, say, lambda: run.first is not None)
        except KeyboardInterrupt:
            run.interrupted = True
        if len(run.done) < self.plan.count:
            try:
                self._end(run, out, say)
            except KeyboardInterrupt:  # asked for twice
                run.interrupted = True
                self._give_up(run)
        out.flush()
        failed = {rank: m["error"]["time"] for rank, m in run.done.items() if m["error"] is not None}
        if failed and not run.interrupted and (run.first is None or run.first in failed):
            run.first = min(failed, key=failed.__getitem__)
        sequences = [m["sequence"] for m in run.done.values()]
        known = None not in sequences
        run.agree = not known or _agree(sequences)
        run.parted |= (bool(failed) or run.interrupted) and not (known and run.agree)
        self._group += run.parted
        return run

    def _until(
        self,
        run: CellRun,
        out: Labelled,
        say: Say,
        enough: Callable[[], bool],
        seconds: float | None = None,
    ) -> None:
        """Hear the ranks until all are done, or it is enough."""
        end = None if seconds is None else time.monotonic() + seconds
        while len(run.done) + len(run.gone) < self.plan.count and not enough():
            wait = 0.1 if end is None else min(0.1, end - time.monotonic())
            if wait <= 0:
                return
            try:
                rank, message = self.launcher.inbox.get(timeout=wait)
            except queue.Empty:
                out.flush_old()
                continue
            self._hear(run, rank, message, out, say)

    def _hear(self, run: CellRun, rank: int, message: dict, out: Labelled, say: Say) -> None:
        kind = message["kind"]
        if kind == "output":
            out.text(rank, message["stream"], message["text"])
        elif kind == "display":
            out.display(rank, message["data"], message["metadata"], message["value"])
        elif kind == "progress" and rank == 0:
            say(f"rank 0: {message['text']}")
        elif kind == "caught" and message["cell"] == run.cell:
            run.caught.add(rank)
        elif kind == "done":
            run.done[rank] = message
            if message["error"] is not None and run.first is None:
                run.first = rank
        elif kind == "gone":
            run.gone[rank] = self.launcher.exit_code(rank)
            if run.first is None:
                run.first = rank

    def _end(self, run: CellRun, out: Labelled, say: Say) -> None:
        """End the cell on the ranks that still run it."""
        say("ending the cell on all ranks")
        if not run.gone:
            for rank, channel in self.launcher.channels.items():
                if rank not in run.done:
                    channel.send("interrupt", cell=run.cell)
            self._until(run, out, say, lambda: bool(run.gone), _TO_INTERRUPT)
        if not run.gone and len(run.done) < self.plan.count:
            run.parted = True
            for channel in self.launcher.channels.values():
                channel.send("break_off")
            self._until(run, out, say, lambda: bool(run.gone), _TO_BREAK_OFF)
            if {*range(self.plan.count)} - {*run.done} <= run.caught:
                self._until(run, out, say, lambda: bool(run.gone), _TO_TELL)
        if len(run.done) < self.plan.count:
            self._give_up(run)

    def _give_up(self, run: CellRun) -> None:
        run.ended = True
        for rank in range(self.plan.count):
            if rank not in run.done:
                run.gone.setdefault(rank, "")
        self.launcher.stop()


def _agree(sequences: list[dict[str, int]]) -> bool:
    """Whether ranks have called equally many collectives of each group that they share."""
    return all(len({s[group] for s in sequences if group in s}) == 1 for group in set().union(*sequences))
