"""Backward of maximum pooling over images on a GPU, as an element-wise loop: each element adds up what the windows that
cover it give back, those whose maximum it was. torch's kernel for channels last takes four times as long as the memory
needs, and what comes before and after joins this one."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ...symbolic.expr import Expr
from ..ir import Value, cast, const, index, prim
from ..context import Lowering
from ..rule_table import NoRule, rule
from ..ref import Ref, axis, remap

MOST_TAPS = 16  # of a window
i64 = torch.int64


def _pair(xs: Sequence[Any], default: tuple[int, int]) -> tuple[int, int]:
    xs = list(xs) or list(default)
    return (xs[0], xs[0]) if len(xs) == 1 else (xs[0], xs[1])


def _fits(lo: Lowering, x: Ref, kernel: tuple[int, int], dilation: tuple[int, int], shape: Sequence[Any]) -> None:
    if not lo.on_gpu or x.ndim != 4 or dilation != (1, 1) or kernel[0] * kernel[1] > MOST_TAPS:
        raise NoRule("pooling")
    if not all(type(size) is int and size > 0 for size in (*x.shape, *shape)) or x.dtype not in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ):
        raise NoRule("pooling")


def _within(expr: Expr, n: int) -> Value:
    return prim("logical_and", prim("ge", index(expr), const(0, i64)), prim("lt", index(expr), const(n, i64)))


@rule("aten.max_pool2d_with_indices_backward.default")
def max_pool_backward(
    lo: Lowering,
    node: Any,
    g: Ref,
    x: Ref,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Ref,
) -> Ref:
    shape = tuple(lo.meta().shape)
    window = _pair(kernel, (1, 1))
    steps, pads = _pair(stride, window), _pair(padding, (0, 0))
    _fits(lo, g, window, _pair(dilation, (1, 1)), shape)
    f32 = torch.float32
    here = index(axis(shape, 2) * shape[3] + axis(shape, 3))
    total: Value | None = None
    for a in range(-(-window[0] // steps[0])):
        for b in range(-(-window[1] // steps[1])):
            oh, ow = (axis(shape, 2) + pads[0]) // steps[0] - a, (axis(shape, 3) + pads[1]) // steps[1] - b
            inside = prim("logical_and", _within(oh, g.shape[2]), _within(ow, g.shape[3]))
            at = {0: axis(shape, 0), 1: axis(shape, 1), 2: oh, 3: ow}
            mine = prim("eq", remap(indices, shape, at).value, here)
            v = prim(
                "masked",
                inside,
                prim("where", mine, cast(remap(g, shape, at).value, f32), const(0.0, f32)),
                const(0.0, f32),
            )
            total = v if total is None else prim("add", total, v)
    assert total is not None
    return lo.pointwise(cast(total, lo.meta().dtype))
