"""A traced call (runtime/trace.py) as the report tells it: spans with their graph, kernel, node, line, module and part.

What no span inside of a call, an entry or a plan covers becomes spans of its own: Python between, and the plan's own
work. Kinds whose spans take next to nothing (memory, gaps) are left out, so that a picture of thousands stays small.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import median
from typing import Any, Mapping, Sequence

from ..base.labels import frame_words, label
from .graph_nodes import modules_of, own_line
from .schema import CallProfile, ProfileSpan

__all__ = ["moved_profile", "on_the_device", "profile_rows", "encode_spans", "tell_break_costs"]

_LEAST = 0.002  # of the call: shorter gaps and allocations are left out
_BETWEEN = {"call": "Python between", "entry": "Python between", "graph": "the plan itself"}


def encode_spans(profile: CallProfile, spans: Sequence[ProfileSpan]) -> None:
    """Put spans (parents first) into the profile's columns."""
    tables: dict[str, dict[Any, int]] = {name: {} for name in CallProfile.TABLED}
    columns: dict[str, list[int]] = {name: [] for name in (*CallProfile.TABLED, *CallProfile.NUMBERS, "called")}
    for span in spans:
        for name in CallProfile.TABLED:
            value = (span.file, span.line) if name == "line" else getattr(span, name)
            columns[name].append(tables[name].setdefault(value, len(tables[name])))
        columns["parent"].append(span.parent)
        columns["begin"].append(round(span.begin * 1e9))
        columns["length"].append(round(span.seconds * 1e9))
        columns["graph"].append(-1 if span.graph is None else span.graph)
        columns["kernel"].append(-1 if span.kernel is None else span.kernel)
        columns["called"].append(-1 if span.called is None else span.called)
    profile.tables = {
        name: [list(value) if isinstance(value, tuple) else value for value in table] for name, table in tables.items()
    }
    profile.columns = columns


def moved_profile(
    profile: CallProfile, graphs: Mapping[int, int], kernels: Mapping[int, int], same_cell: bool
) -> CallProfile | None:
    """The same call in a report where graphs and kernels have other numbers; None where it has no graph of the call.
    A graph that it lacks, of a backward pass, keeps its spans: their names and lines are in the profile itself. Lines
    of another cell that led to the spans are none of this one."""
    if not set(profile.columns["graph"]) & graphs.keys():
        return None
    moved = {
        name: [of.get(n, -1) for n in profile.columns[name]] for name, of in (("graph", graphs), ("kernel", kernels))
    }
    if not same_cell:
        moved["called"] = [-1] * len(profile.columns["kernel"])
    return replace(profile, columns={**profile.columns, **moved}, earlier=True)


def on_the_device(rows: list[ProfileSpan], report: Any) -> list[ProfileSpan]:
    """The rows of a call on a GPU, with what the GPU does meanwhile: steps that lie in the call itself. Each begins
    when it is launched or when the one before it ends, and takes what its kernel takes alone. The host's rows of them
    are launches then. Where one step's time is not known, rows stay as they are."""
    took = {
        (extern.graph, extern.op.removeprefix("aten.").removesuffix(".default")): extern.seconds / max(1, extern.count)
        for extern in report.externs
        if extern.seconds is not None
    }
    steps = [row for row in rows if row.kind in ("kernel", "library")]
    found = [
        report.kernels[step.kernel].seconds if step.kernel is not None else took.get((step.graph, step.name))
        for step in steps
    ]
    known = [seconds_known for seconds_known in found if seconds_known is not None]
    if not steps or len(known) < len(found):
        return rows
    out, free, end = list(rows), 0.0, rows[0].seconds
    for step, seconds in zip(steps, known):
        begin = min(max(free, step.begin + step.seconds), end)
        free = min(begin + seconds, end)
        out.append(replace(step, parent=0, begin=begin, seconds=free - begin))
        step.kind, step.name = "launch", f"launch of {step.name}"
    return out


def profile_rows(
    spans: Sequence[Any], report: Any, graph_of: Mapping[int, int], entry_of: Mapping[int, int], name: str
) -> list[ProfileSpan]:
    """The report's rows of a trace. `graph_of`: by id of a schedule, the graph; `entry_of`: by id of a capture result,
    the entry; `name`: of the call."""
    facts = _Facts(report, graph_of, entry_of)
    least = _LEAST * spans[0].seconds if spans else 0.0
    rows = [facts.row(span) for span in spans]
    rows[0].name = name
    inside: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        if row.parent >= 0:
            inside.setdefault(row.parent, []).append(i)
    for i, span in enumerate(spans):
        graph = facts.replayed(span) if not any(rows[k].kind == "graph" for k in inside.get(i, ())) else None
        if graph is not None:  # the GPU is at work from the entry's launch on, until the call waits for it
            siblings = inside[max(span.parent, 0)]
            after = siblings[siblings.index(i) + 1 :]
            end = rows[after[0]].begin if after else rows[max(span.parent, 0)].begin + rows[max(span.parent, 0)].seconds
            begin = span.begin + span.seconds
            if end - begin > least:
                siblings.insert(siblings.index(i) + 1, len(rows))
                words = f"{report.graphs[graph].name}, replayed as one launch"
                rows.append(ProfileSpan("graph", words, span.parent, begin, end - begin, graph))
    keep = [row.kind != "memory" or row.seconds >= least for row in rows]
    out: list[ProfileSpan] = []

    def put(i: int, parent: int) -> None:
        row = rows[i]
        row.parent = parent
        at = len(out)
        out.append(row)
        end, begin = row.begin + row.seconds, row.begin
        between = _BETWEEN.get(row.kind) if i in inside or row.kind == "entry" else None
        for k in [*inside.get(i, ()), None]:
            until = end if k is None else rows[k].begin
            if between and until - begin > least:
                kind = "plan" if row.kind == "graph" else "python"
                out.append(ProfileSpan(kind, between, at, begin, until - begin, row.graph))
            if k is None:
                break
            if keep[k]:
                put(k, at)
            begin = max(begin, rows[k].begin + rows[k].seconds)

    put(0, -1)
    return out


class _Facts:
    """What the report knows of the things that spans are of."""

    def __init__(self, report: Any, graph_of: Mapping[int, int], entry_of: Mapping[int, int]):
        self.report, self.graph_of, self.entry_of = report, graph_of, entry_of
        self.nodes: dict[int, dict[str, Any]] = {}
        self.modules: dict[Any, str] = {}
        self.kernels: dict[tuple[int, str], int] = {}
        self.backward = {number for partition in report.partitions for number in partition.backward}
        for i, kernel in enumerate(report.kernels):
            if kernel.graph is not None:
                self.kernels[kernel.graph, kernel.name] = i

    def replayed(self, span: Any) -> int | None:
        """The graph of an entry on a GPU; where its plan does not show, its launches are replayed as one."""
        number = self.entry_of.get(id(getattr(span.entry, "meta", None))) if span.kind == "entry" else None
        graph = self.report.entries[number].graph if number is not None else None
        kernels = self.report.graphs[graph].kernels if graph is not None else []
        return graph if any(self.report.kernels[kernel].language in ("triton", "cuda") for kernel in kernels) else None

    def row(self, span: Any) -> ProfileSpan:
        row = ProfileSpan(span.kind, span.name, span.parent, span.begin, span.seconds)
        if span.kind in ("entry", "guards"):
            number = self.entry_of.get(id(getattr(span.entry, "meta", None)))
            frame = self.report.frames[self.report.entries[number].frame] if number is not None else None
            words = frame_words(frame.name) if frame is not None else "compiled code"
            of_it = f", entry {number}" if number is not None else ""  # (the call around it has its name already)
            row.name = f"{words}{of_it}" if span.kind == "entry" else f"guards of {words}"
            if frame is not None:
                row.file, row.line = frame.file, frame.line
            return row
        row.graph = self.graph_of.get(id(span.schedule)) if span.schedule is not None else None
        if span.kind == "graph":
            row.name = self.report.graphs[row.graph].name if row.graph is not None else "a graph of another run"
            row.part = "backward" if row.graph in self.backward else ""
        if span.step is not None:
            self._of_step(row, span)
        return row

    def _of_step(self, row: ProfileSpan, span: Any) -> None:
        launched = getattr(span.step, "kernel", None)
        origins = list(launched.origins) if launched is not None else [span.step.origin]
        lines = launched.lines if launched is not None else span.step.lines
        row.node = str(origins[-1]) if origins else ""
        if launched is not None and row.graph is not None:
            row.kernel = self.kernels.get((row.graph, span.name))
        if span.kind == "library":
            row.name = span.name.removeprefix("aten.").removesuffix(".default")
        nodes = [node for node in map(self._nodes(row.graph).get, origins) if node is not None]
        modules = [self.modules[node] for node in nodes]
        parts = Counter(_part(module, row.graph in self.backward) for module in modules)
        row.part = parts.most_common(1)[0][0] if parts else _part("", row.graph in self.backward)
        own = Counter(module for module in modules if module and _part(module, row.graph in self.backward) == row.part)
        row.module = own.most_common(1)[0][0] if own else ""
        written = own_line(nodes[-1].meta.get("stack")) if nodes else ("", None)
        file, line = written if written[1] is not None else (lines[0][:2] if lines else ("", None))
        row.file, row.line = (label(str(file)), line) if file else ("", line)
        if row.graph in self.backward:  # the line that waits for it is the call of backward()
            row.file, row.line = self.report.graphs[row.graph].called_at or (row.file, row.line)
        cell = self.report.source.file
        if nodes and row.file != cell:
            row.called = next(
                (
                    int(place[1])
                    for place in reversed(nodes[-1].meta.get("stack") or ())
                    if label(str(place[0])) == cell
                ),
                self._called(row.graph),
            )

    def _called(self, graph: int | None) -> int | None:
        """The cell's line from which a function was first called that the graph is of."""
        frame = self.report.graphs[graph].frame if graph is not None else None
        return self.report.frames[frame].cell_line if frame is not None else None

    def _nodes(self, graph: int | None) -> dict[str, Any]:
        if graph is None:
            return {}
        if graph not in self.nodes:
            aten = getattr(self.report.graphs[graph], "aten", None)
            self.nodes[graph] = {node.name: node for node in aten.graph.nodes} if aten is not None else {}
            self.modules |= modules_of(aten.graph) if aten is not None else {}
        return self.nodes[graph]


def tell_break_costs(
    spans: Sequence[Any], report: Any, entry_of: Mapping[int, int], plain: float | None = None
) -> None:
    """Give the report's breaks what each costs in a traced call: the time from the end of the graph before it, or from
    the begin of its entry, to the begin of the graph after it. What other compiled functions take in between is
    theirs. Where text is made of a tensor it's counted from the end of that: elsewhere the text takes as long."""
    inside: dict[int, list[int]] = {}
    for i, span in enumerate(spans):
        inside.setdefault(span.parent, []).append(i)
    costs: dict[int, list[float]] = {}
    for i, span in enumerate(spans):
        number = entry_of.get(id(getattr(span.entry, "meta", None))) if span.kind == "entry" else None
        breaks = report.entries[number].breaks if number is not None else []
        entered = [k for k in inside.get(i, ()) if spans[k].kind == "entry"]
        if not breaks or not entered:
            continue
        *called, after = entered
        before = [spans[k] for k in inside[i] if spans[k].kind == "graph" and k < after]
        begin = before[-1].begin + before[-1].seconds if before else span.begin
        if report.graph_breaks[breaks[-1]].kind == "print":
            begin = spans[after].begin
        end = next((spans[k].begin for k in inside.get(after, ()) if spans[k].kind == "graph"), spans[after].begin)
        others = sum(spans[k].seconds for k in called if spans[k].begin >= begin)
        costs.setdefault(breaks[-1], []).append(max(0.0, end - begin - others))
    for b, took in costs.items():
        # the clock, which makes each step longer, is not the break's
        report.graph_breaks[b].seconds = median(took) * min(1.0, (plain or spans[0].seconds) / spans[0].seconds)
        report.graph_breaks[b].share = min(1.0, sum(took) / spans[0].seconds)


def _part(module: str, in_backward: bool) -> str:
    first = module.partition(".")[0]
    return first if first in ("backward", "gradients", "optimizer") else "backward" if in_backward else "forward"
