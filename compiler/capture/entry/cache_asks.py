"""Lines of an entry that ask caches of functools for what capture relied on (kinds/caches.py), and what they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...guards.source import Source, UnlikeNumber
from ...guards.source_values import const_equal
from ..kinds.caches import Asked, Place
from ..machine.stack_values import ATOMS

if TYPE_CHECKING:
    from .entry_source import EntryWriter

__all__ = ["write_ask"]


def asked_again(first: list | None, place: Place | None, fn: Any, known: Any, /, *args: Any, **kwargs: Any) -> None:
    """Ask a cache for what was relied on. Raises UnlikeNumber where it gives something else by now."""
    if place is not None and not place.has(args, kwargs):
        raise UnlikeNumber("the cache of a function no longer has what it had")
    value = fn(*args, **kwargs) if not first else first.pop()
    if value is not known and not (type(value) in ATOMS and const_equal(value, known)):
        raise UnlikeNumber("the cache of a function no longer gives what it gave")


def as_foretold(first: list, fn: Any, expected: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What a cache has for numbers of this call. Raises UnlikeNumber where it is not what was expected."""
    value = fn(*args, **kwargs) if not first else first.pop()
    if not _same(value, expected):
        raise UnlikeNumber("the cache of a function has another value than the function would make")
    return value


def _same(a: Any, b: Any) -> bool:
    cls = type(a)
    if cls is not type(b):
        return False
    if cls is list or cls is tuple:
        return len(a) == len(b) and all(map(_same, a, b))
    if cls is dict:
        return const_equal(tuple(a), tuple(b)) and all(map(_same, a.values(), b.values()))
    return const_equal(a, b)


def write_ask(writer: EntryWriter, asked: Asked) -> None:
    """The line that asks for one value, before anything else is done."""
    given = [_text(writer, arg) for arg in asked.args]
    given += [f"{name}={_text(writer, item)}" for name, item in asked.kwargs.items()]
    first, fn = writer.constant(asked.first), writer.given(asked.fn)
    known = writer.load(asked.known) if type(asked.known) is Source else _text(writer, asked.known)
    if asked.source is None:
        place = writer.constant(asked.place)
        writer.computed.append(f"{writer.constant(asked_again)}({', '.join([first, place, fn, known, *given])})")
    else:
        name = writer.name_source(asked.source)
        writer.computed.append(f"{name} = {writer.constant(as_foretold)}({', '.join([first, fn, known, *given])})")


def _text(writer: EntryWriter, value: Any) -> str:
    """A value that is there before the graph runs: an object from outside, a constant, or what is made of numbers."""
    if type(value) not in ATOMS and writer.machine.world.is_outside(value) or isinstance(value, torch.SymInt):
        return writer.value(value)
    if type(value) in (list, tuple, torch.Size):
        items = f"[{', '.join(_text(writer, item) for item in value)}]"
        return items if type(value) is list else f"{writer.constant(type(value))}({items})"
    if type(value) is dict:
        return f"{{{', '.join(f'{_text(writer, key)}: {_text(writer, item)}' for key, item in value.items())}}}"
    return writer.given(value)
