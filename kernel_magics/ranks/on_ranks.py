"""Cells of a session that run on ranks: started at the first, kept for the next, one report for all."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from ...compiler.errors import TCompileError
from ...compiler.base.figures import plural
from ..display import Place
from .plan import RanksPlan

if TYPE_CHECKING:
    from ..options import CellOptions
    from .rank_set import CellRun, RankSet

__all__ = ["OnRanks", "RankError"]


class RankError(TCompileError, RuntimeError):
    """A cell failed on a rank. `rank` says on which; the traceback is that rank's."""

    def __init__(self, rank: int, words: str, lines: list[str]):
        super().__init__(words)
        self.rank, self._lines = rank, lines

    def _render_traceback_(self) -> list[str]:
        return [*self._lines, str(self)]


class _Interrupted(KeyboardInterrupt):
    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


class OnRanks:
    """The ranks of one session."""

    def __init__(self, session: Any):
        self._session = session
        self.set: RankSet | None = None

    def stop(self) -> bool:
        """End the ranks, and their variables. Whether there were some."""
        here, self.set = self.set, None
        if here is not None:
            here.stop()
        return here is not None

    def stop_words(self) -> list[str]:
        return ["the ranks have ended, and their variables with them" if self.stop() else "no ranks are running"]

    def status_words(self) -> list[str]:
        if self.set is None:
            return ["no ranks are running: `%%tcompile ranks=N` starts them"]
        rows = sorted(self.set.launcher.facts.items())
        return [f"rank {rank}: {f['device']} of {f['host']}, process {f['pid']}, {f['backend']}" for rank, f in rows]

    def run(self, spec: CellOptions, first: str | None, body: str) -> None:
        """Run a cell on the ranks and show their report. Raises RankError where it failed on one."""
        __tracebackhide__ = True
        from .labelled import Labelled

        session, plan = self._session, spec.ranks
        assert plan is not None
        place = Place(session.shell, spec.quiet)
        ranks = self._ready(plan, place)
        always = session.always.given.items() if session.always is not None else None
        line = None if always is None else " ".join(f"{k}={v}" for k, v in always)
        text = body if first is None else f"{first}\n{body}"
        number = session.shell.execution_count
        running = session.shell.displayhook.exec_result
        number = getattr(running, "execution_count", None) or number
        place.say(f"running on {plural(plan.count, 'rank')}")
        settings = {"always": line, "colors": session.shell.colors}
        code = f"%%tcompile @on\n{body}" if first is None else text
        run = ranks.run(code, number, settings, Labelled(plan.count), place.say)
        session.cells += 1
        if run.ended:
            self.stop()
        self._report(run, ranks, spec, text, number, first is None, place)
        self._raise(run)

    def _ready(self, plan: RanksPlan, place: Place) -> RankSet:
        """The ranks that are there, or new ones."""
        from .rank_set import RankSet

        if self.set is not None and not self.set.alive:
            print("tcompile: the ranks have ended meanwhile, and their variables with them", file=sys.stderr)
            self.stop()
        if self.set is not None and self.set.plan != plan:
            here = self.set.plan
            raise UsageError(
                f"tcompile: ranks= asks for {plural(plan.count, 'rank')} on {plan.device}, and"
                f" {plural(here.count, 'rank')} on {here.device} are running, with their variables."
                " `%tcompile ranks stop` ends them"
            )
        if self.set is None:
            made = RankSet(plan)
            try:
                made.start(place.say)
            except BaseException:
                place.drop()
                raise
            self.set = made
        return self.set

    def _report(
        self, run: CellRun, ranks: RankSet, spec: CellOptions, text: str, number: int, implicit: bool, place: Place
    ) -> None:
        from ...compiler.report import CompileReport
        from ...compiler.report.ranks.ranks_schema import RankRow
        from ...compiler.report.schema import CellSource
        from ...compiler.report.ranks.side_by_side import differ_words, side_by_side, wait_words

        reports = {
            rank: CompileReport.from_json(m["report"])
            for rank, m in sorted(run.done.items())
            if m["report"] is not None
        }
        rows = []
        for rank in range(ranks.plan.count):
            facts = ranks.launcher.facts[rank]
            row = RankRow(rank, facts["device"], facts["host"])
            if rank in run.gone:
                row.status, row.error = "ended", run.gone[rank]
            elif (error := run.done[rank]["error"]) is not None:
                interrupted = error["name"] == "KeyboardInterrupt"
                row.status = "interrupted" if interrupted else "raised"
                row.error = "" if interrupted else f"{error['name']}: {error['text']}"
            rows.append(row)
        facts = {rank: m["facts"] for rank, m in run.done.items() if m["facts"] is not None}
        compiled = [r for r in reports.values() if r.summary.status != "nothing"] or list(reports.values())
        if not compiled:
            place.drop()
            return
        report = replace(compiled[0], source=CellSource(text, f"In[{number}]", 1, number), options=spec.words())
        report.ranks = side_by_side(rows, facts, reports)
        if not run.agree:
            report.ranks.remarks.append(_counts(run))
        note = "   ".join(filter(None, [differ_words(report.ranks), wait_words(report.ranks)]))
        report.summary = replace(report.summary, line=_line(report, ranks.plan.count, note))
        if spec.out:
            self._session.shell.user_ns[spec.out] = report
        self._session.keep(report, text)
        place.show(report)

    def _raise(self, run: CellRun) -> None:
        """Say what ended the cell, where something did."""
        __tracebackhide__ = True
        lost = run.ended or bool(run.gone)
        after = (
            "The ranks were ended, and their variables with them: the next cell starts new ones."
            if lost
            else "The process group was made anew: wrap models (DDP, FSDP) and make device meshes again."
            if run.parted
            else "The ranks keep their variables."
        )
        if run.interrupted:
            raise _Interrupted(f"the cell was ended on all ranks. {after}")
        if run.first is None:
            return
        if run.first in run.gone:
            how = run.gone[run.first] or "no code is known"
            raise RankError(run.first, f"rank {run.first} ended ({how}), and so did the cell on all ranks. {after}", [])
        error = run.done[run.first]["error"]
        head = f"rank {run.first} raised {error['name']}, and the cell was ended on all ranks. {after}"
        others = [
            f"rank {rank}: {m['error']['name']}: {m['error']['text'].splitlines()[0] if m['error']['text'] else ''}"
            for rank, m in sorted(run.done.items())
            if rank != run.first and m["error"] is not None and m["error"]["name"] != "KeyboardInterrupt"
        ]
        raise RankError(run.first, head, [f"rank {run.first}:", *error["lines"], *others])


def _counts(run: CellRun) -> str:
    counts = [f"rank {rank} {sum(m['sequence'].values())}" for rank, m in sorted(run.done.items())]
    return "ranks called different numbers of collectives so far: " + ", ".join(counts)


def _line(report: Any, count: int, note: str) -> str:
    return "   ".join(filter(None, [report.summary.line, plural(count, "rank"), note]))
