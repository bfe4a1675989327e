"""What a reader of a report can ask of the kernel that made it: time again, try other options, sweep a size, ask whether a call
would compile anew, compute the error of every node. Each takes the report and the question, and gives plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Callable

from ..compiler.errors import OptionError
from .again import Again
from .live import AskError

__all__ = ["CONTROLS"]

_MOST_SECONDS = 600.0


def _again(report: Any) -> Again:
    if not isinstance(report.live, Again):
        raise AskError("this report's calls are not in the kernel any more: run the cell again")
    return report.live


def _seconds(message: dict[str, Any], default: float = 1.0) -> float:
    value = message.get("seconds", default)
    if not isinstance(value, (int, float)) or not 0 < value <= _MOST_SECONDS:
        raise AskError(f"seconds is a number from 0 to {_MOST_SECONDS:.0f}, got {value!r}")
    return float(value)


def what_can_be_asked(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Which controls make sense for this report, and what they can choose from."""
    from ..compiler import config

    again = _again(report)
    return {
        "calls": [c.name for c in again.calls],
        "arguments": [asdict(a) for a in again.arguments()],
        "modes": list(config.MODES),
        "mode": again.options.mode,
        "switches": [n for n in ("disable_fusion", "emulate_precision", "pattern_matcher") if n in config.OPTIONS],
    }


def retime(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Time the calls again; the whole report comes back with its new figures."""
    compare = message.get("compare") or ["eager"]
    if not isinstance(compare, list) or not set(compare) <= {"eager", "torch"}:
        raise AskError(f"compare is a list of eager and torch, got {compare!r}")
    _again(report)(_seconds(message), tuple(compare))
    return {"report": report.to_dict()}


def try_options(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Time the calls as they are and under other options."""
    settings = message.get("settings")
    if not isinstance(settings, dict) or not settings:
        raise AskError("settings is an object of options, such as {'mode': 'max-autotune'}")
    try:
        return _again(report).under(settings, _seconds(message), message["say"])
    except (OptionError, ValueError) as e:
        raise AskError(str(e)) from None


def sweep(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Which sizes compile anew, and what a call costs at each."""
    try:
        call, argument, dim, sizes = (message[k] for k in ("call", "argument", "dim", "sizes"))
        points = _again(report).sweep(call, argument, dim, sizes, message.get("dynamic"), message["say"])
    except KeyError as e:
        raise AskError(f"a sweep needs {e.args[0]}") from None
    except (ValueError, TypeError) as e:
        raise AskError(str(e)) from None
    return {"points": [asdict(p) for p in points]}


def check(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Compare every node of the report's graphs with eager and float64; the whole report comes back."""
    from ..compiler.numerics import check_calls

    again = _again(report)
    message["say"]("comparing every node with eager and float64")
    check_calls(again.builder.calls, report, again.options)
    return {"report": report.to_dict()}


def what_if(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Would a call with these sizes, dtypes and values be compiled anew? Without `given`: what can be asked."""
    from .forecast import DTYPES, askable, forecast

    given = message.get("given")
    if given is None:
        return {"functions": askable(report), "dtypes": list(DTYPES)}
    try:
        return forecast(report, int(message.get("function", 0)), given)
    except ValueError as e:
        raise AskError(str(e)) from None


def as_page(report: Any, message: dict[str, Any]) -> dict[str, Any]:
    """The report as one HTML page that needs nothing else."""
    from .widgets import page

    return {"html": page(report)}


CONTROLS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "controls": what_can_be_asked,
    "retime": retime,
    "try": try_options,
    "sweep": sweep,
    "check": check,
    "forecast": what_if,
    "page": as_page,
}
