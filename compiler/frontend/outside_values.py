"""OutsideValues: numbers and texts that differ from run to run, since code that is not captured made them.

A seed that was drawn, the name of a temporary folder, a time, the loss of an epoch: what resumes a frame after a break
is given such a value, and the rest of the cell hands it on. The next run has another. So no entry takes one for a
constant: a number is a symbol or an input of the graph, and a text is read when the entry runs. What looks at the
number or the text itself fixes it, as ever.

Values are known again by what they are, wherever the program has put them. Small whole numbers are not taken: they are
everywhere, and as sizes they make better kernels where they are fixed.
"""

from __future__ import annotations

import types
from typing import Any

from ..capture.bytecode.resume import STACK

__all__ = ["OutsideValues"]

_MOST = 1024  # values that are kept; the oldest go
_SMALL = 256
_PART = 4  # characters of a text that is looked for in others
_ITEMS = 8  # of a tuple that a call returned that are looked at


class OutsideValues:
    """Those that one engine has met."""

    def __init__(self) -> None:
        self._values: dict[tuple[type, Any], None] = {}

    def take(self, code: types.CodeType, args: tuple) -> None:
        """`code` resumes a frame: on the top of its stack is what the call that broke has returned. Texts among its
        locals are from outside, too, where they hold such a text: a file in a folder.
        """
        names = code.co_varnames[: code.co_argcount]
        top = next((x for name, x in zip(reversed(names), reversed(args)) if name.startswith(STACK)), None)
        found = [x for x in (top[:_ITEMS] if type(top) is tuple else (top,)) if _tells(x)]
        texts = [x for t, x in self._values if t is str and len(x) >= _PART]
        found += [x for x in args if type(x) is str and any(t in x for t in texts)]
        for value in found:
            self._values[type(value), value] = None
        while len(self._values) > _MOST:
            del self._values[next(iter(self._values))]

    def __contains__(self, value: Any) -> bool:
        return bool(self._values) and (type(value), value) in self._values

    def clear(self) -> None:
        self._values.clear()


def _tells(value: Any) -> bool:
    """Whether a value is unlikely to be met by chance."""
    t = type(value)
    return t is str and len(value) > 1 or t in (int, float) and not (abs(value) <= _SMALL and float(value).is_integer())
