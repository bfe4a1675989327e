"""Splitting reductions that leave too few results to keep the threads busy: first parts of the data, then the parts'
results.

Four sums over 100,000 elements each become 4 x 100 sums of 1,000, made in parallel, and four short sums of those; they
are also more exact than long sums. A reduction to one result is left alone: generated code splits a kernel without
outer axes itself, and code for a GPU every kernel of few rows (codegen/triton/layout.py), where a row lies in memory in
one piece.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from ..lowering.ir import Axis, Buffer, LoopNest, load
from ..lowering.lowered import LoweredStep
from ..lowering.primitives import REDUCTIONS
from ..lowering.ref import contiguous_strides
from ..lowering.rewrite import Rewriter, tidy
from ..symbolic.expr import Expr, integer, maybe_int, symbol
from .domain import numel_hint, size_hint

__all__ = ["split_reductions"]

FEW = 16  # results
LONG = 1 << 15  # elements
PARTS = 64  # at least, where the sizes allow
_SPLITTABLE = frozenset(op for op, reduction in REDUCTIONS.items() if reduction.folds and reduction.step)


def split_reductions(steps: Sequence[LoweredStep], hints: dict[str, int]) -> list[LoweredStep]:
    out: list[LoweredStep] = []
    for step in steps:
        parts = (
            _split(step, hints)
            if isinstance(step, LoopNest)
            and step.reduce_op in _SPLITTABLE
            and not (step.product or step.scan or step.on_gpu and step.domain[-1] in step.reduce_axes)
            else None
        )
        out.extend(parts or (step,))
    return out


def _split(nest: LoopNest, hints: dict[str, int]) -> tuple[LoopNest, LoopNest] | None:
    kept = numel_hint([axis.size for axis in nest.axes], hints)
    total = numel_hint([axis.size for axis in nest.domain], hints)
    if not nest.axes or kept >= FEW or total < LONG or kept == 0:
        return None
    domain, value, index = list(nest.domain), nest.value, nest.index
    reduced = {axis.symbol.name for axis in nest.reduce_axes}
    chosen: list[Axis] = []
    have = kept
    for a in nest.domain:  # outermost reduced axes become the parts
        if a.symbol.name not in reduced:
            continue
        size = size_hint(a.size, hints)
        if have * size <= 1 << 16 and total // (have * size) >= 64:
            chosen.append(a)
            have *= size
        elif have < PARTS and type(a.size) is int:
            p = _parts(a.size, have)
            if p is None:
                break
            hi, lo_ = Axis(symbol(a.symbol.name + "p"), p), Axis(symbol(a.symbol.name + "q"), a.size // p)
            e = hi.symbol * (a.size // p) + lo_.symbol
            ranges = {x.symbol.name: (0, x.size) for x in (*nest.domain, hi, lo_)}

            def f(x: Expr, name: str = a.symbol.name, e: Expr = e, ranges: dict = ranges) -> Expr:
                return tidy(x.subs({name: e}), ranges)

            value = Rewriter(on_index=f)(value)
            at = domain.index(a)
            domain[at : at + 1] = [hi, lo_]
            reduced = (reduced - {a.symbol.name}) | {hi.symbol.name, lo_.symbol.name}
            chosen.append(hi)
            break
        else:
            break
        if have >= PARTS:
            break
    if not chosen:
        return None
    names = {axis.symbol.name for axis in chosen}
    first_axes = tuple(axis for axis in domain if axis.symbol.name not in reduced or axis.symbol.name in names)
    rest = tuple(axis for axis in domain if axis.symbol.name in reduced and axis.symbol.name not in names)
    if not rest:
        return None
    # parts are stored as (kept..., parts...): the second reduction runs over what lies together
    order = [axis for axis in first_axes if axis.symbol.name not in names] + chosen
    shape = tuple(axis.size for axis in order)
    buffer = Buffer(
        name=nest.buffer.name + "_parts",
        dtype=nest.buffer.dtype,
        shape=shape,
        stride=contiguous_strides(shape),
        scope="global",
        device=nest.buffer.device,
        kind="temp",
        origin=nest.buffer.origin,
    )
    at_ = integer(0)
    for a, st in zip(order, buffer.stride):
        at_ = at_ + a.symbol * maybe_int(st)
    parts = replace(
        nest, buffer=buffer, axes=first_axes, index=at_, value=value, reduce_axes=rest, domain=tuple(domain)
    )
    whole = LoopNest(
        buffer=nest.buffer,
        axes=nest.axes,
        index=index,
        value=load(buffer, at_),
        reduce_axes=tuple(chosen),
        reduce_op=nest.reduce_op,
        domain=tuple(order),
        mode=nest.mode,
        origins=nest.origins,
        lines=nest.lines,
    )
    return parts, whole


def _parts(size: int, have: int) -> int | None:
    """A divisor of size that gives at least PARTS parts of at least 64 elements; the smallest such."""
    want = -(-PARTS // max(have, 1))
    for p in range(want, min(size // 64, want * 64) + 1):
        if size % p == 0:
            return p
    return None
