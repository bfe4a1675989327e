"""Patterns over the values of a row of scores, and the one engine that reads them.

`SOFTMAX` lists how programs spell the softmax of a row, `NUMBERS` what else they reduce a row to. A new spelling is a
row of these tables. A pattern sees through conversions and element-wise nests, however the program was cut into steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Union

import torch

from ...lowering.ir import Value, acc, const, is_const, prim, symbols_of
from .producers import Finder, NoMatch

__all__ = ["NUMBERS", "number_of_row", "softmax_of"]

F32 = torch.float32


@dataclass(frozen=True)
class Op:
    """An operator of these operands; a number stands for a constant."""

    name: str
    args: tuple[Pattern, ...]


@dataclass(frozen=True)
class Row:
    """What is reduced over the keys of a row."""

    op: str
    of: Pattern


@dataclass(frozen=True)
class Same:
    """A value by name: where it stands again, it is the same. The first time, it has to be as `of` says."""

    name: str
    of: Pattern | None = None


@dataclass(frozen=True)
class Either:
    of: tuple[Pattern, ...]


Pattern = Union[Op, Row, Same, Either, float]


def op(name: str, *args: Pattern) -> Op:
    return Op(name, args)


X = Same("x")  # the scores
TOP = Row("max", X)
POWER = Same("power", op("exp", op("sub", X, TOP)))
BY_SUM = Either(
    (
        op("div", POWER, Row("sum", POWER)),
        op("mul", POWER, op("reciprocal", Row("sum", POWER))),
    )
)
SHIFT = Same("shift")  # any number of the row
LOG = op("log", Same("sum", Row("sum", op("exp", op("sub", X, SHIFT)))))
LOGARITHM = Same("logarithm", Either((op("add", LOG, SHIFT), op("add", SHIFT, LOG))))

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
    (
        "sum",
        op("exp", op("sub", X, _FINITE_TOP)),
        prim("where", prim("eq", _TOP, _INFINITE), _INFINITE, _TOTAL),
    ),
)


def softmax_of(finder: Finder, v: Value, ranges: dict[str, tuple]) -> tuple[Value, float]:
    """(the scores, what a row gives that is masked as a whole) where a value is their softmax. Raises NoMatch."""
    for pattern, empty in SOFTMAX:
        found = _match(finder, pattern, v, ranges, {})
        if found is not None and _is_of_row(finder, found, ranges):
            return found["x"], empty
    raise NoMatch


def number_of_row(finder: Finder, reduction: str, v: Value, scores: Value, ranges: dict[str, tuple]) -> Value | None:
    """What reduces `v` over the keys to, by numbers that a kernel has of the rows of `scores`."""
    for by, pattern, value in NUMBERS:
        if by == reduction and _match(finder, pattern, v, ranges, {"x": scores}) is not None:
            return value
    return None


def _is_of_row(finder: Finder, found: dict[str, Value], ranges: dict[str, tuple]) -> bool:
    """Whether a shift is the same for all keys that are summed."""
    if "shift" not in found:
        return True
    return symbols_of([finder.peeled(found["shift"], ranges)]) <= symbols_of([finder.peeled(found["sum"], ranges)])


def _match(
    finder: Finder, pattern: Pattern, v: Value, ranges: dict[str, tuple], found: dict[str, Value]
) -> dict[str, Value] | None:
    """What the names of a pattern stand for, with those that are `found` already; None where the value is another."""
    match pattern:
        case Same(name, of):
            if name in found:
                return found if finder.same(v, found[name], ranges) else None
            inside = found if of is None else _match(finder, of, v, ranges, found)
            return None if inside is None else {**inside, name: v}
        case Either(patterns):
            tried = (_match(finder, p, v, ranges, found) for p in patterns)
            return next((f for f in tried if f is not None), None)
        case Row(reduction, of):
            try:
                return _match(finder, of, finder.row(v, reduction, ranges), ranges, found)
            except NoMatch:
                return None
        case Op(name, args):
            v = finder.peeled(v, ranges)
            if v.op != name:
                return None
            known: dict[str, Value] | None = found
            for p, x in zip(args, v.args, strict=True):
                known = _match(finder, p, x, ranges, known) if known is not None else None
            return known
    return found if is_const(v, pattern) else None
