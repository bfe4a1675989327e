"""Classes that were defined again by the same text: a cell that ran anew.

A cell that defines `class Net` and runs again makes another class. What was compiled for the old one holds for the new
one as well, word for word, as long as both are *the same definition*: equal code, equal attributes, the same bases,
closures that hold the same. Then the guards of an entry may be said of the new classes instead (`renamed`), all at
once. Whatever a program asks of classes is guarded. So an entry whose guards hold under a one-to-one renaming does what
it did."""

from __future__ import annotations

import _abc
import collections
import dataclasses
import operator
import types
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from .guard import FunctionSpec, Guard
from .held_places import HeldPlaces
from .python_program import evaluate_source
from .source import Source, make_source
from .source_values import Unreachable, same_code
from .weak import Weak, present

__all__ = ["Renaming", "renamed"]

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_WRAPPERS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel", "__doc__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    types.MethodType: ("__func__", "__self__"),
}
_DECORATORS = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode, torch.autocast)
_FIELD = type(vars(collections.namedtuple("_Pair", "first"))["first"])  # what a field of a named tuple is read by
_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)
# Each class has its own, and programs can't tell them apart. The registry of an abstract class is not among them, where
# anything is registered: isinstance() asks it.
_OWN_OF_EACH = frozenset(("__dict__", "__weakref__", "__firstlineno__"))


_DICTS = ("__annotations__", "__dataclass_fields__")


class Renaming:
    """Pairs of objects, old and new, that are the same definition."""

    def __init__(self) -> None:
        self.new: dict[int, Any] = {}  # id of the old object -> the new one
        self.old: dict[int, Any] = {}  # id of the new object -> the old one; keeps it, too

    def __bool__(self) -> bool:
        return bool(self.new)

    def pair(self, old: Any, new: Any) -> bool:
        """Whether `old` may be called `new`: they are one object, equal constants, or the same definition."""
        if id(old) in self.new or id(new) in self.old:
            return self.new.get(id(old)) is new
        if old is new:
            return True
        if type(old) is not type(new):
            return False
        if type(old) in _ATOMS:
            return old == new and repr(old) == repr(new)
        if type(old) in (tuple, frozenset):
            return len(old) == len(new) and (all(map(self.pair, old, new)) if type(old) is tuple else old == new)
        if isinstance(old, type):
            return self._pair(old, new, self._same_class)
        if type(old) is types.FunctionType:
            return self._pair(old, new, self._same_function)
        if type(old) in _WRAPPERS:
            return all(self.pair(getattr(old, part), getattr(new, part)) for part in _WRAPPERS[type(old)])
        if isinstance(old, _DECORATORS):
            return self._pair(old, new, lambda a, b: self._same_dict(_settings(a), _settings(b)))
        if type(old) is dataclasses.Field:
            return all(self.pair(getattr(old, part), getattr(new, part)) for part in dataclasses.Field.__slots__)
        if type(old) is _FIELD:
            return self._pair(old, new, lambda a, b: a.__reduce__() == b.__reduce__())
        if type(old) is types.MappingProxyType:  # of a field
            return self._same_dict(dict(old), dict(new))
        if type(old) is set:  # in the closure of a dataclass's __repr__: who is at it
            return not old and not new
        if type(old) is list:  # what a program reads of it is guarded, as of any list
            return self._pair(old, new, self._same_list)
        if type(old) is dict:
            return self._pair(old, new, self._same_dict)
        return False

    def _pair(self, old: Any, new: Any, same: Any) -> bool:
        self.new[id(old)], self.old[id(new)] = new, old  # first: a method's closure holds its class
        return same(old, new)

    def _same_class(self, old: type, new: type) -> bool:
        a, b = old.__dict__, new.__dict__
        return (
            len(old.__bases__) == len(new.__bases__)
            and all(map(self.pair, old.__bases__, new.__bases__))
            and list(a) == list(b)
            and all(self._same_attribute(name, a[name], b[name]) for name in a if name != "_abc_impl")
            and not ("_abc_impl" in a and (_registered(old) or _registered(new)))
        )

    def _same_attribute(self, name: str, old: Any, new: Any) -> bool:
        if name in _OWN_OF_EACH:
            return True
        if type(old) in _SLOTS:
            return type(new) is type(old)
        if name in _DICTS and type(old) is type(new) is dict:
            return self._same_dict(old, new)
        if name == "__dataclass_params__":
            return type(old) is type(new) and type(old).__module__ == "dataclasses" and repr(old) == repr(new)
        return self.pair(old, new)

    def _same_function(self, old: types.FunctionType, new: types.FunctionType) -> bool:
        return (
            same_code(old.__code__, new.__code__)
            and self._same_globals(old.__globals__, new.__globals__)
            and self.pair(old.__defaults__, new.__defaults__)
            and self._same_dict(old.__kwdefaults__ or {}, new.__kwdefaults__ or {})
            and self._same_dict(old.__dict__, new.__dict__)
            and (old.__name__, old.__qualname__, old.__module__, old.__doc__)
            == (new.__name__, new.__qualname__, new.__module__, new.__doc__)
            and self._same_dict(old.__annotations__, new.__annotations__)
            and self._same_cells(old.__closure__ or (), new.__closure__ or ())
        )

    def _same_globals(self, old: dict, new: dict) -> bool:
        """One dict, or those that a named tuple's `__new__` has for itself."""
        return old is new or str(old.get("__name__")).startswith("namedtuple_") and self._same_dict(old, new)

    def _same_dict(self, old: dict, new: dict) -> bool:
        return list(old) == list(new) and all(self.pair(old[k], new[k]) for k in old)

    def _same_list(self, old: list, new: list) -> bool:
        return len(old) == len(new) and all(map(self.pair, old, new))

    def _same_cells(self, old: Sequence[types.CellType], new: Sequence[types.CellType]) -> bool:
        def contents(cell: types.CellType) -> Any:
            try:
                return cell.cell_contents
            except ValueError:
                return ...

        return len(old) == len(new) and all(self.pair(contents(a), contents(b)) for a, b in zip(old, new))

    # ---- what guards and entries hold
    def of(self, value: Any) -> Any:
        """What guards hold, in the new names."""
        cls = type(value)
        if cls is Weak or cls is weakref.ref:
            new = self.new.get(id(value()))
            return value if new is None else cls(new)
        if cls in (tuple, frozenset):
            parts = [*map(self.of, value)]
            return value if all(map(operator.is_, parts, value)) else cls(parts)
        if cls is Source:
            return self.source(value)
        if cls is FunctionSpec:
            return value
        return self.new.get(id(value), value)

    def source(self, source: Source) -> Source:
        """The same path from the new object, where it begins at an old one."""
        if source.root.kind != "const" or id(source.root.key) not in self.new:
            return source
        at = make_source("const", None, self.new[id(source.root.key)])
        for step in source.path()[1:]:
            at = make_source(step.kind, at, step.held)
        return at

    def guard(self, guard: Guard) -> Guard:
        source = None if guard.source is None else self.source(guard.source)
        expected = self.of(guard.expected)
        if source is guard.source and expected is guard.expected:
            return guard
        return dataclasses.replace(guard, source=source, expected=expected)

    def places(self, guards: Sequence[Guard], places: HeldPlaces, n_locals: int) -> tuple[list[Guard], HeldPlaces]:
        """The guards, their plan and its places in the new names. What runs when does not depend on who is expected."""
        out = list(guards)
        for i in {i for old in self.new for i in places.guards.get(old, ())}:
            out[i] = self.guard(out[i])
        return out, places.exchanged(places.plan or places.make_plan(guards, n_locals), self.new, self.of)

    def namespace(self, names: dict[str, Any]) -> dict[str, Any] | None:
        """The globals of an entry's text in the new names; None where an old object lies deeper in one of them."""
        out = {
            name: self.of(value) if type(value) is Weak else self.new.get(id(value), value)
            for name, value in names.items()
        }
        inside = (value for name, value in out.items() if name != "__builtins__")  # Python's own, and many
        return None if any(self._holds_old(value, 3) for value in inside) else out

    def owners(self, references: Sequence[weakref.ref]) -> list[Any]:
        """The objects that an entry serves, in the new names; those that are gone are left out."""
        held = {id(owner): owner for reference in references if (owner := reference()) is not None}
        return [self.new.get(at, owner) for at, owner in held.items()]

    def _holds_old(self, value: Any, depth: int) -> bool:
        if id(value) in self.new or id(type(value)) in self.new:
            return True
        if depth == 0:
            return False
        inside: Any = ()
        if type(value) in (tuple, list, set, frozenset):
            inside = value
        elif type(value) is dict:
            inside = (*value, *value.values())
        elif type(value) is types.MethodType:
            inside = (value.__self__, value.__func__)
        elif type(value) is types.FunctionType and value.__closure__:
            inside = [c.cell_contents for c in value.__closure__ if c != types.CellType()]
        elif isinstance(value, Weak):
            inside = (value(),)
        return any(self._holds_old(v, depth - 1) for v in inside if type(v) not in _ATOMS)


def _registered(abstract: type) -> Any:
    """The classes that were registered with an abstract one."""
    return _abc._get_dump(abstract)[0]  # type: ignore[attr-defined]


def _settings(mode: Any) -> dict[str, Any]:
    """What a mode sets; not what it put aside when it was entered last."""
    return {name: value for name, value in vars(mode).items() if not name.startswith("prev")}


def renamed(guards: Sequence[Guard], places: HeldPlaces, func: Any, args: tuple) -> Renaming | None:
    """The names of this call's classes for what the guards of an entry hold; None where no class of theirs was defined
    again.
    """
    renaming = Renaming()
    for cls in places.classes:
        guard = guards[cls]
        wanted = present(guard.expected)
        try:
            got = evaluate_source(guard.source, func, args)
        except Unreachable:
            continue  # its guard says so
        if guard.kind == "TYPE":
            got = type(got)
        if got is not wanted and not renaming.pair(wanted, got):
            return None
    # what has both, old and new, tells them apart
    return renaming if renaming and places.guards.keys().isdisjoint(renaming.old) else None
