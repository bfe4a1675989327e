"""Looking values up: bisection in a sorted row, and membership in a few values."""

from __future__ import annotations

from typing import Any

import torch

from ..ir import Value, cast, const, indirect_symbol, prim
from ..context import Lowering
from ..rule_table import NoRule, rule
from ..promote import operand, result_type
from ..ref import Ref, Scalar, is_one, remap, reshape
from .scatters import axis, checked

LONGEST = 1 << 20  # of a sorted row
FEW = 64  # values to compare each element with

I64 = torch.int64


def _bisect(lo: Lowering, rows: Ref, x: Any, right: bool, sorter: Ref | None = None) -> Ref:
    """For each element its place in the row; NaN is greater than all numbers."""
    shape = lo.out_shape()
    n = rows.shape[-1] if rows.ndim else 1
    if n == 0 and type(n) is int:
        return lo.pointwise(const(0, lo.meta().dtype))
    if type(n) is not int or n > LONGEST:
        raise NoRule("bisection in a row of unknown length")
    dtype = result_type((rows, x))
    wanted = operand(x, dtype)

    def at(k: Value) -> Value:
        m: dict[int, Any] = {dim: axis(shape, dim) for dim in range(rows.ndim - 1)} if rows.ndim > 1 else {}
        if sorter is not None and not is_one(n):
            k = checked(
                remap(sorter, shape, {**m, rows.ndim - 1: indirect_symbol(k)}).value,
                n,
                "RuntimeError: torch.searchsorted(): sorter index out of range",
            )
        m[rows.ndim - 1] = indirect_symbol(k)
        return cast(remap(rows, shape, m).value, dtype)

    first, end = const(0, I64), const(n, I64)
    for _ in range(n.bit_length()):
        # (where nothing is left the middle is `first`, which may be n: the last element is read, and nothing changes)
        middle = prim("div_trunc", prim("add", first, end), const(2, I64))
        v = at(prim("minimum", middle, const(n - 1, I64))) if n > 1 else at(const(0, I64))
        beyond = prim("logical_not", prim("gt" if right else "ge", v, wanted))
        go = prim("logical_and", beyond, prim("lt", first, end))
        end = prim("where", prim("logical_and", prim("logical_not", beyond), prim("lt", first, end)), middle, end)
        first = prim("where", go, prim("add", middle, const(1, I64)), first)
    return lo.pointwise(cast(first, lo.meta().dtype))


def _right(right: bool, side: str | None) -> bool:
    return right or side == "right"


@rule("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    lo: Lowering,
    node: Any,
    rows: Ref,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Ref | None = None,
) -> Ref:
    return _bisect(lo, rows, x, _right(right, side), sorter)


@rule("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(lo: Lowering, node: Any, x: Any, rows: Ref, *, out_int32: bool = False, right: bool = False) -> Ref:
    return _bisect(lo, rows, x, right)


@rule("aten.isin.Tensor_Tensor", "aten.isin.Tensor_Scalar", "aten.isin.Scalar_Tensor")
def isin(lo: Lowering, node: Any, x: Any, tests: Any, *, assume_unique: bool = False, invert: bool = False) -> Ref:
    size = 1
    for s in tests.shape if isinstance(tests, Ref) else ():
        if type(s) is not int:
            raise NoRule("membership in a set of unknown size")
        size *= s
    if not 0 < size <= FEW or isinstance(x, Scalar):
        raise NoRule("membership in a large set")
    dtype = result_type((x, tests))
    v = operand(x, dtype)
    if not isinstance(tests, Ref):
        found: Value = prim("eq", v, operand(tests, dtype))
    else:
        line = reshape(tests, (size,))
        shape = lo.out_shape()
        found = const(False, torch.bool)
        for k in range(size):
            m = {} if is_one(size) else {0: k}
            t = cast(remap(line, shape, m).value if m else line.value, dtype)
            found = prim("logical_or", found, prim("eq", v, t))
    return lo.pointwise(prim("logical_not", found) if invert else found)
