"""What stock torch.compile did, as a CompileReport: the facts that `stock.Observer` collects, in the words of the
report's views.
"""

from __future__ import annotations

import inspect
import re
import time
import uuid
from typing import Any, Callable

from ..report import CompileReport
from ..report import schema as s
from ..report.environment import environment
from ..report.finish import finish
from ..report.graph_nodes import nodes_of
from ..base.figures import plural
from ..base.labels import label
from ..report.cell_source import source_of
from ..report.payload import encode
from ..base.source_text import source_line

__all__ = ["stock_report", "title_and_source"]

_TENSOR = re.compile(
    r"tensor '(?P<source>.*?)' (?P<what>size|stride|dtype|requires_grad|device|rank) mismatch(?: at index"
    r" (?P<index>\d+))?\. "
    r"expected (?P<expected>.*?)(?:, |,? but got |\. )(?:actual )?(?P<got>.*?)\.?$"
)
_EQUALS = re.compile(r"(?P<source>.+?) == (?P<expected>.+)$")
_PLACE = re.compile(r'File "(?P<file>.*?)", line (?P<line>\d+), in ')
_VARIABLE = re.compile(r"\b[LG]\['(\w+)'\]")
_GUARD_WORDS = {
    "TENSOR_MATCH": "is a tensor of the class, dtype, device and sizes that it was captured with",
    "GRAD_MODE": "gradients are on or off as they were",
    "DETERMINISTIC_ALGORITHMS": "deterministic algorithms are on or off as they were",
    "GLOBAL_STATE": "torch's global settings are as they were",
    "TORCH_FUNCTION_STATE": "modes of __torch_function__ are as they were",
    "DEFAULT_DEVICE": "the default device is as it was",
    "AUTOGRAD_SAVED_TENSORS_HOOKS": "hooks on saved tensors are as they were",
}
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)$")


def stock_report(observer: Any, title: str, source: s.CellSource) -> CompileReport:
    """`o`: a `stock.Observer` after the calls that it watched."""
    report = CompileReport(
        title=f"{title} under torch.compile",
        id=uuid.uuid4().hex[:8],
        options={"engine": "torch.compile"},
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        environment=environment(),
        source=source,
    )
    frame_of: dict[str, int] = {}
    entry_of: dict[str, int] = {}
    # stock compiles what a cell's top level calls, never that itself
    compiled = [compiled for compiled in observer.compiled if not (compiled.failed and compiled.name == "<module>")]
    for c in compiled:
        number = c.id.split("/")[0]
        if number not in frame_of:
            frame_of[number] = len(report.frames)
            report.frames.append(s.Frame(_name(c.name), label(c.file), c.line))
        frame = report.frames[frame_of[number]]
        frame.captures += 1
        frame.seconds += c.seconds
        report.timeline.append(
            s.TimelineEvent(max(0.0, c.time - c.seconds), "capture", frame_of[number], None, frame.name, c.seconds)
        )
        if c.failed:
            frame.status, frame.reason = "skipped", c.failed
            report.fallbacks.append(s.Fallback(frame.name, c.failed, 1, frame_of[number]))
            continue
        entry_of[c.id] = len(report.entries)
        frame.entries.append(len(report.entries))
        report.entries.append(s.Entry(frame_of[number], guards=len(c.guards), seconds=c.seconds))
        report.timeline.append(
            s.TimelineEvent(c.time, "entry", frame_of[number], entry_of[c.id], plural(len(c.guards), "guard"))
        )
        report.guards += [_guard(guard, entry_of[c.id]) for guard in c.guards]
    for c in compiled:
        if not c.failed:
            for gm in c.graphs:
                _add_graph(report, gm, frame_of[c.id.split("/")[0]], entry_of[c.id])
    for miss in observer.misses:
        number = miss.ids[0].split("/")[0]
        if number in frame_of:
            known = observer.guards_of(miss.ids[0])
            report.recompiles.append(_recompile(miss, frame_of[number], report.frames[frame_of[number]], known))
            report.timeline.append(
                s.TimelineEvent(miss.time, "recompile", frame_of[number], None, report.recompiles[-1].expected)
            )
    report.timeline.sort(key=lambda e: e.time)
    for i, frame in enumerate(report.frames):
        if frame.entries and any(graph_break.frame == i for graph_break in report.graph_breaks):
            frame.status = "partly"
    capture = sum(c.seconds for c in compiled)
    report.stages = [s.Stage("capture", capture, capture, len(compiled))]
    report.errors = list(observer.errors)
    finish(report)
    return report


def _name(name: str) -> str:
    """`f after line 4` for what stock resumes after a break."""
    resumed = _RESUMED.match(name)
    return f"{resumed['name']} after line {resumed['line']}" if resumed else name


def _add_graph(report: CompileReport, gm: Any, frame: int, entry: int) -> None:
    for node in gm.graph.nodes:
        node.meta.setdefault("val", node.meta.get("example_value"))
        node.meta["stack"] = _stack(node.meta.get("stack_trace") or "")
    nodes = nodes_of(gm, (), label)
    number = len(report.graphs)
    ops = sum(node.op not in ("input", "parameter", "output") for node in nodes)
    report.graphs.append(
        s.Graph(
            f"graph_{number}",
            frame,
            entry,
            [node.name for node in nodes if node.op == "input"],
            ops=ops,
            captured=encode(nodes),
            graph_module=gm,
        )
    )
    if report.entries[entry].graph is None:
        report.entries[entry].graph = number
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is not None and reason.graph_break:
        _add_break(report, reason, frame)


def _add_break(report: CompileReport, why: Any, frame: int) -> None:
    top = why.user_stack[-1] if why.user_stack else None
    file, line = (
        (label(top.filename), top.lineno or 0)
        if top is not None
        else (report.frames[frame].file, report.frames[frame].line)
    )
    kind, words, remedy = _break_words(why.reason.strip())
    same = next(
        (
            graph_break
            for graph_break in report.graph_breaks
            if (graph_break.file, graph_break.line, graph_break.reason) == (file, line, words)
        ),
        None,
    )
    if same is not None:  # of another entry of the frame
        same.count += 1
        return
    code = source_line(top.filename, top.lineno or 0).rstrip() if top is not None else ""
    chain = [s.FrameRef(_name(f.name), label(f.filename), f.lineno or 0) for f in why.user_stack]
    report.graph_breaks.append(
        s.Break(
            kind,
            words,
            file,
            line,
            code=code,
            function=_name(top.name) if top is not None else report.frames[frame].name,
            remedy=remedy,
            frame=frame,
            call_chain=chain,
        )
    )


def _break_words(text: str) -> tuple[str, str, str]:
    """(kind, reason, remedy) of stock's words for a break: its explanation, and its first hint."""
    if text.startswith("generic_jump"):
        return (
            "data_dependent_branch",
            f"The branch depends on the value of a tensor ({text}).",
            "write torch.where or torch.cond, or move the branch out of what is compiled",
        )
    explanation = re.search(r"Explanation: (.*?)(?=\n *Hint:|\n *Developer|\Z)", text, re.S)
    hint = re.search(r"Hint: (.*?)(?=\n *Hint:|\n *Developer|\Z)", text, re.S)
    first = text.splitlines()[0]
    said = " ".join(explanation[1].split()) if explanation else ""
    return "stock", f"{first}: {said}" if said else first, " ".join(hint[1].split()) if hint else ""


def _guard(g: Any, entry: int) -> s.GuardRow:
    kind, name = g.create_fn_name(), _users_name(str(g.name))
    text = (
        _GUARD_WORDS.get(kind)
        or "; ".join(_users_name(str(c)) for c in g.code_list or ())
        or kind.replace("_", " ").lower()
    )
    file, line = _place(g.user_stack)
    return s.GuardRow(
        entry, name, kind, f"`{name}` {text}" if name and kind in _GUARD_WORDS else text, file=label(file), line=line
    )


def _users_name(text: str) -> str:
    """`L['x'] == 2` as the user writes it: `x == 2`."""
    return _VARIABLE.sub(lambda m: m[1], text)


def _place(stack: Any) -> tuple[str, int | None]:
    """The innermost line of a stack of the user's."""
    return (stack[-1].filename, stack[-1].lineno) if stack else ("", None)


def _recompile(miss: Any, frame: int, of: s.Frame, guards: list[Any]) -> s.Recompile:
    """Stock's reason in expected and got, where it has that form; else as it is. `guards`: of the entry that did not
    hold, for the line.
    """
    words, _, trace = miss.reason.partition("\nUser stack trace:")
    words, _, _ = words.partition("  # ")
    at = _PLACE.findall(trace)
    file, line = (at[-1][0], int(at[-1][1])) if at else ("", None)
    out = s.Recompile(
        frame,
        of.name,
        file=label(file),
        line=line,
        code=source_line(file, line).rstrip() if line else "",
        others=len(miss.ids) - 1,
        time=miss.time,
    )
    words = words.strip()
    tensor, equals = _TENSOR.match(words), _EQUALS.match(words)
    if tensor:
        size = tensor["index"] is not None
        what = {"size": "shape"}.get(tensor["what"], tensor["what"])
        out.source, out.kind, out.detail = tensor["source"], "TENSOR", f"{what}[{tensor['index']}]" if size else what
        out.expected, out.got = tensor["expected"], tensor["got"]
        if tensor["what"] == "size":
            out.suggestion = (
                f"compile with dynamic=True, or torch._dynamo.mark_dynamic({out.source}, {tensor['index'] or 0}) before"
                " the call"
            )
        elif tensor["what"] == "dtype":
            out.suggestion = "convert before the call: both dtypes have their own entries"
    elif equals:
        out.source, out.kind, out.expected, out.got = equals["source"], "EQUALS", equals["expected"], "another value"
        out.suggestion = f"make it a 0-dim tensor: torch.tensor({out.source})"
    else:
        out.source, out.kind, out.expected, out.got = "a guard", "GUARD", words, "it does not hold"
    if out.line is None:
        file, out.line = _place(
            next((guard.user_stack for guard in guards if _users_name(str(guard.name)) == out.source), None)
        )
        out.file, out.code = label(file), source_line(file, out.line or 0).rstrip()
    return out


_FRAME = re.compile(r'File "(.*?)", line (\d+), in (.*)')


def _stack(trace: str) -> tuple:
    """(file, line, function) of each frame of a stack trace in text, outermost first."""
    return tuple((file, int(line), name) for file, line, name in _FRAME.findall(trace))


def title_and_source(fn: Callable) -> tuple[str, s.CellSource]:
    """What a report of a function or module is called, and its code."""
    return getattr(inspect.unwrap(fn), "__qualname__", type(fn).__name__), source_of(fn)
