"""Simplification with ranges: removes `//`, `%`, min and max whose result the ranges of the symbols decide.

The range of a symbol may be symbolic itself (a loop index i in [0, s0)). A bound of a polynomial is found by putting
each index at its extreme, those with symbolic ranges first: `i*s1 + j <= s0*s1 - 1` follows from i < s0, j < s1.
"""

from __future__ import annotations

from typing import Callable, Mapping

from .bitwise import MOST_SHIFT
from .terms import (
    BOOL_OPS,
    FALSE,
    TRUE,
    ZERO,
    Expr,
    IntLike,
    Poly,
    from_poly,
    poly_mul,
    add_all,
    as_expr,
    integer,
    is_signed,
)
from .division import floordiv
from .predicates import maximum, minimum
from .walk import BUILDERS

__all__ = ["simplify", "bounds", "Ranges", "known"]

Ranges = Mapping[str, tuple]  # name -> (lo, hi): lo <= name < hi; hi may be None


class _Known(dict):
    """Ranges, with what was found under them: loops over one tensor ask about the same parts again and again."""

    def __init__(self, ranges: Ranges):
        super().__init__(ranges)
        self.simple: dict[Expr, Expr] = {}
        self.bounds: dict[tuple[Expr, int], tuple] = {}
        self.nonneg: dict[Expr, bool] = {}


_MOST_KNOWN, _MOST_RANGES = 4_000, 256  # expressions that are kept for one set of ranges, and such sets
_all_known: dict[frozenset, _Known] = {}  # by ranges: those of equal layers come again and again


def _known(ranges: Ranges) -> _Known:
    key = frozenset(ranges.items())
    known = _all_known.get(key)
    if known is None or len(known.simple) + len(known.bounds) > _MOST_KNOWN:
        if len(_all_known) >= _MOST_RANGES:
            _all_known.clear()
        known = _all_known[key] = _Known(ranges)
    return known


def _range(name: str, ranges: Ranges) -> tuple:
    """Sizes and indices are not negative."""
    return ranges.get(name) or ((None, None) if is_signed(name) else (0, None))


def _interval_sym(name: str, ranges: Ranges, depth: int) -> tuple[int | None, int | None]:
    lo, hi = _range(name, ranges)
    if isinstance(lo, Expr):
        lo = bounds(lo, ranges, depth + 1)[0]
    if hi is None:
        return lo, None
    if isinstance(hi, Expr):
        top = bounds(hi, ranges, depth + 1)[1]
        return lo, None if top is None else top - 1
    return lo, hi - 1


def _mul(a: tuple, b: tuple) -> tuple:
    (al, ah), (bl, bh) = a, b
    if al is not None and bl is not None and al >= 0 and bl >= 0:
        return al * bl, None if ah is None or bh is None else ah * bh
    if None in (al, ah, bl, bh):
        return None, None
    xs = (al * bl, al * bh, ah * bl, ah * bh)
    return min(xs), max(xs)


def _atom_bounds(a: Expr, ranges: Ranges, depth: int) -> tuple:
    if a.is_symbol:
        return _interval_sym(a.name, ranges, depth)
    if depth > 8:
        return None, None
    found = ranges.bounds.get((a, depth)) if isinstance(ranges, _Known) else None
    if found is None:
        rule, first = _BOUNDS.get(a.op, (_bounds_of_any, 0))
        found = rule([bounds(arg, ranges, depth + 1) for arg in a.args[first:]])
        if isinstance(ranges, _Known):
            ranges.bounds[a, depth] = found
    return found


def _bounds_of_mod(of: list[tuple]) -> tuple:
    (xl, xh), (lo, hi) = of
    if lo is None or lo <= 0:
        return None, None
    top = None if hi is None else hi - 1
    if xl is not None and xl >= 0 and xh is not None:
        top = xh if top is None else min(top, xh)
    return 0, top


def _bounds_of_floordiv(of: list[tuple]) -> tuple:
    (xl, xh), (dl, dh) = of
    if dl is None or dl <= 0:
        return None, None
    lo = None if xl is None else (xl // dl if xl < 0 else 0 if dh is None else xl // dh)
    hi = None if xh is None else (xh // dl if xh >= 0 else -1 if dh is None else xh // dh)
    return lo, hi


def _bounds_of_lshift(of: list[tuple]) -> tuple:
    ((nl, nh),) = of
    return 1 << min(max(nl or 0, 0), MOST_SHIFT), 1 << (MOST_SHIFT if nh is None else min(max(nh, 0), MOST_SHIFT))


def _bounds_of_bitand(of: list[tuple]) -> tuple:
    tops = [hi for lo, hi in of if lo is not None and lo >= 0]
    return (0, min((hi for hi in tops if hi is not None), default=None)) if tops else (None, None)


def _bounds_of_any(of: list[tuple]) -> tuple:
    """Of a value that is one of these."""
    los, his = [lo for lo, _ in of], [hi for _, hi in of]
    return None if None in los else min(los), None if None in his else max(his)


def _bounds_of_min(of: list[tuple]) -> tuple:
    return _bounds_of_any(of)[0], min((hi for _, hi in of if hi is not None), default=None)


def _bounds_of_max(of: list[tuple]) -> tuple:
    return max((lo for lo, _ in of if lo is not None), default=None), _bounds_of_any(of)[1]


# operator -> the bounds of its value by those of its operands, from this operand on
_BOUNDS: dict[str, tuple[Callable[[list[tuple]], tuple], int]] = {
    "mod": (_bounds_of_mod, 0),
    "floordiv": (_bounds_of_floordiv, 0),
    "lshift": (_bounds_of_lshift, 1),
    "bitand": (_bounds_of_bitand, 0),
    "ite": (_bounds_of_any, 1),
    "min": (_bounds_of_min, 0),
    "max": (_bounds_of_max, 0),
}


def bounds(expr: IntLike, ranges: Ranges, depth: int = 0) -> tuple:
    """(lowest, highest) value, inclusive; None where unknown. Interval arithmetic, term by term."""
    if isinstance(expr, int):
        return expr, expr
    lo: int | None = 0
    hi: int | None = 0
    for mono, value in expr._p().items():
        b = (1, 1)
        for atom in mono:
            b = _mul(b, _atom_bounds(atom, ranges, depth))
        low, high = b if value > 0 else (b[1], b[0])
        lo = None if lo is None or low is None else lo + value * low
        hi = None if hi is None or high is None else hi + value * high
        if lo is None and hi is None:
            break
    return lo, hi


def _extreme(expr: Expr, ranges: Ranges, upper: bool) -> Expr:
    """An upper (lower) bound of e without the symbols whose range is symbolic, where the signs allow it."""
    for _ in range(16):
        target = None
        for name in sorted(expr.symbol_names()):
            lo, hi = _range(name, ranges)
            if isinstance(hi, Expr) and not hi.is_const:
                coeff = expr.coeff(name)
                if coeff is None or coeff is ZERO:
                    continue
                cl, ch = bounds(coeff, ranges)
                if cl is not None and cl >= 0:
                    target = (name, hi - 1 if upper else as_expr(lo))
                elif ch is not None and ch <= 0:
                    target = (name, as_expr(lo) if upper else hi - 1)
                if target:
                    break
        if target is None:
            return expr
        expr = expr.subs({target[0]: target[1]})
    return expr


def _nonneg(expr: Expr, ranges: Ranges) -> bool:
    """Whether e >= 0 is certain."""
    if not isinstance(ranges, _Known):
        return _is_nonneg(expr, ranges)
    found = ranges.nonneg.get(expr)
    if found is None:
        found = ranges.nonneg[expr] = _is_nonneg(expr, ranges)
    return found


def _is_nonneg(expr: Expr, ranges: Ranges) -> bool:
    lo = bounds(expr, ranges)[0]
    if lo is not None:
        if lo >= 0:
            return True
    lo = bounds(_extreme(expr, ranges, upper=False), ranges)[0]
    return lo is not None and lo >= 0


def known(p: Expr, ranges: Ranges) -> bool | None:
    """True or False where the ranges decide the predicate p, else None."""
    op = p.op
    if op == "bool":
        return p.value
    if op in ("and", "or"):
        rs = [known(arg, ranges) for arg in p.args]
        stop = op == "or"
        if stop in rs:
            return stop
        return None if None in rs else not stop
    a, b = p.args
    d = b - a
    if op == "le":
        if _nonneg(d, ranges):
            return True
        return False if _nonneg(-d - 1, ranges) else None
    if _nonneg(d - 1, ranges) or _nonneg(-d - 1, ranges):
        return op == "ne"
    return None


def _split_small(a: Expr, b: Expr, ranges: Ranges) -> tuple[Expr, Expr] | None:
    """a = q*b + r with 0 <= r < b certain, where the terms of a tell."""
    if not _nonneg(b - 1, ranges):
        return None
    if _nonneg(a, ranges) and _nonneg(b - 1 - a, ranges):
        return integer(0), a
    if b.is_const:  # c*m = (c // b)*b*m + (c % b)*m leaves a smaller remainder to judge
        n = b.value
        quot: Poly = {}
        rem: Poly = {}
        for key, value in a._p().items():
            if value // n:
                quot[key] = value // n
            if value % n:
                rem[key] = value % n
        if quot:
            r = from_poly(rem)
            if _nonneg(r, ranges) and _nonneg(b - 1 - r, ranges):
                return from_poly(quot), r
    return None


def _drop_small_terms(a: Expr, n: int, ranges: Ranges) -> Expr | None:
    """For floor(a / n): a = g*r + small with 0 <= small < g, g | n: the small part does not matter."""
    from math import gcd

    terms = a.terms()
    for g in sorted({gcd(abs(c), n) for c, m in terms if m and gcd(abs(c), n) > 1}, reverse=True):
        big = [(c, m) for c, m in terms if c % g == 0]
        small = [(c, m) for c, m in terms if c % g]
        if not big or not small:
            continue
        s = from_poly({m: c for c, m in small})
        if _nonneg(s, ranges) and _nonneg(g - 1 - s, ranges):
            return floordiv(from_poly({m: c // g for c, m in big}), n // g)
    return None


def _recombine(expr: Expr) -> Expr:
    """b*(x // b) + x % b -> x, times any common factor."""
    if expr.op != "add":
        return expr
    p = expr._p()
    for mono, value in list(p.items()):
        for atom in mono:
            if atom.op != "mod":
                continue
            x, b = atom.args
            others = list(mono)
            others.remove(atom)
            f = from_poly({tuple(others): value})
            q = floordiv(x, b)
            want = (q * b * f)._p()
            if want and all(p.get(key) == item for key, item in want.items()):
                return _recombine(expr - q * b * f - atom * f + x * f)
    return expr


def simplify(expr: Expr, ranges: Ranges) -> Expr:
    """e with what the ranges decide removed; symbols without a range are non-negative."""
    if expr.is_const or expr.is_symbol:
        return expr
    ranges = _known(ranges)
    return _simplify(expr, ranges, ranges.simple)


def _simplify(expr: Expr, ranges: Ranges, cache: dict) -> Expr:
    r = cache.get(expr)
    if r is not None:
        return r
    op = expr.op
    if op in ("sym", "int", "bool"):
        return expr
    if op in ("add", "mul"):
        if expr.is_affine:
            r = expr
        else:
            parts = []
            for mono, value in expr._p().items():
                q: Poly = {(): value}
                for a in mono:
                    q = poly_mul(q, _simplify(a, ranges, cache)._p())
                parts.append(from_poly(q))
            r = _recombine(add_all(parts))
    else:
        args = [_simplify(arg, ranges, cache) for arg in expr.args]
        r = BUILDERS[op](*args)
        if r.op in _RULES and (r.op == op or r.is_bool):
            r = _RULES[r.op](r, ranges, cache)
    cache[expr] = r
    return r


def _quotient(expr: Expr, ranges: Ranges, cache: dict) -> Expr:
    operand, divisor = expr.args
    if (parts := _split_small(operand, divisor, ranges)) is not None:
        return parts[0]
    less = _drop_small_terms(operand, divisor.value, ranges) if divisor.is_const else None
    return expr if less is None else _simplify(less, ranges, cache)


def _rest(expr: Expr, ranges: Ranges, cache: dict) -> Expr:
    operand, divisor = expr.args
    parts = _split_small(operand, divisor, ranges)
    return expr if parts is None else parts[1]


def _relation(expr: Expr, ranges: Ranges, cache: dict) -> Expr:
    holds = known(expr, ranges)
    return expr if holds is None else TRUE if holds else FALSE


def _prune(expr: Expr, ranges: Ranges, cache: dict) -> Expr:
    keep = list(expr.args)
    for x in list(keep):
        for y in keep:
            if x is not y and (_nonneg(x - y, ranges) if expr.op == "min" else _nonneg(y - x, ranges)):
                keep.remove(x)
                break
    return minimum(*keep) if expr.op == "min" else maximum(*keep)


# What the ranges decide of an operator whose operands are simple already.
_RULES: dict[str, Callable[[Expr, Ranges, dict], Expr]] = {
    "floordiv": _quotient,
    "mod": _rest,
    "min": _prune,
    "max": _prune,
    **dict.fromkeys(frozenset(BOOL_OPS) - {"and", "or", "bool"}, _relation),
}
