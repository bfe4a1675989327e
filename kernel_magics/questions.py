"""What a view may ask the kernel: every question with its fields, their types and ranges. Anything else is refused in
words.

Whoever can send a message to a widget asks these: in a dashboard, its visitors. So a question names what is offered (a
mode, a switch, a pair of operators, a size) and no option in general: a compiler's command line and folders to write to
are options, too.
"""

from __future__ import annotations

import re
from typing import Any, Callable

from ..compiler import config
from .precision import AUTOCAST

__all__ = ["AskError", "QUESTIONS", "SWITCHES", "checked", "number_of"]

SWITCHES = ("disable_fusion", "emulate_precision", "pattern_matcher")  # on or off
_PAIRS = ("force_fuse", "force_split")
_PART = re.compile(r"(graphs|kernels|numerics)/[0-9]{1,6}")
_PAIR_TEXT = re.compile(r"\w+:\w+(, ?\w+:\w+)*")
_MOST_SECONDS = 600.0
_MOST_SIZES, _LARGEST_SIZE = 64, 1 << 31
_LONGEST_NAME, _LONGEST_VALUE, _MOST_VALUES, _MOST_DIMENSIONS = 300, 1000, 200, 64


class AskError(ValueError):
    """A question that cannot be answered: its text is shown as it is."""


Rule = Callable[[str, Any], Any]


def _refuse(name: str, wanted: str, got: Any) -> AskError:
    try:
        text = ascii(got)
    except (RecursionError, ValueError):  # too deep, or a number of thousands of digits
        text = f"a {type(got).__name__} too large to show"
    return AskError(f"{name} is {wanted}, got {text if len(text) <= 80 else text[:77] + '...'}")


def _seconds(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value <= _MOST_SECONDS:
        raise _refuse(name, f"a number from 0 to {_MOST_SECONDS:.0f}", value)
    return float(value)


def _name(name: str, value: Any) -> str:
    if type(value) is not str or len(value) > _LONGEST_NAME:
        raise _refuse(name, f"a text of at most {_LONGEST_NAME} characters", value)
    return value


def _whole(least: int, most: int) -> Rule:
    def rule(name: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _refuse(name, f"a whole number from {least} to {most}", value)
        return value

    return rule


def _one_of(*values: Any) -> Rule:
    def rule(name: str, value: Any) -> Any:
        if not any(value is v or type(value) is type(v) is str and value == v for v in values):
            raise _refuse(name, f"one of {', '.join(map(str, values))}", value)
        return value

    return rule


def _list(of: Rule, least: int, most: int) -> Rule:
    def rule(name: str, value: Any) -> list:
        if type(value) not in (list, tuple) or not least <= len(value) <= most:
            raise _refuse(name, f"a list of {least} to {most}", value)
        return [of(name, v) for v in value]

    return rule


def _argument(name: str, value: Any) -> int | str:
    return _name(name, value) if type(value) is str else _whole(0, 1000)(name, value)


def _pair(name: str, value: Any) -> str:
    if type(value) is not str or len(value) > _LONGEST_VALUE or not _PAIR_TEXT.fullmatch(value):
        raise _refuse(name, "pairs of operators such as sum_1:mul_2", value)
    return value


_SETTINGS: dict[str, Rule] = {
    "mode": _one_of(*config.MODES),
    "autocast": _one_of(*AUTOCAST),
    **{name: _one_of(True, False) for name in SWITCHES if name in config.OPTIONS},
    **{name: _pair for name in _PAIRS if name in config.OPTIONS},
}


def _settings(name: str, value: Any) -> dict[str, Any]:
    if type(value) is not dict or not value:
        raise _refuse(name, "an object of options, such as {'mode': 'max-autotune'}", value)
    for key in value:
        if key not in _SETTINGS:
            raise AskError(f"unknown option {ascii(key)[:80]}: what can be tried is {', '.join(_SETTINGS)}")
    return {key: _SETTINGS[key](key, v) for key, v in value.items()}


_SHAPE = _list(_whole(0, _LARGEST_SIZE), 0, _MOST_DIMENSIONS)


def _given(name: str, value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if type(value) is not dict or len(value) > _MOST_VALUES:
        raise _refuse(name, f"an object of at most {_MOST_VALUES} names", value)
    out: dict[str, Any] = {}
    for key, v in value.items():
        _name(name, key)
        if type(v) is dict:
            if not set(v) <= {"shape", "dtype"}:
                raise AskError(f"{key}: a tensor has a shape and a dtype, got {ascii(sorted(map(str, v)))[:80]}")
            shape, dtype = v.get("shape"), v.get("dtype")
            out[key] = {
                "shape": None if shape is None else _SHAPE(f"{key}: a shape", shape),
                "dtype": None if dtype is None else _name(key, dtype),
            }
        elif type(v) is str and len(v) <= _LONGEST_VALUE or v is None or type(v) in (bool, int, float):
            out[key] = v
        else:
            raise _refuse(key, "written as in Python: 4, 0.5, True, 'mean' or None", v)
    return out


def _part(name: str, value: Any) -> str:
    """A part of the report that has a file. None of a break's: it would hold source and globals of the program."""
    if type(value) is not str or not _PART.fullmatch(value):
        raise _refuse(name, "'graphs/0', 'kernels/0' or 'numerics/0'", value)
    return value


def _line(name: str, value: Any) -> str:
    """The options of `%tcompile on`: a mode, as the toolbar sends it."""
    word, _, mode = _name(name, value).strip().partition("=")
    if not word:
        return ""
    if word.strip() != "mode":
        raise AskError(
            f"every cell can be compiled with mode=...; {ascii(value)[:80]} is for the cell's own line: %%tcompile"
        )
    return f"mode={_one_of(*config.MODES)('mode', mode.strip())}"


# Question -> its fields. A field with a default need not be there; the others must.
_NEEDED = object()
QUESTIONS: dict[str, dict[str, tuple[Rule, Any]]] = {
    "state": {},
    "catalogue": {},
    "on": {"line": (_line, "")},
    "off": {},
    "reset": {},
    "clear_cache": {},
    "controls": {},
    "retime": {"seconds": (_seconds, 1.0), "compare": (_list(_one_of("eager", "torch"), 0, 2), None)},
    "try": {"settings": (_settings, _NEEDED), "seconds": (_seconds, 1.0)},
    "sweep": {
        "call": (_name, _NEEDED),
        "argument": (_argument, _NEEDED),
        "dim": (_whole(-_MOST_DIMENSIONS, _MOST_DIMENSIONS), _NEEDED),
        "sizes": (_list(_whole(0, _LARGEST_SIZE), 1, _MOST_SIZES), _NEEDED),
        "dynamic": (_one_of(None, True, False), None),
    },
    "check": {},
    "values": {"graph": (_whole(0, 10_000), 0)},
    "memory": {"graph": (_whole(0, 10_000), 0)},
    "text": {"kernel": (_whole(0, 100_000), _NEEDED)},
    "forecast": {"function": (_whole(0, 10_000), 0), "given": (_given, None)},
    "page": {},
    "reproducer": {"what": (_part, _NEEDED)},
}


def checked(message: Any, known: Any) -> dict[str, Any]:
    """A message with its fields as they are to be, and defaults for those that are missing. Raises AskError for
    anything else. `known`: the questions that are answered here."""
    if type(message) is not dict:
        raise _refuse("a question", "an object such as {'id': 1, 'ask': 'state'}", message)
    ask = message.get("ask")
    if type(ask) is not str or ask not in QUESTIONS or ask not in known:
        raise AskError(f"unknown question {ascii(ask)[:80]}; known: {', '.join(known)}")
    fields = QUESTIONS[ask]
    for key in message:
        if key not in fields and key not in ("id", "ask", "report"):
            raise AskError(f"{ask} has no field {ascii(key)[:80]}; it has {', '.join(fields) or 'none'}")
    out: dict[str, Any] = {"ask": ask}
    if message.get("report") is not None:
        out["report"] = _name("report", message["report"])
    for key, (rule, default) in fields.items():
        if message.get(key) is None and default is not _NEEDED:
            out[key] = default
        elif key not in message:
            raise AskError(f"a {ask} needs {key}")
        else:
            out[key] = rule(key, message[key])
    return out


def number_of(message: Any) -> int | str | None:
    """The number by which the asker knows the answer."""
    number = message.get("id") if type(message) is dict else None
    return number if type(number) is int or type(number) is str and len(number) <= _LONGEST_NAME else None
