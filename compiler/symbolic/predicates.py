"""Truth values over sizes, and what chooses by them: comparisons, and/or/not, minimum, maximum, if-then-else.

Internal to `expr`, which gives out the names.
"""

from __future__ import annotations

import math
from typing import Callable, Sequence

from .division import const_only
from .terms import Expr, IntLike, Poly, atom_key, boolean, from_poly, make, term_key, as_expr, integer

__all__ = ["minimum", "maximum", "ite", "eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_"]


def _minmax(op: str, xs: Sequence[IntLike]) -> Expr:
    pick = min if op == "min" else max
    const: int | None = None
    flat: list[Expr] = []
    for x in xs:
        expr = as_expr(x)
        for y in expr.args if expr.op == op else (expr,):
            if y.is_const:
                value = y.value
                const = value if const is None else pick(const, value)
            elif y not in flat:
                flat.append(y)
    if const is not None:
        flat.append(integer(const))
    out: list[Expr] = []
    for expr in flat:  # drop what another operand beats by a constant
        keep = True
        for i, o in enumerate(out):
            d = const_only((expr - o)._p())
            if d is not None:
                keep = False
                if (d < 0) == (op == "min") and d != 0:
                    out[i] = expr
                break
        if keep:
            out.append(expr)
    if len(out) == 1:
        return out[0]
    return make(op, tuple(sorted(out, key=atom_key)))


def minimum(*xs: IntLike) -> Expr:
    return _minmax("min", xs)


def maximum(*xs: IntLike) -> Expr:
    return _minmax("max", xs)


def ite(cond: Expr | bool, a: IntLike, b: IntLike) -> Expr:
    """a where cond holds, else b."""
    cond, a, b = as_expr(cond), as_expr(a), as_expr(b)
    if cond.op == "bool":
        return a if cond._args[0] else b
    return a if a is b else make("ite", (cond, a, b))


def _relation(op: str, a: IntLike, b: IntLike) -> Expr:
    """a <op> b reduced: constant to the right, negative terms to the other side, divided by the gcd."""
    a, b = as_expr(a), as_expr(b)
    if a.is_bool and b.is_bool and op in ("eq", "ne"):
        return _bool_eq(a, b) if op == "eq" else not_(_bool_eq(a, b))
    d = (a - b)._p()
    n = const_only(d)
    if n is not None:
        return boolean(n == 0 if op == "eq" else n != 0 if op == "ne" else n <= 0)
    c0 = d.get((), 0)
    gcd = math.gcd(*(value for key, value in d.items() if key))
    if op == "le":
        bound = (-c0) // gcd
    elif c0 % gcd:
        return boolean(op == "ne")
    else:
        bound = -c0 // gcd
    pos = {key: value // gcd for key, value in d.items() if key and value > 0}
    neg = {key: -value // gcd for key, value in d.items() if key and value < 0}
    if op != "le" and (not pos or (neg and _first_text(neg) < _first_text(pos))):
        pos, neg, bound = neg, pos, -bound
    if not pos and neg and op == "le":  # 0 <= x + bound is written -bound <= x
        return make("le", (integer(-bound), from_poly(neg)))
    if not neg:
        return make(op, (from_poly(pos), integer(bound)))
    if bound >= 0:
        if bound:
            neg[()] = bound
    else:
        pos[()] = -bound
    return make(op, (from_poly(pos), from_poly(neg)))


def _first_text(p: Poly) -> tuple:
    return term_key(min(p.items(), key=term_key))


def _bool_eq(a: Expr, b: Expr) -> Expr:
    return or_(and_(a, b), and_(not_(a), not_(b)))


def eq(a: IntLike, b: IntLike) -> Expr:
    return _relation("eq", a, b)


def ne(a: IntLike, b: IntLike) -> Expr:
    return _relation("ne", a, b)


def le(a: IntLike, b: IntLike) -> Expr:
    return _relation("le", a, b)


def lt(a: IntLike, b: IntLike) -> Expr:
    return _relation("le", as_expr(a) + 1, b)


def ge(a: IntLike, b: IntLike) -> Expr:
    return _relation("le", b, a)


def gt(a: IntLike, b: IntLike) -> Expr:
    return _relation("le", as_expr(b) + 1, a)


def _junction(op: str, ps: Sequence[Expr | bool]) -> Expr:
    stop = op == "or"  # the value that decides the whole
    out: list[Expr] = []
    for p in ps:
        expr = as_expr(p)
        for q in expr.args if expr.op == op else (expr,):
            if q.op == "bool":
                if q._args[0] == stop:
                    return q
            elif not q.is_bool:
                raise TypeError(f"{q} is not a truth value")
            elif not_(q) in out:
                return boolean(stop)
            elif q not in out:
                out.append(q)
    if not out:
        return boolean(not stop)
    return out[0] if len(out) == 1 else make(op, tuple(sorted(out, key=atom_key)))


def and_(*ps: Expr | bool) -> Expr:
    return _junction("and", ps)


def or_(*ps: Expr | bool) -> Expr:
    return _junction("or", ps)


def not_(p: Expr | bool) -> Expr:
    expr = as_expr(p)
    if expr.op not in _OPPOSITES:
        raise TypeError(f"{expr} is not a truth value")
    return _OPPOSITES[expr.op](*expr._args)


_OPPOSITES: dict[str, Callable[..., Expr]] = {
    "bool": lambda value: boolean(not value),
    "eq": lambda *args: make("ne", args),
    "ne": lambda *args: make("eq", args),
    "le": lambda *args: gt(*args),
    "and": lambda *args: _junction("or", [not_(arg) for arg in args]),
    "or": lambda *args: _junction("and", [not_(arg) for arg in args]),
}
