"""Scores of an attention in normal form: where(seen, x, -inf), with the condition taken out of numbers that stand for
it.

Programs say which keys a query sees as zeros and -inf that are added, as ones and zeros that are compared, as floats of
several types. What all of that says is one condition, which a kernel compares with the positions of its tiles.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Callable

import torch

from ...lowering.ir import Value, cast, const, make, prim, walk

__all__ = ["normal_form", "negated"]

_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def normal_form(score: Value) -> Value:
    """The same numbers (but for NaN and infinities of scores that are masked)."""
    made: dict[int, Value] = {}
    for v in walk([score]):
        args = tuple(made[a.id] for a in v.args)
        made[v.id] = _rewritten(v, args)
    return made[score.id]


def negated(c: Value) -> Value:
    if c.op in _OPPOSITE and not c.args[0].dtype.is_floating_point:
        return prim(_OPPOSITE[c.op], *c.args)
    if c.op in ("logical_and", "logical_or"):  # (what holds of tiles is read off terms that all hold)
        return prim("logical_or" if c.op == "logical_and" else "logical_and", *map(negated, c.args))
    return c.args[0] if c.op == "logical_not" and c.args[0].dtype == torch.bool else prim("logical_not", c)


def _is(v: Value, number: float) -> bool:
    return v.op == "const" and v.attr == number


def _condition(v: Value, keep: Callable[[float], bool]) -> Value | None:
    """The condition for keep(v), where v is one of two numbers."""
    if v.op == "where" and all(a.op == "const" for a in v.args[1:]):
        c, a, b = v.args[0], v.args[1].attr, v.args[2].attr
    elif v.op == "cast" and v.args[0].dtype == torch.bool:
        c, a, b = v.args[0], 1, 0
    elif v.dtype == torch.bool:
        c, a, b = v, True, False
    else:
        return None
    yes, no = keep(a), keep(b)
    return const(yes, torch.bool) if yes == no else c if yes else negated(c)


def _rewritten(v: Value, args: tuple[Value, ...]) -> Value:
    op = v.op
    if op in _COMPARE:
        a, b = args
        if a.op == "const":
            a, b, op = b, a, _MIRRORED[op]
        if b.op == "const":
            number, test = b.attr, _COMPARE[op]
            found = _condition(a, lambda x: test(x, number))
            if found is not None:
                return found
        return prim(op, a, b)
    if op == "logical_not" or op == "bitwise_not" and v.dtype == torch.bool:
        found = _condition(args[0], lambda x: not x)
        return found if found is not None else prim("logical_not", args[0])
    if op in ("bitwise_and", "mul", "minimum") and v.dtype == torch.bool:
        return prim("logical_and", *args)
    if op in ("bitwise_or", "maximum") and v.dtype == torch.bool:
        return prim("logical_or", *args)
    if op == "cast":
        (x,) = args
        if v.dtype == torch.bool:
            found = _condition(x, bool)
            if found is not None:
                return found
        return _converted(x, v.dtype, v.attr)
    if op == "where":
        chosen = _choice(*args)
        found = _condition(chosen, bool) if v.dtype == torch.bool and chosen.op == "where" else None
        return chosen if found is None else found
    if op == "add":
        for x, y in (args, args[::-1]):
            if y.op == "where" and _is(y.args[2], -math.inf):
                return _choice(y.args[0], x if _is(y.args[1], 0) else _rewritten(v, (x, y.args[1])), y.args[2])
    if (
        op in ("mul", "div")
        and args[0].op == "where"
        and _is(args[0].args[2], -math.inf)
        and args[1].op == "const"
        and 0 < args[1].attr < math.inf
    ):
        c, x, low = args[0].args
        return _choice(c, prim(op, x, args[1]), low)
    if not v.args or op in ("load", "index"):  # (positions that are computed stay as they are)
        return v
    return v if all(a is b for a, b in zip(args, v.args)) else prim(op, *args) if op != "check_index" else v


def _converted(x: Value, dtype: torch.dtype, attr: Any = None) -> Value:
    """A cast, of the numbers that a choice is made of; without the rounding between operators, which scores in
    registers do not have.
    """
    if x.dtype == dtype:
        return x
    if x.op == "cast" and x.attr == "round" and dtype.is_floating_point and dtype.itemsize > x.dtype.itemsize:
        return cast(x.args[0], dtype)
    if x.op == "where" and "const" in (x.args[1].op, x.args[2].op) and dtype.is_floating_point:
        return _choice(x.args[0], _converted(x.args[1], dtype), _converted(x.args[2], dtype))
    return cast(x, dtype) if attr is None else make("cast", dtype, (x,), attr)


def _choice(c: Value, a: Value, b: Value) -> Value:
    """where(c, a, b) with -inf last, or 0."""
    if _is(a, -math.inf) or _is(a, 0) and b.op != "const":
        c, a, b = negated(c), b, a
    if _is(b, -math.inf) and a.op == "where" and _is(a.args[2], -math.inf):
        return prim("where", prim("logical_and", c, a.args[0]), a.args[1], b)
    return prim("where", c, a, b)
