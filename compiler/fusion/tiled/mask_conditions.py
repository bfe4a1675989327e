"""Scores of an attention in normal form: where(seen, x, -inf), with the condition taken out of numbers that stand for
it.

Programs say which keys a query sees as zeros and -inf that are added, as ones and zeros that are compared, as floats of
several types. What all of that says is one condition, which a kernel compares with the positions of its tiles.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import torch

from ...lowering.ir import Value, cast, const, is_const, make, prim
from ...lowering.primitives import COMPARISONS
from ...lowering.rewrite import mapped

__all__ = ["normal_form", "negated"]


def normal_form(score: Value) -> Value:
    """The same numbers (but for NaN and infinities of scores that are masked)."""
    return mapped(score, _rewritten)


def negated(value: Value) -> Value:
    if value.op in COMPARISONS and not value.args[0].dtype.is_floating_point:
        return prim(COMPARISONS[value.op].opposite, *value.args)
    if value.op in ("logical_and", "logical_or"):  # (what holds of tiles is read off terms that all hold)
        return prim("logical_or" if value.op == "logical_and" else "logical_and", *map(negated, value.args))
    return (
        value.args[0] if value.op == "logical_not" and value.args[0].dtype == torch.bool else prim("logical_not", value)
    )


def _condition(value: Value, keep: Callable[[float], bool]) -> Value | None:
    """The condition for keep(v), where v is one of two numbers."""
    if value.op == "where" and all(arg.is_const for arg in value.args[1:]):
        c, a, b = value.args[0], value.args[1].attr, value.args[2].attr
    elif value.is_cast and value.args[0].dtype == torch.bool:
        c, a, b = value.args[0], 1, 0
    elif value.dtype == torch.bool:
        c, a, b = value, True, False
    else:
        return None
    yes, no = keep(a), keep(b)
    return const(yes, torch.bool) if yes == no else c if yes else negated(c)


def _rewritten(value: Value, args: tuple[Value, ...]) -> Value:
    """`value` of these operands, which are in normal form already: by the rule of its operator, else as it is."""
    rule = _RULES_OF_CONDITIONS.get(value.op) if value.dtype == torch.bool else None
    rule = rule or _RULES.get(value.op)
    found = rule(value, args) if rule is not None else None
    if found is not None:
        return found
    if not value.args or value.op in ("load", "index", "check_index"):  # (positions that are computed stay as they are)
        return value
    return value if all(arg is b for arg, b in zip(args, value.args)) else prim(value.op, *args)


def _comparison(value: Value, args: tuple[Value, ...]) -> Value:
    """With a number on the right, which decides a choice between two numbers."""
    op, (a, b) = value.op, args
    if a.is_const:
        a, b, op = b, a, COMPARISONS[op].mirrored
    if b.is_const:
        number, test = b.attr, COMPARISONS[op].holds
        found = _condition(a, lambda x: test(x, number))
        if found is not None:
            return found
    return prim(op, a, b)


def _negation(value: Value, args: tuple[Value, ...]) -> Value:
    found = _condition(args[0], lambda x: not x)
    return found if found is not None else prim("logical_not", args[0])


def _both(value: Value, args: tuple[Value, ...]) -> Value:
    return prim("logical_and", *args)


def _either(value: Value, args: tuple[Value, ...]) -> Value:
    return prim("logical_or", *args)


def _cast(value: Value, args: tuple[Value, ...]) -> Value:
    found = _condition(args[0], bool) if value.dtype == torch.bool else None
    return found if found is not None else _converted(args[0], value.dtype, value.attr)


def _chosen(value: Value, args: tuple[Value, ...]) -> Value:
    chosen = _choice(*args)
    found = _condition(chosen, bool) if value.dtype == torch.bool and chosen.op == "where" else None
    return chosen if found is None else found


def _sum(value: Value, args: tuple[Value, ...]) -> Value | None:
    """What is added to a choice that ends in -inf is added to its first number."""
    for x, y in (args, args[::-1]):
        if _masks(y):
            seen, number, low = y.args
            return _choice(seen, x if is_const(number, 0) else _rewritten(value, (x, number)), low)
    return None


def _scaled(value: Value, args: tuple[Value, ...]) -> Value | None:
    """A positive factor of a choice that ends in -inf is one of its first number."""
    x, factor = args
    if not (_masks(x) and factor.is_const and 0 < factor.attr < math.inf):
        return None
    seen, number, low = x.args
    return _choice(seen, prim(value.op, number, factor), low)


def _masks(value: Value) -> bool:
    return value.op == "where" and is_const(value.args[2], -math.inf)


# operator -> what it becomes, None where it stays; those of conditions alone come first
_Rule = Callable[[Value, tuple[Value, ...]], "Value | None"]
_RULES_OF_CONDITIONS: dict[str, _Rule] = {
    "bitwise_not": _negation,
    **dict.fromkeys(("bitwise_and", "mul", "minimum"), _both),
    **dict.fromkeys(("bitwise_or", "maximum"), _either),
}
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(COMPARISONS, _comparison),
    "logical_not": _negation,
    "cast": _cast,
    "where": _chosen,
    "add": _sum,
    "mul": _scaled,
    "div": _scaled,
}


def _converted(value: Value, dtype: torch.dtype, attr: Any = None) -> Value:
    """A cast, of the numbers that a choice is made of; without the rounding between operators, which scores in
    registers do not have.
    """
    if value.dtype == dtype:
        return value
    if value.is_rounding and dtype.is_floating_point and dtype.itemsize > value.dtype.itemsize:
        return cast(value.args[0], dtype)
    if value.op == "where" and "const" in (value.args[1].op, value.args[2].op) and dtype.is_floating_point:
        return _choice(value.args[0], _converted(value.args[1], dtype), _converted(value.args[2], dtype))
    return cast(value, dtype) if attr is None else make("cast", dtype, (value,), attr)


def _choice(c: Value, a: Value, b: Value) -> Value:
    """where(c, a, b) with -inf last, or 0."""
    if is_const(a, -math.inf) or is_const(a, 0) and not b.is_const:
        c, a, b = negated(c), b, a
    if is_const(b, -math.inf) and a.op == "where" and is_const(a.args[2], -math.inf):
        return prim("where", prim("logical_and", c, a.args[0]), a.args[1], b)
    return prim("where", c, a, b)
