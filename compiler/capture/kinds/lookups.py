"""Class lookups: what capture found under a name in a class and its bases, and what it did not find.

Methods, descriptors and special methods (`__bool__`, `__len__`, `__getattr__`, ...) decide what a program means, the
absent ones too. Each lookup in a class that may change is written down while a frame is captured. The frame relies on
all of them by one CLASS guard per class. It costs nothing per call while the class stays as it is."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Iterator

from ...guards import source as S
from ...guards.guard import Guard
from ...guards.source_values import found_in_class

__all__ = ["Missing", "MISSING", "class_attribute", "found_in", "recording", "class_guards"]

_HEAP_TYPE = 1 << 9


class Missing:
    """Sentinels that never are values of the program."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"


MISSING = Missing("missing")
Table = dict[int, tuple[type, dict[str, Any]]]  # id of a class -> the class, and what its names gave


class _Current(threading.local):
    table: Table | None = None


_current = _Current()


def found_in(cls: type, name: str) -> Any:
    """The class attribute `name` as the type's own lookup finds it, unbound; MISSING."""
    for base in cls.__mro__:
        found = base.__dict__.get(name, MISSING)
        if found is not MISSING:
            return found
    return MISSING


def class_attribute(cls: type, name: str) -> Any:
    """The same, which the frame that is captured relies on."""
    found = found_in(cls, name)
    table = _current.table
    if table is not None and cls.__flags__ & _HEAP_TYPE:
        known = table.get(id(cls))
        if known is None:
            known = table[id(cls)] = (cls, {})
        known[1].setdefault(name, found)
    return found


@contextmanager
def recording(table: Table) -> Iterator[None]:
    """Write down the lookups of this thread in `table`."""
    before, _current.table = _current.table, table
    try:
        yield
    finally:
        _current.table = before


def class_guards(table: Table, made: Any) -> list[Guard]:
    """One guard for each class, torch's own included, that was not made by the program itself (`made` holds the ids of
    those). Plain values are left out: they are guarded by what they are where they are read."""
    guards = []
    for key, (cls, names) in table.items():
        module = cls.__dict__.get("__module__")
        if key in made or isinstance(module, str) and module.partition(".")[0] == "tcompile":
            continue
        expected = []
        for name, found in names.items():
            if found is MISSING:
                expected.append((name, ...))
            elif found is None or hasattr(type(found), "__get__"):
                expected.append((name, found_in_class(found)))
        if expected:
            guards.append(Guard(S.const(cls), "CLASS", tuple(expected), None, None, "names looked up in the class"))
    return guards
