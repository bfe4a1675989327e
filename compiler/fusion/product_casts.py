"""On a GPU, products of 16 bits are written in float32 where a cast is all that their results are for.

Autocast's gradients of weights are such: dW = dY^T X was made in 16 bits, read once and written again in float32. The
library accumulates in float32 and can write it as it is: a launch and a way through memory less, and nothing is rounded
on the way. Where the cast lies transposed, the transposed product is
computed: (A B)^T = B^T A^T.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable, Sequence

import torch

from ..lowering.ir import Buffer, LoopNest, loaded
from ..lowering.lowered import Extern, LoweredStep, View
from ..lowering.ref import all_same, contiguous_strides
from ..lowering.rewrite import positions, tidy
from ..symbolic.expr import ONE, ZERO, Expr, as_expr, symbol
from .memory.placed_copies import whole_source
from .inline import buffers_read
from .forced_fusion import NOTHING_FORCED, ForcedFusion

__all__ = ["without_casts"]


def without_casts(
    steps: Sequence[LoweredStep],
    needed: Iterable[Buffer],
    written: Iterable[Buffer],
    forced: ForcedFusion = NOTHING_FORCED,
) -> list[LoweredStep]:
    """The steps with those casts gone that a product takes over. `needed`: results; `written`: what is to be copied
    into inputs, which a kernel may write there.
    """
    made: dict[Buffer, list[int]] = {}  # buffer -> steps that write it, or say where it lies, by their places
    read: dict[Buffer, list[int]] = {}
    for k, step in enumerate(steps):
        for b in (
            [output for output in step.outputs if output is not None] if isinstance(step, Extern) else [step.buffer]
        ):
            made.setdefault(b, []).append(k)
        for b in loaded([step.value]) if isinstance(step, LoopNest) else set(buffers_read(step)):
            read.setdefault(b, []).append(k)
    needed, written = set(needed), set(written)
    new: dict[int, list[LoweredStep]] = {}
    for k, step in enumerate(steps):
        if (
            not isinstance(step, Extern)
            or not _may_widen(step)
            or step.outputs[0] in needed
            or len(read.get(step.outputs[0], ())) != 1
        ):
            continue
        (at,) = read[step.outputs[0]]
        cast = steps[at]
        if (
            isinstance(cast, LoopNest)
            and _is_cast(cast)
            and made[cast.buffer] == [at]
            and cast.buffer not in written
            and not forced.apart((step.origin,), cast.origins)
        ):
            wide = _widened(step, cast, cast.buffer in read)
            if wide is not None:
                new[k], new[at] = wide, []
    return [x for k, step in enumerate(steps) for x in new.get(k, [step])]


def _may_widen(extern: Extern) -> bool:
    out = extern.outputs[0] if len(extern.outputs) == 1 else None
    return (
        out is not None
        and str(extern.op) == "aten.mm.default"
        and extern.out_variant is not None
        and hasattr(torch.ops.aten.mm, "dtype_out")
        and out.dtype in (torch.bfloat16, torch.float16)
        and out.on_gpu
    )


def _is_cast(nest: LoopNest) -> bool:
    """Whether a nest does nothing but cast what it reads to float32."""
    return (
        nest.value.is_cast
        and nest.value.dtype == torch.float32
        and nest.value.args[0].is_load
        and not nest.value.args[0].args
        and nest.mode == "set"
        and nest.reduce_op is None
        and not nest.alone
        and not nest.product
    )


def _widened(extern: Extern, cast: LoopNest, is_read: bool) -> list[LoweredStep] | None:
    """The product into the memory of its cast; None where that is not all of the product, by rows or by columns.
    `is_read`: whether a step reads the cast.
    """
    product, out = extern.outputs[0], cast.buffer
    e = cast.value.args[0].attr[1]
    axes = whole_source(cast.axes, cast.index, e, product)
    m, n = product.shape
    if axes is None or type(m) is not int or type(n) is not int:
        return None
    i, j = symbol("row"), symbol("column")
    ranges = {"row": (0, m), "column": (0, n)}
    at = tidy(cast.index.subs(positions(axes, e, i * n + j, ranges)), ranges)
    order = _order(at, m, n)
    if order is None:
        return None
    steps: list[LoweredStep] = []
    args = extern.args
    if order == "columns":
        m, n = n, m
        args = tuple(
            Buffer(f"{out.name}_{x}", arg.dtype, arg.shape[::-1], arg.stride[::-1], "global", arg.device)
            for x, arg in zip("ab", reversed(extern.args))
        )
        steps += [View(arg, b) for arg, b in zip(args, reversed(extern.args))]
    if not all_same(out.shape, (m, n)) or not all_same(out.stride, (n, 1)):
        if is_read:
            return None  # (what is written under another name is not known to be made by anyone)
        out = Buffer(f"{out.name}_product", out.dtype, (m, n), contiguous_strides((m, n)), "global", out.device)
        steps.append(View(out, cast.buffer))
    mm = torch.ops.aten.mm
    return [*steps, replace(extern, op=mm.dtype, args=(*args, torch.float32), outputs=[out], out_variant=mm.dtype_out)]


def _order(at: Expr, m: int, n: int) -> str | None:
    """Whether elements (row, column) of a matrix lie at positions by rows, or by columns, without gaps and from 0
    on.
    """
    if at.subs({"row": ZERO, "column": ZERO}) is not ZERO:
        return None
    by = at.coeff("row"), at.coeff("column")
    return "rows" if by == (as_expr(n), ONE) else "columns" if by == (ONE, as_expr(m)) else None
