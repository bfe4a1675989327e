"""Where the guards of an entry, and their plan, hold each object: whoever exchanges an object touches these places
alone.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from .guard import FunctionSpec, Guard, TensorSpec
from .guard_code import Lowering
from .guard_plan import Plan, make_plan
from .source import Source
from .weak import Weak, present

__all__ = ["HeldPlaces"]

T = TypeVar("T")
_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes, type(Ellipsis), TensorSpec, FunctionSpec))


class HeldPlaces:
    """guards    id of an object -> numbers of the guards that hold it
    steps     id of an object -> (part, number) of the plan's steps that hold it
    classes   numbers of the guards that say of which class a value is, or that it is a class, where another class
              may come to be called so
    plan, lowering  of the entry's program, where it is made with these places, or when an object is exchanged for the
                    first time
    """

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.plan: Plan | None = None
        self.lowering: Lowering | None = None
        self.guards: dict[int, list[int]] = {}
        self.steps: dict[int, list[tuple[int, int]]] = {}
        self.classes: list[int] = []
        for i, guard in enumerate(guards):
            for held in (*_held(guard.expected), *_held(guard.source)):
                self.guards.setdefault(id(held), []).append(i)
            if (
                guard.kind in ("ID", "TYPE")
                and guard.source is not None
                and guard.source.root.kind != "const"
                and isinstance(cls := present(guard.expected), type)
                and not _is_a_modules(cls)
            ):
                self.classes.append(i)

    def make_plan(self, guards: Sequence[Guard], n_locals: int) -> Plan:
        """The plan of the guards, with its places."""
        self.plan = make_plan(guards, n_locals)
        for k, part in enumerate(self.plan.parts()):
            for i, step in enumerate(part):
                for held in _held(step[4]):
                    self.steps.setdefault(id(held), []).append((k, i))
        return self.plan

    def exchanged(self, plan: Plan, new: Mapping[int, Any], of: Callable[[Any], Any]) -> HeldPlaces:
        """The places in this plan once it holds `new` (old id -> the new object) in the place of the old ones. `of`
        gives what a step is to hold.
        """
        touched = {at for old in new for at in self.steps.get(old, ())}
        parts = [list(part) for part in plan.parts()]
        for k, i in touched:
            step = parts[k][i]
            parts[k][i] = (*step[:4], of(step[4]))
        out = copy.copy(self)
        first, watched, last = parts
        out.plan = Plan(first, watched, last, plan.symbols, plan.n_slots)
        out.lowering = None if self.lowering is None else self.lowering.exchanged(out.plan, touched)
        out.guards, out.steps = _moved(self.guards, new), _moved(self.steps, new)
        return out


def _moved(table: Mapping[int, list[T]], new: Mapping[int, Any]) -> dict[int, list[T]]:
    """The table in the new names. A new object may have the address of one that is gone: it has the places of both."""
    out = dict(table)
    moved = [(id(new[old]), out.pop(old)) for old in new if old in out]
    for key, at in moved:
        out[key] = [*out.get(key, ()), *at]
    return out


def _is_a_modules(cls: type) -> bool:
    """Whether a module has the class under its name. A notebook's next cell may put another one there."""
    found: Any = sys.modules.get(cls.__module__) if cls.__module__ != "__main__" else None
    for name in cls.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found is cls


def _held(value: Any) -> Iterator[Any]:
    """The objects that may be exchanged in what a guard or a step holds (Renaming.of exchanges them)."""
    kind = type(value)
    if kind is Weak or kind is weakref.ref:
        if (there := value()) is not None:
            yield there
    elif kind is tuple or kind is frozenset:
        for part in value:
            yield from _held(part)
    elif kind is Source:
        if value.root.kind == "const":
            yield value.root.key
    elif kind not in _ATOMS:
        yield value
