"""What is compiled in this process at the moment: every function with its entries, over all engines. For `%tcompile
status` and the side panel, which ask while nothing runs; reports tell what happened, this tells what is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator

__all__ = ["CompiledFunction", "compiled_functions"]


@dataclass
class CompiledFunction:
    """One code object's entries under one set of options."""

    name: str
    file: str  # as the code object has it; `report.labels.label` shortens it
    line: int
    mode: str
    backend: str
    entries: int
    calls: int  # served by these entries, since each was made
    guards: int  # of the entry that served last
    status: str  # "compiled", "limit" (runs eager from now on) or "skipped"
    reason: str = ""
    # Per entry, the one that served last first: its capture result (its identity in reports), calls
    served: list[tuple[Any, int]] = field(default_factory=list, repr=False)
    programs: list[Any] = field(default_factory=list, repr=False)  # per entry: the program of its guards


def compiled_functions(name: str = "") -> list[CompiledFunction]:
    """Functions with entries or with a reason to have none, in the order in which they were first met; of one `name`,
    where it is given. What equal modules share is told once."""
    told: set[int] = set()  # ids of entries
    return [f for engine in _engines() for f in _of(engine, told, name)]


def _engines() -> Iterator[Any]:
    from . import hook
    from .engine import engines

    for reference in list(engines):
        engine = reference()
        if engine is not None:
            yield engine
    yield from hook.all_engines()


def _of(engine: Any, told: set[int], name: str) -> Iterator[CompiledFunction]:
    backend = (
        engine.opts.backend
        if isinstance(engine.opts.backend, str)
        else getattr(engine.opts.backend, "__name__", "custom")
    )
    for code in list(dict.fromkeys([*engine.caches, *engine.states])):
        if name and code.co_qualname != name:
            continue
        cache, state = engine.caches.get(code), engine.states.get(code)
        entries = [entry for entry in cache.entries if id(entry) not in told] if cache is not None else []
        told.update(map(id, entries))
        reason = state.skip_reason if state is not None else ""
        if not entries and not reason:
            continue
        status = "compiled" if not reason else "limit" if reason.startswith("recompile limit") else "skipped"
        yield CompiledFunction(
            name=code.co_qualname,
            file=code.co_filename,
            line=code.co_firstlineno,
            mode=engine.opts.mode,
            backend=backend,
            entries=len(entries),
            calls=sum(entry.hits for entry in entries),
            guards=len(entries[0].program.guards) if entries else 0,
            status=status,
            reason=reason,
            served=[(entry.meta, entry.hits) for entry in entries],
            programs=[entry.program for entry in entries],
        )
