"""Resampling: nearest, linear and cubic interpolation onto another grid. The positions are computed as eager's kernels
compute them, in float32 (double for double); where they are those of a whole-numbered factor, an element's source is
plain index arithmetic.
"""

from __future__ import annotations

import ctypes
from typing import Any, Sequence

import torch

from ...symbolic.expr import Expr, as_expr
from ..ir import Value, cast, const, index, indirect_symbol, prim
from ..context import Lowering
from ..rule_table import NoRule, rule
from ..buffer_strides import strides_of
from ..promote import rounded
from ..ref import Ref, axis, is_one, remap
from .windows import element_at

I64 = torch.int64


def _floats(x: Ref) -> torch.dtype:
    if not x.dtype.is_floating_point:
        raise NoRule("interpolation of integers")
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _number(e: Any, dtype: torch.dtype) -> Value:
    return const(float(e), dtype) if isinstance(e, int) else cast(index(as_expr(e)), dtype)


def _ratio(size: Any, out: Any, scale: Any, dtype: torch.dtype) -> Value:
    """Steps of the source per step of the result."""
    if scale is not None and not isinstance(scale, (int, float)):
        raise NoRule("a scale that is known only at run time")
    if scale is not None and scale > 0:
        return const(_rounded(1.0 / scale, dtype), dtype)
    return prim("div", _number(size, dtype), _number(out, dtype))


def _rounded(x: float, dtype: torch.dtype) -> float:
    return ctypes.c_float(x).value if dtype == torch.float32 else float(x)


def _scales(args: Sequence[Any], n: int) -> list[Any]:
    given = list(args[:n])
    return given + [None] * (n - len(given))


# ---- nearest
def _nearest(exact: bool) -> Any:
    def f(lo: Lowering, node: Any, x: Ref, size: Sequence[Any], *scales: Any) -> Ref:
        ndim = len(size)
        shape = lo.out_shape()
        lead = len(shape) - ndim
        at = [
            _nearest_position(x.shape[lead + k], shape[lead + k], s, axis(shape, lead + k), exact, x.dtype)
            for k, s in enumerate(_scales(scales, ndim))
        ]
        return lo.pointwise(element_at(x, shape, lead, at))

    return f


def _nearest_position(size: Any, out: Any, scale: Any, expr: Expr, exact: bool, dtype: torch.dtype) -> Expr:
    """The element that the o-th result is. Computed as a value, lane by lane in registers: a division inside of an
    index is not.
    """
    if is_one(size):
        return as_expr(0)
    known = isinstance(size, int) and isinstance(out, int) and (scale is None or isinstance(scale, (int, float)))
    t = torch.float64 if dtype == torch.float64 else torch.float32
    if known:
        if size == out:
            return expr
        tables = [_nearest_table(size, out, scale, exact, kind) for kind in (torch.float32, torch.float64)]
        if not dtype.is_floating_point and tables[0] != tables[1]:
            raise NoRule("interpolation of integers")
        single = torch.float32
        ratio = _rounded(size / out, single)
        middle = [int(_rounded(_rounded(i + 0.5, single) * ratio, single)) for i in range(out)]
        if tables[dtype == torch.float64] == middle:  # no rounding comes near the steps
            p = prim("add", cast(index(expr), single), const(0.5, single))
            i = prim("mul", p, const(ratio, single))
            return indirect_symbol(cast(i, I64))
    elif not dtype.is_floating_point:
        raise NoRule("interpolation of integers")
    p = cast(index(expr), t)
    if exact:
        p = prim("add", p, const(0.5, t))
    i = cast(prim("floor", prim("mul", p, _ratio(size, out, scale, t))), I64)
    return indirect_symbol(prim("minimum", i, index(as_expr(size) - 1)))


def _nearest_table(size: int, out: int, scale: float | None, exact: bool, dtype: torch.dtype) -> list[int]:
    if not exact and out == 2 * size:
        return [i // 2 for i in range(out)]
    ratio = _rounded(
        1.0 / scale if scale is not None and scale > 0 else _rounded(size, dtype) / _rounded(out, dtype), dtype
    )
    half = 0.5 if exact else 0.0
    return [min(int(_rounded(_rounded(i + half, dtype) * ratio, dtype)), size - 1) for i in range(out)]


for _d in (1, 2, 3):
    rule(f"aten.upsample_nearest{_d}d.default")(_nearest(False))
    rule(f"aten._upsample_nearest_exact{_d}d.default")(_nearest(True))


# ---- linear and cubic
def _source(expr: Expr, size: Any, out: Any, align: bool, scale: Any, cubic: bool, dtype: torch.dtype) -> Value:
    """The position in the source, a float."""
    p = cast(index(expr), dtype)
    if align:
        if is_one(out):
            return const(0.0, dtype)
        return prim("mul", prim("div", _number(size - 1, dtype), _number(out - 1, dtype)), p)
    p = prim("sub", prim("mul", _ratio(size, out, scale, dtype), prim("add", p, const(0.5, dtype))), const(0.5, dtype))
    return p if cubic else prim("maximum", p, const(0.0, dtype))


class _Row:
    """What depends on the position along one dimension of the result alone. Where channels lie side by side in memory a
    pixel has few vectors, and computing its position would take as long as all of them: positions and weights are kept
    in memory then."""

    def __init__(self, lo: Lowering, shape: tuple, d: int):
        self.lo, self.shape, self.d = lo, shape, d
        channels = strides_of(lo.meta())[1] if len(shape) == 4 else 0
        self.known = type(channels) is int and channels == 1 and lo._device().type == "cpu" and not is_one(shape[1])
        self.at = axis(shape[d : d + 1], 0) if self.known else axis(shape, d)

    def kept(self, value: Value) -> Value:
        if not self.known:
            return value
        return remap(
            self.lo.store(value, self.shape[self.d : self.d + 1], suffix="_row"),
            self.shape,
            {0: axis(self.shape, self.d)},
        ).value


def _linear(lo: Lowering, node: Any, x: Ref, size: Sequence[Any], align: bool, *scales: Any) -> Ref:
    t = _floats(x)
    ndim = len(size)
    shape = lo.out_shape()
    lead = len(shape) - ndim
    taps: list[list[tuple[Expr, Value | None]]] = []
    for k, s in enumerate(_scales(scales, ndim)):
        old, new, o = x.shape[lead + k], shape[lead + k], axis(shape, lead + k)
        if is_one(old):
            taps.append([(as_expr(0), None)])
            continue
        if isinstance(old, int) and isinstance(new, int) and old == new:
            taps.append([(o, None)])
            continue
        row = _Row(lo, shape, lead + k)
        p = _source(row.at, old, new, align, s, False, t)
        last = index(as_expr(old) - 1)
        i = prim("minimum", cast(p, I64), last)
        j = prim("minimum", prim("add", i, const(1, I64)), last)
        w = prim("minimum", prim("maximum", prim("sub", p, cast(i, t)), const(0.0, t)), const(1.0, t))
        i, j, w = row.kept(i), row.kept(j), row.kept(w)
        taps.append([(indirect_symbol(i), prim("sub", const(1.0, t), w)), (indirect_symbol(j), w)])
    return lo.pointwise(rounded(_along_rows(lo, x, shape, lead, taps, t), x.dtype))


def _along_rows(
    lo: Lowering, x: Ref, shape: tuple, lead: int, taps: list[list[tuple[Expr, Value | None]]], dtype: torch.dtype
) -> Value:
    """Where rows lie in memory, the rows are combined first, in whole vectors; then half as many elements are looked up
    one by one. (A GPU has no such vectors, and looks up all in one kernel.)"""
    if (
        torch.device(lo.meta().device).type != "cpu"
        or len(taps) < 2
        or len(taps[-1]) == 1
        or all(len(row) == 1 for row in taps[:-1])
        or strides_of(lo.meta())[-1:] != (1,)
    ):
        return _weighted(x, shape, lead, taps, dtype)
    between = (*shape[:-1], x.shape[-1])
    rows = lo.store(
        _weighted(x, between, lead, [*taps[:-1], [(axis(between, len(between) - 1), None)]], dtype),
        between,
        dtype,
        suffix="_rows",
    )
    return _weighted(rows, shape, len(shape) - 1, taps[-1:], dtype)


def _weighted(
    x: Ref, shape: tuple, lead: int, taps: list[list[tuple[Expr, Value | None]]], dtype: torch.dtype
) -> Value:
    """Sum over all combinations of taps, the last dimension's first, as eager nests them."""

    def inner(k: int, at: list[Expr]) -> Value:
        if k == len(taps):
            return cast(element_at(x, shape, lead, at), dtype)
        total: Value | None = None
        for p, w in taps[k]:
            v = inner(k + 1, [*at, p])
            v = v if w is None else prim("mul", v, w)
            total = v if total is None else prim("add", total, v)
        assert total is not None
        return total

    return inner(0, [])


rule("aten.upsample_linear1d.default", "aten.upsample_bilinear2d.default", "aten.upsample_trilinear3d.default")(_linear)


@rule("aten.upsample_bicubic2d.default")
def bicubic(lo: Lowering, node: Any, x: Ref, size: Sequence[Any], align: bool, *scales: Any) -> Ref:
    t = _floats(x)
    shape = lo.out_shape()
    lead = len(shape) - 2
    taps: list[list[tuple[Expr, Value | None]]] = []
    for k, s in enumerate(_scales(scales, 2)):
        old, new, o = x.shape[lead + k], shape[lead + k], axis(shape, lead + k)
        if isinstance(old, int) and isinstance(new, int) and old == new:
            taps.append([(o, None)])
            continue
        row = _Row(lo, shape, lead + k)
        p = _source(row.at, old, new, align, s, True, t)
        last = index(as_expr(old) - 1)
        i = prim("minimum", cast(prim("floor", p), I64), last)
        w = prim("minimum", prim("maximum", prim("sub", p, cast(i, t)), const(0.0, t)), const(1.0, t))
        four: list[tuple[Expr, Value | None]] = []
        for d, c in zip((-1, 0, 1, 2), _cubic(w, t)):
            q = prim("maximum", prim("minimum", prim("add", i, const(d, I64)), last), const(0, I64))
            four.append((indirect_symbol(row.kept(q)), row.kept(c)))
        taps.append(four)
    return lo.pointwise(rounded(_along_rows(lo, x, shape, lead, taps, t), x.dtype))


def _cubic(value: Value, dtype: torch.dtype) -> list[Value]:
    """Weights of the four neighbours of a point that lies w after the second (Keys' kernel, a = -0.75)."""
    a = -0.75
    one, two = const(1.0, dtype), const(2.0, dtype)

    def near(value: Value) -> Value:  # |distance| <= 1
        return prim(
            "add",
            prim(
                "mul",
                prim("mul", prim("sub", prim("mul", const(a + 2, dtype), value), const(a + 3, dtype)), value),
                value,
            ),
            one,
        )

    def far(x: Value) -> Value:  # 1 < |distance| < 2
        y = prim("sub", prim("mul", const(a, dtype), x), const(5 * a, dtype))
        y = prim("add", prim("mul", y, x), const(8 * a, dtype))
        return prim("sub", prim("mul", y, x), const(4 * a, dtype))

    back = prim("sub", one, value)
    return [far(prim("add", value, one)), near(value), near(back), far(prim("sub", two, value))]
