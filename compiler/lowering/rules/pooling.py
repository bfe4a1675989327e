"""Backward of maximum pooling over images on a GPU, as an element-wise loop: each element adds up what the windows that
cover it give back, those whose maximum it was. torch's kernel for channels last takes four times as long as the memory
needs, and what comes before and after joins this one."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ...symbolic.expr import Expr, as_expr
from ..ir import Value, const, index, prim
from ..context import Lowering
from ..rule_table import NoRule
from ..ref import Ref, dim_symbol, is_one

MOST_TAPS = 16  # of a window
i64 = torch.int64


def _pair(xs: Sequence[Any], default: tuple[int, int]) -> tuple[int, int]:
    xs = list(xs) or list(default)
    return (xs[0], xs[0]) if len(xs) == 1 else (xs[0], xs[1])


def _fits(lo: Lowering, x: Ref, kernel: tuple[int, int], dilation: tuple[int, int], shape: Sequence[Any]) -> None:
    if lo._device().type != "cuda" or x.ndim != 4 or dilation != (1, 1) or kernel[0] * kernel[1] > MOST_TAPS:
        raise NoRule("pooling")
    if not all(type(s) is int and s > 0 for s in (*x.shape, *shape)) or x.dtype not in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ):
        raise NoRule("pooling")


def _at(d: int, shape: Sequence[Any]) -> Expr:
    return as_expr(0) if is_one(shape[d]) else dim_symbol(4, d)


def _within(e: Expr, n: int) -> Value:
    return prim("logical_and", prim("ge", index(e), const(0, i64)), prim("lt", index(e), const(n, i64)))
