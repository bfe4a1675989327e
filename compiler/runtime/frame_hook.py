"""The frame hook for the rest of the compiler: switched on for the length of a with-block.

In: `callback(code, func, args)`, asked for each function frame that no entry serves: it gives an Entry to run,
RUN_ORIGINAL, or the frame's result; with compiled code switched off meanwhile. Out: `capturing(callback)`, a context
manager; the hook acts in the thread and context that entered it and in tasks started there, until it is left.
Without the C extension there is no hook: `available()` is False and `why_unavailable()` says why.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import sysconfig
import types
from contextlib import AbstractContextManager
from typing import Any, Callable

from ..native import autograd_node, native, say_missing, why_missing

__all__ = [
    "available",
    "why_unavailable",
    "capturing",
    "is_capturing",
    "skip_code",
    "unskip_code",
    "is_skipped",
    "default_skip_prefixes",
]

Callback = Callable[[types.CodeType, types.FunctionType, tuple], Any]


def available() -> bool:
    return native is not None


def why_unavailable() -> str | None:
    return why_missing


@functools.cache
def default_skip_prefixes() -> tuple[str, ...]:
    """Folders and pseudo-files whose code is never captured: the standard library, this package, triton's, frozen
    modules.
    """
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    compiler = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    standard = {os.path.dirname(os.__file__), sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"]}
    prefixes = ["<frozen ", "<__array_function__"]
    triton = importlib.util.find_spec("triton")  # (not imported)
    if triton is not None:
        prefixes += [folder + os.sep for folder in triton.submodule_search_locations or ()]
    # site-packages lies inside the standard library's folder: name that folder's own modules and packages instead
    for folder in standard:
        there = set(os.listdir(folder))
        for name in sorted(sys.stdlib_module_names):
            if name + ".py" in there:
                prefixes.append(os.path.join(folder, name + ".py"))
            if name in there:
                prefixes.append(os.path.join(folder, name) + os.sep)
    return (
        *prefixes,
        compiler + os.sep,
        os.path.realpath(compiler) + os.sep,
        os.path.join(here, "kernel_magics") + os.sep,
    )


def capturing(callback: Callback, types: tuple[type, ...] | None = None) -> AbstractContextManager[None]:
    """See the frames that this thread and context start: all, or those that have one of `types` among their parameters
    (or in a list, tuple or dict there) or have entries already. Nests; the innermost callback is asked, in each thread
    its own. Raises RuntimeError where the extension is not built."""
    if native is None:
        say_missing()
        raise RuntimeError(why_missing)
    if not native.hook_installed():
        native.set_skip_prefixes(default_skip_prefixes())
        _let_rest()
    return native.Capturing(callback, types)


@functools.cache
def _let_rest() -> None:
    """Give the hook what it needs to rest: torch's next operator wakes it."""
    node = autograd_node()
    if native is not None and node is not None:
        native.set_alarm(*node.alarm)


def is_capturing(callback: Callback) -> bool:
    """Whether frames started here and now would be shown to `callback`."""
    return native is not None and native.hook_asks(callback) and native.hook_active()


def skip_code(code: types.CodeType) -> None:
    """Pass frames of this code over from now on."""
    if native is not None:
        native.skip_code(code)


def unskip_code(code: types.CodeType) -> None:
    """Undo skip_code."""
    if native is not None:
        native.unskip_code(code)


def is_skipped(code: types.CodeType) -> bool:
    return native is None or native.is_skipped(code)
