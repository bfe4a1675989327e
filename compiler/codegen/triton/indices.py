"""Index expressions as Triton text. Triton divides integers as C does; where a sign is not known a helper floors as
Python does.
"""

from __future__ import annotations

from typing import Callable

from ...symbolic.expr import Expr
from ...symbolic.expr_text import plainly_nonneg, print_expr, TruncatingStyle

__all__ = ["index_text", "HELPERS"]

# Printed into the source where an index needs them.
HELPERS = {
    "_floordiv": (
        "@triton.jit\ndef _floordiv(a, b):  # as Python's //\n    q = a // b\n    return tl.where((a % b != 0) & ((a <"
        " 0) != (b < 0)), q - 1, q)\n"
    ),
    "_mod": (
        "@triton.jit\ndef _mod(a, b):  # as Python's %\n    r = a % b\n    return tl.where((r != 0) & ((r < 0) != (b <"
        " 0)), r + b, r)\n"
    ),
}


class _TritonStyle(TruncatingStyle):
    and_word, or_word = " & ", " | "
    slash, extreme = "//", "tl.{op}imum({x}, {rest})"

    def shift(self, n: str) -> str:
        return f"(tl.full((), 1, tl.int64) << {n})"

    def ite(self, c: str, a: str, b: str) -> str:
        return f"tl.where({c}, {a}, {b})"


_STYLE = _TritonStyle(plainly_nonneg)


def index_text(expr: Expr, need: Callable[[str], None]) -> str:
    """`expr` as text; `need(name)` is called for each of HELPERS that it calls."""
    text = print_expr(expr, _STYLE)
    for name in HELPERS:
        if name + "(" in text:
            need(name)
    return text
