"""Sampling of volumes at positions that a tensor gives (grid_sample over 3 dimensions). Of images eager's kernels are
as fast as a loop of ours.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from ...symbolic.expr import as_expr
from ..ir import Value, cast, const, index, indirect_symbol, prim
from ..context import Lowering
from ..rule_table import NoRule, rule
from ..ref import Ref, axis, contiguous_strides, is_one, numel, remap, reshape
from .scatters import on_cpu
from .windows import both, element_at

I64 = torch.int64
NEAREST = 1  # of eager's modes; 0 is linear
ZEROS, REFLECTION = 0, 2  # of eager's paddings; 1 is the border


class _Along:
    """Positions along one dimension of the input, in the dtype of the grid."""

    def __init__(self, size: Any, padding: int, align: bool, dtype: torch.dtype):
        self.size, self.padding, self.align, self.t = size, padding, align, dtype
        self.n = const(size, dtype) if type(size) is int else cast(index(as_expr(size)), dtype)

    def number(self, x: float) -> Value:
        return const(x, self.t)

    def place(self, g: Value) -> Value:
        """From [-1, 1] to a position; one outside is brought inside where the padding asks for that."""
        one, two = self.number(1), self.number(2)
        g = prim("add", g, one)
        last = prim("sub", self.n, one)
        if self.align:
            p = prim("mul", prim("div", g, two), last)
        else:
            p = prim("div", prim("sub", prim("mul", g, self.n), one), two)
        if self.padding == REFLECTION:
            p = self._reflected(p)
        if self.padding != ZEROS:
            p = prim("where", prim("lt", p, self.number(0)), self.number(0), p)
            p = prim("where", prim("lt", p, last), p, last)  # (NaN is the last)
        return p

    def _reflected(self, value: Value) -> Value:
        if is_one(self.size) and self.align:
            return self.number(0)
        low = self.number(0 if self.align else -0.5)
        span = prim("sub", self.n, self.number(1)) if self.align else self.n
        away = prim("abs", prim("sub", value, low))
        twice = prim("mul", span, self.number(2))
        extra = prim("sub", away, prim("mul", prim("trunc", prim("div", away, twice)), twice))
        back = prim("sub", twice, extra)
        return prim("add", prim("where", prim("lt", extra, back), extra, back), low)

    def inside(self, value: Value) -> Value:
        """Whether an element lies at a whole-numbered position (compared as floats: positions may be out of the range
        of integers).
        """
        return prim("logical_and", prim("gt", value, self.number(-1)), prim("lt", value, self.n))


@dataclass(frozen=True)
class _Tap:
    """One of the elements along a dimension that a result is made of: where it lies in a row-major volume (-1:
    outside), and its weight (None: 1).
    """

    at: Ref
    weight: Ref | None


@rule("aten.grid_sampler_3d.default")
def grid_sampler_3d(lo: Lowering, node: Any, x: Ref, grid: Ref, mode: int, padding: int, align: bool) -> Ref:
    on_cpu(lo, "resampling")
    if x.dtype not in (torch.float32, torch.float64):
        raise NoRule(f"sampling of {x.dtype}")
    shape, points = lo.out_shape(), grid.shape[:-1]
    taps = []
    for d, (size, step) in enumerate(zip(x.shape[2:], contiguous_strides(x.shape)[2:])):
        a = _Along(size, padding, align, x.dtype)
        # (the last one is the first dimension's)
        coordinate = remap(grid, points, {**{k: axis(points, k) for k in range(4)}, 4: 2 - d})
        taps.append([_kept(lo, a, step, points, p, w) for p, w in _taps(a, a.place(coordinate.value), mode)])
    return lo.pointwise(_sum(reshape(x, (*x.shape[:2], numel(x.shape[2:]))), shape, list(itertools.product(*taps))))


def _taps(a: _Along, value: Value, mode: int) -> list[tuple[Value, Value | None]]:
    """Whole-numbered positions (floats) and weights."""
    if mode == NEAREST:
        return [(prim("round", value), None)]
    first, one = prim("floor", value), a.number(1)
    w = prim("sub", value, first)
    return [(first, prim("sub", one, w)), (prim("add", first, one), w)]


def _kept(lo: Lowering, a: _Along, step: Any, shape: tuple, value: Value, w: Value | None) -> _Tap:
    """A tap in memory, since every channel has the same."""
    at = prim("where", a.inside(value), prim("mul", cast(value, I64), index(as_expr(step))), const(-1, I64))
    return _Tap(
        lo.store(at, shape, I64, suffix="_at"), None if w is None else lo.store(w, shape, a.t, suffix="_weight")
    )


def _sum(x: Ref, shape: tuple, corners: Sequence[tuple[_Tap, ...]]) -> Value:
    """The sum over corners; those outside add nothing, whatever the weights. (Something is read there, too: reads under
    conditions are no gathers.)
    """
    lead = {0: axis(shape, 0), **{1 + dim: axis(shape, 2 + dim) for dim in range(3)}}
    total: Value | None = None
    for corner in corners:
        ok: Value | None = None
        place: Value = const(0, I64)
        weight: Value | None = None
        for tap in corner:
            at = remap(tap.at, shape, lead).value
            ok = both(ok, prim("ge", at, const(0, I64)))
            place = prim("add", prim("maximum", at, const(0, I64)), place)
            if tap.weight is not None:
                w = remap(tap.weight, shape, lead).value
                weight = w if weight is None else prim("mul", weight, w)
        v = element_at(x, shape, 2, [as_expr(0) if is_one(x.shape[2]) else indirect_symbol(place)])
        v = v if weight is None else prim("mul", v, weight)
        assert ok is not None
        v = prim("where", ok, v, const(0, v.dtype))
        total = v if total is None else prim("add", total, v)
    assert total is not None
    return total
