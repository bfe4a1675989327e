"""Loops that go through the vectors' axis piece by piece, where positions are piecewise linear: what is rolled,
repeated, clamped, reflected, joined.

`Piece` in the code is an index from some place on: where it begins, its step, for how many lanes that holds. Arithmetic
on pieces is that of indices, so that the loop's next piece ends where the first of its indices turns, or the first of
its conditions ("turn" values, comparisons that were made such by `mark_turns`). In a piece whole vectors are read,
forwards or backwards, and conditions are the same for all lanes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Mapping, NamedTuple

import torch

from ...lowering.ir import Kernel, Stage, Value, make, walk
from ...lowering.rewrite import Rewriter
from ...symbolic.expr import ZERO, Expr, integer
from .layout import Layout, size_hint

__all__ = ["PIECES", "piece_text", "in_long_pieces", "step_in_pieces", "split_index", "mark_turns"]

LONG = 8  # vectors of a row from which on conditions part it

PIECES = """\
// An index over the next lanes: where it begins, its step from lane to lane, and for how many lanes that holds.
struct Piece { i64 at, step, lanes; };
constexpr i64 ENDLESS = 1LL << 62;
INLINE i64 fewer(i64 a, i64 b) { return a < b ? a : b; }
// (a division costs more than the rest of this)
INLINE i64 steps(i64 way, i64 step) { return step == 1 ? way : step == 2 ? way >> 1 : way / step; }
INLINE Piece fixed(i64 x) { return {x, 0, ENDLESS}; }
INLINE Piece operator+(Piece a, Piece b) { return {a.at + b.at, a.step + b.step, fewer(a.lanes, b.lanes)}; }
INLINE Piece operator*(Piece a, i64 n) { return {a.at * n, a.step * n, a.lanes}; }
INLINE Piece least(Piece a, Piece b) {
    const i64 d = a.at - b.at, s = a.step - b.step;
    const bool first = d < 0 || (d == 0 && s <= 0);
    const i64 until = first ? (s > 0 ? steps(-d, s) + 1 : ENDLESS) : (s < 0 ? steps(d, -s) + 1 : ENDLESS);
    return {first ? a.at : b.at, first ? a.step : b.step, fewer(until, fewer(a.lanes, b.lanes))};
}
INLINE Piece greatest(Piece a, Piece b) { return least(a * -1, b * -1) * -1; }
INLINE i64 quotient_at(i64 x, i64 n) { const i64 q = x / n; return q - (x - q * n < 0); }
INLINE i64 until_next(Piece a, i64 rest, i64 n) {
    return a.step > 0 ? steps(n - 1 - rest, a.step) + 1 : a.step < 0 ? steps(rest, -a.step) + 1 : ENDLESS;
}
INLINE Piece quotient(Piece a, i64 n) {
    if (n <= 0) return fixed(0);
    const i64 q = quotient_at(a.at, n);
    return {q, 0, fewer(a.lanes, until_next(a, a.at - q * n, n))};
}
INLINE Piece rest(Piece a, i64 n) {
    if (n <= 0) return fixed(0);
    const i64 r = a.at - quotient_at(a.at, n) * n;
    return {r, a.step, fewer(a.lanes, until_next(a, r, n))};
}
INLINE i64 until_turn(Piece a) {           // lanes for which a < 0 stays what it is
    return fewer(a.lanes, a.at < 0 ? (a.step > 0 ? steps(-a.at - 1, a.step) + 1 : ENDLESS)
        : a.step < 0 ? steps(a.at, -a.step) + 1 : ENDLESS);
}
template <class V, class T> INLINE V along(const T *p, i64 step, All lanes) {
    if (step == 1) return load<V>(p, lanes);
    if (step == -1) return backwards(load<V>(p - (L - 1), lanes));
    if (step == 0) return *p - V{};
    return gather<V>(lanes, [&](int k) { return p[k * step]; });
}
template <class V, class T> INLINE V along(const T *p, i64 step, First lanes) {
    if (step == 1) return load<V>(p, lanes);
    if (step == -1) return backwards(load_last<V>(p - (L - 1), lanes));
    if (step == 0) return *p - V{};
    return gather<V>(lanes, [&](int k) { return p[k * step]; });
}
"""


def in_long_pieces(expr: Expr, name: str, lanes: int, hints: Mapping[str, int]) -> bool:
    """Whether an index is made of linear pieces that are longer than vectors, as far as is known."""
    if name not in expr.symbol_names() or expr.is_symbol:
        return True
    return expr.op in _RULES and _RULES[expr.op].is_long(expr, name, lanes, hints)


def step_in_pieces(expr: Expr, name: str) -> int | None:
    """How far an index goes from lane to lane, wherever it does not turn; None where that differs or is not known."""
    if name not in expr.symbol_names():
        return 0
    if expr.is_symbol:
        return 1
    return _RULES[expr.op].step(expr, name) if expr.op in _RULES else None


def piece_text(expr: Expr, name: str, start: str, index_text: Callable[[Expr], str]) -> str:
    """C++ for an index, of which `in_long_pieces` holds, as a `Piece` from `start` on."""
    if name not in expr.symbol_names():
        return f"tc::fixed({index_text(expr)})"
    if expr.is_symbol:
        return f"tc::Piece{{{start}, 1, tc::ENDLESS}}"
    return _RULES[expr.op].text(expr, name, start, index_text)


def _long_sum(expr: Expr, name: str, lanes: int, hints: Mapping[str, int]) -> bool:
    return all(
        len(varying) == 0 or len(mono) == 1 and in_long_pieces(varying[0], name, lanes, hints)
        for _, mono in expr.terms()
        for varying in ([atom for atom in mono if name in atom.symbol_names()],)
    )


def _step_of_sum(expr: Expr, name: str) -> int | None:
    step = 0
    for coeff, mono in expr.terms():
        steps = [step_in_pieces(atom, name) for atom in mono]
        if None in steps or any(steps) and len(mono) > 1:
            return None
        step += coeff * sum(step for step in steps if step is not None)
    return step


def _text_of_sum(expr: Expr, name: str, start: str, index_text: Callable[[Expr], str]) -> str:
    fixed, parts = ZERO, []
    for coeff, mono in expr.terms():
        if name in mono[0].symbol_names() if mono else False:
            parts.append(piece_text(mono[0], name, start, index_text) + (f" * {coeff}" if coeff != 1 else ""))
        else:
            fixed = fixed + _product(coeff, mono)
    return " + ".join([*parts, *([f"tc::fixed({index_text(fixed)})"] if fixed is not ZERO else [])])


def _long_extreme(expr: Expr, name: str, lanes: int, hints: Mapping[str, int]) -> bool:
    return all(in_long_pieces(arg, name, lanes, hints) for arg in expr.args)


def _text_of_extreme(function: str) -> Callable[..., str]:
    def text(expr: Expr, name: str, start: str, index_text: Callable[[Expr], str]) -> str:
        first, *others = [piece_text(arg, name, start, index_text) for arg in expr.args]
        for other in others:
            first = f"tc::{function}({first}, {other})"
        return first

    return text


def _long_division(expr: Expr, name: str, lanes: int, hints: Mapping[str, int]) -> bool:
    operand, divisor = expr.args
    try:
        length = divisor.eval(hints)
    except KeyError:
        return False
    # (a piece of whole vectors; or what stays the same as long as what it is made of)
    long = length >= 2 * lanes or length > 0 and length % lanes == 0 or step_in_pieces(operand, name) == 0
    return name not in divisor.symbol_names() and long and in_long_pieces(operand, name, lanes, hints)


def _step_of_rest(expr: Expr, name: str) -> int | None:
    return step_in_pieces(expr.args[0], name) if name not in expr.args[1].symbol_names() else None


def _step_of_quotient(expr: Expr, name: str) -> int | None:
    return 0 if _step_of_rest(expr, name) is not None else None


def _text_of_division(function: str) -> Callable[..., str]:
    def text(expr: Expr, name: str, start: str, index_text: Callable[[Expr], str]) -> str:
        operand, divisor = expr.args
        return f"tc::{function}({piece_text(operand, name, start, index_text)}, {index_text(divisor)})"

    return text


class _Rule(NamedTuple):
    """How an operator of index expressions is made of pieces."""

    is_long: Callable[[Expr, str, int, Mapping[str, int]], bool]
    step: Callable[[Expr, str], int | None]
    text: Callable[[Expr, str, str, Callable[[Expr], str]], str]


_SUM = _Rule(_long_sum, _step_of_sum, _text_of_sum)
_RULES: dict[str, _Rule] = {
    "add": _SUM,
    "mul": _SUM,
    "min": _Rule(_long_extreme, lambda expr, name: None, _text_of_extreme("least")),
    "max": _Rule(_long_extreme, lambda expr, name: None, _text_of_extreme("greatest")),
    "mod": _Rule(_long_division, _step_of_rest, _text_of_division("rest")),
    "floordiv": _Rule(_long_division, _step_of_quotient, _text_of_division("quotient")),
}


def _product(c: int, atoms: Any) -> Expr:
    e = integer(c)
    for atom in atoms:
        e = e * atom
    return e


def split_index(expr: Expr, name: str) -> tuple[Expr, Expr]:
    """An index as what depends on the symbol and what does not."""
    varying, fixed = ZERO, ZERO
    for coeff, mono in expr.terms():
        t = _product(coeff, mono)
        if name in t.symbol_names():
            varying = varying + t
        else:
            fixed = fixed + t
    return varying, fixed


def mark_turns(kernel: Kernel, layout: Layout) -> Kernel:
    """The same kernel with conditions of reads that hold along the whole row up to a position, or from one on, as
    leaves: turn, attr=(e, negated), e < 0 or not.
    """
    if layout.tile is not None or layout.copies > 1:
        return kernel
    stages = []
    for st, loops in zip(kernel.stages, layout.stages):
        axis = loops.vector
        if axis is not None and size_hint(axis.size, kernel.hints) >= LONG * layout.lanes:
            mark = _Marker(
                axis.symbol.name,
                layout.lanes,
                kernel.hints,
                [*(acc.value for acc in st.accs), *(store.value for store in st.stores)],
            )
            st = Stage(
                st.axes,
                [replace(acc, value=mark(acc.value)) for acc in st.accs],
                [replace(store, value=mark(store.value)) for store in st.stores],
            )
        stages.append(st)
    return replace(kernel, stages=stages)


class _Marker(Rewriter):
    def __init__(self, vector: str, lanes: int, hints: Mapping[str, int], roots: list[Value]):
        super().__init__()
        self.vector, self.lanes, self.hints = vector, lanes, hints
        self.conditions: set[int] = set()
        stack = [value.args[0] for value in walk(roots) if value.op == "masked"]
        while stack:
            v = stack.pop()
            if v.id not in self.conditions:
                self.conditions.add(v.id)
                stack += [arg for arg in v.args if v.op in ("logical_and", "logical_or", "logical_not")]

    def _rebuild(self, value: Value) -> Value:
        if (
            value.id in self.conditions
            and value.op in ("lt", "ge", "le", "gt")
            and value.args[0].op == "index"
            and not value.args[0].args
            and value.args[1].is_const
        ):
            expr = value.args[0].attr - int(value.args[1].attr)
            if self.vector in expr.symbol_names() and in_long_pieces(expr, self.vector, self.lanes, self.hints):
                return make(
                    "turn", torch.bool, (), (expr if value.op in ("lt", "ge") else expr - 1, value.op in ("ge", "gt"))
                )
        return super()._rebuild(value)
