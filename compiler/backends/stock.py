"""Adapter: stock torch.compile, run beside tcompile as a comparison (compare=eager,torch), and its graphs, breaks and guards as a report.

One of the two files that may import torch._dynamo (the other is registered.py).
"""
from __future__ import annotations

import inspect
import linecache
import re
import sys
import time
import types
import uuid
from contextlib import contextmanager
from typing import Any, Callable, Iterator

import torch


__all__ = ["compile", "available", "beside", "said", "explain"]


def available() -> str | None:
    """None if stock torch.compile can run here, else why not."""
    try:
        import torch._dynamo  # noqa: F401
    except Exception as e:
        return f"torch._dynamo can't be imported: {type(e).__name__}: {e}"
    return None


@contextmanager
def beside() -> Iterator[None]:
    """Where stock's compiled code runs: torch.distributions check no arguments, as stock has it. Its first compile switches the checks off for
    the whole process and for good; after a comparison they are as the user had them."""
    checks = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(checks)


def compile(fn: Callable, **kwargs: Any) -> Callable:
    """torch.compile(fn, **kwargs) with stock's own defaults; state of earlier comparisons is forgotten first."""
    import torch._dynamo
    _forget_ended_traces()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(fn, **kwargs)


def _forget_ended_traces() -> None:
    """torch.fx has one flag for all threads that says that somebody traces; stock refuses to run while it is set. Traces that overlap in two
    threads leave it set for good: where nobody traces any more, it is taken down."""
    from torch.fx import _symbolic_trace
    if not _symbolic_trace._is_fx_tracing_flag:
        return
    code = _symbolic_trace.Tracer.trace.__code__
    for frame in sys._current_frames().values():
        at: types.FrameType | None = frame
        while at is not None:
            if at.f_code is code:
                return
            at = at.f_back
    _symbolic_trace._is_fx_tracing_flag = False


def said() -> str:
    """What stock says of its captures since the last `compile`: `2 graphs, 1 break (Data-dependent branching)`."""
    from torch._dynamo.utils import counters
    graphs = sum(v for k, v in counters["stats"].items() if k == "unique_graphs")
    breaks = counters["graph_break"]
    words = f"{graphs} graph{'s' * (graphs != 1)}"
    if breaks:
        first = next(iter(breaks)).strip().splitlines()[0]
        n = sum(breaks.values())
        words += f", {n} break{'s' * (n != 1)} ({first[:100]})"
    return words


def explain(fn: Callable) -> Callable[..., Any]:
    """`explain(fn)(*args)`: what stock torch.compile captures of a call, as a CompileReport with the same views: its graphs, its graph
    breaks with their lines and reasons, its guards. Nothing of tcompile runs. The call's value is not computed by compiled code."""
    def run(*args: Any, **kwargs: Any) -> Any:
        why = available()
        if why is not None:
            raise RuntimeError(why)
        import torch._dynamo
        _forget_ended_traces()
        torch._dynamo.reset()
        began = time.perf_counter()
        with beside():
            found = torch._dynamo.explain(fn)(*args, **kwargs)
        report = _report(fn, found, time.perf_counter() - began)
        torch._dynamo.reset()
        return report
    return run


def _report(fn: Callable, found: Any, seconds: float) -> Any:
    from ..report import CompileReport
    from ..report import schema as s
    from ..report.environment import environment
    from ..report.finish import finish
    from ..report.graphs import nodes_of
    from ..report.labels import label, source_of
    from ..report.payload import encode
    name = getattr(fn, "__qualname__", type(fn).__name__)
    code = getattr(inspect.unwrap(getattr(fn, "forward", fn)), "__code__", None)
    file, line = (label(code.co_filename), code.co_firstlineno) if code is not None else ("", 0)
    r = CompileReport(title=f"{name} under torch.compile", id=uuid.uuid4().hex[:8], options={"engine": "torch.compile"},
                      created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), environment=environment(), source=source_of(fn))
    r.frames = [s.Frame(name, file, line, "partly" if found.graph_break_count else "compiled", "", list(range(len(found.graphs))), 1, seconds)]
    for i, gm in enumerate(found.graphs):
        for n in gm.graph.nodes:
            n.meta.setdefault("val", n.meta.get("example_value"))
            n.meta["stack"] = _stack(n.meta.get("stack_trace") or "")
        nodes = nodes_of(gm, (), label)
        names = [n.name for n in nodes if n.op == "input"]
        ops = sum(n.op not in ("input", "parameter", "output") for n in nodes)
        r.graphs.append(s.Graph(f"graph_{i}", inputs=names, ops=ops, frame=0, entry=i, captured=encode(nodes), graph_module=gm))
        r.entries.append(s.Entry(0, i))
    for b in found.break_reasons:
        if b.graph_break:
            top = b.user_stack[-1] if b.user_stack else None
            where = (label(top.filename), top.lineno or 0) if top is not None else (file, line)
            text = linecache.getline(top.filename, top.lineno or 0).rstrip() if top is not None else ""
            chain = [s.FrameRef(f.name, label(f.filename), f.lineno or 0) for f in b.user_stack]
            r.graph_breaks.append(s.Break("stock", b.reason.strip(), *where, code=text, function=top.name if top is not None else name, frame=0,
                                          call_chain=chain))
    for g in found.out_guards or ():
        kind = g.create_fn_name() if hasattr(g, "create_fn_name") else type(g).__name__
        text = "; ".join(str(c) for c in g.code_list or ()) or kind.replace("_", " ").lower()
        r.guards.append(s.GuardRow(0, str(g.name), kind, text, cls="checked"))
    r.stages = [s.Stage("capture", seconds, seconds, 1)]
    finish(r)
    return r


_FRAME = re.compile(r'File "(.*?)", line (\d+), in (.*)')


def _stack(trace: str) -> tuple:
    """(file, line, function) of each frame of a stack trace in text, outermost first."""
    return tuple((file, int(line), name) for file, line, name in _FRAME.findall(trace))
