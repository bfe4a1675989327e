"""EntryCall: one call that reached the compiler from user code, kept so that it can be timed again.

The engine states one per function and run, as `events.emit("call", frame=..., call=EntryCall(...), cached=bool)`, at
the outermost captured call (calls made by captured code belong to it). It refers to the arguments, it does not copy them.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

__all__ = ["EntryCall", "GraphCall"]


@dataclass
class GraphCall:
    """One compiled graph with its inputs, for timing the graph alone. `eager` and `compiled` take `inputs`."""
    name: str
    eager: Callable[..., Any]
    compiled: Callable[..., Any]
    inputs: tuple


@dataclass
class EntryCall:
    """`fn(*args, **kwargs)` as user code called it. `safe`: running it again has no effect but its result; `why_not`
    says in one phrase why it is not. `graphs` serve where it is not safe. `compile_seconds` is what its entry cost."""
    name: str
    fn: Callable[..., Any]
    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    file: str = ""
    line: int | None = None
    safe: bool = True
    why_not: str = ""
    graphs: list[GraphCall] = field(default_factory=list)
    compile_seconds: float | None = None
