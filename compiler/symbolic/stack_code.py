"""Expressions as code for a stack machine, for the C extension (compiler/native/expressions.c runs it)."""

from __future__ import annotations

from typing import Mapping

from .expr import Expr

__all__ = ["stack_code"]

_MOST_STACK = 60  # of the C evaluator's 64
_INT64_MAX = (1 << 63) - 1


def stack_code(
    e: Expr | bool, symbol: Mapping[str, int], opcodes: Mapping[str, int]
) -> tuple[tuple[int, int], ...] | None:
    """(operation, argument) pairs that leave the value of `e` on the stack; None where it is too deep or holds numbers
    beyond 64 bits. `symbol`: name -> position among the values of a run; `opcodes`: the extension's numbers."""
    if isinstance(e, bool):
        return ((opcodes["E_CONST"], int(e)),)
    code: list[tuple[int, int]] = []
    depth = _emit(e, symbol, opcodes, code)
    return tuple(code) if depth is not None and depth <= _MOST_STACK else None


def _emit(expr: Expr, symbol: Mapping[str, int], opcodes: Mapping[str, int], code: list[tuple[int, int]]) -> int | None:
    """Append the code of `expr`; the depth of stack that it needs."""
    if expr.is_const:
        if abs(int(expr.value)) > _INT64_MAX:
            return None
        code.append((opcodes["E_CONST"], int(expr.value)))
        return 1
    if expr.is_symbol:
        code.append((opcodes["E_SYMBOL"], symbol[expr.name]))
        return 1
    needed = 0
    for i, arg in enumerate(expr.args):
        d = _emit(arg, symbol, opcodes, code)
        if d is None:
            return None
        needed = max(needed, d + min(i, 2 if expr.op == "ite" else 1))
        if i and expr.op != "ite":
            code.append((opcodes["E_" + expr.op.upper()], 0))
    if expr.op == "ite":
        code.append((opcodes["E_ITE"], 0))
    return needed
