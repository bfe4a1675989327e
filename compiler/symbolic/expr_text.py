"""Expressions as source text: Python's, and C++'s over 64-bit ints.

In: an Expr (expr.py). Out: text in which terms stand in an order that depends on the expression alone, so that equal
expressions print alike in every process (generated code is cached by its text).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from . import terms

if TYPE_CHECKING:
    from .terms import Expr

__all__ = ["python", "cpp", "C_HELPERS", "TruncatingStyle", "plainly_nonneg", "print_expr"]

# What `.c()` may call, as C++ text: Python's floor semantics for operands whose sign is not known.
C_HELPERS = """\
static inline long long tc_floordiv(long long a, long long b) {
    long long q = a / b;
    return q - ((a % b != 0) & ((a < 0) != (b < 0)));
}
static inline long long tc_mod(long long a, long long b) {
    long long r = a % b;
    return r + (((r != 0) & ((r < 0) != (b < 0))) ? b : 0);
}
static inline long long tc_min(long long a, long long b) { return a < b ? a : b; }
static inline long long tc_max(long long a, long long b) { return a > b ? a : b; }
"""


def python(expr: "Expr") -> str:
    """Python source text."""
    return print_expr(expr, _PY)


def cpp(expr: "Expr", nonneg: "Callable[[Expr], bool] | None" = None) -> str:
    """C++ source text over 64-bit ints. Where `nonneg` does not prove a division's operands non-negative (by default:
    no negative coefficient in them), it calls a helper of C_HELPERS."""
    return print_expr(expr, _CStyle(nonneg or plainly_nonneg))


def plainly_nonneg(expr: "Expr") -> bool:
    return all(value >= 0 and all(map(_nonneg_atom, atoms)) for atoms, value in expr._p().items())


def _nonneg_atom(a: "Expr") -> bool:
    if a.is_symbol:
        return not terms.is_signed(a.name)
    if a.op == "mod":
        return plainly_nonneg(a.args[1])
    if a.op in ("max", "bitand"):
        return any(map(plainly_nonneg, a.args))
    return all(map(plainly_nonneg, a.args[a.op == "ite" :]))


class PyStyle:
    and_word, or_word, true, false = " and ", " or ", "True", "False"

    def int(self, n: int) -> str:
        return str(n)

    def div(self, a: "Expr", b: "Expr", sa: str, sb: str) -> str:
        return f"{sa} // {sb}"

    def mod(self, a: "Expr", b: "Expr", sa: str, sb: str) -> str:
        return f"{sa} % {sb}"

    def shift(self, n: str) -> str:
        return f"(1 << {n})"

    def minmax(self, op: str, xs: list[str]) -> str:
        return f"{op}({', '.join(xs)})"

    def ite(self, c: str, a: str, b: str) -> str:
        return f"({a} if {c} else {b})"


class TruncatingStyle(PyStyle):
    """Languages whose division rounds towards zero: operands that may be negative go to helper functions."""

    slash, helpers, extreme = "/", "", "{op}({x}, {rest})"

    def __init__(self, nonneg: Callable[["Expr"], bool]):
        self.nonneg = nonneg

    def div(self, a: "Expr", b: "Expr", sa: str, sb: str) -> str:
        return self._division(a, b, sa, sb, self.slash, "floordiv")

    def mod(self, a: "Expr", b: "Expr", sa: str, sb: str) -> str:
        return self._division(a, b, sa, sb, "%", "mod")

    def _division(self, a: "Expr", b: "Expr", sa: str, sb: str, sign: str, helper: str) -> str:
        if self.nonneg(a) and self.nonneg(b):
            return f"{sa} {sign} {sb}"
        return f"{self.helpers}_{helper}({without_brackets(sa)}, {without_brackets(sb)})"

    def minmax(self, op: str, xs: list[str]) -> str:
        rest = xs[-1]
        for x in reversed(xs[:-1]):
            rest = self.extreme.format(op=op, x=x, rest=rest)
        return rest


class _CStyle(TruncatingStyle):
    and_word, or_word, true, false = " && ", " || ", "true", "false"
    helpers, extreme = "tc", "tc_{op}({x}, {rest})"

    def int(self, n: int) -> str:
        if -(2**31) < n < 2**31:
            return str(n)
        return f"{n}LL" if n != -(2**63) else f"({n + 1}LL - 1)"

    def shift(self, n: str) -> str:
        return f"(1LL << {n})"

    def ite(self, c: str, a: str, b: str) -> str:
        return f"({c} ? {a} : {b})"


_PY = PyStyle()


def without_brackets(s: str) -> str:
    """Without one pair of parentheses that encloses all of it."""
    if not (s.startswith("(") and s.endswith(")")):
        return s
    depth = 0
    for i, ch in enumerate(s):
        depth += (ch == "(") - (ch == ")")
        if depth == 0:
            return s[1:-1] if i == len(s) - 1 else s
    return s


def _is_call(s: str) -> bool:
    """Whether the text is one call of a helper and nothing else: `tc_mod(a, b)`, not `tc_mod(a, b) + c`."""
    head, bracket, rest = s.partition("(")
    return bool(bracket) and head.startswith("tc_") and len(without_brackets(bracket + rest)) < len(bracket + rest)


def _factor(expr: "Expr", style: Any) -> str:
    """Text that binds tighter than any operator."""
    text = _text(expr, style)
    if (
        expr.op in ("sym", "bool", "min", "max", "ite", "lshift", "bitand")
        or (expr.is_const and expr.value >= 0)
        or _is_call(text)
    ):
        return text
    return f"({text})"


def _text(expr: "Expr", style: Any) -> str:
    return expr.py() if style is _PY else print_expr(expr, style)


def print_expr(expr: "Expr", style: Any) -> str:
    op = expr.op
    if op == "sym":
        return expr._args[0]
    if op == "int":
        return style.int(expr._args[0])
    if op == "bool":
        return style.true if expr._args[0] else style.false
    if op in ("add", "mul"):
        parts: list[str] = []
        for mono, c in expr._sorted_terms():
            sign, n = ("-", -c) if c < 0 else ("+", c)
            factors = [style.int(n)] if n != 1 or not mono else []
            factors += [_factor(atom, style) for atom in mono]
            parts.append(f" {sign} {' * '.join(factors) if style is not _PY else '*'.join(factors)}")
        head = parts[0]
        parts[0] = ("-" if head[1] == "-" else "") + head[3:]
        return "".join(parts)
    if op == "floordiv":
        return style.div(*expr.args, _factor(expr.args[0], style), _factor(expr.args[1], style))
    if op == "mod":
        return style.mod(*expr.args, _factor(expr.args[0], style), _factor(expr.args[1], style))
    if op == "lshift":
        return style.shift(_factor(expr.args[1], style))
    if op == "bitand":
        return f"({_factor(expr.args[0], style)} & {_factor(expr.args[1], style)})"
    if op in ("min", "max"):
        return style.minmax(op, [_text(arg, style) for arg in expr.args])
    if op == "ite":
        return style.ite(*(_text(arg, style) for arg in expr.args))
    if op in ("eq", "ne", "le"):
        return f"{_text(expr.args[0], style)} {dict(eq='==', ne='!=', le='<=')[op]} {_text(expr.args[1], style)}"
    word = style.and_word if op == "and" else style.or_word
    return word.join(f"({_text(arg, style)})" for arg in expr.args)
