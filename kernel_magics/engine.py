"""The engine that a cell runs on: the one place where the notebook calls the compiler.

`Engine` is what cells and timing need of it; `Compiler` is tcompile itself; tests have a stand-in.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from types import CodeType, FunctionType
from typing import Any, Callable, ContextManager, Protocol

from ..compiler.config import MODES, OPTIONS, Options

__all__ = ["Engine", "Compiler"]


class Engine(Protocol):
    def enable(self, options: Options) -> ContextManager[Any]:
        """While active, frames of this thread and context are compiled."""

    def runner(self, options: Options) -> Callable[[CodeType, dict[str, Any]], Any]:
        """What runs a module-level code object in a namespace, through capture; the value of an expression."""

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

    def runner(self, options: Options) -> Callable[[CodeType, dict[str, Any]], Any]:
        from ..compiler import api

        return partial(api.run_code, opts=options)

    def again(self, fn: Callable, options: Options) -> tuple[Callable, Callable[[], ContextManager[Any]]]:
        from ..compiler import api
        from ..compiler.frontend.hook import engine_for
        from ..compiler.runtime import frame_hook

        if frame_hook.available():
            if isinstance(fn, FunctionType) and fn.__code__.co_name == "<module>":
                # the hook leaves module frames to runner
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
