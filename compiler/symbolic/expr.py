"""Integer expressions over size and index symbols, in a canonical form, hash-consed: equal expressions are one object.

An integer Expr is a polynomial with int coefficients over *atoms*. Atoms are symbols and what is not a polynomial:

    op         args                         meaning
    int        (n,)                         a Python int (`.value`)
    sym        (name,)                      a symbol: a size or a loop index
    add        (term, term, ...)            sum; terms are `mul`, atoms or one `int` (last)
    mul        ([int,] atom, atom, ...)     product; the int coefficient, where there is one, comes first
    floordiv   (a, b)                       Python's a // b
    mod        (a, b)                       Python's a % b
    lshift     (1, n)                       1 << n, that is 2 ** n, 0 <= n <= 62
    bitand     (a, b)                       Python's a & b
    min, max   (a, b, ...)                  two or more operands
    ite        (cond, a, b)                 a where the boolean cond holds, else b

and a boolean Expr is one of

    bool       (True | False,)              `.value`
    eq ne le   (a, b)                       lt, gt, ge are written with le; differences are reduced by their gcd
    and or     (p, q, ...)

Compare Exprs with `is`: Python's == is identity. Symbols stand for sizes and indices. Where a rule needs a sign (the C
printer's choice of `/`, `simplify` without a range), they count as non-negative. Those that `is_signed` names are the
exception: ints of the program, which may be anything."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from . import expr_text
from .bitwise import bitand, lshift
from .division import ceildiv, floordiv, mod
from .expr_text import C_HELPERS
from .predicates import and_, eq, ge, gt, ite, le, lt, maximum, minimum, ne, not_, or_
from .simplify import simplify
from .terms import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Expr,
    IntLike,
    add_all,
    as_expr,
    integer,
    is_signed,
    is_unbacked,
    maybe_int,
    mul_all,
    operand,
    symbol,
)
from .walk import BUILDERS, evaluate, rewrite

__all__ = [
    "Expr",
    "IntLike",
    "symbol",
    "integer",
    "as_expr",
    "maybe_int",
    "add_all",
    "mul_all",
    "floordiv",
    "mod",
    "lshift",
    "bitand",
    "minimum",
    "maximum",
    "ceildiv",
    "ite",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "and_",
    "or_",
    "not_",
    "TRUE",
    "FALSE",
    "simplify",
    "is_signed",
    "is_unbacked",
    "ZERO",
    "ONE",
    "C_HELPERS",
]


# ---- methods of Expr that are made of what stands above the terms
def _floordiv(self: Expr, o: Any) -> Expr:
    o = operand(o)
    return NotImplemented if o is None else floordiv(self, o)


def _rfloordiv(self: Expr, o: Any) -> Expr:
    o = operand(o)
    return NotImplemented if o is None else floordiv(o, self)


def _mod(self: Expr, o: Any) -> Expr:
    o = operand(o)
    return NotImplemented if o is None else mod(self, o)


def _rmod(self: Expr, o: Any) -> Expr:
    o = operand(o)
    return NotImplemented if o is None else mod(o, self)


def _rebuild(op: str, args: tuple) -> Expr:
    return BUILDERS[op](*args)


def _reduce(self: Expr) -> tuple:
    return _rebuild, (self.op, self.args)


def _subs(self: Expr, mapping: Mapping[str, IntLike]) -> Expr:
    """Replace symbols by name, all at once."""
    names = self.symbol_names()
    m = {key: as_expr(value) for key, value in mapping.items() if key in names}
    return rewrite(self, m) if m else self


def _eval(self: Expr, values: Mapping[str, int]) -> int | bool:
    """The value where each symbol has the given one. Raises KeyError for a symbol without."""
    return evaluate(self, values, {})


def _py(self: Expr) -> str:
    """Python source text."""
    text = self._text
    if text is None:
        text = self._text = expr_text.python(self)
    return text


def _c(self: Expr, nonneg: Callable[[Expr], bool] | None = None) -> str:
    """C++ source text over 64-bit ints. Division of what may be negative calls a helper of C_HELPERS; `nonneg` may
    prove operands non-negative (by default: no negative coefficient in them)."""
    return expr_text.cpp(self, nonneg)


Expr.__floordiv__, Expr.__rfloordiv__, Expr.__mod__, Expr.__rmod__ = _floordiv, _rfloordiv, _mod, _rmod
Expr.__reduce__ = _reduce
Expr.subs, Expr.eval = _subs, _eval
Expr.py = Expr.__repr__ = Expr.__str__ = _py
Expr.c = _c
