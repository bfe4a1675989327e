"""Library code that calls torch.compile itself, in a cell: what it compiles is this compiler's there.

transformers' `generate` does so for a cache of fixed size. The function that torch.compile gives is left as it is, so
that it is stock's again outside of a cell. Where library code calls it in a cell, what it stands for is called instead,
under the frame hook, and compiled by the same policy as any library code. Functions that the program itself gave to
torch.compile stay stock's.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any, Callable

import torch

from .. import events
from ..guards.guard_program import compile_guards
from ..runtime import frame_hook
from ..runtime.dispatch import RUN_ORIGINAL, Entry, disabled
from ..runtime.stock_hook import hide
from . import frames
from .policy import is_installed

if TYPE_CHECKING:
    from ..config import Options
    from .hook import HookEngine

__all__ = ["InsteadOfStock"]

_COMPILER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class InsteadOfStock:
    """The calls of stock's compiled functions that one engine takes over."""

    def __init__(self, engine: HookEngine, engine_for: Callable[[Options], HookEngine]):
        self._engine, self._engine_for = engine, engine_for
        self._said: weakref.WeakKeyDictionary[types.FunctionType, int] = weakref.WeakKeyDictionary()
        self._entry: Any = None
        self.with_graphs: HookEngine | None = None  # the engine of what asks for CUDA graphs where the cell does not
        self._run_of_graphs = -1

    def serve(self, func: types.FunctionType) -> Any:
        """What runs for a frame of a function that torch.compile made: an entry, or RUN_ORIGINAL."""
        caller = _caller(func.__code__)
        original: Any = func.__dict__["_torchdynamo_orig_callable"]
        if caller is None or not is_installed(caller.f_code.co_filename) or not _is_librarys(original):
            return RUN_ORIGINAL
        if self._said.get(func) != self._engine.generation:
            self._said[func] = self._engine.generation
            library = str(caller.f_globals.get("__name__")).partition(".")[0]
            owner = getattr(original, "__self__", None)
            events.emit(
                "library",
                frame=f"{type(owner).__qualname__}.__call__" if owner is not None else original.__qualname__,
                file=caller.f_code.co_filename,
                line=caller.f_lineno,
                decision="taken over",
                reason=f"{library} called torch.compile for it: in this cell tcompile compiles it instead",
            )
        if self._entry is None:
            with disabled():
                self._entry = Entry(compile_guards([], 2), self._run, None)
        return self._entry

    def _run(self, func: Any, args: tuple, keywords: dict) -> Any:
        __tracebackhide__ = True
        original = func._torchdynamo_orig_callable
        opts = self._engine.opts
        if opts.mode == "default" and "cudagraphs" not in opts.given and _asks_for_graphs(func):
            with frame_hook.capturing(self._with_graphs().on_frame, frames.types_to_look_for()):
                return original(*args, **keywords)
        return original(*args, **keywords)

    def _with_graphs(self) -> HookEngine:
        opts, run = self._engine.opts, self._engine.generation
        engine = self.with_graphs = self._engine_for(
            dataclasses.replace(opts, given={**opts.given, "cudagraphs": True})
        )
        if self._run_of_graphs != run:  # it takes part in the same run of the cell
            self._run_of_graphs = run
            engine.next_run()
        engine.work = self._engine.work
        return engine


hide(InsteadOfStock._run.__code__)


def _caller(code: types.CodeType) -> types.FrameType | None:
    """The frame that called the function of `code`, which the hook asks about."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code is code or frame.f_code.co_filename.startswith(_COMPILER)):
        frame = frame.f_back
    return frame


def _is_librarys(original: Any) -> bool:
    """Whether a library gave this to torch.compile, as far as can be told: a method of a module, or its own function.
    A function of the program's that is passed to a library is the program's."""
    if torch.nn.Module in type(getattr(original, "__self__", None)).__mro__:
        return True
    code = getattr(original, "__code__", None)
    return code is not None and is_installed(code.co_filename)


def _asks_for_graphs(func: Any) -> bool:
    """Whether torch.compile was asked to replay CUDA graphs (mode="reduce-overhead")."""
    config = func.get_compiler_config() if torch.cuda.is_available() and hasattr(func, "get_compiler_config") else None
    return bool(config is not None and config.get("triton.cudagraphs"))
