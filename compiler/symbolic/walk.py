"""Walks over expressions: putting values or other expressions in the place of symbols, and making nodes again by their
names.

Internal to `expr`, whose `subs` and `eval` they are.
"""

from __future__ import annotations

import operator
from typing import Any, Callable, Mapping

from .bitwise import bitand, lshift
from .division import floordiv, mod
from .terms import Expr, Poly, boolean, from_poly, poly_mul, add_all, integer, mul_all, symbol
from .predicates import and_, eq, ite, le, maximum, minimum, ne, or_

__all__ = ["BUILDERS", "rewrite", "evaluate"]


def rewrite(expr: Expr, m: Mapping[str, Expr]) -> Expr:
    return _in_polynomial(expr, m) if expr.is_affine else _everywhere(expr, m)


def _in_polynomial(expr: Expr, m: Mapping[str, Expr]) -> Expr:
    """`rewrite` where there are symbols alone, as most positions have it."""
    if expr.is_symbol:
        return m.get(expr.name, expr)
    out: Poly = {}
    for mono, value in expr._p().items():
        changed = [m.get(x._args[0]) for x in mono]
        if not any(x is not None for x in changed):
            out[mono] = out.get(mono, 0) + value
            continue
        p: Poly = {(): value}
        for atom, to in zip(mono, changed):
            p = poly_mul(p, atom._p() if to is None else to._p())
        for key, v in p.items():
            out[key] = out.get(key, 0) + v
    return from_poly({name: item for name, item in out.items() if item})


def _everywhere(expr: Expr, m: Mapping[str, Expr]) -> Expr:
    cache: dict[Expr, Expr] = {}

    def go(x: Expr) -> Expr:
        r = cache.get(x)
        if r is not None:
            return r
        if x.op == "sym":
            r = m.get(x._args[0], x)
        elif x.is_const or x.symbol_names().isdisjoint(m):
            r = x
        elif x.op in ("add", "mul"):
            out: Poly = {}
            for mono, value in x._poly.items():
                if len(mono) == 1 and mono[0].is_symbol:
                    to = m.get(mono[0]._args[0])
                    if to is None:
                        out[mono] = out.get(mono, 0) + value
                    else:
                        for key, v in to._p().items():
                            out[key] = out.get(key, 0) + v * value
                    continue
                p: Poly = {mono: value}
                if not all(a.symbol_names().isdisjoint(m) for a in mono):
                    p = {(): value}
                    for atom in mono:
                        p = poly_mul(p, go(atom)._p())
                for key, v in p.items():
                    out[key] = out.get(key, 0) + v
            r = from_poly({name: item for name, item in out.items() if item})
        else:
            r = BUILDERS[x.op](*(go(arg) for arg in x.args))
        cache[x] = r
        return r

    return go(expr)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "lshift": operator.lshift,
    "bitand": operator.and_,
    "min": lambda *xs: min(xs),
    "max": lambda *xs: max(xs),
    "eq": operator.eq,
    "ne": operator.ne,
    "le": operator.le,
}


def evaluate(expr: Expr, values: Mapping[str, int], cache: dict) -> Any:
    op = expr.op
    if op == "sym":
        return values[expr._args[0]]
    if op in ("int", "bool"):
        return expr._args[0]
    r = cache.get(expr)
    if r is not None:
        return r
    if op in ("add", "mul"):
        r = 0
        for key, c in expr._poly.items():
            for a in key:
                c *= values[a._args[0]] if a.is_symbol else evaluate(a, values, cache)
            r += c
    elif op == "ite":
        r = evaluate(expr.args[1] if evaluate(expr.args[0], values, cache) else expr.args[2], values, cache)
    elif op == "and":
        r = all(evaluate(arg, values, cache) for arg in expr.args)
    elif op == "or":
        r = any(evaluate(arg, values, cache) for arg in expr.args)
    else:
        r = _FUNCTIONS[op](*(evaluate(arg, values, cache) for arg in expr.args))
    cache[expr] = r
    return r


BUILDERS: dict[str, Callable[..., Expr]] = {
    "int": integer,
    "sym": symbol,
    "bool": boolean,
    "add": lambda *a: add_all(a),
    "mul": lambda *a: mul_all(a),
    "floordiv": floordiv,
    "mod": mod,
    "lshift": lshift,
    "bitand": bitand,
    "min": minimum,
    "max": maximum,
    "ite": ite,
    "eq": eq,
    "ne": ne,
    "le": le,
    "and": and_,
    "or": or_,
}
