"""Entries: the function of what was captured, and what it needs beside its guards.

The engine makes an entry of a CaptureResult and keeps it in a frame's cache. Here stand the steps of that which need no
engine: the entry's text becomes a function, and the entry goes when an object goes that its guards know.
"""

from __future__ import annotations

import itertools
import linecache
import types
import weakref
from typing import Any, Callable, Sequence

from ...base.quoting import file_name
from ...capture.entry.result import CaptureResult
from ...guards.guard import Guard
from ...marks import error_on_graph_break
from ...runtime import frame_hook
from ...runtime.stock_hook import hide
from ..frames import types_to_look_for

__all__ = [
    "drop_with_owners",
    "entry_function",
    "guard_later_decisions",
    "hook_native_calls",
    "pass_over_native_code",
    "state_break_errors",
]

_RUN_NATIVELY = ("break_", "__c_break_code", "__c_calling_code")  # names of an entry's namespace (capture/entry/)
_numbers = itertools.count()


def entry_function(result: CaptureResult, name: str) -> Callable:
    """The entry's text as a function; its lines are known to tracebacks and debuggers. An entry that is said of other
    classes has the text of the one before, which is compiled once.
    """
    if result.text is None:
        file = f"<tcompile entry {next(_numbers)} of {file_name(name)}>"
        linecache.cache[file] = (len(result.source), None, result.source.splitlines(True), file)
        result.text = compile(result.source, file, "exec")
        weakref.finalize(result.text, linecache.cache.pop, file, None).atexit = False
    exec(result.text, result.namespace)
    fn = result.namespace["entry"]
    hide(fn.__code__)
    return fn


def pass_over_native_code(result: CaptureResult) -> None:
    """Break functions hold the user's code and run natively on purpose: the hook must not take them up. The code of
    functions that the frame makes stays wanted, since they may be called from anywhere.
    """
    for name, v in result.namespace.items():
        code = v.__code__ if name.startswith("break_") and isinstance(v, types.FunctionType) else v
        if name.startswith(_RUN_NATIVELY) and isinstance(code, types.CodeType):
            frame_hook.skip_code(code)


def hook_native_calls(fn: Callable, callback: Callable) -> Callable:
    """An entry that makes native calls sees the frames of those calls through the hook, which asks `callback`."""

    def run(*args: Any) -> Any:
        __tracebackhide__ = True
        if frame_hook.is_capturing(callback):
            return fn(*args)
        with frame_hook.capturing(callback, types_to_look_for()):
            return fn(*args)

    hide(run.__code__)
    return run


def state_break_errors(fn: Callable, errors: bool) -> Callable:
    """The entry of a function whose options say whether breaks are errors: what it calls and what follows its breaks
    are captured while it runs."""

    def run(*args: Any) -> Any:
        __tracebackhide__ = True
        with error_on_graph_break(errors):
            return fn(*args)

    hide(run.__code__)
    return run


def guard_later_decisions(result: CaptureResult) -> None:
    """The stages behind capture may fix a size, too (an operator that has no rule for symbols): what they decided holds
    for this entry alone."""
    env = result.graph.env if result.graph is not None else None
    guarded = {g.expected for g in result.guards if g.kind == "PREDICATE"}
    for expr, file, line, why in env.guards if env is not None else ():
        if expr not in guarded:
            result.guards.append(Guard(None, "PREDICATE", expr, file, line, why or "size"))


def drop_with_owners(cache: Any, entry: Any, owners: Sequence[Any]) -> None:
    """An entry made for objects (a model, a class) goes when one of them goes: its guards would never hold again."""
    where: weakref.ref[Any] = weakref.ref(cache)

    def gone(reference: weakref.ref) -> None:
        if (found := where()) is not None:
            for e in found.entries:
                if any(r is reference for r in getattr(e, "owners", ())):
                    found.remove(e)

    entry.owners += [weakref.ref(o, gone) for o in owners]
