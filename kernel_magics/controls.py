"""What a reader of a report can ask of the kernel that made it: time again, try other options, sweep a size, ask
whether a call would compile anew, compute the error of every node. Each takes the report and the question, whose fields
`questions.py` has checked, and gives plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Callable

from ..compiler.errors import OptionError, ReproduceError
from .rerun import Again
from .questions import SWITCHES, AskError

__all__ = ["CONTROLS"]


def _again(report: Any) -> Again:
    if not isinstance(report.live, Again):
        raise AskError("this report's calls are not in the kernel any more: run the cell again")
    return report.live


def what_can_be_asked(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Which controls make sense for this report, and what they can choose from."""
    from ..compiler import config

    again = _again(report)
    return {
        "calls": [c.name for c in again.calls],
        "timed": [c.name for c in again.timed],
        "arguments": [asdict(a) for a in again.arguments()],
        "modes": list(config.MODES),
        "mode": again.options.mode,
        "switches": [n for n in SWITCHES if n in config.OPTIONS],
    }


def retime(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Time the calls again; the whole report comes back with its new figures."""
    _again(report)(message["seconds"], tuple(message["compare"] or ("eager",)))
    return {"report": report.to_dict()}


def try_options(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Time the calls as they are and under other options; the report comes back with the answer that it measured."""
    try:
        answer = _again(report).under(message["settings"], message["seconds"], message["say"])
        return {**answer, "report": report.to_dict()}
    except (OptionError, ValueError) as e:
        raise AskError(str(e)) from None


def sweep(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Which sizes compile anew, and what a call costs at each."""
    try:
        points = _again(report).sweep(
            message["call"], message["argument"], message["dim"], message["sizes"], message["dynamic"], message["say"]
        )
    except (ValueError, TypeError) as e:
        raise AskError(str(e)) from None
    return {"points": [asdict(p) for p in points]}


def check(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Compare every node of the report's graphs with eager and float64; the whole report comes back."""
    from ..compiler.report.numerics import check_calls

    again = _again(report)
    message["say"]("comparing every node with eager and float64")
    check_calls(again.builder.calls, report, again.options)
    return {"report": report.to_dict()}


def values(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """The values of a graph's nodes on the inputs of the call that it was made for."""
    from ..compiler.report.node_values import values_of

    number = message["graph"]
    graph = next((g for c in _again(report).builder.calls for g in c.graphs if g.number == number), None)
    aten = report.graphs[number].aten if number < len(report.graphs) else None
    if graph is None or aten is None:
        raise AskError(
            "the kernel does not keep this graph's inputs: it is a backward graph, or an earlier cell compiled it"
        )
    message["say"]("computing every node by torch's own kernels")
    try:
        return {"values": values_of(aten, graph.inputs)}
    except Exception as e:  # an index that an update has moved out of bounds, memory
        raise AskError(f"the graph could not be run again: {type(e).__name__}: {str(e)[:200]}") from None


def memory(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Every read and write of a graph's kernels against its buffer, and which buffers share memory."""
    from ..compiler.report.facts.memory_checks import accesses_of, shared_memory

    plans = [ref() for ref, graph in _again(report).builder.schedules if graph == message["graph"]]
    plan = next((p for p in reversed(plans) if p is not None), None)
    if plan is None:
        raise AskError("this graph's plan is not in the kernel: an earlier cell compiled it")
    return {"accesses": accesses_of(plan), "shared": shared_memory(plan)}


def text(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """The texts of a generated kernel, which what is saved may leave out."""
    if message["kernel"] >= len(report.kernels):
        raise AskError(f"the report has {len(report.kernels)} kernels")
    k = report.kernels[message["kernel"]]
    return {"source": k.source, "ir": k.ir, "names": k.names, "assembly": k.assembly}


def what_if(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Would a call with these sizes, dtypes and values be compiled anew? Without `given`: what can be asked."""
    from .forecast import DTYPES, askable, forecast

    given = message["given"]
    if given is None:
        return {"functions": askable(report), "dtypes": list(DTYPES)}
    try:
        return forecast(report, message["function"], given)
    except ValueError as e:
        raise AskError(str(e)) from None


def as_page(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """The report as one HTML page that needs nothing else."""
    from .page import page

    return {"html": page(report)}


def reproducer(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """A file of a graph, a kernel's operations or a wrong number that runs by itself."""
    try:
        return {"file": report.reproducer(message["what"]).text}
    except ReproduceError as e:
        raise AskError(str(e)) from None


CONTROLS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "controls": what_can_be_asked,
    "retime": retime,
    "try": try_options,
    "sweep": sweep,
    "check": check,
    "values": values,
    "memory": memory,
    "text": text,
    "forecast": what_if,
    "page": as_page,
    "reproducer": reproducer,
}
