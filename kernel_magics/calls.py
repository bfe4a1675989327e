"""Which calls of a cell are timed, and how each can be called again.

The engine states a call for every entry that it makes: for a function, for what follows a break in it, for each set of
sizes, for a cell's top level and its loops. Here those of one function become one.
"""

from __future__ import annotations

import dis
import inspect
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any, Collection, Sequence

from ..compiler.frontend.entry_calls import PLAIN_REST, EntryCall, GraphCall
from ..compiler.base.labels import frame_line, frame_words
from .cell import VALUE

__all__ = ["worth_timing", "as_called", "read_before_written"]

# Breaks that have no effect but to need a value, and call no function of anybody's: a function with none but these can
# run again.
_PURE_BREAKS = {"data_dependent_branch", "data_dependent_loop", "data_dependent_shape", "item", "tensor_metadata"}
_OF_CONTEXT = "The native method ContextVar."  # a break there: timing has a context of its own
_NAMED = 4  # effects that are named; the others are counted
_ONLY_BREAKS = "the graph breaks"  # the engine's why_not for a call without effects of its own


def worth_timing(calls: Sequence[EntryCall], report: Any) -> list[EntryCall]:
    """One call per function: its latest arguments, safe where all of its parts are. Calls that can be timed end to
    end come first, then those that took longest to compile."""
    groups: dict[tuple, list[EntryCall]] = {}
    for call in calls:
        if call.name.endswith("__init__") and not call.graphs:  # making an object is no computation
            continue
        groups.setdefault((call.file, call.line, call.name), []).append(call)
    out = [_merged(parts, calls, report) for parts in groups.values()]
    return sorted(out, key=lambda call: (not call.safe, not call.graphs, -(call.compile_seconds or 0.0)))


def _merged(parts: list[EntryCall], calls: Sequence[EntryCall], report: Any) -> EntryCall:
    first = parts[0]
    code = getattr(first.fn, "__code__", None)
    is_cell = code is not None and code.co_name == "<module>"
    frames = {i for i, frame in enumerate(report.frames) if frame.name == first.name}
    breaks = (
        any(brk.frame in frames for brk in report.graph_breaks)
        or any(
            _ONLY_BREAKS in call.why_not for call in parts
        )  # (a break at one line is told once, of the first function)
        or _runs_loops(report, frames)
    )
    # what comes after a break may be a frame of another function
    elsewhere = _effects_elsewhere(report, frames, calls) + _plain_rest(calls, first.name) if breaks else []
    if code is not None and code.co_qualname.startswith("<module>"):
        parts = [
            _with_names_put_back(call, [effect for effect in elsewhere if effect.startswith("global ")])
            for call in parts
        ]
        elsewhere = [
            effect
            for effect in elsewhere
            if not any(effect == f"global {name}" for call in parts for name in call.sets)
        ]
    latest = [call for call in parts if getattr(call.fn, "__code__", None) is code][-1]
    effects = [
        _words(call.why_not) or "its last value" for call in parts if not call.safe and call.why_not != _ONLY_BREAKS
    ]
    effects += _impure(report, frames) + [_words(effect) for effect in elsewhere]
    if first.name in report.reran:  # all that it does besides is unknown: handlers of exceptions above all
        effects.append("plain Python where its graph raised")
    effects = list(dict.fromkeys(effect for some in effects for effect in some.split(", ") if effect))
    args, kwargs = as_called(latest.fn, latest.args) if not latest.kwargs else (latest.args, latest.kwargs)
    return replace(
        latest,
        name=frame_words(first.name),
        line=None if first.line is None else frame_line(first.name, first.line),
        args=args,
        kwargs=kwargs,
        safe=not effects,
        why_not=_why_not(effects),
        graphs=[graph for call in parts for graph in call.graphs],
        latest=_latest(parts),
        compile_seconds=_compile_seconds(
            parts, [] if is_cell else [call for call in calls if call.name != first.name], report
        ),
        sets=_names_set(code) if code is not None and is_cell else latest.sets,
        attributes=tuple(
            dict.fromkeys(attribute for call in (calls if breaks else parts) for attribute in call.attributes)
        ),
    )


def _plain_rest(calls: Sequence[EntryCall], name: str) -> list[str]:
    """Other functions that went on as plain Python."""
    return [
        f"{frame_words(call.name)}: {call.why_not}"
        for call in calls
        if call.why_not == PLAIN_REST and call.name != name
    ]


def _why_not(effects: list[str]) -> str:
    """In words, why a call can't be made again; empty where it can."""
    if not effects:
        return ""
    more = f" and {len(effects) - _NAMED} more" if len(effects) > _NAMED else ""
    return f"it has effects ({', '.join(effects[:_NAMED])}{more})"


def _compile_seconds(parts: list[EntryCall], others: list[EntryCall], report: Any) -> float | None:
    """A cell's first run has waited for whatever it compiled; the first call of a function for what is its own."""
    if all(call.compile_seconds is None for call in parts):
        return None
    return report.summary.compile_seconds - sum(call.compile_seconds or 0.0 for call in others)


def _latest(parts: Sequence[EntryCall]) -> list[GraphCall]:
    """The graphs that one call runs: of each part, what follows a break being one, its latest version's."""
    graphs: dict[Any, list[GraphCall]] = {}
    for call in parts:
        if call.graphs:
            graphs[getattr(call.fn, "__code__", call.fn)] = call.graphs
    return [graph for some in graphs.values() for graph in some]


def _runs_loops(report: Any, frames: Collection[int]) -> bool:
    """Whether loops of these functions are functions of their own: what a turn does is no effect of the whole then."""
    names = tuple(f"{report.frames[i].name}.<loop at line " for i in frames)
    return any(frame.name.startswith(names) for frame in report.frames)


def _impure(report: Any, frames: Collection[int]) -> list[str]:
    """The breaks of some functions whose native part may have effects."""
    return [
        f"line {brk.line}: {brk.kind.replace('_', ' ')}"
        for brk in report.graph_breaks
        if brk.frame in frames and brk.kind not in _PURE_BREAKS and _OF_CONTEXT not in brk.reason
    ]


def _effects_elsewhere(report: Any, own: Collection[int], calls: Sequence[EntryCall]) -> list[str]:
    """Effects of all functions but `own`: what a call that leaves its graph may reach. Names that a cell's loop sets
    are `global ...`.
    """
    out = []
    of_cell = any(report.frames[i].name.startswith("<module>") for i in own)
    for i, frame in enumerate(report.frames):
        if (
            i in own or frame.name == "<module>" or frame.name.startswith("<module>.") and not of_cell
        ):  # nobody calls a cell
            continue
        if frame.status in ("skipped", "limit", "error"):
            out.append(f"{frame_words(frame.name)} runs as plain Python")
        where = "" if frame.name.startswith("<module>.") else f" in {frame_words(frame.name)}"
        told = [call.why_not.split(", ") for call in calls if call.name == frame.name and call.why_not != PLAIN_REST]
        lasting = [effect for words in told for effect in words if effect and effect != _ONLY_BREAKS]
        if not told:  # entries of an earlier run
            lasting = [effect for n in frame.entries for effect in report.entries[n].effects]
        out += [effect + where for effect in lasting] + _impure(report, {i})
    return list(dict.fromkeys(out))


def _with_names_put_back(call: EntryCall, loops: Sequence[str] = ()) -> EntryCall:
    """A cell's code whose one effect is to set names can run again, as often as one likes, where these are put back.
    Those that it reads first are put back before each run, for else a run would begin where the last one ended.
    `loops`: what loops of the cell set that are functions of their own."""
    effects = [effect for effect in call.why_not.split(", ") if effect and effect != _ONLY_BREAKS]
    written = tuple(effect.removeprefix("global ") for effect in [*effects, *loops] if effect.startswith("global "))
    others = [effect for effect in effects if not effect.startswith("global ") and not effect.endswith(VALUE)]
    if not written or others or not isinstance(call.fn, FunctionType):
        return call
    reads = tuple(sorted(read_before_written(call.fn.__code__) & {*written}))
    return replace(call, safe=True, why_not="", sets=written, reads=reads)


def _names_set(code: CodeType) -> tuple[str, ...]:
    """Names that a module's code sets, also where it runs as plain Python after a break."""
    return tuple(
        dict.fromkeys(
            instruction.argval
            for instruction in dis.get_instructions(code)
            if instruction.opname in ("STORE_NAME", "STORE_GLOBAL")
        )
    )


def read_before_written(code: CodeType) -> set[str]:
    """Names that a module's code may read before it sets them: in the order of the text, loops notwithstanding."""
    stored: set[str] = set()
    read: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_NAME", "STORE_GLOBAL"):
            stored.add(instruction.argval)
        elif instruction.opname in ("LOAD_NAME", "LOAD_GLOBAL") and instruction.argval not in stored:
            read.add(instruction.argval)
        elif instruction.opname in ("DELETE_NAME", "DELETE_GLOBAL"):
            read.add(instruction.argval)  # gone in the second run
    return read


def _words(effects: str) -> str:
    """`global y, attribute step` -> `sets y, sets .step`"""
    return ", ".join(
        (
            f"sets {effect.removeprefix('global ')}"
            if effect.startswith("global ")
            else f"sets .{effect.removeprefix('attribute ')}"
            if effect.startswith("attribute ")
            else effect
        )
        for effect in effects.split(", ")
        if not effect.endswith(VALUE)
    )


def as_called(fn: Any, parameters: tuple) -> tuple[tuple, dict[str, Any]]:
    """Arguments for a Python call, from the values of a frame's parameters (co_varnames order, then the tuple of
    *args and the dict of **kwargs)."""
    if not isinstance(fn, FunctionType):
        return parameters, {}
    code = fn.__code__
    n, k = code.co_argcount, code.co_kwonlyargcount
    rest = list(parameters[n + k :])
    args, kwargs = parameters[:n], dict(zip(code.co_varnames[n : n + k], parameters[n : n + k]))
    if code.co_flags & inspect.CO_VARARGS:
        args += tuple(rest.pop(0))
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs |= rest.pop(0)
    return args, kwargs
