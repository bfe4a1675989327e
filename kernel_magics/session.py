"""A session: tcompile in one IPython shell. Runs cells, shows and keeps reports, times when the result has been
shown.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
import sys
import time
import weakref
from collections import OrderedDict, deque
from dataclasses import replace
from typing import Any, Callable, Iterator

from IPython.core.error import UsageError

from ..compiler import events
from ..compiler.errors import OptionError
from ..compiler.frontend.inventory import compiled_functions
from ..compiler.report import CompileReport
from ..compiler.report.finish import finish
from ..compiler.base.figures import plural
from ..compiler.base.labels import cell_name, label, set_cell_labels
from ..compiler.report.schema import CellSource, Finding, Speedups, Wall
from .advice import about_cell, about_error, own_magic, why_nothing
from .cell import RUNNERS, Cell, execute, execute_async, needs_await, prepare
from .display import Place
from .engine import Compiler, Engine
from .live import Live
from .preload import Preload
from .ranks.on_ranks import OnRanks
from .options import CellOptions, comment_options, parse
from .precision import autocast
from .progress import Progress
from .sampling import Sampler, Samples
from .tracebacks import OwnLines, in_one_line, text_of

__all__ = ["Session"]

_KEPT_LIVE = 4  # reports whose calls can be timed again
_KEPT = 32  # reports that the side panel and the next run of their cell can ask for
_WORTH = 2  # times the time for timing: what takes longer to compile is tried where a reader asks for it
_TRIED = ({"autocast": "bfloat16"}, {"mode": "reduce-overhead"})  # settings that are tried unasked
_IMPLICIT = "@on"  # the magic's line of a cell that `%tcompile on` runs


class Session:
    """What `%load_ext tcompile` installs: one per shell.

    `always` holds the options of `%tcompile on` (None: off), `last` the latest report. A cell that begins with a
    comment `# tcompile: ...` is compiled unless `%tcompile off` was said (`refused`).
    """

    def __init__(self, shell: Any, engine: Engine | None = None):
        self.shell = shell
        self.engine: Engine = engine or Compiler()
        self.always: CellOptions | None = None
        self.refused = False
        self.last: CompileReport | None = None
        # id of an entry's capture result -> that result (weakly), the report that told of it, the entry's number there
        self._known: dict[int, tuple[weakref.ref, CompileReport, int]] = {}
        # reports whose calls can be timed again, with their builders
        self._live: deque[tuple[CompileReport, Any]] = deque()
        # id of a capture result -> it, calls that only timed its entry
        self._timing: dict[int, tuple[weakref.ref, int]] = {}
        self._reports: OrderedDict[str, CompileReport] = OrderedDict()  # the latest ones by id
        self._runs: dict[str, CompileReport] = {}  # the latest report of each cell
        self.live = Live(self)
        self._preload = Preload()
        self.on_rank = False  # in a process that `ranks=` started: reports are sent, not shown
        self.latest_run: CompileReport | None = None  # of the last cell, whatever it says
        self.ranks = OnRanks(self)
        self.cells = 0  # cells run through tcompile
        self._numbers: dict[str, int | None] = {}  # by name of a cell: of its latest run
        self._executing = 0  # > 0 while the shell executes a cell
        self._due: list[Callable[[], None]] = []  # timings that wait until the cell's result is shown

    # -- in and out of the shell
    # -------------------------------------------------------------------------------------------
    def install(self) -> None:
        from . import render  # noqa: F401  from now on reports draw themselves

        set_cell_labels(self._cell_of)
        for name, hook in self._hooks():
            self.shell.events.register(name, hook)
        self.live.install()
        transforms = self.shell.input_transformers_cleanup
        at = next(
            (i for i, transform in enumerate(transforms) if getattr(transform, "__name__", "") == "cell_magic"),
            len(transforms),
        )
        self._transformer = _Transformer(self)
        transforms.insert(at, self._transformer)

    def remove(self) -> None:
        for name, hook in self._hooks():
            with contextlib.suppress(ValueError):  # was registered by another session of this shell
                self.shell.events.unregister(name, hook)
        if self._transformer in self.shell.input_transformers_cleanup:
            self.shell.input_transformers_cleanup.remove(self._transformer)
        self.live.remove()
        self.ranks.stop()
        set_cell_labels(None)

    def _hooks(self) -> list[tuple[str, Callable]]:
        return [("pre_execute", self._enter), ("post_execute", self._leave), ("post_run_cell", self._after_cell)]

    def _enter(self) -> None:
        self._executing += 1

    def _leave(self) -> None:
        self._executing = max(0, self._executing - 1)

    def _after_cell(self, result: Any = None) -> None:
        due, self._due = self._due, []
        try:
            for work in due:
                try:
                    work()
                except Exception as e:  # each shows its own report, whatever becomes of the others
                    print(f"tcompile: the work after the cell failed: {in_one_line(e)}", file=sys.stderr)
        finally:
            self.live.tell()
            self._preload.after_cell()

    # -- what is known
    # -----------------------------------------------------------------------------------------------------
    def report_of(self, key: Any) -> CompileReport | None:
        """One of the latest reports, by its id."""
        return self._reports.get(key) if isinstance(key, str) else None

    def known(self, metas: list[Any]) -> CompileReport | None:
        """The latest report that told of one of these entries."""
        found = [self._known[id(meta)] for meta in metas if id(meta) in self._known]
        return next((report for reference, report, _ in found if reference() is not None), None)

    def _cell_key(self, text: str) -> str:
        """A name that a cell keeps from run to run: the frontend's id of it, else its first lines of code."""
        kernel: Any = getattr(self.shell, "kernel", None)
        parent = kernel.get_parent("shell") if hasattr(kernel, "get_parent") else {}
        known = (parent.get("metadata") or {}).get("cellId") if isinstance(parent, dict) else None
        return known or "\n".join([ln for ln in text.splitlines() if ln.strip() and not ln.startswith("%%")][:2])

    def timing_calls(self, served: list[tuple[Any, int]]) -> int:
        """How many of these entries' calls were made by timing, not by the user."""
        found = [self._timing[id(meta)] for meta, _ in served if id(meta) in self._timing]
        return sum(hits for reference, hits in found if reference() is not None)

    @contextlib.contextmanager
    def _only_timing(self) -> Iterator[None]:
        """Calls that entries serve in this with-block are not the user's."""
        before = {id(meta): hits for function in compiled_functions() for meta, hits in function.served}
        try:
            yield
        finally:
            for function in compiled_functions():
                for meta, hits in function.served:
                    reference, known = self._timing.get(id(meta), (None, 0))
                    if reference is None or reference() is not meta:
                        known = 0
                    self._timing[id(meta)] = (weakref.ref(meta), known + hits - before.get(id(meta), 0))

    def _cell_of(self, file: str) -> int | None:
        name = self.shell.compile.format_code_name(file)
        number = name[1].removeprefix("In[").removesuffix("]") if name is not None else ""
        # Plain IPython names each run of a cell anew, and code that was compiled before keeps its name: one cell has
        # one number, its latest, as in Jupyter.
        return self._numbers.get(cell_name(file), int(number) if number.isdecimal() else None)

    # -- input
    # -------------------------------------------------------------------------------------------------------------
    def transform(self, lines: list[str]) -> list[str]:
        """A cell under `%tcompile on`, or with a comment that asks for it, becomes a `%%tcompile` cell; one with
        top-level await becomes an await of the coroutine that runs it, because a magic itself cannot wait. Cells inside
        a running cell stay as they are."""
        if self._executing or not lines:
            return lines
        if _is_ours(lines[0]):
            head, body = lines[0].rstrip("\n"), "".join(lines[1:])
            return [_await(head, body)] if self._awaits(body) else lines
        body = "".join(lines)
        asked = self.always is not None or not self.refused and comment_options(body) is not None
        if not asked or not _is_python(lines):
            return lines
        return [_await("", body)] if self._awaits(body) else [f"%%tcompile {_IMPLICIT}\n", *lines]

    def _awaits(self, body: str) -> bool:
        self._executing += 1  # needs_await transforms the body: not again through here
        try:
            return needs_await(self.shell, body)
        finally:
            self._executing -= 1

    # -- running
    # -----------------------------------------------------------------------------------------------------------
    def run(self, line: str, body: str) -> Any:
        """Run the body of a `%%tcompile` cell; gives the value of its last expression."""
        __tracebackhide__ = True
        first = None if line.strip() == _IMPLICIT else f"%%tcompile {line}".rstrip()
        spec = self._options(first, body)
        if spec.ranks is not None:
            return self.ranks.run(spec, first, body)
        cell = self._prepare(first, body)
        if cell is None:
            return None
        with OwnLines(self.shell, cell.name, RUNNERS), self._running(cell, spec, first is None, body):
            value = execute(self.shell, cell, self._runner(spec, body))
        return None if cell.silenced else value

    async def run_async(self, head: str, body: str) -> Any:
        """As `run`, for a cell with top-level await. `head` is the magic's line, empty under `%tcompile on`."""
        __tracebackhide__ = True
        first = head or None
        spec = self._options(first, body)
        if spec.ranks is not None:
            return self.ranks.run(spec, first, body)
        cell = self._prepare(first, body)
        if cell is None:
            return None
        with OwnLines(self.shell, cell.name, RUNNERS), self._running(cell, spec, first is None, body):
            value = await execute_async(self.shell, cell, self.engine.runner(spec.options))
        return None if cell.silenced else value

    def _runner(self, spec: CellOptions, body: str) -> Callable[[Any, dict], Any]:
        if own_magic(body):
            # `%%time` and its like run the rest of the cell themselves: there is nothing to capture in the call of them
            return eval
        return self.engine.runner(spec.options)

    def options(self, line: str, base: CellOptions | None = None) -> CellOptions:
        """Options of a line; a mistake in them is a UsageError, which IPython shows without a traceback."""
        try:
            return parse(line, self.shell.user_ns, base, self.on_rank)
        except OptionError as e:
            raise UsageError(f"tcompile: {e}") from None

    def _options(self, first: str | None, body: str) -> CellOptions:
        line = first.removeprefix("%%tcompile") if first is not None else comment_options(body) or ""
        spec = self.options(line, self.always)
        return replace(spec, quiet=True, time=None, out=None) if self.on_rank else spec

    def _prepare(self, first: str | None, body: str) -> Cell | None:
        """The cell, or None when its syntax error has been shown and is said to whoever runs the cell."""
        result = self.shell.displayhook.exec_result
        self._executing += 1
        try:
            return prepare(self.shell, body, first)
        except (SyntaxError, OverflowError, ValueError, MemoryError) as e:
            if result is None:
                raise
            self.shell.showsyntaxerror()
            result.error_before_exec = e  # Run All stops here
            return None
        finally:
            self._executing -= 1

    @contextlib.contextmanager
    def _running(self, cell: Cell, spec: CellOptions, implicit: bool, body: str) -> Iterator[None]:
        __tracebackhide__ = True
        from ..compiler.report.builder import ReportBuilder  # these import torch: not needed to load the extension
        from ..compiler.base.forks import resting

        self._numbers.pop(cell_name(cell.name), None)
        self._numbers[cell_name(cell.name)] = self._cell_of(cell.name)
        file = label(cell.name)
        builder = ReportBuilder(file, spec.words(), CellSource(cell.text, file, 1, self._cell_of(cell.name)))
        builder.r.notes, builder.r.why_nothing = about_cell(cell, body), why_nothing(cell, body)
        place = Place(self.shell, spec.quiet)
        ok = False
        before = self.engine.entries(spec.options)
        builder.hits_before = {id(e): hits for e, hits in before}
        sampler = Sampler()
        began = time.perf_counter()
        sampler.start()
        try:
            with (
                events.listen(builder),
                events.listen(Progress(place.say)),
                autocast(spec.autocast),
                self.engine.enable(spec.options),
            ):
                yield
            ok = True
        except BaseException as e:
            builder.r.raised, builder.r.raised_words = type(e).__name__, text_of(e)
            builder.r.notes += about_error(e)
            raise
        finally:
            self.cells += 1
            samples, ended = sampler.stop(), time.perf_counter()
            builder.r.wall = _wall(builder, samples, began, ended)
            # a report is many small objects that stay: looking through all others for garbage takes ten times as long
            with resting():
                with _told(builder.r, "finding the entries that served"):
                    self._take_over(builder, before)
                self._finish(builder, spec, cell, place, implicit, ok)

    def _take_over(self, builder: Any, before: list[tuple[Any, int]]) -> None:
        """Entries of earlier cells that served calls of this one belong into its report."""
        used = {id(e): (e, e.hits - hits) for e, hits in before if e.hits > hits}
        for old, e in builder.renamed:
            if (was := self._reported(old.meta)) is not None:
                self._remember(e.meta, *was)
            used[id(e)] = e, e.hits
        served: dict[tuple[int, int], tuple[CompileReport, int, int]] = {}
        for e, hits in used.values():
            found = self._reported(e.meta)
            if found is None:
                builder.served += hits
                continue
            report, number = found
            *_, before_it = served.get((id(report), number), (0,))
            served[id(report), number] = report, number, before_it + hits  # one entry may have had several names
        for report, number, hits in served.values():
            builder.adopt(report, number, hits)
            builder.origin = report
            if report.source.text == builder.r.source.text:  # what options were measured to gain holds for its entries
                builder.r.tried = {**report.tried, **builder.r.tried}
            if report.speedups and not builder.calls:
                builder.r.speedups = replace(report.speedups, status="partial", reason="timed when it was compiled")
        builder.renamed.clear()
        builder.adopt_profiles()

    def _reported(self, meta: Any) -> tuple[CompileReport, int] | None:
        """The report that tells of an entry, and its number there."""
        known = self._known.get(id(meta))
        return (known[1], known[2]) if known is not None and known[0]() is meta else None

    def _remember(self, meta: Any, report: CompileReport, number: int) -> None:
        def forget(_: Any, key: int = id(meta)) -> None:
            self._known.pop(key, None)

        self._known[id(meta)] = (weakref.ref(meta, forget), report, number)

    def _changed_itself(self, report: CompileReport) -> str:
        if not report.entries:
            return ""
        from .forecast import changed_itself  # here: it imports torch, which loading the magics does not

        return changed_itself(report, self.shell.user_ns)

    def _finish(self, builder: Any, spec: CellOptions, cell: Cell, place: Place, implicit: bool, ok: bool) -> None:
        """What follows a cell: its report is made, kept and shown, and its calls are timed."""
        key = self._cell_key(cell.text)
        before = self._runs.get(key)
        if before is not None:  # what was decided of library code then holds now: it is not decided again
            builder.r.decided = {**before.decided, **builder.r.decided}
        if untimed := _stays_untimed(builder, spec, ok):  # it may have the times of the run that compiled
            builder.r.speedups = builder.r.speedups or _not_timed(spec, ok)
        try:
            builder.r.changed_itself = self._changed_itself(builder.r)
            report = builder.report()
        except Exception as e:  # the cell's own result or error matters more
            place.clear()
            print(f"tcompile: the report could not be made: {type(e).__name__}: {e}", file=sys.stderr)
            return
        self.latest_run = report
        for meta, number in builder.release():
            self._remember(meta, report, number)
        if spec.out:
            self.shell.user_ns[spec.out] = report
        if report.summary.status == "nothing" and (implicit or not ok):
            place.drop()
            return
        self._keep(report, key, before)
        if builder.calls:
            self._keep_live(report, builder, spec, cell)
        elif spec.time is not None and ok and self._times_of_origin(builder, report, spec, place):
            return
        if ok and builder.calls and spec.options.backend == "inductor":
            self._later(lambda: self._under_stock(builder, report, spec))
        if ok and (spec.repeat or builder.calls and spec.time is not None):
            _show(place, report, timed=False)
            self._later(lambda: self._time_and_conclude(builder, report, spec, cell, place, before))
            return
        check = spec.check and ok
        if check:
            self._check(builder, report, spec, place)
        if untimed and not check:  # (it is concluded)
            _show(place, report)
            return
        report.speedups = report.speedups or _not_timed(spec, ok)
        _conclude(report, builder.served, None, place)

    def keep(self, report: CompileReport, text: str) -> None:
        """Keep the report of a cell that ran elsewhere."""
        key = self._cell_key(text)
        self._keep(report, key, self._runs.get(key))

    def _keep(self, report: CompileReport, key: str, before: CompileReport | None) -> None:
        """Among the latest reports, and as its cell's latest. `before`: the cell's report of the run before."""
        if report.summary.status != "nothing" or self.last is None:  # a run without tensors says nothing anew
            self.last = report
        if before is not None:
            with _told(report, "comparing with the last run"):
                report.previous = report.diff(before)
        self._runs[key] = report
        while len(self._runs) > _KEPT:
            del self._runs[next(iter(self._runs))]
        self._reports[report.id] = report
        while len(self._reports) > _KEPT:
            self._reports.popitem(last=False)

    def _times_of_origin(self, builder: Any, report: CompileReport, spec: CellOptions, place: Place) -> bool:
        """Where entries of an earlier run served the cell, that run's calls are at hand. Whether what it was not
        compared with is measured now, which then concludes the report."""
        if builder.origin is None or builder.origin.live is None:
            return False
        report.live = builder.origin.live
        if set(spec.compare) <= set(report.speedups.engines):
            return False
        place.show_untimed(report)
        self._later(lambda: self._time_origin(builder, report, spec, place))
        return True

    def _time_and_conclude(
        self,
        builder: Any,
        report: CompileReport,
        spec: CellOptions,
        cell: Cell,
        place: Place,
        before: CompileReport | None,
    ) -> None:
        """Time the calls of a report that is shown untimed, and show it anew."""
        try:
            self._time_into(report, builder, spec, cell, place)
            self._measure_answers(report, builder, spec, place)
            if spec.check:
                self._check(builder, report, spec, place)
        except KeyboardInterrupt:  # the cell itself is done and its result shown
            report.speedups = report.speedups or Speedups("unavailable", "interrupted", spec.time)
        finally:
            _conclude(report, builder.served, before, place)

    def _measure_answers(self, report: CompileReport, builder: Any, spec: CellOptions, place: Place) -> None:
        """Put measured gains in the place of bounds, where compiling the cell anew is as short as timing it is. A
        reader asks for the others."""
        if spec.time is None or spec.repeat or report.summary.compile_seconds > _WORTH * spec.time:
            return
        if not report.live.timed:  # each call has effects
            return
        with _told(report, "trying other options"), self._only_timing():
            finish(report, builder.served)
            for settings in [a.settings for a in report.answers if a.settings in _TRIED and a.how == "at most"]:
                place.say("timing the calls under " + " ".join(f"{k}={v}" for k, v in settings.items()))
                report.live.under(settings, spec.time / 2, place.say)

    def _under_stock(self, builder: Any, report: CompileReport, spec: CellOptions) -> None:
        """Show below the report what stock makes of the same calls. `report.stock` keeps it."""
        from .under_stock import under_stock

        place = Place(self.shell, spec.quiet)
        place.say("looking at the same calls under stock torch.compile")
        try:
            with self._only_timing():
                report.stock = under_stock(builder.calls, report)
        except (Exception, KeyboardInterrupt) as e:
            place.drop()
            report.notes.append(Finding("info", f"stock's own capture is not shown: {e or 'interrupted'}"))
            return
        self._reports[report.stock.id] = report.stock
        _show(place, report.stock)

    def _check(self, builder: Any, report: CompileReport, spec: CellOptions, place: Place) -> None:
        with _told(report, "comparing every node with eager"):
            from ..compiler.report.numerics import check_calls

            place.say("comparing every node with eager and float64")
            check_calls(builder.calls, report, spec.options)

    def _later(self, timing: Callable[[], None]) -> None:
        if self.shell.displayhook.exec_result is None:  # called by code, not by a cell: nothing is shown afterwards
            timing()
        else:
            self._due.append(timing)

    def _time_origin(self, builder: Any, report: CompileReport, spec: CellOptions, place: Place) -> None:
        place.say("timing the calls of the run that compiled")
        with contextlib.suppress(KeyboardInterrupt), _told(report, "timing"):
            builder.origin.live(spec.time, spec.compare)
        report.speedups = builder.origin.speedups
        builder.adopt_profiles()
        _conclude(report, builder.served, None, place)

    def _keep_live(self, report: CompileReport, builder: Any, spec: CellOptions, cell: Cell) -> None:
        """A report that can be timed again holds on to the arguments of its calls: only the latest few do."""
        from .rerun import Again

        def time_again(seconds: float | None = None, compare: tuple[str, ...] | None = None) -> None:
            again = replace(spec, time=seconds or spec.time or 1.0, compare=compare or spec.compare)
            self._time_into(report, builder, again, cell, Place(self.shell, quiet=True))
            finish(report, builder.served)

        report.live = Again(report, builder, self.engine, spec.options, time_again)
        self._live.append((report, builder))
        while len(self._live) > _KEPT_LIVE:
            old, its = self._live.popleft()
            old.live = None
            its.calls.clear()

    def _time_into(self, report: CompileReport, builder: Any, spec: CellOptions, cell: Cell, place: Place) -> None:
        """Time the calls and the kernels, and profile a call. What these calls set of the context stays in a copy."""
        with self._only_timing():
            contextvars.copy_context().run(self._time_in_context, report, builder, spec, cell, place)

    def _time_in_context(
        self, report: CompileReport, builder: Any, spec: CellOptions, cell: Cell, place: Place
    ) -> None:
        """What fails, the cell's own code or a measurement of it, is told in the report: the cell itself is done, and
        an error shown below its result would look like the cell's."""
        from .calls import worth_timing
        from .kernels import time_kernels
        from .profiles import profile_calls

        try:
            report.speedups = self._time(builder, spec, cell, place)
        except (Exception, SystemExit, GeneratorExit) as e:
            report.speedups = Speedups("unavailable", f"timing failed: {in_one_line(e)}", spec.time)
        if builder.origin is not None:
            timed = {call.name for call in report.speedups.calls if call.measured}
            known = [call for call in builder.origin.speedups.calls if call.measured and call.name not in timed]
            mine = [call for call in report.speedups.calls if call.name not in {one.name for one in known}]
            report.speedups.calls = mine + [replace(call, earlier=True) for call in known]
        if not spec.repeat and spec.time is not None:
            calls = worth_timing(builder.calls, builder.r)
            with _told(report, "timing the kernels"):
                time_kernels(calls, builder.r, spec.time)
            with _told(report, "profiling a call"):
                profile_calls(calls, builder, self.engine, spec.options, spec.time)

    def _time(self, builder: Any, spec: CellOptions, cell: Cell, place: Place) -> Any:
        from .calls import worth_timing
        from .timing import measure, measure_cell

        if not spec.repeat:
            calls = worth_timing(builder.calls, builder.r)
            return measure(calls, self.engine, spec.options, spec.compare, spec.time, place.say)
        if cell.is_async:
            return Speedups("unavailable", "a cell with top-level await is not run again")

        def eager() -> None:
            with autocast(spec.autocast):
                execute(self.shell, cell, eval, show=False)

        def compiled() -> None:
            with autocast(spec.autocast), self.engine.enable(spec.options):
                execute(self.shell, cell, self.engine.runner(spec.options), show=False)

        place.say(f"running the cell again, {plural(spec.repeat, 'time')} under each engine")
        return measure_cell(
            eager, compiled, spec.repeat, builder.r.title, spec.compare, builder.r.summary.compile_seconds
        )


class _Transformer:
    has_side_effects = True  # a terminal that only asks whether a cell is complete leaves it out

    def __init__(self, session: Session):
        self.session = session

    def __call__(self, lines: list[str]) -> list[str]:
        return self.session.transform(lines)


def _wall(builder: Any, samples: Samples, began: float, ended: float) -> Wall:
    """Where the cell's time went. What fails here is no reason to lose the report, and is told in it."""
    from ..compiler.report.conclusions.wall import wall_of
    from .activity import looks

    try:
        return wall_of(began, ended, builder.waits(), looks(samples))
    except Exception as e:
        builder.r.notes.append(Finding("info", f"where the cell's time went is not known: {in_one_line(e)}"))
        return Wall()


@contextlib.contextmanager
def _told(report: CompileReport, what: str) -> Iterator[None]:
    """What fails in this with-block is a finding of the report."""
    try:
        yield
    except (Exception, SystemExit, GeneratorExit) as e:  # code of the program's may run in there
        report.notes.append(Finding("info", f"{what} failed: {in_one_line(e)}"))


def _conclude(report: CompileReport, served: int, before: CompileReport | None, place: Place) -> None:
    """The report's last word, in the place of the line of progress, whatever fails on the way."""
    with _told(report, "drawing conclusions"):
        finish(report, served)
        if before is not None:
            report.previous = report.diff(before)
    _show(place, report)


def _show(place: Place, report: CompileReport, timed: bool = True) -> None:
    """Show the report, or one line that says why it cannot be shown: no progress stays in its place."""
    try:
        (place.show if timed else place.show_untimed)(report)
    except Exception as e:
        place.drop()
        print(f"tcompile: the report could not be drawn: {in_one_line(e)}", file=sys.stderr)


def _is_ours(line: str) -> bool:
    return re.match(r"%%tcompile(\s|$)", line) is not None


def _is_python(lines: list[str]) -> bool:
    """Not another cell magic, and not only line magics, shell commands, help and comments."""
    code = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not code or code[0].startswith("%%"):
        return False
    return not all(line[0] in "%!?" or line.endswith("?") for line in code)


def _await(head: str, body: str) -> str:
    return f"await get_ipython().find_cell_magic('tcompile').__self__.session.run_async({head!r}, {body!r})\n"


def _stays_untimed(builder: Any, spec: CellOptions, ok: bool) -> bool:
    """Whether no call of the cell is timed, so that the report is concluded once."""
    if not ok or spec.time is None and not spec.repeat:
        return True
    return not (spec.repeat or builder.calls or builder.origin is not None and builder.origin.live is not None)


def _not_timed(spec: CellOptions, ok: bool) -> Speedups:
    if not ok:
        return Speedups("unavailable", "the cell raised")
    if spec.time is None:
        return Speedups("off", "timing is off (time=off)")
    return Speedups(
        "unavailable",
        "no call from this cell's code into a compiled function was seen that could be run again; repeat=N times the"
        " whole cell",
    )
