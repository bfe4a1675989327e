"""The engine that a cell runs on: the one place where the notebook calls the compiler.

`Engine` is what magics, cells and timing need of it; tests run them on a stand-in.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, Callable, ContextManager, Protocol

from ..compiler.config import Options

__all__ = ["Engine", "Compiler"]


class Engine(Protocol):
    def enable(self, options: Options) -> ContextManager[Any]:
        """While active, frames of this thread and context are compiled."""

    def run_code(self, code: CodeType, namespace: dict[str, Any], options: Options) -> Any:
        """Run a module-level code object through capture; the value of an expression, a coroutine where it awaits."""

    def compile(self, fn: Callable, options: Options) -> Callable:
        """`fn` compiled, for timing without the frame hook."""

    def reset(self) -> None:
        """Forget all compiled entries."""


class Compiler:
    """tcompile itself."""

    def enable(self, options: Options) -> ContextManager[Any]:
        from ..compiler import api

        return api.enable(options)

    def run_code(self, code: CodeType, namespace: dict[str, Any], options: Options) -> Any:
        __tracebackhide__ = True
        from ..compiler import api

        return api.run_code(code, namespace, options)

    def compile(self, fn: Callable, options: Options) -> Callable:
        from ..compiler import api

        return api.compile(
            fn,
            backend=options.backend,
            fullgraph=options.fullgraph,
            dynamic=options.dynamic,
            **({"options": {**config_of_mode(options), **options.given}} if options.given else {"mode": options.mode}),
        )

    def reset(self) -> None:
        from ..compiler import api

        api.reset()


def config_of_mode(options: Options) -> dict[str, Any]:
    """What a mode sets, as options: compile() takes one or the other."""
    from ..compiler.config import MODES

    return dict(MODES[options.mode])
