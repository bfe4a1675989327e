"""Positions along the vectors that are neither neighbours nor anywhere.

Every second element: two vectors, shuffled. Positions that mostly follow each other (what is rolled, repeated, clamped, reflected or flipped) are piecewise linear: the loop goes through its range
piece by piece (`Piece` in the code: where an index begins, its step, for how many lanes that holds), and in each piece reads whole vectors, forwards or backwards. Where pieces are
shorter than vectors, first and last lane tell at run time whether a vector lies in memory in one piece, if the index changes by at most one from lane to lane.
"""
from __future__ import annotations

from typing import Any, Callable, Mapping

from ...symbolic.expr import ZERO, Expr, integer, symbol

__all__ = ["UP", "DOWN", "run_directions", "RUN", "backwards_text", "every_second_text", "PIECES", "piece_text", "in_long_pieces", "parted"]

UP, DOWN = 1, 2
_INFINITE = float("inf")

_SECOND = """\
#if defined(__clang__) || __GNUC__ >= 12
template <class V> INLINE V evens(V a, V b) { return __builtin_shufflevector(a, b, EVENS); }
#else
template <class V> INLINE V evens(V a, V b) { return __builtin_shuffle(a, b, (__typeof__(a < a)){EVENS}); }
#endif
// Elements 0, 2, 4, ...; reads nothing behind the last of them.
template <class V, class T> INLINE V every_second(const T *p, All lanes) { return evens(load<V>(p, lanes), load<V>(p + L - 1, lanes)); }
template <class V, class T> INLINE V every_second(const T *p, First lanes) { return gather<V>(lanes, [&](int k) { return p[2 * k]; }); }
"""
_BACKWARDS = """\
#if defined(__clang__) || __GNUC__ >= 12
template <class V> INLINE V backwards(V v) { return __builtin_shufflevector(v, v, LANES); }
#else
template <class V> INLINE V backwards(V v) { return __builtin_shuffle(v, (__typeof__(v < v)){LANES}); }
#endif
"""
RUN = """\
// Elements at positions that mostly follow each other: whole vectors where they do.
template <class V, int D, class T, class F> INLINE V run(const T *p, F at, All lanes) {
    const i64 first = at(0), last = at(L - 1);
    if (D & 1 && last - first == L - 1) return load<V>(p + first, lanes);
    if (D & 2 && first - last == L - 1) return backwards(load<V>(p + last, lanes));
    return gather<V>(lanes, [&](int k) { return p[at(k)]; });
}
template <class V, int D, class T, class F> INLINE V run(const T *p, F at, First lanes) {
    const i64 first = at(0), last = at(lanes.n - 1);
    if (D & 1 && last - first == lanes.n - 1) return load<V>(p + first, lanes);
    return gather<V>(lanes, [&](int k) { return p[at(k)]; });
}
"""

PIECES = """\
// An index over the next lanes: where it begins, its step from lane to lane, and for how many lanes that holds.
struct Piece { i64 at, step, lanes; };
constexpr i64 ENDLESS = 1LL << 62;
INLINE i64 fewer(i64 a, i64 b) { return a < b ? a : b; }
INLINE Piece fixed(i64 x) { return {x, 0, ENDLESS}; }
INLINE Piece operator+(Piece a, Piece b) { return {a.at + b.at, a.step + b.step, fewer(a.lanes, b.lanes)}; }
INLINE Piece operator*(Piece a, i64 n) { return {a.at * n, a.step * n, a.lanes}; }
INLINE Piece least(Piece a, Piece b) {
    const i64 d = a.at - b.at, s = a.step - b.step;
    const bool first = d < 0 || (d == 0 && s <= 0);
    const i64 until = first ? (s > 0 ? -d / s + 1 : ENDLESS) : (s < 0 ? d / -s + 1 : ENDLESS);
    return {first ? a.at : b.at, first ? a.step : b.step, fewer(until, fewer(a.lanes, b.lanes))};
}
INLINE Piece greatest(Piece a, Piece b) { return least(a * -1, b * -1) * -1; }
INLINE i64 quotient_at(i64 x, i64 n) { const i64 q = x / n; return q - (x - q * n < 0); }
INLINE i64 until_next(Piece a, i64 rest, i64 n) { return a.step > 0 ? (n - 1 - rest) / a.step + 1 : a.step < 0 ? rest / -a.step + 1 : ENDLESS; }
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
template <class V, class T> INLINE V along(const T *p, i64 step, All lanes) {
    if (step == 1) return load<V>(p, lanes);
    if (step == -1) return backwards(load<V>(p - (L - 1), lanes));
    return gather<V>(lanes, [&](int k) { return p[k * step]; });
}
template <class V, class T> INLINE V along(const T *p, i64 step, First lanes) {
    if (step == 1) return load<V>(p, lanes);
    return gather<V>(lanes, [&](int k) { return p[k * step]; });
}
"""


def in_long_pieces(e: Expr, name: str, lanes: int, hints: Mapping[str, int]) -> bool:
    """Whether an index is made of linear pieces that are longer than vectors, as far as is known."""
    if name not in e.symbol_names() or e.op == "sym":
        return True
    if e.op in ("add", "mul"):
        return all(len(varying) == 0 or len(mono) == 1 and in_long_pieces(varying[0], name, lanes, hints)
                   for _, mono in e.terms() for varying in ([a for a in mono if name in a.symbol_names()],))
    if e.op in ("min", "max"):
        return all(in_long_pieces(a, name, lanes, hints) for a in e.args)
    if e.op in ("mod", "floordiv"):
        x, n = e.args
        try:
            length = n.eval(hints)
        except KeyError:
            return False
        return name not in n.symbol_names() and length >= 2 * lanes and in_long_pieces(x, name, lanes, hints)
    return False


def piece_text(e: Expr, name: str, start: str, index_text: Callable[[Expr], str]) -> str:
    """C++ for an index, of which `in_long_pieces` holds, as a `Piece` from `start` on."""
    if name not in e.symbol_names():
        return f"tc::fixed({index_text(e)})"
    if e.op == "sym":
        return f"tc::Piece{{{start}, 1, tc::ENDLESS}}"
    if e.op in ("add", "mul"):
        fixed, parts = ZERO, []
        for c, mono in e.terms():
            if name in mono[0].symbol_names() if mono else False:
                parts.append(piece_text(mono[0], name, start, index_text) + (f" * {c}" if c != 1 else ""))
            else:
                fixed = fixed + _product(c, mono)
        return " + ".join([*parts, *([f"tc::fixed({index_text(fixed)})"] if fixed is not ZERO else [])])
    args = [piece_text(a, name, start, index_text) for a in e.args]
    if e.op in ("mod", "floordiv"):
        return f"tc::{'rest' if e.op == 'mod' else 'quotient'}({args[0]}, {index_text(e.args[1])})"
    text = args[0]
    for a in args[1:]:
        text = f"tc::{'least' if e.op == 'min' else 'greatest'}({text}, {a})"
    return text


def _product(c: int, atoms: Any) -> Expr:
    e = integer(c)
    for a in atoms:
        e = e * a
    return e


def parted(e: Expr, name: str) -> tuple[Expr, Expr]:
    """An index as what depends on the symbol and what does not."""
    varying, fixed = ZERO, ZERO
    for c, mono in e.terms():
        t = _product(c, mono)
        if name in t.symbol_names():
            varying = varying + t
        else:
            fixed = fixed + t
    return varying, fixed


def backwards_text(lanes: int) -> str:
    """`tc::backwards`: a vector's lanes, the last first."""
    return _BACKWARDS.replace("LANES", ", ".join(str(k) for k in reversed(range(lanes))))


def every_second_text(lanes: int) -> str:
    """`tc::every_second`, see above; the second vector begins with the last element of the first."""
    return _SECOND.replace("EVENS", ", ".join(str(2 * k if k < lanes // 2 else 2 * k + 1) for k in range(lanes)))


def run_directions(e: Expr, name: str) -> int:
    """UP | DOWN where equal distances of the first and the last lane prove that all lanes between lie side by side; 0 where they prove nothing."""
    least, most = _steps(e, name)
    return (UP if most == 1 else 0) | (DOWN if least == -1 else 0)


def _steps(e: Expr, name: str) -> tuple[float, float]:
    """The least and the greatest change of `e` where the symbol grows by one."""
    if name not in e.symbol_names():
        return 0, 0
    if e is symbol(name):
        return 1, 1
    if e.op in ("add", "mul"):
        least = most = 0.0
        for c, mono in e.terms():
            varying = [a for a in mono if name in a.symbol_names()]
            if not varying:
                continue
            if len(mono) > 1:                          # a factor that is known only when the kernel runs
                return -_INFINITE, _INFINITE
            lo, hi = _steps(mono[0], name)
            least, most = least + min(c * lo, c * hi), most + max(c * lo, c * hi)
        return least, most
    if e.op in ("min", "max"):
        steps = [_steps(a, name) for a in e.args]
        return min(lo for lo, _ in steps), max(hi for _, hi in steps)
    if e.op in ("floordiv", "mod") and name not in e.args[1].symbol_names():
        lo, hi = _steps(e.args[0], name)
        if e.op == "mod":                              # a step of the operand, or that less a multiple of the divisor
            return (-_INFINITE, hi) if lo >= 0 else (-_INFINITE, _INFINITE)
        if e.args[1].is_const and abs(lo) < _INFINITE and abs(hi) < _INFINITE:
            d = e.args[1].value
            return lo // d, -(-hi // d)
    return -_INFINITE, _INFINITE
