"""Lines of an entry that ask caches of functools for what capture relied on (kinds/caches.py).

They run at each call, as often as the program asks, so they call the cache itself and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ...guards.source import Source, UnlikeNumber
from ...guards.source_values import quick_equal
from ..kinds.caches import Asked
from ..machine.stack_values import ATOMS, constant_only

if TYPE_CHECKING:
    from .entry_source import EntryWriter

__all__ = ["write_asks"]


def _differs() -> NoReturn:
    """The call is to run as it is."""
    raise UnlikeNumber("the cache of a function no longer gives what it gave")


def write_asks(writer: EntryWriter) -> None:
    """A line for each time that the program asks, before anything else is done."""
    had: set[str] = set()  # calls of which an earlier line has made sure that the cache has them
    for asked in writer.machine.cached:
        fn = writer.given(asked.fn)
        args = [_text(writer, arg) for arg in asked.args]
        named = {name: _text(writer, item) for name, item in asked.kwargs.items()}
        call = f"{fn}({', '.join([*args, *(f'{name}={text}' for name, text in named.items())])})"
        asks = _missing(writer, asked, args, named) if call not in had else ""
        had.add(call)
        known = writer.load(asked.known) if type(asked.known) is Source else _text(writer, asked.known)
        if asked.source is not None:
            name = writer.name_source(asked.source)
            writer.computed.append(f"{name} = {_unless_asked(writer, asked, call, 'pop')}")
            asks = f"not {writer.constant(quick_equal)}({name}, {known})"
        elif type(asked.known) is Source:
            asks += f"{call} is not {known}"
        else:
            asks += f"not {writer.constant(quick_equal)}({call}, {known})"
        if asked.source is None:
            asks = _unless_asked(writer, asked, asks, "clear")
        writer.computed.append(f"if {asks}: {writer.constant(_differs)}()")


def _missing(writer: EntryWriter, asked: Asked, args: list[str], named: dict[str, str]) -> str:
    """That the cache lacks what it has to have; nothing where capture knows what the function does."""
    place = asked.place
    if place is None:
        return ""
    if named or place.typed:
        keywords = ", ".join(f"{name!r}: {text}" for name, text in named.items())
        return f"not {writer.constant(place.has)}([{', '.join(args)}], {{{keywords}}}) or "
    alone = len(args) == 1 and type(asked.args[0]) in (int, str)
    key = args[0] if alone else f"({''.join(arg + ', ' for arg in args)})"
    return f"{key} not in {writer.constant(place.cache, 'cache')} or "


def _unless_asked(writer: EntryWriter, asked: Asked, text: str, takes: str) -> str:
    """`text`, but for the entry's first run where capture has asked for it: that one takes what the cache gave then."""
    if not asked.first:
        return text
    first = writer.constant(asked.first, "first")
    return f"{first}.{takes}() if {first} else {text}"


def _text(writer: EntryWriter, value: Any) -> str:
    """A value that is there before the graph runs: an object from outside, a constant, or what is made of numbers."""
    if type(value) not in ATOMS and writer.machine.world.is_outside(value) or isinstance(value, torch.SymInt):
        return writer.value(value)
    if constant_only(tuple(value) if type(value) is torch.Size else value):
        return writer.given(value)
    if type(value) is dict:
        return f"{{{', '.join(f'{_text(writer, key)}: {_text(writer, item)}' for key, item in value.items())}}}"
    if type(value) not in (list, tuple, torch.Size):
        return writer.given(value)
    items = "".join(f"{_text(writer, item)}, " for item in value)
    if type(value) is list:
        return f"[{items}]"
    return f"({items})" if type(value) is tuple else f"{writer.constant(torch.Size)}(({items}))"
