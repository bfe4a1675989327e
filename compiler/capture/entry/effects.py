"""The effect log: what the program did to objects from outside, in order, to be done by the entry after the graph has
run.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Sequence

from ...guards.source import attr
from ..kinds import lifetimes
from ..machine.stack_values import ATOMS, MISSING

if TYPE_CHECKING:
    from ..machine.frame import GlobalScope
    from ..machine.machine import Machine

__all__ = ["Effect", "EffectLog"]

_EMPTY_CELL = types.CellType()


@dataclass
class Effect:
    """One line of the entry.

    kind       target                what
    setattr    object                name, value
    delattr    object                name
    global     GlobalScope           name, value
    delglobal  GlobalScope           name
    cell       cell                  value
    method     outside container     name, args, kwargs; base: the builtin class whose method it is
    call       native function       args, kwargs; places: where the program called it, outermost first, as (position,
                                     GlobalScope)
    """

    kind: str
    target: Any
    name: str = ""
    value: Any = None
    args: list = field(default_factory=list)
    kwargs: dict = field(default_factory=dict)
    base: type | None = None
    places: list = field(default_factory=list)

    def words(self) -> str:
        """For the report: `attribute counter`, `global step`, `print`."""
        if self.kind in ("setattr", "delattr"):
            return f"attribute {self.name}"
        if self.kind in ("global", "delglobal"):
            return f"global {self.name}"
        if self.kind == "cell":
            return "closure variable"
        if self.kind == "method":
            return f"{self.base.__name__ if self.base else ''}.{self.name}"
        return getattr(self.target, "__name__", "call")


class EffectLog:
    def __init__(self, machine: Machine):
        self.machine = machine
        self.entries: list[Effect | None] = []
        self._last: dict[tuple, int] = {}  # plain writes by target: a later one replaces an earlier one
        self._seen: set[tuple] = set()  # targets whose earlier write a call may have looked at

    def __bool__(self) -> bool:
        return any(entry is not None for entry in self.entries)

    def __iter__(self) -> Any:
        return (entry for entry in self.entries if entry is not None and not self._changes_nothing(entry))

    def _changes_nothing(self, effect: Effect) -> bool:
        """A plain attribute set back to the constant that guards say it had at first."""
        if (
            effect.kind != "setattr"
            or ("attr", id(effect.target), effect.name) in self._seen
            or type(effect.value) not in ATOMS
            or type(effect.target).__setattr__ is not object.__setattr__
        ):
            return False
        source = self.machine.world.source_of(effect.target)
        if source is None:
            return False
        before = self.machine.world.loaded.get(attr(source, effect.name), MISSING)
        return (
            type(before) is type(effect.value)
            and before == effect.value
            and effect.name in getattr(effect.target, "__dict__", ())
        )

    def _write(self, key: tuple, effect: Effect) -> None:
        place = self._last.setdefault(key, len(self.entries))
        if place < len(self.entries):
            self.entries[place] = effect  # in its first place, since the order of new attributes is seen, too
            self.entries.append(None)  # callers tell by the length whether something was done
        else:
            self.entries.append(effect)

    def set_attribute(self, obj: Any, name: str, value: Any) -> None:
        effect = Effect("setattr", obj, name, value)
        self._let_go(getattr(obj, "__dict__", None), name)
        setter = type(obj).__setattr__
        if setter is object.__setattr__ or isinstance(obj, types.ModuleType):
            self._write(("attr", id(obj), name), effect)
        else:
            self.entries.append(effect)

    def delete_attribute(self, obj: Any, name: str) -> None:
        self._last.pop(("attr", id(obj), name), None)
        self._let_go(getattr(obj, "__dict__", None), name)
        self.entries.append(Effect("delattr", obj, name))

    def set_global(self, scope: GlobalScope, name: str, value: Any) -> None:
        self._let_go(scope.namespace, name)
        self._write(("global", id(scope.namespace), name), Effect("global", scope, name, value))

    def delete_global(self, scope: GlobalScope, name: str) -> None:
        self._last.pop(("global", id(scope.namespace), name), None)
        self._let_go(scope.namespace, name)
        self.entries.append(Effect("delglobal", scope, name))

    def set_cell(self, cell: Any, value: Any) -> None:
        if cell != _EMPTY_CELL:
            lifetimes.release(self.machine, (cell.cell_contents,))
        self._write(("cell", id(cell)), Effect("cell", cell, value=value))

    def _let_go(self, held: Any, name: str) -> None:
        """What lies under the name in a dict is about to be replaced."""
        if isinstance(held, (dict, types.MappingProxyType)) and name in held:
            lifetimes.release(self.machine, (held[name],))

    def method(self, obj: Any, base: type, name: str, args: list, kwargs: dict) -> None:
        lifetimes.release(self.machine, lifetimes.released_by(obj, name, args))
        self.entries.append(Effect("method", obj, name, args=list(args), kwargs=dict(kwargs), base=base))

    def call(self, fn: Any, args: list, kwargs: dict, places: Sequence = ()) -> None:
        """A call of native code, which may read what was written so far (print writes to sys.stdout as it is then)."""
        self._seen.update(self._last)
        self._last.clear()
        self.entries.append(Effect("call", fn, args=list(args), kwargs=dict(kwargs), places=list(places)))
