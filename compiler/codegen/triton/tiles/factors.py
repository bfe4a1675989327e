"""What sums are multiplied with, and scores, in a form that takes few operations for each row and key; and conditions
without which they count for nothing."""

from __future__ import annotations

import math
from typing import Callable, Container

import torch

from ....lowering.ir import Value, const, prim
from ....lowering.rewrite import mapped, with_operands
from .row_tiles import LOG2E, conjuncts

__all__ = ["by_powers_of_two", "needed", "scaled", "where_all_hold"]


def scaled(v: Value, least: float = -math.inf) -> tuple[Value, float]:
    """(x, number) with v = x * number, of factors above `least`."""
    if v.op in ("mul", "div") and v.args[1].op == "const" and v.args[1].attr and least < v.args[1].attr < math.inf:
        x, number = scaled(v.args[0], least)
        return x, number * v.args[1].attr if v.op == "mul" else number / v.args[1].attr
    if v.op == "where" and v.args[2].op == "const" and v.args[2].attr in (0, -math.inf):
        x, number = scaled(v.args[1], least)
        if number > 0 or v.args[2].attr == 0:
            return prim("where", v.args[0], x, v.args[2]), number
    return v, 1.0


def _times(v: Value, number: float, of_tile: Callable[[Value], bool]) -> Value:
    """v * number with as few products of whole tiles as there may be."""
    x, own = scaled(v)
    number *= own
    if x.op in ("add", "sub") and not all(map(of_tile, x.args)):
        return prim(x.op, *(_times(a, number, of_tile) for a in x.args))
    if x.op == "where" and x.args[2].op == "const" and x.args[2].attr in (0, -math.inf) and number > 0:
        return prim("where", x.args[0], _times(x.args[1], number, of_tile), x.args[2])
    return x if number == 1 else prim("mul", x, const(number, x.dtype))


def by_powers_of_two(root: Value, of_tile: Callable[[Value], bool]) -> Value:
    """The value with exponentials of float32 as powers of two, whose factor and that of their operand are one number;
    and quotients as products. `of_tile`: whether a value is another for each row and key."""

    def rule(v: Value, args: tuple[Value, ...]) -> Value:
        new = with_operands(v, args)
        if new.op == "exp" and new.dtype == torch.float32:
            return prim("exp2", _times(new.args[0], LOG2E, of_tile))
        if new.op == "div" and new.dtype == torch.float32 and new.args[1].op == "const":
            return _times(new, 1.0, of_tile)
        return new

    return mapped(root, rule)


def needed(v: Value, zero: bool = True) -> dict[int, Value]:
    """Conditions (by id) without which v is 0; or, not `zero`, -inf."""
    op, a = v.op, v.args
    if op == "where" and a[2].op == "const" and a[2].attr == (0 if zero else -math.inf):
        return {c.id: c for c in conjuncts(a[0])} | needed(a[1], zero)
    if (
        op == "cast"
        and a[0].dtype.is_floating_point
        or op == "mul"
        and not zero
        and a[1].op == "const"
        and a[1].attr > 0
    ):
        return needed(a[0], zero)
    if zero and op == "mul":
        return needed(a[0]) | needed(a[1])
    if zero and op in ("neg", "div"):
        return needed(a[0])
    if zero and op in ("exp", "exp2") or not zero and op == "sub":
        return needed(a[0], False)
    if zero and op in ("add", "sub"):
        both = needed(a[1])
        return {k: c for k, c in needed(a[0]).items() if k in both}
    return {}


def where_all_hold(root: Value, known: Container[int]) -> Value:
    """The value where those conditions (by id) hold."""

    def rule(v: Value, args: tuple[Value, ...]) -> Value:
        if v.op != "where" or not any(c.id in known for c in conjuncts(v.args[0])):
            return with_operands(v, args)
        both = None
        for c in conjuncts(v.args[0]):
            if c.id not in known:
                both = c if both is None else prim("logical_and", both, c)
        return args[1] if both is None else prim("where", both, *args[1:])

    return mapped(root, rule)
