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
from .conclusions.waits import FOLLOWS, tell_waits, then_and_now
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
    def __call__(self, e: events.Event) -> None:
        handler = getattr(self, "_on_" + e.kind, None)
        if handler is None:
            return
        try:
            handler(e)
        except Exception as error:
            self.r.errors.append(f"report: the event {e.kind!r} could not be read: {type(error).__name__}: {error}")

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

    def _on_stage(self, e: events.Event) -> None:
        if e.phase == "begin":
            self._stack.append([e.name, 0.0])
            return
        while self._stack and self._stack[-1][0] != e.name:  # an end without its begin: the builder came late
            self._stack.pop()
        inner = self._stack.pop()[1] if self._stack else 0.0
        parent = self._stack[-1][0] if self._stack else ""
        if self._stack:
            self._stack[-1][1] += e.seconds
        by = e.facts.get("by", "")
        st = self._stages.setdefault((e.name, parent, by), s.Stage(e.name, 0.0, 0.0, 0, parent, by))
        st.seconds += e.seconds
        st.self_seconds += max(0.0, e.seconds - inner)
        st.count += 1
        st.declined += self._declined.pop((e.name, by), 0)
        if not self._stack:
            self._waits.append((e.time - e.seconds, e.time))

    def _on_declined(self, e: events.Event) -> None:
        self._declined[e.name, e.by] = self._declined.get((e.name, e.by), 0) + 1

    def _on_capture_begin(self, e: events.Event) -> None:
        place = e.facts.get("file") or "", e.facts.get("line") or 0
        name = users_name(e.facts.get("func"), e.frame)
        i = self._frame(name, *place)
        if self._current == i:  # said by the engine and again by the capture stage
            return
        frame = self.r.frames[i]
        if name != e.frame:  # what is said of the code from here on is said of this function
            frame.code_name = e.frame
            self._frame_of[e.frame, *place] = i
        frame.captures += 1
        code = e.facts.get("code")
        if isinstance(code, CodeType) and not frame.bytecode and frame.file == (self.r.source.file or frame.file):
            frame.bytecode = bytecode_text(code)
        self._open.append(i)
        self._began = self._now()

    def _on_capture_end(self, e: events.Event) -> None:
        result = e.facts.get("result")
        i = self._current
        if result is None or i is None or self._results.get(i) is result:
            return
        self._results[i] = result
        self._tell("capture", i, None, self.r.frames[i].name, self._now() - self._began)
        for b in getattr(result, "breaks", None) or ():
            self._add_break(b, i)

    def _close(self, frame: int | None) -> None:
        """A frame's compilation is over: so is that of every frame opened after it."""
        if frame in self._open:
            del self._open[self._open.index(frame) :]

    def _on_graph(self, e: events.Event) -> None:
        g = e.graph
        frame = self._frame(e.facts["frame"]) if e.facts.get("frame") else self._current
        self._captured.append(g)
        self._lowered.append(None)
        self.r.graphs.append(
            s.Graph(
                f"graph_{len(self.r.graphs)}",
                frame,
                graph_module=getattr(g, "graph_module", None),
                inputs=[i.name for i in getattr(g, "inputs", [])],
                autocast=autocast_now(),
                specs=[spec_of(i.name, v) for i, v in zip(getattr(g, "inputs", []), getattr(g, "example_inputs", []))],
                ran="partial" if e.facts.get("partial") else "compiled",
            )
        )

    def _on_pass(self, e: events.Event) -> None:
        if self.r.graphs:
            facts = {k: e.facts[k] for k in ("name", "point", "seconds", "before", "after", "removed", "added", "more")}
            self.r.graphs[-1].passes.append(s.GraphPass(**facts))
            self.r.graphs[-1].unused = max(self.r.graphs[-1].unused, float(e.facts.get("unused") or 0.0))

    def _on_partition(self, e: events.Event) -> None:
        graph = len(self.r.graphs) - 1 if self.r.graphs and self._lowered[-1] is None else len(self.r.graphs)
        self._partitions[id(e.partition)] = (e.partition, len(self.r.partitions))  # kept, so that its id stays its own
        self.r.partitions.append(partition_facts(e.partition, graph))

    def _on_aten(self, e: events.Event) -> None:
        name = str(e.facts.get("name") or "")
        _, part = self._partitions.get(id(e.facts.get("backward_of")), (None, None))
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
        self._lowered[-1] = e.graph_module
        self.r.graphs[-1].aten = e.graph_module

    def _on_backward(self, e: events.Event) -> None:
        self._backward.heard(e.graph)

    def _on_break(self, e: events.Event) -> None:
        self._add_break(e.brk, self._current)

    def _add_break(self, b: Any, frame: int | None) -> None:
        key = (b.kind, b.file, b.line, b.col)
        at = self._seen_breaks.get(key)
        if at is None:
            at = self._seen_breaks[key] = len(self.r.graph_breaks)
            # columns count in the line as it stands in the file, with its indentation
            code = source_line(b.file, b.line).rstrip("\n") or b.code
            chain = [s.FrameRef(str(c[0]), label(str(c[1])), int(c[2])) for c in b.call_chain]
            remedy = b.remedy
            if is_setup(b):
                what = "is around it" if b.kind == "print" else "uses it"
                remedy = f"{_NO_CHANGE}: it runs once, and what {what} is compiled"
            self.r.graph_breaks.append(
                s.Break(
                    b.kind,
                    self._users_words(frame, b.reason),
                    label(b.file),
                    b.line,
                    b.col,
                    b.end_line,
                    b.end_col,
                    code,
                    b.function,
                    remedy,
                    frame,
                    None,
                    1,
                    chain,
                    library="site-packages" in b.file or "dist-packages" in b.file,
                    harmless=remedy.startswith(_NO_CHANGE),
                    fix=None if getattr(b, "fix", None) is None else {**asdict(b.fix), "file": label(b.fix.file)},
                )
            )
            inside = f" in {frame_words(b.function)}" if b.function else ""
            self._tell("break", frame, None, f"line {b.line}{inside}: {b.reason}")
        if at not in self._pending_breaks:
            self._pending_breaks.append(at)

    def _on_skip(self, e: events.Event) -> None:
        code = e.facts.get("code")
        i = self._frame(
            e.frame,
            str(e.facts.get("file") or getattr(code, "co_filename", "")),
            e.facts.get("line") or getattr(code, "co_firstlineno", None) or 0,
        )
        f = self.r.frames[i]
        reason = self._users_words(i, str(e.reason))
        if not f.entries:
            f.status, f.reason = "skipped", reason
        self.r.met_tensors |= bool(e.facts.get("tensors"))
        if not e.facts.get("quiet"):
            self.r.fallbacks.append(s.Fallback(f.name, reason, 1, i))
            self._tell("skip", i, None, f"{f.name}: {reason}")
        self._close(i)
        self._pending_breaks.clear()

    def _on_recompile(self, e: events.Event) -> None:
        i = self._frame(e.frame)
        failures = list(e.failures)
        if not failures:
            return
        f = failures[0]
        g = f.guard
        expected, got = failure_words(f)
        source, detail = failure_subject(f)
        file, line = g.file or "", g.line
        hits, suggestion = e.facts.get("hits"), f.suggestion
        if "__stack_" in suggestion:
            suggestion = _of_no_name(g, detail, f.got)
        if e.facts.get("goes_on") is not None:
            suggestion = self._after_a_break(i, expected, got, suggestion)
        source = self._users_words(i, part_of_no_name(source))
        suggestion, expected, got = (self._users_words(i, words) for words in (suggestion, expected, got))
        if any((b.file, b.line) == (label(file), line) for b in self.r.graph_breaks):  # what ran there gave it
            source, expected, got = (x.replace(NO_NAME, f"the result of line {line}") for x in (source, expected, got))
        if _INSTALLED.intersection(self._files.get(i, "").split(os.sep)):  # nobody reaches its arguments
            suggestion = re.sub(r", or tcompile\.mark_dynamic\(.*\) before the call", "", suggestion)
        self.r.recompiles.append(
            s.Recompile(
                i,
                self.r.frames[i].name,
                source,
                g.kind,
                detail,
                expected,
                got,
                label(file),
                line,
                source_line(file, line).rstrip("\n") if file and line else "",
                suggestion,
                g.why,
                len(failures) - 1,
                self._now(),
                None if hits is None else sum(n - self.hits_before.get(entry, 0) for entry, n in hits.items()) + 1,
                line_on_stack(self.r.source.file),
            )
        )
        what = self.r.recompiles[-1]
        self._guards.count_failure(g)
        self._tell("recompile", i, None, f"{subject(what)}: {then_and_now(what)}")

    def _after_a_break(self, frame: int, expected: str, got: str, suggestion: str) -> str:
        """What to change where a call is compiled again after a break: nothing, where the same change did it to what
        runs before the break. What it goes on with is made inside: nobody marks it before the call."""
        cause = next(
            (c for c in reversed(self.r.recompiles) if c.frame == frame and (c.expected, c.got) == (expected, got)),
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

    def _on_limit(self, e: events.Event) -> None:
        i = self._frame(e.frame)
        self.r.frames[i].status = "limit"
        self.r.frames[i].reason = f"recompile limit reached ({e.limit})"
        self._tell("limit", i, None, f"{self.r.frames[i].name}: recompile limit {e.limit}")

    def _on_kernel(self, e: events.Event) -> None:
        f = e.facts
        ir = f.get("kernel")
        graph = len(self.r.graphs) - 1 if self.r.graphs else None
        self.r.kernels.append(
            s.Kernel(
                str(e.name),
                {"c++": "cpp"}.get(f.get("language") or "cpp", f.get("language") or "cpp"),
                cells_named(f.get("source") or "", getattr(ir, "lines", None) or ()),
                ir_text(ir),
                graph,
                known_int(f.get("bytes")),
                known_int(f.get("flops")),
                f.get("launches") or 1,
                f.get("seconds"),
                f.get("compile_seconds"),
                origins=[str(o) for o in f.get("origins") or getattr(ir, "origins", None) or ()],
                lines=[[label(str(x[0])), x[1]] for x in getattr(ir, "lines", None) or ()],
                fused_because=[str(x) for x in getattr(ir, "fused_because", None) or ()],
                choices=plain_choices(f.get("choices") or {}),
                names=dict(f.get("names") or {}),
            )
        )
        if graph is not None:
            self.r.graphs[graph].kernels.append(len(self.r.kernels) - 1)

    def _on_binary(self, e: events.Event) -> None:
        for k in reversed(self.r.kernels):
            if k.name == e.name:
                k.registers, k.spills, k.shared, k.occupancy, k.assembly = (
                    e.registers,
                    e.spills,
                    e.shared,
                    e.occupancy,
                    e.assembly,
                )
                k.language = e.facts.get("language", k.language)
                # as a search has left it
                k.source, k.names, k.choices = (cells_named(e.source, e.lines), dict(e.names), plain_choices(e.choices))
                return

    def _on_schedule(self, e: events.Event) -> None:
        graph = len(self.r.graphs) - 1 if self.r.graphs else None
        self._ran_eager.discard(len(self.r.graphs) - 1)
        facts = plan_facts(e.facts["schedule"]) if e.facts.get("schedule") is not None else {}
        if facts and graph is not None:
            self.schedules.append((weakref.ref(e.facts["schedule"]), graph))
        counts: dict[tuple[str, str], s.Extern] = {}
        for x in facts.get("externs") or e.facts.get("extern") or ():
            op, reason, lines = x if isinstance(x, tuple) and len(x) == 3 else (str(x), "", [])
            extern = counts.setdefault((op, reason), s.Extern(op, 0, reason, graph))
            extern.count += 1
            extern.lines += [line for line in ([label(str(f)), n] for f, n in lines) if line not in extern.lines]
        self.r.externs += counts.values()
        kernels = self.r.graphs[graph].kernels if graph is not None else []
        number = {self.r.kernels[k].name: k for k in kernels}
        # what is equal in several layers is one kernel, launched for each
        launches = [x for x in e.facts.get("launches") or () if x[0] in number]
        for name, n in Counter(name for name, _ in launches).items():
            self.r.kernels[number[name]].launches = n
        if graph is not None:
            self._computed_by[graph] = kernels_of_nodes([(number[n], nodes) for n, nodes in launches], self.r.kernels)
        if graph is not None:
            self.r.graphs[graph].unfused = [
                [str(p) for p in u] for u in facts.get("unfused") or e.facts.get("unfused") or ()
            ]
        memory = {**(e.facts.get("memory") or {}), **facts.get("memory", {})}
        if memory:
            self.r.memory.append(memory_row(graph, memory))

    def _on_library(self, e: events.Event) -> None:
        file, line = e.facts.get("file") or "", e.facts.get("line")
        row = s.Decision(str(e.frame), str(e.decision), str(e.reason), file=label(file) if file else "", line=line)
        self.r.decided[row.what, row.decision] = row

    def _on_fallback(self, e: events.Event) -> None:
        if self._open and self.r.graphs and self.r.graphs[-1].entry is None:  # until a schedule of it is heard
            self._ran_eager.add(len(self.r.graphs) - 1)
        what, reason, n = str(e.what), str(e.reason), int(e.facts.get("count") or 1)
        what = next((f.name for f in reversed(self.r.frames) if f.code_name == what), what)
        if e.facts.get("reran"):
            self.r.reran[what] = self.r.reran.get(what, 0) + n
        for f in self.r.fallbacks:
            if (f.what, f.reason) == (what, reason):
                f.count += n
                return
        frame = next((i for i, f in enumerate(self.r.frames) if f.name == what), self._current)
        self.r.fallbacks.append(s.Fallback(what, reason, n, frame))

    def _on_cache(self, e: events.Event) -> None:
        key = str(e.facts.get("key") or "")[:16]
        what, hit, reason = str(e.facts.get("what") or ""), bool(e.hit), str(e.facts.get("reason") or "")
        for c in self.r.cache:
            if (c.what, c.key, c.hit) == (what, key, hit):
                c.count += 1
                return
        self.r.cache.append(s.CacheLookup(what, key, hit, reason))

    def _on_autotune(self, e: events.Event) -> None:
        trials = [trial(t) for t in e.trials]
        name = str(getattr(e.kernel, "name", e.kernel))
        self.r.autotune.append(s.AutotuneRun(name, trials))

    def _on_compile_c(self, e: events.Event) -> None:
        names = e.facts.get("units") or ()  # compiled together: each took its share
        for k in self.r.kernels:
            if k.name in names and k.compile_seconds is None:
                k.compile_seconds = float(e.seconds) / len(names)

    def _on_entry(self, e: events.Event) -> None:
        i = self._frame(e.frame)
        f = self.r.frames[i]
        result: Any = e.facts.get("result") or self._results.pop(i, None) or getattr(e.facts.get("entry"), "meta", None)
        n = len(self.r.entries)
        graph = None
        if getattr(result, "graph", None) is not None:
            graph = next((g for g in reversed(range(len(self._captured))) if self._captured[g] is result.graph), None)
        entry = s.Entry(
            i,
            graph,
            len(getattr(result, "guards", ()) or ()),
            list(self._pending_breaks),
            [str(x) for x in getattr(result, "effects", ()) or () if _HIDDEN not in str(x)],
            getattr(result, "source", "") or "",
            seconds=float(e.facts.get("seconds") or 0.0),
            inlined=list(getattr(result, "inlined", ()) or ()),
            goes_on=e.facts.get("goes_on"),
        )
        cost = self._cost_of(e)
        entry.guard_seconds = cost.whole * 1e-9 if cost is not None else None
        self.r.entries.append(entry)
        self._entries.append(e.facts.get("entry"))
        self._guards.add(n, result, cost)
        f.entries.append(n)
        for b in self._pending_breaks:
            if self.r.graph_breaks[b].entry is None:
                self.r.graph_breaks[b].entry, self.r.graph_breaks[b].frame = n, i
        if f.status != "limit":
            ended = [b for k in f.entries for b in self.r.entries[k].breaks]
            f.status = "partly" if any(not self.r.graph_breaks[b].harmless for b in ended) else "compiled"
        if graph is not None:
            self.r.graphs[graph].entry, self.r.graphs[graph].frame = n, i
        for t in self.r.timeline:  # the recompiles that led to this entry
            if t.kind == "recompile" and t.frame == i and t.entry is None:
                t.entry = n
        self._tell("entry", i, n, f"{f.name}, entry {len(f.entries) - 1}", entry.seconds)
        self._pending_breaks.clear()
        self._close(i)

    def _cost_of(self, e: events.Event) -> GuardCost | None:
        """What the new entry's guards cost, measured on the call that it was made for."""
        program = getattr(e.facts.get("entry"), "program", None)
        if program is None or "func" not in e.facts:
            return None
        return measure_cost(program, e.func, e.args)

    def _on_progress(self, e: events.Event) -> None:
        self.progress = (str(e.text), int(e.facts.get("done") or 0), int(e.facts.get("total") or 0))

    def _on_error(self, e: events.Event) -> None:
        error = e.facts.get("error")
        text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
        self.r.errors.append(f"{e.facts.get('where') or 'tcompile'}: {text}")
        self._tell("error", self._current, None, self.r.errors[-1])

    def _on_call(self, e: events.Event) -> None:
        call = e.call
        stated = [i for i, g in enumerate(self._captured) if g is not None]
        for g in call.graphs:  # stated after its graph; a backward graph may have come between
            g.number = stated[-1] if stated else None
        frame = self.r.frames[self._frame(call.name, call.file, call.line)]
        call.name = frame.name
        frame.seconds += call.compile_seconds or 0.0
        if frame.call is None and call.compile_seconds is not None:  # (what runs as plain Python has none)
            frame.call, frame.cell_line = seen_call(call.fn, call.args), line_on_stack(self.r.source.file)
        if call.compile_seconds:
            self._waits.append((e.time - call.compile_seconds, e.time))
        self.calls.append(call)

    def _on_renamed(self, e: events.Event) -> None:
        self.renamed.append((e.old, e.entry))

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
            known = next((i for i, x in enumerate(self.r.frames) if (x.name, x.file, x.line) == key), None)
            self._frame_of[key] = len(self.r.frames) if known is None else known
        if self._frame_of[key] == len(self.r.frames):
            # a graph that raised then need not have raised now
            again: dict[str, Any] = {"status": "compiled", "reason": ""} if f.reason == RERAN else {}
            self.r.frames.append(row_with(f, entries=[], captures=0, seconds=0.0, **again))
        frame, number = self._frame_of[key], len(self.r.entries)
        breaks = []
        known_breaks = {(b.kind, b.file, b.line, b.col): i for i, b in enumerate(self.r.graph_breaks)}
        for b in (again_named(old.graph_breaks[i]) for i in e.breaks):  # several entries may end at one place
            at = known_breaks.setdefault((b.kind, b.file, b.line, b.col), len(self.r.graph_breaks))
            breaks.append(at)
            if at == len(self.r.graph_breaks):
                self.r.graph_breaks.append(row_with(b, frame=frame, entry=number))
        graph = None
        if e.graph is not None:
            adopted = self._adopted.setdefault(id(old), _Adopted(old, names))

            def take(index: int) -> int:
                return self._adopt_graph(adopted, index, again_named, frame=frame, entry=number)

            graph = take(e.graph)
            self.r.partitions += [
                row_with(again_named(p), graph=graph, backward=[take(b) for b in p.backward])
                for p in old.partitions
                if p.graph == e.graph
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
        self.r.kernels += [row_with(again_named(old.kernels[k]), graph=graph) for k in g.kernels]
        moved = {k: first + i for i, k in enumerate(g.kernels)}
        adopted.graphs[index] = graph
        adopted.kernels |= moved
        again = {name: renumber(getattr(g, name), moved) for name in ("captured", "lowered")}
        self.r.graphs.append(row_with(g, **at, kernels=list(moved.values()), **again))
        self._captured.append(None)
        self._lowered.append(None)
        self.r.externs += [row_with(again_named(x), graph=graph) for x in old.externs if x.graph == index]
        self.r.memory += [row_with(again_named(m), graph=graph) for m in old.memory if m.graph == index]
        self.r.numerics += [row_with(again_named(x), graph=graph) for x in old.numerics if x.graph == index]
        return graph

    def adopt_profiles(self) -> None:
        """Take over the profiles of calls whose graphs were adopted, as the earlier reports have them by now."""
        found = [
            moved_profile(relabelled(p, *a.names), a.graphs, a.kernels, bool(a.names[0]))
            for a in self._adopted.values()
            for p in a.report.profiles
        ]
        self.r.profiles = [p for p in found if p is not None]

    def release(self) -> list[tuple[Any, int]]:
        """Let go of compiled entries and traced graphs: the report has its data. Gives (capture result, entry number)
        of the entries made while listening, for whoever wants to know them again."""
        known = [(e.meta, n) for n, e in enumerate(self._entries) if getattr(e, "meta", None) is not None]
        self.known_entries = [(weakref.ref(meta), n) for meta, n in known]
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

        r = self.r
        if self._released:
            finish(r, self.served)
            return r
        r.environment = r.environment or environment()
        order = list(dict.fromkeys(name for name, *_ in self._stages))
        r.stages = sorted(self._stages.values(), key=lambda st: order.index(st.name))
        r.waited = sum(end - begin for begin, end in self.waits())
        rest = r.waited - sum(st.self_seconds for st in r.stages)
        if r.stages and rest > 0:  # guards, modules that are loaded the first time, this report
            r.stages.append(s.Stage("other", rest, rest))
        if self.ended and not r.wall.seconds:
            r.wall = wall_of(self.t0, self.ended, self.waits(), ())
        if not r.source.text:
            r.source = self._compiled_code()
        for row, entry in zip(r.entries, self._entries):
            hits = getattr(entry, "hits", None)
            row.hits = hits if isinstance(hits, int) else row.hits
            switches = getattr(entry, "switches", None)
            row.switches = switches if isinstance(switches, int) else row.switches
        r.guards = self._guards.rows(lambda entry: r.entries[entry].frame, self._users_words)
        for i in self._ran_eager:
            r.graphs[i].ran = "eager"
        self._graphs()
        self._backward.tell(r)
        tell_waits(r, [(begin - self.t0, end - self.t0) for begin, end in self.waits()])
        name_sizes(r)
        runs: dict[str, list[list[s.Trial]]] = {}
        for a in r.autotune:  # kernels of different graphs may share a name: in order
            runs.setdefault(a.kernel, []).append(a.trials)
        for k in r.kernels:
            if not k.trials and runs.get(k.name):
                k.trials = runs[k.name].pop(0)
        bound_words(r)
        finish(r, self.served)
        return r

    def _compiled_code(self) -> s.CellSource:
        """The code that was compiled, where nobody said what the report is about: that of the function for which
        compiling took longest, a cell's before a file's, and no installed package's."""
        compiled = [
            (cell_number(f.file) is not None, f.seconds, i)
            for i, f in enumerate(self.r.frames)
            if f.entries and not _INSTALLED.intersection(self._files.get(i, "").split(os.sep))
        ]
        if not compiled:
            return self.r.source
        in_a_cell, _, i = max(compiled)
        return code_at(self._files.get(i, ""), 1 if in_a_cell else self.r.frames[i].line)

    def waits(self) -> list[tuple[float, float]]:
        """When the program waited for the compiler, by `time.perf_counter`: intervals that do not overlap, in order."""
        out: list[tuple[float, float]] = []
        for begin, end in sorted(self._waits):
            if out and begin <= out[-1][1]:
                out[-1] = out[-1][0], max(end, out[-1][1])
            else:
                out.append((begin, end))
        return out

    def _graphs(self) -> None:
        from .graph_nodes import all_lines, callers_of, nodes_of
        from .payload import encode

        for i, g in enumerate(self.r.graphs):
            cap, low = self._captured[i], self._lowered[i]
            static = {x.name for x in getattr(cap, "inputs", ()) if getattr(x, "static", False)}
            kernel_of = dict(self._computed_by.get(i) or {o: k for k in g.kernels for o in self.r.kernels[k].origins})
            try:
                if low is not None and not g.lowered:
                    nodes = nodes_of(low, static, label, kernel_of)
                    g.lowered = encode(nodes)
                    for n in nodes:
                        if n.kernel is not None and n.line is not None:
                            kernel_of.setdefault(f"{n.file}:{n.line}:{n.module}", n.kernel)
                if cap is not None and not g.captured:
                    g.lines = sorted(
                        [file, line]
                        for file, line in {(label(f), n) for f, n in all_lines(cap.graph_module)}
                        if cell_number(file) is not None
                    )
                    g.callers = callers_of(cap.graph_module, self.r.source.file, label)
                    nodes = nodes_of(cap.graph_module, static, label, kernel_of)
                    for n in nodes:
                        if n.kernel is None and n.op not in ("input", "parameter", "output"):
                            n.kernel = kernel_of.get(f"{n.file}:{n.line}:{n.module}")
                    g.captured = encode(nodes)
                    g.ops = sum(n.op not in ("input", "parameter", "output") for n in nodes)
                    g.outputs = sum(len(n.inputs) for n in nodes if n.op == "output")
                elif low is not None and not g.ops:
                    g.ops = sum(n.op not in ("input", "parameter", "output") for n in g.lowered.nodes())
                g.symbols = g.symbols or symbol_rows(getattr(cap, "env", None))
                for y in g.symbols:
                    y.source = self._users_words(g.frame, y.source)
                row = next((m for m in self.r.memory if m.graph == i), None)
                if cap is not None and row is not None and not row.eager_live:
                    parts = (p for p, at in self._partitions.values() if self.r.partitions[at].graph == i)
                    if (found := eager_memory(cap, next(parts, None))) is not None:
                        row.eager_live, row.eager_peak_bytes = found
            except Exception as error:
                self.r.errors.append(f"report: graph {g.name} could not be read: {type(error).__name__}: {error}")
