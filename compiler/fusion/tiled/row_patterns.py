"""Patterns over the values of a row of scores (lowering/patterns.py reads them).

`SOFTMAX` lists how programs spell the softmax of a row, `NUMBERS` what else they reduce a row to. A new spelling is a
row of these tables. A pattern sees through conversions and element-wise nests, however the program was cut into steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Iterator

import torch

from ...lowering.ir import Value, acc, const, prim, symbols_of
from ...lowering.patterns import Either, Found, Matcher, Pattern, Same, op
from .producers import Finder, NoMatch

__all__ = ["NUMBERS", "number_of_row", "softmax_of"]

F32 = torch.float32


@dataclass(frozen=True)
class Row:
    """What is reduced over the keys of a row."""

    op: str
    of: Pattern


X = Same("x")  # the scores
TOP = Row("max", X)
POWER = Same("power", op("exp", op("sub", X, TOP)))
BY_SUM = Either((op("div", POWER, Row("sum", POWER)), op("mul", POWER, op("reciprocal", Row("sum", POWER)))))
SHIFT = Same("shift")  # any number of the row
LOG = op("log", Same("sum", Row("sum", op("exp", op("sub", X, SHIFT)))))
LOGARITHM = Same("logarithm", op("add", LOG, SHIFT))

# spelling, what it gives for a row that is masked as a whole
SOFTMAX: tuple[tuple[Pattern, float], ...] = (
    (BY_SUM, math.nan),
    (op("where", Row("all", op("eq", X, -math.inf)), 0, BY_SUM), 0.0),
    (op("exp", op("sub", X, LOGARITHM)), math.nan),
    (op("exp", op("sub", X, op("where", op("eq", LOGARITHM, -math.inf), 0, LOGARITHM))), 0.0),
)

# A kernel has the greatest score of a row and the sum of exponentials at its end (templates.Contraction).
_TOP, _TOTAL = acc("top", F32), acc("total", F32)
_INFINITE, _NAN = const(math.inf, F32), const(math.nan, F32)
_TOP_IS_INFINITE = prim("eq", prim("abs", _TOP), _INFINITE)
_FINITE_TOP = op("where", op("eq", op("abs", TOP), math.inf), 0, TOP)  # (as logsumexp has it)

# reduction, of what, what it gives by those two: NaN and infinities included
NUMBERS: tuple[tuple[str, Pattern, Value], ...] = (
    ("max", X, prim("where", prim("logical_and", prim("isnan", _TOTAL), prim("ne", _TOP, _INFINITE)), _NAN, _TOP)),
    ("sum", op("exp", op("sub", X, TOP)), prim("where", _TOP_IS_INFINITE, _NAN, _TOTAL)),
    ("sum", op("exp", op("sub", X, _FINITE_TOP)), prim("where", prim("eq", _TOP, _INFINITE), _INFINITE, _TOTAL)),
)


def softmax_of(finder: Finder, value: Value, ranges: dict[str, tuple]) -> tuple[Value, float]:
    """(the scores, what a row gives that is masked as a whole) where a value is their softmax. Raises NoMatch."""
    matcher = _OfRows(finder, ranges)
    for pattern, empty in SOFTMAX:
        found = matcher.match(pattern, value)
        if found is not None and _is_of_row(found, matcher):
            return found["x"], empty
    raise NoMatch


def number_of_row(finder: Finder, reduction: str, v: Value, scores: Value, ranges: dict[str, tuple]) -> Value | None:
    """What reduces `v` over the keys to, by numbers that a kernel has of the rows of `scores`."""
    matcher = _OfRows(finder, ranges)
    for by, pattern, value in NUMBERS:
        if by == reduction and matcher.match(pattern, v, {"x": scores}) is not None:
            return value
    return None


def _is_of_row(found: Found, matcher: _OfRows) -> bool:
    """Whether a shift is the same for all keys that are summed."""
    if "shift" not in found:
        return True
    return symbols_of([matcher.seen(found["shift"])]) <= symbols_of([matcher.seen(found["sum"])])


@dataclass
class _OfRows(Matcher):
    """Sees through conversions and element-wise nests, and into what rows are reduced to."""

    finder: Finder
    ranges: dict[str, tuple]

    def seen(self, value: Value) -> Value:
        return self.finder.peeled(value, self.ranges)

    def same(self, a: Value, b: Value) -> bool:
        return self.finder.same(a, b, self.ranges)

    def matches(self, pattern: Any, value: Value, found: Found) -> Iterator[Found]:
        if not isinstance(pattern, Row):
            yield from super().matches(pattern, value, found)
            return
        try:
            reduced = self.finder.row(value, pattern.op, self.ranges)
        except NoMatch:
            return
        yield from self.matches(pattern.of, reduced, found)
