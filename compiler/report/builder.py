"""ReportBuilder: a listener that turns the event stream into a CompileReport.

    with record(title="forward") as builder:      # listens in this context
        ...                                       # whatever compiles
    report = builder.report()

The builder only keeps references while it listens; `report()` turns them into plain data. It never raises out of a
listener: a fact that it cannot read becomes a line in `report.errors`, because a report must not break what it reports
on.
"""

from __future__ import annotations

import datetime
import os
import re
import time
import uuid
import functools
import weakref
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import CodeType
from typing import Any, Callable, Iterator

from .. import events
from ..guards.explain import TO_TENSOR
from ..guards.guard_cost import GuardCost, measure_cost
from ..base.source_text import source_line
from . import schema as s
from .bytecode_text import bytecode_text
from .cell_source import code_at, line_on_stack
from .conclusions.waits import FOLLOWS, joined, tell_waits, then_and_now
from .conclusions.wall import wall_of
from .facts.backward_runs import BackwardRuns
from .facts.guard_table import GuardTable
from .facts.relabel import cells_named, relabelled, row_with
from .facts.own_words import NO_NAME, is_setup, part_of_no_name, name_sizes, users_words
from .facts.stated_rows import ir_text, known_int, memory_row, plain_choices, symbol_rows, trial
from .finish import RERAN, subject
from ..base.labels import cell_number, frame_line, frame_words, label, users_name
from .report import CompileReport
from .memory_timeline import eager_memory
from .payload import renumber
from .profiles import moved_profile
from .plan_facts import kernels_of_nodes, partition_facts, plan_facts
from ..reproduce.seen_calls import seen_call
from ..reproduce.specs import autocast_now, spec_of
from .words import failure_subject, failure_words

__all__ = ["ReportBuilder", "record"]

_HIDDEN = "__tcompile_value__"  # where a cell leaves the value of its last expression, for a moment: not an effect
_INSTALLED = frozenset(("site-packages", "dist-packages"))  # folders of packages whose code is nobody's own
_VARIES = "compile with dynamic=True"
_NO_CHANGE = "no change is needed"  # how such a remedy begins


def _of_no_name(guard: Any, detail: str, got: Any) -> str:
    """What to change where the value that differs has no name: what ran before it gave it."""
    if detail.startswith("shape") or type(got) is int is type(guard.expected):
        return _VARIES
    if guard.kind == "TENSOR":
        return f"give it one {detail} at every call"
    return "keep it a tensor (leave out `.item()` and the like): each value of a Python number has its own entry"


@contextmanager
def record(
    title: str = "", options: dict[str, Any] | None = None, source: s.CellSource | None = None
) -> Iterator["ReportBuilder"]:
    """Build a report of what compiles in a with-block, in this thread and context: `with record() as r: ...`, then
    `r.report()`. `title`, `options` and `source` are shown in it as they are given."""
    for name, value, wanted, words in (
        ("title", title, str, "a string"),
        ("options", options, (dict, type(None)), "a dict"),
        ("source", source, (s.CellSource, type(None)), "a CellSource"),
    ):
        if not isinstance(value, wanted):
            raise TypeError(f"record: {name} is {words}, got {type(value).__name__}")
    builder = ReportBuilder(title, options, source)
    try:
        with events.listen(builder):
            yield builder
    finally:
        builder.ended = time.perf_counter()


@dataclass
class _Adopted:
    """An earlier report whose entries served this run: its graphs' and kernels' numbers in this one."""

    report: CompileReport
    names: tuple[str, str]  # of its cell there and here
    graphs: dict[int, int] = field(default_factory=dict)
    kernels: dict[int, int] = field(default_factory=dict)


class ReportBuilder:
    """Listens to events (`events.listen(builder)`); `report()` gives the CompileReport of what it heard.

    `calls` collects the `EntryCall`s that the engine stated (see `entry_calls.py`), for timing; `live` keeps the
    captured graphs.
    """

    def __init__(self, title: str = "", options: dict[str, Any] | None = None, source: s.CellSource | None = None):
        self.t0 = time.perf_counter()
        self.ended = 0.0  # when the with-block of `record` was left
        self.r = CompileReport(
            title=title,
            options=dict(options or {}),
            source=source or s.CellSource(),
            id=uuid.uuid4().hex[:8],
            created=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        self.calls: list[Any] = []
        self.renamed: list[tuple[Any, Any]] = []  # an entry and the one that took its place, for classes made anew
        self.origin: CompileReport | None = None  # the report of the run that made the entries which served this one
        self.served = 0  # calls served by entries of an earlier run
        self.hits_before: dict[int, int] = {}  # by id of an entry: calls that it had served when this run began
        self._adopted: dict[int, _Adopted] = {}  # by id of an earlier report: what became of its graphs and kernels
        self.progress: tuple[str, int, int] = ("", 0, 0)
        self._stack: list[list] = []  # [stage name, seconds of the stages inside]
        self._stages: dict[tuple[str, str, str], s.Stage] = {}
        self._declined: dict[tuple[str, str], int] = {}  # stage, function in its place -> how often it declined
        self._frame_of: dict[tuple[str, str, int], int] = {}
        self._files: dict[int, str] = {}  # frame -> its file as Python names it
        self._open: list[int] = []  # frames in capture, innermost last
        self._results: dict[int, Any] = {}  # frame -> its latest CaptureResult
        self._guards = GuardTable()
        self._seen_breaks: dict[tuple, int] = {}
        self._captured: list[Any] = []  # per graph: CapturedGraph
        self._partitions: dict[int, tuple[Any, int]] = {}  # by id: the partition, and its place in the report
        self._lowered: list[Any] = []  # per graph: AtenGraph
        self._computed_by: dict[int, dict[str, int]] = {}  # by graph: node -> kernel that computes it
        self._pending_breaks: list[int] = []
        self._entries: list[Any] = []  # per entry: the compiled Entry, for its count of hits
        self._ran_eager: set[int] = set()  # graphs that fell back to torch's kernels
        self._backward = BackwardRuns(self.r.source.file)
        self._released = False
        self.schedules: list[tuple[Any, int]] = []  # (weak reference to a schedule, its graph)
        self.known_entries: list[tuple[Any, int]] = []  # (weak reference to a capture result, its entry)
        self._began = 0.0
        self._waits: list[tuple[float, float]] = []  # when the program waited for the compiler: begin, end

    # -- listening ---------------------------------------------------------------------------------------------------
    def __call__(self, event: events.Event) -> None:
        handler = getattr(self, "_on_" + event.kind, None)
        if handler is None:
            return
        try:
            handler(event)
        except Exception as error:
            self.r.errors.append(f"report: the event {event.kind!r} could not be read: {type(error).__name__}: {error}")

    def _now(self) -> float:
        return time.perf_counter() - self.t0

    def _tell(self, kind: str, frame: int | None, entry: int | None, text: str, seconds: float = 0.0) -> None:
        self.r.timeline.append(s.TimelineEvent(self._now(), kind, frame, entry, text, seconds))

    def _frame(self, name: Any, file: str = "", line: int = 0) -> int:
        name = str(getattr(name, "co_qualname", None) or getattr(name, "co_name", None) or name or "?")
        if not file:  # an event that names the frame alone means the latest one
            for i in reversed(range(len(self.r.frames))):
                if name in (self.r.frames[i].name, self.r.frames[i].code_name):
                    return i
        key = (name, file, line)
        if key not in self._frame_of and (name, "", 0) in self._frame_of:
            # an event named it before its place was known
            i = self._frame_of[key] = self._frame_of.pop((name, "", 0))
            self.r.frames[i].file, self.r.frames[i].line = label(file), line
            self._files[i] = file
        if key not in self._frame_of:
            self._frame_of[key] = len(self.r.frames)
            self._files[len(self.r.frames)] = file
            self.r.frames.append(s.Frame(name, label(file), line))
        return self._frame_of[key]

    @property
    def _current(self) -> int | None:
        return self._open[-1] if self._open else None

    def _on_stage(self, event: events.Event) -> None:
        if event.phase == "begin":
            self._stack.append([event.name, 0.0])
            return
        while self._stack and self._stack[-1][0] != event.name:  # an end without its begin: the builder came late
            self._stack.pop()
        inner = self._stack.pop()[1] if self._stack else 0.0
        parent = self._stack[-1][0] if self._stack else ""
        if self._stack:
            self._stack[-1][1] += event.seconds
        by = event.facts.get("by", "")
        st = self._stages.setdefault((event.name, parent, by), s.Stage(event.name, 0.0, 0.0, 0, parent, by))
        st.seconds += event.seconds
        st.self_seconds += max(0.0, event.seconds - inner)
        st.count += 1
        st.declined += self._declined.pop((event.name, by), 0)
        if not self._stack:
            self._waits.append((event.time - event.seconds, event.time))

    def _on_declined(self, event: events.Event) -> None:
        self._declined[event.name, event.by] = self._declined.get((event.name, event.by), 0) + 1

    def _on_capture_begin(self, event: events.Event) -> None:
        place = event.facts.get("file") or "", event.facts.get("line") or 0
        name = users_name(event.facts.get("func"), event.frame)
        i = self._frame(name, *place)
        if self._current == i:  # said by the engine and again by the capture stage
            return
        frame = self.r.frames[i]
        if name != event.frame:  # what is said of the code from here on is said of this function
            frame.code_name = event.frame
            self._frame_of[event.frame, *place] = i
        frame.captures += 1
        code = event.facts.get("code")
        if isinstance(code, CodeType) and not frame.bytecode and frame.file == (self.r.source.file or frame.file):
            frame.bytecode = bytecode_text(code)
        self._open.append(i)
        self._began = self._now()

    def _on_capture_end(self, event: events.Event) -> None:
        result = event.facts.get("result")
        i = self._current
        if result is None or i is None or self._results.get(i) is result:
            return
        self._results[i] = result
        self._tell("capture", i, None, self.r.frames[i].name, self._now() - self._began)
        for brk in getattr(result, "breaks", None) or ():
            self._add_break(brk, i)

    def _close(self, frame: int | None) -> None:
        """A frame's compilation is over: so is that of every frame opened after it."""
        if frame in self._open:
            del self._open[self._open.index(frame) :]

    def _on_graph(self, event: events.Event) -> None:
        graph = event.graph
        frame = self._frame(event.facts["frame"]) if event.facts.get("frame") else self._current
        self._captured.append(graph)
        self._lowered.append(None)
        self.r.graphs.append(
            s.Graph(
                f"graph_{len(self.r.graphs)}",
                frame,
                graph_module=getattr(graph, "graph_module", None),
                inputs=[given.name for given in getattr(graph, "inputs", [])],
                autocast=autocast_now(),
                specs=[
                    spec_of(given.name, value)
                    for given, value in zip(getattr(graph, "inputs", []), getattr(graph, "example_inputs", []))
                ],
                ran="partial" if event.facts.get("partial") else "compiled",
            )
        )

    def _on_pass(self, event: events.Event) -> None:
        if self.r.graphs:
            facts = {
                fact: event.facts[fact]
                for fact in ("name", "point", "seconds", "before", "after", "removed", "added", "more")
            }
            self.r.graphs[-1].passes.append(s.GraphPass(**facts))
            self.r.graphs[-1].unused = max(self.r.graphs[-1].unused, float(event.facts.get("unused") or 0.0))

    def _on_partition(self, event: events.Event) -> None:
        graph = len(self.r.graphs) - 1 if self.r.graphs and self._lowered[-1] is None else len(self.r.graphs)
        self._partitions[id(event.partition)] = (
            event.partition,
            len(self.r.partitions),
        )  # kept, so that its id stays its own
        self.r.partitions.append(partition_facts(event.partition, graph))

    def _on_aten(self, event: events.Event) -> None:
        name = str(event.facts.get("name") or "")
        _, part = self._partitions.get(id(event.facts.get("backward_of")), (None, None))
        forward = None if part is None else self.r.partitions[part].graph
        of = self.r.graphs[-1] if self.r.graphs else None
        if part is not None:
            if forward is not None and forward < len(self.r.graphs):
                of = self.r.graphs[forward]
                name = f"{of.name}_backward"
            self.r.partitions[part].backward.append(len(self.r.graphs))
        # a backward graph, also where a later graph fell back before it was lowered; or one that somebody else captured
        if part is not None or of is None or self._lowered[-1] is not None:
            frame, entry = (self._current, None) if of is None else (of.frame, of.entry)
            self.r.graphs.append(s.Graph(name or f"graph_{len(self.r.graphs)}", frame, entry))
            self._captured.append(None)
            self._lowered.append(None)
        self._lowered[-1] = event.graph_module
        self.r.graphs[-1].aten = event.graph_module

    def _on_backward(self, event: events.Event) -> None:
        self._backward.heard(event.graph)

    def _on_break(self, event: events.Event) -> None:
        self._add_break(event.brk, self._current)

    def _add_break(self, brk: Any, frame: int | None) -> None:
        key = (brk.kind, brk.file, brk.line, brk.col)
        at = self._seen_breaks.get(key)
        if at is None:
            at = self._seen_breaks[key] = len(self.r.graph_breaks)
            # columns count in the line as it stands in the file, with its indentation
            code = source_line(brk.file, brk.line).rstrip("\n") or brk.code
            chain = [s.FrameRef(str(caller[0]), label(str(caller[1])), int(caller[2])) for caller in brk.call_chain]
            remedy = brk.remedy
            if is_setup(brk):
                what = "is around it" if brk.kind == "print" else "uses it"
                remedy = f"{_NO_CHANGE}: it runs once, and what {what} is compiled"
            self.r.graph_breaks.append(
                s.Break(
                    brk.kind,
                    self._users_words(frame, brk.reason),
                    label(brk.file),
                    brk.line,
                    brk.col,
                    brk.end_line,
                    brk.end_col,
                    code,
                    brk.function,
                    remedy,
                    frame,
                    None,
                    1,
                    chain,
                    library="site-packages" in brk.file or "dist-packages" in brk.file,
                    harmless=remedy.startswith(_NO_CHANGE),
                    fix=None if getattr(brk, "fix", None) is None else {**asdict(brk.fix), "file": label(brk.fix.file)},
                )
            )
            inside = f" in {frame_words(brk.function)}" if brk.function else ""
            self._tell("break", frame, None, f"line {brk.line}{inside}: {brk.reason}")
        if at not in self._pending_breaks:
            self._pending_breaks.append(at)

    def _on_skip(self, event: events.Event) -> None:
        code = event.facts.get("code")
        i = self._frame(
            event.frame,
            str(event.facts.get("file") or getattr(code, "co_filename", "")),
            event.facts.get("line") or getattr(code, "co_firstlineno", None) or 0,
        )
        frame = self.r.frames[i]
        reason = self._users_words(i, str(event.reason))
        if not frame.entries:
            frame.status, frame.reason = "skipped", reason
        self.r.met_tensors |= bool(event.facts.get("tensors"))
        if not event.facts.get("quiet"):
            self.r.fallbacks.append(s.Fallback(frame.name, reason, 1, i))
            self._tell("skip", i, None, f"{frame.name}: {reason}")
        self._close(i)
        self._pending_breaks.clear()

    def _on_recompile(self, event: events.Event) -> None:
        i = self._frame(event.frame)
        failures = list(event.failures)
        if not failures:
            return
        failure = failures[0]
        guard = failure.guard
        expected, got = failure_words(failure)
        source, detail = failure_subject(failure)
        file, line = guard.file or "", guard.line
        hits, suggestion = event.facts.get("hits"), failure.suggestion
        if "__stack_" in suggestion:
            suggestion = _of_no_name(guard, detail, failure.got)
        if event.facts.get("goes_on") is not None:
            suggestion = self._after_a_break(i, expected, got, suggestion)
        source = self._users_words(i, part_of_no_name(source))
        suggestion, expected, got = (self._users_words(i, words) for words in (suggestion, expected, got))
        if any((brk.file, brk.line) == (label(file), line) for brk in self.r.graph_breaks):  # what ran there gave it
            source, expected, got = (
                text.replace(NO_NAME, f"the result of line {line}") for text in (source, expected, got)
            )
        if _INSTALLED.intersection(self._files.get(i, "").split(os.sep)):  # nobody reaches its arguments
            suggestion = re.sub(r", or tcompile\.mark_dynamic\(.*\) before the call", "", suggestion)
        self.r.recompiles.append(
            s.Recompile(
                i,
                self.r.frames[i].name,
                source,
                guard.kind,
                detail,
                expected,
                got,
                label(file),
                line,
                source_line(file, line).rstrip("\n") if file and line else "",
                suggestion,
                guard.why,
                len(failures) - 1,
                self._now(),
                None
                if hits is None
                else sum(served - self.hits_before.get(entry, 0) for entry, served in hits.items()) + 1,
                line_on_stack(self.r.source.file),
            )
        )
        what = self.r.recompiles[-1]
        self._guards.count_failure(guard)
        self._tell("recompile", i, None, f"{subject(what)}: {then_and_now(what)}")

    def _after_a_break(self, frame: int, expected: str, got: str, suggestion: str) -> str:
        """What to change where a call is compiled again after a break: nothing, where the same change did it to what
        runs before the break. What it goes on with is made inside: nobody marks it before the call."""
        cause = next(
            (
                recompile
                for recompile in reversed(self.r.recompiles)
                if recompile.frame == frame and (recompile.expected, recompile.got) == (expected, got)
            ),
            None,
        )
        if cause is not None:
            return cause.suggestion if cause.suggestion.startswith(FOLLOWS) else f"{FOLLOWS} `{subject(cause)}`"
        if suggestion.startswith(TO_TENSOR):  # the number came out of a tensor at the break
            return "no change is needed: the new entry takes any number; without the break there is none"
        return re.sub(r", or tcompile\.mark_dynamic\(.*\) before the call", "", suggestion)

    def _users_words(self, frame: int | None, text: str) -> str:
        """The text in the user's names."""
        if "__" not in text or frame is None:
            return users_words(text, "")
        f = self.r.frames[frame]
        return users_words(text, source_line(self._files.get(frame, f.file), frame_line(f.name, f.line)))

    def _on_limit(self, event: events.Event) -> None:
        i = self._frame(event.frame)
        self.r.frames[i].status = "limit"
        self.r.frames[i].reason = f"recompile limit reached ({event.limit})"
        self._tell("limit", i, None, f"{self.r.frames[i].name}: recompile limit {event.limit}")

    def _on_kernel(self, event: events.Event) -> None:
        facts = event.facts
        ir = facts.get("kernel")
        graph = len(self.r.graphs) - 1 if self.r.graphs else None
        self.r.kernels.append(
            s.Kernel(
                str(event.name),
                {"c++": "cpp"}.get(facts.get("language") or "cpp", facts.get("language") or "cpp"),
                cells_named(facts.get("source") or "", getattr(ir, "lines", None) or ()),
                ir_text(ir),
                graph,
                known_int(facts.get("bytes")),
                known_int(facts.get("flops")),
                facts.get("launches") or 1,
                facts.get("seconds"),
                facts.get("compile_seconds"),
                origins=[str(origin) for origin in facts.get("origins") or getattr(ir, "origins", None) or ()],
                lines=[[label(str(line[0])), line[1]] for line in getattr(ir, "lines", None) or ()],
                fused_because=[str(reason) for reason in getattr(ir, "fused_because", None) or ()],
                choices=plain_choices(facts.get("choices") or {}),
                names=dict(facts.get("names") or {}),
            )
        )
        if graph is not None:
            self.r.graphs[graph].kernels.append(len(self.r.kernels) - 1)

    def _on_binary(self, event: events.Event) -> None:
        for kernel in reversed(self.r.kernels):
            if kernel.name == event.name:
                kernel.registers, kernel.spills, kernel.shared, kernel.occupancy, kernel.assembly = (
                    event.registers,
                    event.spills,
                    event.shared,
                    event.occupancy,
                    event.assembly,
                )
                kernel.language = event.facts.get("language", kernel.language)
                # as a search has left it
                kernel.source, kernel.names, kernel.choices = (
                    cells_named(event.source, event.lines),
                    dict(event.names),
                    plain_choices(event.choices),
                )
                return

    def _on_schedule(self, event: events.Event) -> None:
        graph = len(self.r.graphs) - 1 if self.r.graphs else None
        self._ran_eager.discard(len(self.r.graphs) - 1)
        facts = plan_facts(event.facts["schedule"]) if event.facts.get("schedule") is not None else {}
        if facts and graph is not None:
            self.schedules.append((weakref.ref(event.facts["schedule"]), graph))
        counts: dict[tuple[str, str], s.Extern] = {}
        for x in facts.get("externs") or event.facts.get("extern") or ():
            op, reason, lines = x if isinstance(x, tuple) and len(x) == 3 else (str(x), "", [])
            extern = counts.setdefault((op, reason), s.Extern(op, 0, reason, graph))
            extern.count += 1
            extern.lines += [
                line
                for line in ([label(str(file)), line_number] for file, line_number in lines)
                if line not in extern.lines
            ]
        self.r.externs += counts.values()
        kernels = self.r.graphs[graph].kernels if graph is not None else []
        number = {self.r.kernels[k].name: k for k in kernels}
        # what is equal in several layers is one kernel, launched for each
        launches = [launch for launch in event.facts.get("launches") or () if launch[0] in number]
        for name, launched in Counter(name for name, _ in launches).items():
            self.r.kernels[number[name]].launches = launched
        if graph is not None:
            self._computed_by[graph] = kernels_of_nodes(
                [(number[name], nodes) for name, nodes in launches], self.r.kernels
            )
        if graph is not None:
            self.r.graphs[graph].unfused = [
                [str(part) for part in pair] for pair in facts.get("unfused") or event.facts.get("unfused") or ()
            ]
        memory = {**(event.facts.get("memory") or {}), **facts.get("memory", {})}
        if memory:
            self.r.memory.append(memory_row(graph, memory))

    def _on_library(self, event: events.Event) -> None:
        file, line = event.facts.get("file") or "", event.facts.get("line")
        row = s.Decision(
            str(event.frame), str(event.decision), str(event.reason), file=label(file) if file else "", line=line
        )
        self.r.decided[row.what, row.decision] = row

    def _on_fallback(self, event: events.Event) -> None:
        if self._open and self.r.graphs and self.r.graphs[-1].entry is None:  # until a schedule of it is heard
            self._ran_eager.add(len(self.r.graphs) - 1)
        what, reason, count = str(event.what), str(event.reason), int(event.facts.get("count") or 1)
        what = next((frame.name for frame in reversed(self.r.frames) if frame.code_name == what), what)
        if event.facts.get("reran"):
            self.r.reran[what] = self.r.reran.get(what, 0) + count
        for fallback in self.r.fallbacks:
            if (fallback.what, fallback.reason) == (what, reason):
                fallback.count += count
                return
        frame = next((i for i, frame in enumerate(self.r.frames) if frame.name == what), self._current)
        self.r.fallbacks.append(s.Fallback(what, reason, count, frame))

    def _on_cache(self, event: events.Event) -> None:
        key = str(event.facts.get("key") or "")[:16]
        what, hit, reason = str(event.facts.get("what") or ""), bool(event.hit), str(event.facts.get("reason") or "")
        for row in self.r.cache:
            if (row.what, row.key, row.hit) == (what, key, hit):
                row.count += 1
                return
        self.r.cache.append(s.CacheLookup(what, key, hit, reason))

    def _on_autotune(self, event: events.Event) -> None:
        trials = [trial(t) for t in event.trials]
        name = str(getattr(event.kernel, "name", event.kernel))
        self.r.autotune.append(s.AutotuneRun(name, trials))

    def _on_compile_c(self, event: events.Event) -> None:
        names = event.facts.get("units") or ()  # compiled together: each took its share
        for kernel in self.r.kernels:
            if kernel.name in names and kernel.compile_seconds is None:
                kernel.compile_seconds = float(event.seconds) / len(names)

    def _on_entry(self, event: events.Event) -> None:
        i = self._frame(event.frame)
        frame = self.r.frames[i]
        result: Any = (
            event.facts.get("result") or self._results.pop(i, None) or getattr(event.facts.get("entry"), "meta", None)
        )
        number = len(self.r.entries)
        graph = None
        if getattr(result, "graph", None) is not None:
            graph = next((g for g in reversed(range(len(self._captured))) if self._captured[g] is result.graph), None)
        entry = s.Entry(
            i,
            graph,
            len(getattr(result, "guards", ()) or ()),
            list(self._pending_breaks),
            [str(effect) for effect in getattr(result, "effects", ()) or () if _HIDDEN not in str(effect)],
            getattr(result, "source", "") or "",
            seconds=float(event.facts.get("seconds") or 0.0),
            inlined=list(getattr(result, "inlined", ()) or ()),
            goes_on=event.facts.get("goes_on"),
        )
        cost = self._cost_of(event)
        entry.guard_seconds = cost.whole * 1e-9 if cost is not None else None
        self.r.entries.append(entry)
        self._entries.append(event.facts.get("entry"))
        self._guards.add(number, result, cost)
        frame.entries.append(number)
        for brk in self._pending_breaks:
            if self.r.graph_breaks[brk].entry is None:
                self.r.graph_breaks[brk].entry, self.r.graph_breaks[brk].frame = number, i
        if frame.status != "limit":
            ended = [b for entry in frame.entries for b in self.r.entries[entry].breaks]
            frame.status = "partly" if any(not self.r.graph_breaks[b].harmless for b in ended) else "compiled"
        if graph is not None:
            self.r.graphs[graph].entry, self.r.graphs[graph].frame = number, i
        for row in self.r.timeline:  # the recompiles that led to this entry
            if row.kind == "recompile" and row.frame == i and row.entry is None:
                row.entry = number
        self._tell("entry", i, number, f"{frame.name}, entry {len(frame.entries) - 1}", entry.seconds)
        self._pending_breaks.clear()
        self._close(i)

    def _cost_of(self, event: events.Event) -> GuardCost | None:
        """What the new entry's guards cost, measured on the call that it was made for."""
        program = getattr(event.facts.get("entry"), "program", None)
        if program is None or "func" not in event.facts:
            return None
        return measure_cost(program, event.func, event.args)

    def _on_progress(self, event: events.Event) -> None:
        self.progress = (str(event.text), int(event.facts.get("done") or 0), int(event.facts.get("total") or 0))

    def _on_error(self, event: events.Event) -> None:
        error = event.facts.get("error")
        text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
        self.r.errors.append(f"{event.facts.get('where') or 'tcompile'}: {text}")
        self._tell("error", self._current, None, self.r.errors[-1])

    def _on_call(self, event: events.Event) -> None:
        call = event.call
        stated = [i for i, graph in enumerate(self._captured) if graph is not None]
        for graph in call.graphs:  # stated after its graph; a backward graph may have come between
            graph.number = stated[-1] if stated else None
        frame = self.r.frames[self._frame(call.name, call.file, call.line)]
        call.name = frame.name
        frame.seconds += call.compile_seconds or 0.0
        if frame.call is None and call.compile_seconds is not None:  # (what runs as plain Python has none)
            frame.call, frame.cell_line = seen_call(call.fn, call.args), line_on_stack(self.r.source.file)
        if call.compile_seconds:
            self._waits.append((event.time - call.compile_seconds, event.time))
        self.calls.append(call)

    def _on_renamed(self, event: events.Event) -> None:
        self.renamed.append((event.old, event.entry))

    def adopt(self, old: CompileReport, entry: int, hits: int) -> None:
        """An entry of an earlier report served `hits` calls of this run: take over what that report knows of it. Where
        the cell is run again as it was, its lines are this run's."""
        e = old.entries[entry]
        same = old.source.text == self.r.source.text
        names = (old.source.file, self.r.source.file) if same and old.source.file else ("", "")
        again_named = functools.partial(relabelled, old=names[0], new=names[1], places=old.named_places)
        f = again_named(old.frames[e.frame])
        key = (f.name, f.file, f.line)
        if key not in self._frame_of:
            # (events of this run name the file as Python does)
            known = next((i for i, row in enumerate(self.r.frames) if (row.name, row.file, row.line) == key), None)
            self._frame_of[key] = len(self.r.frames) if known is None else known
        if self._frame_of[key] == len(self.r.frames):
            # a graph that raised then need not have raised now
            again: dict[str, Any] = {"status": "compiled", "reason": ""} if f.reason == RERAN else {}
            self.r.frames.append(row_with(f, entries=[], captures=0, seconds=0.0, **again))
        frame, number = self._frame_of[key], len(self.r.entries)
        breaks = []
        known_breaks = {(brk.kind, brk.file, brk.line, brk.col): i for i, brk in enumerate(self.r.graph_breaks)}
        for brk in (again_named(old.graph_breaks[i]) for i in e.breaks):  # several entries may end at one place
            at = known_breaks.setdefault((brk.kind, brk.file, brk.line, brk.col), len(self.r.graph_breaks))
            breaks.append(at)
            if at == len(self.r.graph_breaks):
                self.r.graph_breaks.append(row_with(brk, frame=frame, entry=number))
        graph = None
        if e.graph is not None:
            adopted = self._adopted.setdefault(id(old), _Adopted(old, names))

            def take(index: int) -> int:
                return self._adopt_graph(adopted, index, again_named, frame=frame, entry=number)

            graph = take(e.graph)
            self.r.partitions += [
                row_with(again_named(partition), graph=graph, backward=[take(i) for i in partition.backward])
                for partition in old.partitions
                if partition.graph == e.graph
            ]
        self.r.entries.append(row_with(e, frame=frame, graph=graph, breaks=breaks, hits=hits, seconds=0.0))
        self._entries.append(None)
        self.r.frames[frame].entries.append(number)
        self._guards.adopt(old.guards, entry, number, names)
        self.served += hits

    def _adopt_graph(self, adopted: _Adopted, index: int, again_named: Callable[[Any], Any], **at: int) -> int:
        """Take over a graph of an earlier report with its kernels, library calls and memory; its number here."""
        old, graph, first = adopted.report, len(self.r.graphs), len(self.r.kernels)
        g = again_named(old.graphs[index])
        self.r.kernels += [row_with(again_named(old.kernels[kernel]), graph=graph) for kernel in g.kernels]
        moved = {k: first + i for i, k in enumerate(g.kernels)}
        adopted.graphs[index] = graph
        adopted.kernels |= moved
        again = {name: renumber(getattr(g, name), moved) for name in ("captured", "lowered")}
        self.r.graphs.append(row_with(g, **at, kernels=list(moved.values()), **again))
        self._captured.append(None)
        self._lowered.append(None)
        self.r.externs += [row_with(again_named(row), graph=graph) for row in old.externs if row.graph == index]
        self.r.memory += [row_with(again_named(memory), graph=graph) for memory in old.memory if memory.graph == index]
        self.r.numerics += [row_with(again_named(row), graph=graph) for row in old.numerics if row.graph == index]
        return graph

    def adopt_profiles(self) -> None:
        """Take over the profiles of calls whose graphs were adopted, as the earlier reports have them by now."""
        found = [
            moved_profile(relabelled(profile, *adopted.names), adopted.graphs, adopted.kernels, bool(adopted.names[0]))
            for adopted in self._adopted.values()
            for profile in adopted.report.profiles
        ]
        self.r.profiles = [profile for profile in found if profile is not None]

    def release(self) -> list[tuple[Any, int]]:
        """Let go of compiled entries and traced graphs: the report has its data. Gives (capture result, entry number)
        of the entries made while listening, for whoever wants to know them again."""
        known = [
            (entry.meta, number)
            for number, entry in enumerate(self._entries)
            if getattr(entry, "meta", None) is not None
        ]
        self.known_entries = [(weakref.ref(meta), number) for meta, number in known]
        self._entries = [None] * len(self._entries)
        self._captured, self._lowered = [None] * len(self._captured), [None] * len(self._lowered)
        self._partitions.clear()
        self._results.clear()
        self._guards.clear()
        self._released = True
        return known

    # -- the report --------------------------------------------------------------------------------------------------
    def report(self) -> CompileReport:
        """The report of what was heard so far. May be called again later: the same object, brought up to date."""
        from .environment import environment
        from .finish import bound_words, finish

        report = self.r
        if self._released:
            finish(report, self.served)
            return report
        report.environment = report.environment or environment()
        order = list(dict.fromkeys(name for name, *_ in self._stages))
        report.stages = sorted(self._stages.values(), key=lambda st: order.index(st.name))
        report.waited = sum(end - begin for begin, end in self.waits())
        rest = report.waited - sum(st.self_seconds for st in report.stages)
        if report.stages and rest > 0:  # guards, modules that are loaded the first time, this report
            report.stages.append(s.Stage("other", rest, rest))
        if self.ended and not report.wall.seconds:
            report.wall = wall_of(self.t0, self.ended, self.waits(), ())
        if not report.source.text:
            report.source = self._compiled_code()
        for row, entry in zip(report.entries, self._entries):
            hits = getattr(entry, "hits", None)
            row.hits = hits if isinstance(hits, int) else row.hits
            switches = getattr(entry, "switches", None)
            row.switches = switches if isinstance(switches, int) else row.switches
        report.guards = self._guards.rows(lambda entry: report.entries[entry].frame, self._users_words)
        for i in self._ran_eager:
            report.graphs[i].ran = "eager"
        self._graphs()
        self._backward.tell(report)
        tell_waits(report, [(begin - self.t0, end - self.t0) for begin, end in self.waits()])
        name_sizes(report)
        runs: dict[str, list[list[s.Trial]]] = {}
        for tuned in report.autotune:  # kernels of different graphs may share a name: in order
            runs.setdefault(tuned.kernel, []).append(tuned.trials)
        for kernel in report.kernels:
            if not kernel.trials and runs.get(kernel.name):
                kernel.trials = runs[kernel.name].pop(0)
        bound_words(report)
        finish(report, self.served)
        return report

    def _compiled_code(self) -> s.CellSource:
        """The code that was compiled, where nobody said what the report is about: that of the function for which
        compiling took longest, a cell's before a file's, and no installed package's."""
        compiled = [
            (cell_number(frame.file) is not None, frame.seconds, i)
            for i, frame in enumerate(self.r.frames)
            if frame.entries and not _INSTALLED.intersection(self._files.get(i, "").split(os.sep))
        ]
        if not compiled:
            return self.r.source
        in_a_cell, _, i = max(compiled)
        return code_at(self._files.get(i, ""), 1 if in_a_cell else self.r.frames[i].line)

    def waits(self) -> list[tuple[float, float]]:
        """When the program waited for the compiler, by `time.perf_counter`: intervals that do not overlap, in order."""
        return joined(self._waits)

    def _graphs(self) -> None:
        from .graph_nodes import describe

        for i, graph in enumerate(self.r.graphs):
            cap, low = self._captured[i], self._lowered[i]
            kernel_of = dict(
                self._computed_by.get(i)
                or {name: kernel for kernel in graph.kernels for name in self.r.kernels[kernel].origins}
            )
            try:
                describe(graph, cap, low, kernel_of, self.r.source.file, label)
                graph.symbols = graph.symbols or symbol_rows(getattr(cap, "env", None))
                for symbol in graph.symbols:
                    symbol.source = self._users_words(graph.frame, symbol.source)
                row = next((memory for memory in self.r.memory if memory.graph == i), None)
                if cap is not None and row is not None and not row.eager_live:
                    parts = (part for part, at in self._partitions.values() if self.r.partitions[at].graph == i)
                    if (found := eager_memory(cap, next(parts, None))) is not None:
                        row.eager_live, row.eager_peak_bytes = found
            except Exception as error:
                self.r.errors.append(f"report: graph {graph.name} could not be read: {type(error).__name__}: {error}")
