"""The engine that a cell runs on: the one place where the notebook calls the compiler.

`Engine` is what cells and timing need of it; `Compiler` is tcompile itself; tests have a stand-in.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import CodeType, FunctionType
from typing import Any, Callable, ContextManager, Protocol

from ..compiler.config import MODES, OPTIONS, Options

__all__ = ["Engine", "Compiler"]


class Engine(Protocol):
    def enable(self, options: Options) -> ContextManager[Any]:
        """While active, frames of this thread and context are compiled."""

    def run_code(self, code: CodeType, namespace: dict[str, Any], options: Options) -> Any:
        """Run a module-level code object through capture; the value of an expression, a coroutine where it awaits."""

    def again(self, fn: Callable, options: Options) -> tuple[Callable, Callable[[], ContextManager[Any]]]:
        """For timing: a callable that runs `fn` through its compiled entries, and the context to call it in."""

    def compiled(self, fn: Callable, options: Options) -> Callable:
        """`fn` compiled by itself, as a graph that is timed under other options is."""

    def entries(self, options: Options) -> list[tuple[Any, int]]:
        """Compiled entries under these options, each with the number of calls that it has served."""

    def reset(self) -> None:
        """Forget all compiled entries."""


class Compiler:
    """tcompile itself. Its modules are imported when first needed: loading the extension costs little."""

    def enable(self, options: Options) -> ContextManager[Any]:
        from ..compiler import api

        return api.enable(options)

    def run_code(self, code: CodeType, namespace: dict[str, Any], options: Options) -> Any:
        __tracebackhide__ = True
        import inspect

        from ..compiler import api

        if code.co_flags & inspect.CO_COROUTINE:  # the caller awaits it, inside enable()
            return eval(code, namespace)
        from ..compiler import events
        from ..compiler.frontend.hook import engine_for

        caches: Any = engine_for(options).caches
        cache = caches.get(code)  # equal code has run before: the cell was run again as it was
        known = len(cache.entries) if cache is not None else 0
        value = api.run_code(code, namespace, options)
        if cache is not None and len(cache.entries) == known > 0:
            events.emit(
                "call", frame=code.co_qualname, call=None, cached=True, entry=cache.entries[0]
            )  # last hit first
        return value

    def again(self, fn: Callable, options: Options) -> tuple[Callable, Callable[[], ContextManager[Any]]]:
        from ..compiler import api
        from ..compiler.frontend.hook import engine_for
        from ..compiler.runtime import frame_hook

        if frame_hook.available():
            if (
                isinstance(fn, FunctionType) and fn.__code__.co_name == "<module>"
            ):  # the hook leaves module frames to run_code
                return engine_for(options).dispatcher(fn), lambda: api.enable(options)
            return fn, lambda: api.enable(options)
        return self.compiled(fn, options), nullcontext

    def compiled(self, fn: Callable, options: Options) -> Callable:
        from ..compiler import api

        settings: dict[str, Any] = {"mode": options.mode}
        given = {name: value for name, value in options.given.items() if name in OPTIONS}
        if given:  # compile() takes a mode or options
            settings = {"options": {**MODES[options.mode], **given}}
        return api.compile(
            fn, backend=options.backend, fullgraph=options.fullgraph, dynamic=options.dynamic, **settings
        )

    def entries(self, options: Options) -> list[tuple[Any, int]]:
        return [(e, e.hits) for cache in self._caches(options) for e in cache.entries]

    def _caches(self, options: Options) -> list[Any]:
        from ..compiler.frontend.hook import engine_for

        return engine_for(options).all_caches()

    def reset(self) -> None:
        from ..compiler import api

        api.reset()
