"""A student's choice of what forward keeps for backward, as the autograd stage.

values_of(program, *args)   the forward values that backward depends on, as plain facts
autograd_stage(keep)        keep(values) gives the names of those that are kept; the rest is computed again

What can't be computed from the choice raises ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable

import tcompile

from ..compiler import stages
from ..compiler.autograd import partition as parting
from ..compiler.ops.closed_set import gives_views
from ..compiler.stages import Decline
from .plugs import named_after
from .testing import unsolved_said

__all__ = ["Value", "autograd_stage", "values_of"]


@dataclass(frozen=True)
class Value:
    """A value of the forward graph that backward depends on.

    kind    "input" (kept for nothing), "cheap" (may be computed again), "dear" (may not: a product, a reduction, a
            random number), "view" (made again for nothing, never kept)
    reads   names of the values that it is computed from
    wanted  whether backward reads it
    """

    name: str
    kind: str
    bytes: int = 0
    reads: tuple[str, ...] = ()
    wanted: bool = False


def _facts(cut: Any, joint: Any, dear: Any) -> tuple[list[Value], dict[str, Any]]:
    readers, later, needed = cut.readers, cut.needs_tangent, cut.needed
    if cut.written or cut.fragile:
        raise Decline("an argument that is written, or may change before backward")
    hints = joint.env.hints if joint.env is not None else {}
    nodes = [
        n for n in joint.graph.nodes if n in needed and n not in later and n.op in ("placeholder", "call_function")
    ]
    values = []
    for n in nodes:
        cheap = parting._recomputable(n) and n not in dear
        kind = "input" if n.op == "placeholder" else "view" if gives_views(n.target) else "cheap" if cheap else "dear"
        wanted = n in readers or any(u in readers or u in later for u in n.users)
        reads = tuple(dict.fromkeys(i.name for i in n.all_input_nodes if i in nodes))
        values.append(Value(n.name, kind, parting._bytes(n, hints) if kind in ("cheap", "dear") else 0, reads, wanted))
    return values, {n.name: n for n in nodes}


def _choose(keep: Callable, cut: Any, joint: Any, dear: Any) -> list[Any]:
    values, nodes = _facts(cut, joint, dear)
    with unsolved_said():
        names = keep(list(values))
    if not isinstance(names, Iterable) or isinstance(names, str):
        raise TypeError(f"{keep.__name__} should give names of values, and gave {names!r:.100}")
    kept, by_name = set(names), {v.name: v for v in values}
    for name in kept:
        if name not in by_name or by_name[name].kind == "view":
            raise ValueError(f"{keep.__name__} keeps {name!r}, which can't be kept")
    todo = [v.name for v in values if v.wanted]
    seen: set[str] = set()
    while todo:
        v = by_name[todo.pop()]
        if v.name in seen or v.name in kept or v.kind == "input":
            continue
        if v.kind == "dear":
            raise ValueError(
                f"backward needs {v.name!r}; it is expensive to compute again, and {keep.__name__} does not keep it"
            )
        seen.add(v.name)
        todo += v.reads
    return [n for name, n in nodes.items() if name in kept or by_name[name].kind == "input"]


def _with_choice(choose: Callable, captured: Any, opts: Any) -> Any:
    """The compiler's own stage, where `choose(cut, joint, dear)` stands for its cut."""
    own = parting.within_budget

    def chosen(cut: Any, budget: float, joint: Any, dear: Any, bits: Any) -> Any:
        return choose(cut, joint, dear)

    parting.within_budget = chosen
    try:
        return stages.original("autograd")(captured, opts=opts)
    finally:
        parting.within_budget = own


def autograd_stage(keep: Callable[[list[Value]], Iterable[str]]) -> Callable:
    """`keep(values)` as the autograd stage. Raise Decline for what is too hard."""

    def stage(captured: Any, *, opts: Any) -> Any:
        return _with_choice(lambda cut, joint, dear: _choose(keep, cut, joint, dear), captured, opts)

    return named_after(keep, stage)


def values_of(program: Callable, *args: Any) -> list[Value]:
    """The forward values that backward of one call depends on, in the order of the graph."""
    found: list[list[Value]] = []

    def look(captured: Any, *, opts: Any) -> Any:
        def note(cut: Any, joint: Any, dear: Any) -> Any:
            found.append(_facts(cut, joint, dear)[0])
            return cut(frozenset())

        return _with_choice(note, captured, opts)

    with tcompile.stages.replace("autograd", look), tcompile.config.patch(suppress_errors=False):
        tcompile.explain(program)(*args)
    return found[0] if found else []
