"""Shifts and bits of integers: what `1 << n`, `2 ** n`, `a & b`, `a | b` and `a ^ b` are made of, where they vary.

Internal to `expr`, which gives out the names. The other operators need no atoms of their own: `a << n` is `a * (1 <<
n)`, `a >> n` is `a // (1 << n)`, `a | b` is `a + b - (a & b)` and `a ^ b` is `a + b - 2 * (a & b)`.
"""

from __future__ import annotations

from .division import mod
from .terms import ONE, ZERO, Expr, IntLike, atom_key, make, as_expr, integer

__all__ = ["MOST_SHIFT", "bitand", "lshift"]

MOST_SHIFT = 62  # 1 << 63 is no number of 64 bits


def lshift(a: IntLike, n: IntLike) -> Expr:
    """a << n for 0 <= n <= MOST_SHIFT; whoever calls it has made sure."""
    a, n = as_expr(a), as_expr(n)
    return a * (integer(1 << n.value) if n.is_const else make("lshift", (ONE, n)))


def bitand(a: IntLike, b: IntLike) -> Expr:
    """a & b, as if both had endlessly many bits."""
    a, b = sorted(map(as_expr, (a, b)), key=lambda e: (e.is_const, atom_key(e)))  # a constant stands second
    if a is b:
        return a
    if b.is_const:
        mask = int(b.value)
        if a.is_const:
            return integer(a.value & mask)
        if mask in (0, -1):
            return ZERO if not mask else a
        if mask > 0 and not mask & (mask + 1):
            return mod(a, b + 1)  # n & 7
    return make("bitand", (a, b))
