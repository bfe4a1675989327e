"""Cells and whole programs: the compiler sees the frames that code reaches, without wrapping anything.

`enable()` activates the frame hook for a with-block; `run_code(code, namespace)` runs a cell's code object through capture, with the hook
on for what it calls. Compiled entries are kept per code object and per set of options and serve later cells.
"""
from __future__ import annotations

import inspect
import sys
import types
from contextlib import contextmanager
from typing import Any, Iterator, TypeVar

from . import events, frames, stages
from .capture.bytecode.memo import CodeMemo
from .config import Options
from .engine import Engine
from .guards.values import file_of
from .runtime import hook as _hook
from .runtime.dispatch import forget_all, forget_code

__all__ = ["enable", "run_code", "reset", "engine_for", "all_engines"]

T = TypeVar("T")
_CELLS = 256                         # distinct cells whose entries are kept
_ENGINES = 64                        # sets of options whose engines are kept
_engines: "dict[Any, HookEngine]" = {}      # the one asked for last is the last


def engine_for(opts: Options) -> "HookEngine":
    """The engine of a set of options, kept so that entries serve later cells. Of very many sets (a backend that is defined anew by each
    cell), the one that was not asked for longest goes, with its entries."""
    key = (opts.mode, opts.backend if isinstance(opts.backend, str) else id(opts.backend), opts.fullgraph, opts.dynamic,
           tuple(sorted(opts.given.items())), stages.replaced())
    e = _engines.pop(key, None) or HookEngine(opts)
    _engines[key] = e
    while len(_engines) > _ENGINES:
        _engines.pop(next(iter(_engines))).reset()
    return e


def all_engines() -> list[Engine]:
    return list(_engines.values())


class _CellMemo(CodeMemo[T]):
    """Cells are known again by the value of their code: one that is run again as it was finds what it had. The latest are kept."""

    def __init__(self) -> None:
        super().__init__()
        # code of a cell and its name (not its number: guards.values.file_of) -> the equal one that came first
        self._cells: dict[tuple[types.CodeType, str], types.CodeType] = {}

    def first(self, code: types.CodeType) -> types.CodeType:
        """The code object that the same cell had when it ran first. The functions that it defines are then the same code, too."""
        return self._cells.get((code, file_of(code)), code) if code.co_name == "<module>" else code

    def get(self, code: types.CodeType, default: T | None = None) -> T | None:  # type: ignore[override]
        return super().get(self.first(code), default)

    def __setitem__(self, code: types.CodeType, value: T) -> None:
        if code.co_name == "<module>":
            code = self._cells.setdefault((code, file_of(code)), code)
            if len(self._cells) > _CELLS:
                del self._cells[next(iter(self._cells))]
        super().__setitem__(code, value)

    def clear(self) -> None:
        super().clear()
        self._cells.clear()


class HookEngine(Engine):
    """An engine for frames that the hook sees. Their caches hang on the code objects, one for each set of options."""

    def __init__(self, opts: Options):
        super().__init__(opts)
        self.caches: _CellMemo[Any] = _CellMemo()
        self.states = _CellMemo()

    def cache(self, code: types.CodeType) -> Any:
        from .runtime.dispatch import code_cache
        c = self.caches.get(code)
        if c is None:
            c = self.caches[code] = code_cache(code, owner=self.number)
        return c

    def frame_cache(self, func: types.FunctionType) -> Any:
        return self.cache(func.__code__)       # a cell's code is known again by its value

    def reset(self) -> None:
        for code in self.caches:
            forget_code(code, self.number)
        self.caches.clear()
        self.states.clear()


@contextmanager
def enable(opts: Options | None = None, **kwargs: Any) -> Iterator[None]:
    """Compile what runs in this thread and context for the length of a with-block: every frame that works on tensors, also inside
    libraries. Keywords are those of `compile` (`opts`: the same, checked before). Without the C extension it says so and runs eager."""
    if opts is not None and not isinstance(opts, Options):
        raise TypeError(f"enable() takes keywords (mode=..., backend=..., fullgraph=..., dynamic=..., options=...), got {opts!r}")
    if opts is None:
        from .backends import resolve
        opts = Options.make(kwargs.pop("mode", None), resolve(kwargs.pop("backend", "tcompile")), kwargs.pop("fullgraph", False),
                            kwargs.pop("dynamic", None), kwargs.pop("options", None))
        if kwargs:
            raise TypeError(f"enable() got an unexpected keyword {next(iter(kwargs))!r}; it takes mode, backend, fullgraph, dynamic, options")
    if not _hook.available():
        events.emit("fallback", what="frame hook", reason=_hook.why_unavailable() or "", count=1)
        yield
        return
    engine = engine_for(opts)
    if sys.gettrace() is not None:
        events.emit("fallback", what="frame hook", reason="a debugger or tracer watches this thread: frames run eager for it", count=1)
    with _hook.capturing(engine.on_frame, frames.types_to_look_for()):
        yield


def run_code(code: types.CodeType, namespace: dict[str, Any], opts: Options) -> Any:
    """Run a cell's code object in `namespace`, its own top level captured like a function, with the hook on for what it calls.
    Returns what the code object returns (None for a cell, the value for an expression)."""
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        raise ValueError("run_code: an asynchronous cell is awaited by its caller, inside enable()")
    engine = engine_for(opts)
    engine.next_run()
    code = engine.caches.first(code)
    namespace.setdefault("__builtins__", __builtins__)
    top = types.FunctionType(code, namespace, code.co_name)
    with enable(opts):
        if not _hook.available():
            return eval(code, namespace)
        cache = engine.cache(code)
        from .runtime.dispatch import RUN_ORIGINAL, disabled
        with disabled():
            entry = engine.entry_for(code, cache, top, ())
        if entry is RUN_ORIGINAL:
            return eval(code, namespace)
        return entry.fn(top)


def reset() -> None:
    """Forget the entries of all engines, also of those that are gone."""
    for e in _engines.values():
        e.reset()
    forget_all()
