"""Whether this interpreter tells of every change that a watched guard relies on hearing of.

The C program skips watched guards while the version tags of dicts and types, and the words that attributes lie in, are
as they were (`native/watch.c`). Which writes move a tag differs between interpreters: CPython 3.13 writes attributes
without telling the dict. So each kind of write is tried here once in a process; where one goes unheard, nothing is
watched, and all guards are evaluated at each call.
"""

from __future__ import annotations

import collections
from typing import Any, Callable

from . import source as S
from .guard import Guard

__all__ = ["every_write_is_heard"]

_X = S.local(0, "o")


def _store(o: Any, value: Any) -> None:
    o.a = value


def _attribute_writes() -> list[Callable[[Any], Any]]:
    return [
        lambda o: _store(o, 2),
        lambda o: setattr(o, "a", 2),
        lambda o: object.__setattr__(o, "a", 2),
        lambda o: delattr(o, "a"),
        lambda o: o.__dict__.__setitem__("a", 2),
        lambda o: o.__dict__.update(a=2),
        lambda o: o.__dict__.pop("a"),
        lambda o: o.__dict__.popitem(),
        lambda o: o.__dict__.clear(),
        lambda o: o.__dict__.__ior__({"a": 2}),
        lambda o: setattr(o, "__dict__", {"a": 2}),
        lambda o: setattr(o, "b", 1),
        lambda o: o.__dict__.setdefault("b", 1),
    ]


def _class_writes() -> list[Callable[[type], Any]]:
    return [
        lambda c: setattr(c, "k", 2),
        lambda c: delattr(c.__mro__[1], "k"),
        lambda c: setattr(c.__mro__[1], "k", 2),
        lambda c: setattr(c, "__bases__", (type("Other", (), {"k": 2}),)),
    ]


def _table_writes() -> list[Callable[[collections.OrderedDict], Any]]:
    """Ways in which an empty table of hooks gets its first one."""
    return [
        lambda d: d.__setitem__("a", 1),
        lambda d: dict.__setitem__(d, "a", 1),
        lambda d: d.update(a=1),
        lambda d: d.setdefault("a", 1),
        lambda d: d.__ior__({"a": 1}),
        lambda d: d.__init__(a=1),  # type: ignore[misc]
    ]


def _heard(program: Any, o: Any, change: Callable[[], Any]) -> bool:
    def func(o: Any) -> None:
        pass

    if program.check(func, (o,)) != -1 or program.check(func, (o,)) != -1:
        return False
    change()
    return program.check(func, (o,)) != -1


def every_write_is_heard(compile_guards: Callable[..., Any]) -> bool:
    """Try each kind of write on objects made for it. About 0.3 ms."""
    for write in _attribute_writes():
        for taken in (False, True):
            cls = type("Probe", (), {})
            for i in range(20):  # the interpreter specialises the instruction of the store
                _store(cls(), i)
            o = cls()
            o.a = 1
            held = o.__dict__ if taken else None
            program = compile_guards(
                [Guard(S.attr(_X, "a"), "EQUALS", 1), Guard(_X, "HASATTR", ("b", False)), Guard(_X, "TYPE", cls)], 1
            )
            if not _heard(program, o, lambda: write(o)):  # noqa: B023  (called here)
                return False
            del held
    for change in _class_writes():
        base = type("Base", (type("Root", (), {}),), {"k": 1})
        cls = type("Probe", (base,), {})
        o = cls()
        program = compile_guards([Guard(S.attr(_X, "k"), "EQUALS", 1), Guard(_X, "TYPE", cls)], 1)
        if not _heard(program, o, lambda: change(cls)):  # noqa: B023  (called here)
            return False
    for fill in _table_writes():
        hooks: collections.OrderedDict = collections.OrderedDict()
        program = compile_guards([Guard(S.const(hooks), "LEN", 0)], 1)
        if not _heard(program, None, lambda: fill(hooks)):  # noqa: B023  (called here)
            return False
    table = {"a": 1}
    program = compile_guards(
        [Guard(S.dict_value(S.const(table), "a"), "EQUALS", 1), Guard(S.const(table), "LEN", 1)], 1
    )
    return _heard(program, None, lambda: table.update(a=2))
