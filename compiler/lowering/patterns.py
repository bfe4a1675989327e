"""Patterns over values of the loop IR, and the one engine that reads them. What a pass looks for is a row of its own.

`op("mul", Same("x"), 2)` stands for any value times two, whichever stands first; `match` says what `x` is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence, Union

from .ir import Value, is_const
from .primitives import COMMUTES

__all__ = ["About", "Either", "Leaf", "Found", "Matcher", "Op", "Pattern", "Same", "match", "op"]


@dataclass(frozen=True)
class Op:
    """An operator of these operands, or of any where none are given; a number stands for a constant."""

    name: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Leaf:
    """A value without operands, by its operator and what it names."""

    name: str
    attr: Any


@dataclass(frozen=True)
class About:
    """A constant that is this number, but for rounding."""

    number: float


@dataclass(frozen=True)
class Same:
    """A value by name: where it stands again, it is the same. The first time, it has to be as `of` says."""

    name: str
    of: Any = None


@dataclass(frozen=True)
class Either:
    of: tuple[Any, ...]


Pattern = Union[Op, Leaf, About, Same, Either, float]
Found = Mapping[str, Value]


def op(name: str, *args: Pattern) -> Op:
    return Op(name, args)


class Matcher:
    """The engine. A subclass says what else is looked through, and which values are the same."""

    def seen(self, value: Value) -> Value:
        return value

    def same(self, a: Value, b: Value) -> bool:
        return a is b

    def match(self, pattern: Any, value: Value, found: Found | None = None) -> Found | None:
        """What the names of a pattern stand for, with those that are `found` already; None where the value is
        another.
        """
        return next(self.matches(pattern, value, found or {}), None)

    def matches(self, pattern: Any, value: Value, found: Found) -> Iterator[Found]:
        """Each way in which a value is as the pattern says."""
        match pattern:
            case Same(name, of):
                if name not in found:
                    for inside in [found] if of is None else self.matches(of, value, found):
                        yield {**inside, name: value}
                elif self.same(value, found[name]):
                    yield found
            case Either(patterns):
                for one in patterns:
                    yield from self.matches(one, value, found)
            case Op(name, args):
                value = self.seen(value)
                if value.op == name:
                    yield from self._operands(args, value.args if args else (), found)
                    if name in COMMUTES and args:
                        yield from self._operands(args, value.args[::-1], found)
            case Leaf(name, attr):
                if value.op == name and value.attr == attr:
                    yield found
            case About(number):
                if value.is_const and math.isclose(value.attr, number, rel_tol=1e-6):
                    yield found
            case _:
                if is_const(value, pattern):
                    yield found

    def _operands(self, patterns: Sequence[Any], values: Sequence[Value], found: Found) -> Iterator[Found]:
        if not patterns:
            yield found
            return
        for first in self.matches(patterns[0], values[0], found):
            yield from self._operands(patterns[1:], values[1:], first)


match = Matcher().match
