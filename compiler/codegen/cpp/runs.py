"""Positions along the vectors that are neither neighbours nor anywhere.

Every second element: two vectors, shuffled. And positions that mostly follow each other, in pieces that are too short
for pieces.py. Where an index goes up by at most one from lane to lane, its first and last lane tell at run time whether
a whole vector lies in memory in one piece. Where it goes down by at most one, they tell whether it does so backwards.
"""

from __future__ import annotations

from typing import Callable

from ...symbolic.expr import Expr, symbol

__all__ = ["UP", "DOWN", "run_directions", "RUN", "backwards_text", "every_second_text"]

UP, DOWN = 1, 2
_INFINITE = float("inf")

_SECOND = """\
#if defined(__clang__) || __GNUC__ >= 12
template <class V> INLINE V evens(V a, V b) { return __builtin_shufflevector(a, b, EVENS); }
#else
template <class V> INLINE V evens(V a, V b) { return __builtin_shuffle(a, b, (__typeof__(a < a)){EVENS}); }
#endif
// Elements 0, 2, 4, ...; reads nothing behind the last of them.
template <class V, class T> INLINE V every_second(const T *p, All lanes) {
    return evens(load<V>(p, lanes), load<V>(p + L - 1, lanes));
}
template <class V, class T> INLINE V every_second(const T *p, First lanes) {
    return gather<V>(lanes, [&](int k) { return p[2 * k]; });
}
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


def backwards_text(lanes: int) -> str:
    """`tc::backwards`: a vector's lanes, the last first."""
    return _BACKWARDS.replace("LANES", ", ".join(str(k) for k in reversed(range(lanes))))


def every_second_text(lanes: int) -> str:
    """`tc::every_second`, see above; the second vector begins with the last element of the first."""
    return _SECOND.replace("EVENS", ", ".join(str(2 * k if k < lanes // 2 else 2 * k + 1) for k in range(lanes)))


def run_directions(expr: Expr, name: str) -> int:
    """UP | DOWN where equal distances of the first and the last lane prove that all lanes between lie side by side; 0
    where they prove nothing.
    """
    least, most = _steps(expr, name)
    return (UP if most == 1 else 0) | (DOWN if least == -1 else 0)


def _steps(expr: Expr, name: str) -> tuple[float, float]:
    """The least and the greatest change of `expr` where the symbol grows by one."""
    if name not in expr.symbol_names():
        return 0, 0
    if expr is symbol(name):
        return 1, 1
    return _STEPS[expr.op](expr, name) if expr.op in _STEPS else (-_INFINITE, _INFINITE)


def _steps_of_sum(expr: Expr, name: str) -> tuple[float, float]:
    least = most = 0.0
    for coeff, mono in expr.terms():
        varying = [atom for atom in mono if name in atom.symbol_names()]
        if not varying:
            continue
        if len(mono) > 1:  # a factor that is known only when the kernel runs
            return -_INFINITE, _INFINITE
        lo, hi = _steps(mono[0], name)
        least, most = least + min(coeff * lo, coeff * hi), most + max(coeff * lo, coeff * hi)
    return least, most


def _steps_of_extreme(expr: Expr, name: str) -> tuple[float, float]:
    steps = [_steps(arg, name) for arg in expr.args]
    return min(lo for lo, _ in steps), max(hi for _, hi in steps)


def _steps_of_quotient(expr: Expr, name: str) -> tuple[float, float]:
    operand, divisor = expr.args
    lo, hi = _steps(operand, name)
    if divisor.is_const and abs(lo) < _INFINITE and abs(hi) < _INFINITE:
        return lo // divisor.value, -(-hi // divisor.value)
    return -_INFINITE, _INFINITE


def _steps_of_rest(expr: Expr, name: str) -> tuple[float, float]:
    """A step of the operand, or that less a multiple of the divisor."""
    operand, divisor = expr.args
    if name in divisor.symbol_names():
        return -_INFINITE, _INFINITE
    lo, hi = _steps(operand, name)
    return (-_INFINITE, hi) if lo >= 0 else (-_INFINITE, _INFINITE)


_STEPS: dict[str, Callable[[Expr, str], tuple[float, float]]] = {
    "add": _steps_of_sum,
    "mul": _steps_of_sum,
    "min": _steps_of_extreme,
    "max": _steps_of_extreme,
    "floordiv": _steps_of_quotient,
    "mod": _steps_of_rest,
}
