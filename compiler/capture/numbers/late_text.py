"""Text that varies: of numbers that vary (f"loss {loss:.4f}", str(n), "%d of %d" % (i, n)), or given from outside as
another at each call (a name, the path of a temporary folder). The entry makes it when it runs.

Such a text may be stored, joined with others, printed, logged, returned. Who looks into it gets the text itself,
which fixes its numbers, or what was given.
"""

from __future__ import annotations

import types
import re
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Union

import torch

from ..machine.signals import Break
from ..machine.stack_values import ATOMS, specialize

if TYPE_CHECKING:
    from ...guards.source import Source
    from ..machine.machine import Machine
    from ..machine.shadow import Shadow

__all__ = [
    "LateText",
    "Made",
    "Given",
    "given_late",
    "made_late",
    "join_texts",
    "settled",
    "hashed",
    "in_words",
    "is_open",
    "varies",
    "settle_keys",
]

_NUMBERS = (torch.SymInt, torch.SymFloat)
_SEQUENCES = (list, tuple, torch.Size)
_OF_INTEGERS = re.compile(r"%[^a-zA-Z%]*[diouxXc]")


class Made:
    """A text that `function(*args, **kwargs)` gives: of numbers that vary, constants and builtin containers of
    these.
    """

    __slots__ = ("function", "args", "kwargs")

    def __init__(self, function: Callable[..., str], args: tuple, kwargs: dict):
        self.function, self.args, self.kwargs = function, args, kwargs


class Given:
    """A text from outside, which was another at an earlier call."""

    __slots__ = ("source", "value", "fix")

    def __init__(self, source: Source, value: str, fix: Callable[[], None]):
        self.source, self.value = source, value
        self.fix = fix  # guard its value


class LateText:
    """A str of the program: its parts, one after the other."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Union[str, Made, Given], ...]):
        self.parts = parts


def _looked_at(self: LateText, *args: Any) -> NoReturn:
    raise Break("late_text")


for (
    _name
) in """__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __len__ __iter__ __contains__ __getitem__ __bool__ __add__
    __radd__ __mul__ __rmul__ __mod__ __str__ __repr__ __format__ __reduce_ex__""".split():
    setattr(LateText, _name, _looked_at)


def varies(value: Any) -> bool:
    """Whether it is a number that a symbol stands for, or a text that is read late, or holds one."""
    cls = type(value)
    if cls in _NUMBERS:
        return value.node.constant is None
    if cls in _SEQUENCES:
        return any(map(varies, value))
    return cls is LateText or cls is dict and any(map(varies, value.values()))


def _known(value: Any) -> bool:
    """Whether the entry can make the value from numbers and constants alone."""
    cls = type(value)
    if cls in _SEQUENCES:
        return all(map(_known, value))
    return (
        cls in ATOMS
        or cls in _NUMBERS
        or cls is LateText
        or cls is dict
        and all(type(item) in ATOMS for item in value)
        and all(map(_known, value.values()))
    )


def _number(value: Any) -> Any:
    return value.node.hint


def _text(late: LateText, number: Callable[[Any], Any]) -> str:
    return "".join(_part(part, number) for part in late.parts)


def _part(p: Union[str, Made, Given], number: Callable[[Any], Any]) -> str:
    if type(p) is Made:
        return p.function(*_with(p.args, number), **_with(p.kwargs, number))
    if type(p) is Given:
        if number is not _number:  # the text itself is asked for
            p.fix()
        return p.value
    return p  # type: ignore[return-value]


def _with(value: Any, number: Callable[[Any], Any]) -> Any:
    """`value` with plain numbers, as `number` gives them, and plain texts."""
    cls = type(value)
    if cls in _NUMBERS:
        return number(value)
    if cls is LateText:
        return _text(value, number)
    if cls in _SEQUENCES:
        return cls([_with(item, number) for item in value])
    return {key: _with(item, number) for key, item in value.items()} if cls is dict else value


def made_late(
    machine: Machine, function: Callable[..., str], args: tuple, kwargs: dict | None = None
) -> LateText | None:
    """The text `function(*args, **kwargs)` where a number in it varies. None: nothing varies, or whether it can be made
    depends on the numbers.
    """
    kwargs = kwargs or {}
    if not (varies(args) or kwargs and varies(kwargs)):
        return None
    args, kwargs = machine.deep_plain(args), machine.deep_plain(kwargs)  # as they are now
    if not _known(args) or not _known(kwargs):
        return None
    if (
        function is format
        and args[1].endswith(("c", "n"))
        or function is str.__mod__
        and _OF_INTEGERS.search(args[0])
        and not _all_integers(args[1])
    ):
        return None
    machine.native(function, *_with(args, _number), **_with(kwargs, _number))  # its errors
    machine.late_texts = True
    return LateText((Made(function, args, kwargs),))


def given_late(machine: Machine, value: str, source: Source, why: str) -> LateText:
    """What `source` gives, whatever it says."""
    machine.world.guard(source, "TYPE", str, why)
    machine.late_texts = machine.given_texts = True
    return LateText(
        (Given(source, value, lambda: machine.world.guard(source, "EQUALS", value, "the text itself is used")),)
    )


def _all_integers(values: Any) -> bool:
    return all(type(v) in (int, torch.SymInt) for v in (values if type(values) is tuple else (values,)))


def join_texts(texts: list) -> Any:
    """Texts one after the other."""
    if not any(type(text) is LateText for text in texts):
        return "".join(texts)
    parts: list[str | Made | Given] = []
    for p in (p for text in texts for p in (text.parts if type(text) is LateText else (text,))):
        if type(p) is str and parts and type(parts[-1]) is str:
            parts[-1] += p
        elif p != "":
            parts.append(p)
    return LateText(tuple(parts))


def settled(value: Any) -> Any:
    """The text itself, which fixes the numbers in it; everything else as it is."""
    return _text(value, specialize) if type(value) is LateText else value


def hashed(key: Any) -> Any:
    """A key for native code to hash: numbers that vary are fixed."""
    if type(key) in (tuple, torch.Size):
        return type(key)([hashed(k) for k in key])
    return specialize(settled(key))


# ---- keys that vary, of a dict that is written to: `log[i] = loss`, `history[f"epoch {i}"] = loss`. The entry makes
# the key when it runs, and what was written is done then. Who reads the dict fixes the keys first.
def is_open(key: Any) -> bool:
    return type(key) in (torch.SymInt, LateText)


def settle_keys(shadow: Shadow | None) -> None:
    """Fix the keys under which a container was written to."""
    for name, args in shadow.blind if shadow is not None else ():
        if name == "__setitem__" and is_open(args[0]):
            args[0] = hashed(args[0])


def in_words(exc: BaseException) -> str:
    """The class of an exception, and what it says if that is known."""
    plain = all(type(arg) in (str, int, float, bool, bytes, type(None)) for arg in exc.args)
    if not plain or isinstance(type(exc).__str__, types.FunctionType):  # the program's to call: it may do things
        return type(exc).__name__
    return f"{type(exc).__name__}: {exc}"
