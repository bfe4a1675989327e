"""What sums are multiplied with, and scores, in a form that takes few operations for each row and key; and conditions
without which they count for nothing."""

from __future__ import annotations

import math
from typing import Callable, Container

import torch

from ....lowering.ir import Value, const, is_const, prim
from ....lowering.patterns import Either, Same, match, op
from ....lowering.rewrite import mapped, with_operands
from .row_tiles import LOG2E, conjuncts

__all__ = ["by_powers_of_two", "needed", "scaled", "where_all_hold"]


_X, _NUMBER = Same("x"), Same("number", op("const"))
_SCALED = Either((op("mul", _X, _NUMBER), op("div", _X, _NUMBER)))
_CHOSEN = op("where", Same("where"), _X, Same("else", Either((0, -math.inf))))


def scaled(value: Value, least: float = -math.inf) -> tuple[Value, float]:
    """(x, number) with v = x * number, of factors above `least`."""
    if (found := match(_SCALED, value)) is not None and least < (factor := found["number"].attr) < math.inf and factor:
        x, number = scaled(found["x"], least)
        return x, number * factor if value.op == "mul" else number / factor
    if (found := match(_CHOSEN, value)) is not None:
        x, number = scaled(found["x"], least)
        if number > 0 or found["else"].attr == 0:
            return prim("where", found["where"], x, found["else"]), number
    return value, 1.0


def _times(value: Value, number: float, of_tile: Callable[[Value], bool]) -> Value:
    """v * number with as few products of whole tiles as there may be."""
    x, own = scaled(value)
    number *= own
    if x.op in ("add", "sub") and not all(map(of_tile, x.args)):
        return prim(x.op, *(_times(arg, number, of_tile) for arg in x.args))
    if number > 0 and (found := match(_CHOSEN, x)) is not None:
        return prim("where", found["where"], _times(found["x"], number, of_tile), found["else"])
    return x if number == 1 else prim("mul", x, const(number, x.dtype))


def by_powers_of_two(root: Value, of_tile: Callable[[Value], bool]) -> Value:
    """The value with exponentials of float32 as powers of two, whose factor and that of their operand are one number;
    and quotients as products. `of_tile`: whether a value is another for each row and key."""

    def rule(value: Value, args: tuple[Value, ...]) -> Value:
        new = with_operands(value, args)
        if new.op == "exp" and new.dtype == torch.float32:
            return prim("exp2", _times(new.args[0], LOG2E, of_tile))
        if new.op == "div" and new.dtype == torch.float32 and new.args[1].is_const:
            return _times(new, 1.0, of_tile)
        return new

    return mapped(root, rule)


def needed(value: Value, zero: bool = True) -> dict[int, Value]:
    """Conditions (by id) without which v is 0; or, not `zero`, -inf."""
    name, args = value.op, value.args
    if name == "where" and is_const(args[2], 0 if zero else -math.inf):
        return {c.id: c for c in conjuncts(args[0])} | needed(args[1], zero)
    if (
        name == "cast"
        and args[0].dtype.is_floating_point
        or name == "mul"
        and not zero
        and args[1].is_const
        and args[1].attr > 0
    ):
        return needed(args[0], zero)
    if zero and name == "mul":
        return needed(args[0]) | needed(args[1])
    if zero and name in ("neg", "div"):
        return needed(args[0])
    if zero and name in ("exp", "exp2") or not zero and name == "sub":
        return needed(args[0], False)
    if zero and name in ("add", "sub"):
        both = needed(args[1])
        return {key: item for key, item in needed(args[0]).items() if key in both}
    return {}


def where_all_hold(root: Value, known: Container[int]) -> Value:
    """The value where those conditions (by id) hold."""

    def rule(value: Value, args: tuple[Value, ...]) -> Value:
        if value.op != "where" or not any(c.id in known for c in conjuncts(value.args[0])):
            return with_operands(value, args)
        both = None
        for c in conjuncts(value.args[0]):
            if c.id not in known:
                both = c if both is None else prim("logical_and", both, c)
        return args[1] if both is None else prim("where", both, *args[1:])

    return mapped(root, rule)
