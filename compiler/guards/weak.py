"""What guards and sources hold of the program: classes, functions, modules and members of enums, none of which they
keep alive.

An entry hangs on a code object, where the collector of cycles does not look: a class held there, whose methods hold
that code, would never go. So these are held by `Weak` references; once one is gone, what asks for it fails, and the
entry can be dropped.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Iterable
from typing import Any

__all__ = ["Weak", "reference", "weakly", "present", "referents", "bare_code"]

_HEAP_TYPE = 1 << 9
_flags_of = type.__dict__["__flags__"].__get__
_KEPT_BY_OTHERS = (types.FunctionType, types.ModuleType, types.CodeType)


class Weak(weakref.ref):
    """A weak reference that stands for its object: const_equal(object, Weak(object)) holds, and a dict finds by it the
    key that the object is. The program's own references are of other types."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other or (present(other) is self() is not None)

    __hash__ = weakref.ref.__hash__  # the object's own


def _is_kept_by_others(value: Any) -> bool:
    cls = type(value)
    mro = cls.__mro__  # isinstance would ask the object
    if type in mro:
        return bool(_flags_of(value) & _HEAP_TYPE)
    return cls in _KEPT_BY_OTHERS or enum.Enum in mro and cls.__weakrefoffset__ != 0


def reference(value: Any) -> Any:
    """A Weak for a class, function, module or member of an enum; other values as they are."""
    return Weak(value) if _is_kept_by_others(value) else value


def weakly(value: Any) -> Any:
    """As `reference`, in tuples and frozensets, too."""
    cls = type(value)
    return cls(map(weakly, value)) if cls is tuple or cls is frozenset else reference(value)


def present(value: Any) -> Any:
    """The object behind what `reference` gave; None where it is gone."""
    return value() if type(value) is Weak else value


def referents(guards: Iterable[Any]) -> list[Any]:
    """The objects without which one of the guards never holds again."""
    found: dict[int, Any] = {}

    def look(held: Any) -> None:
        if type(held) is tuple:
            for part in held:
                look(part)
        elif type(held) is Weak:
            found[id(held())] = held()

    for guard in guards:
        if guard.kind == "WEAK_ID" and isinstance(guard.expected, weakref.ref):
            found[id(guard.expected())] = guard.expected()
        elif type(guard.expected) in (tuple, Weak):
            look(guard.expected)
        if guard.source is not None and guard.source.root.kind == "const":
            look(guard.source.root.held)
    found.pop(id(None), None)
    return list(found.values())


def bare_code(code: types.CodeType) -> types.CodeType:
    """Code that is equal to `code` and belongs to no function: no entries hang on it, or on the code inside of it."""
    return code.replace(
        co_consts=tuple(
            bare_code(co_const) if isinstance(co_const, types.CodeType) else co_const for co_const in code.co_consts
        )
    )
