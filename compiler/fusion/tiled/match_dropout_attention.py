"""Calls of attention with dropout of our own (ops/dropout_attention.py) as kernels: templates.DropoutAttention forward,
templates.AttentionGradients backward.
"""

from __future__ import annotations

from typing import Any, Sequence, TypeGuard

import torch

from ...ops.dropout_attention import ATTENTION, BACKWARD
from ...lowering.ir import Axis, Buffer, LoopNest, Stage, Store, Value, acc, make
from ...lowering.templates import WORD, AttentionGradients, DropoutAttention
from ...lowering.lowered import Extern, LoweredStep
from ...lowering.rewrite import positions, tidy
from ...symbolic.expr import Expr, as_expr, ceildiv, symbol
from ..memory.placed_copies import is_copy, whole_source
from .producers import Finder, position
from .tile_kernel import ATTENTION_KERNEL, TileNames, tile_kernel
from ..schedule import Template

__all__ = ["dropout_attention"]

BATCH, HEAD, ROW, KEY, INNER, COLUMN = (symbol(n) for n in ("i0", "i1", "m0", "r0", "d0", "c0"))


def dropout_attention(
    steps: Sequence[LoweredStep], needed: Sequence[Buffer], hints: dict[str, int]
) -> list[LoweredStep]:
    """The steps with such calls on a GPU as Template steps, which write where copies of their results would lie."""
    if not any(isinstance(step, Extern) and step.op in (ATTENTION, BACKWARD) for step in steps):
        return list(steps)
    finder = Finder(steps, needed, hints)
    calls = [step for step in steps if _fits(step)]
    copies: dict[Buffer, LoopNest] = {}
    for b in [
        output for call in calls for output in call.outputs if output is not None and output not in finder.needed
    ]:
        readers = finder.readers.get(b, [])
        copy = readers[0] if len(readers) == 1 else None
        if isinstance(copy, LoopNest) and is_copy(copy) and b.dtype == copy.buffer.dtype:
            copies[b] = copy
    for call in calls:
        step, taken = _kernel(finder, call, copies)
        finder.put(step, call, taken)
    return finder.steps()


def _fits(s: Any) -> TypeGuard[Extern]:
    if not isinstance(s, Extern) or s.op not in (ATTENTION, BACKWARD):
        return False
    heads = [x.shape[3] for x in (s.args[1:4] if s.op is BACKWARD else s.args[:3])]
    return s.outputs[0] is not None and s.outputs[0].on_gpu and all(type(head) is int for head in heads)


def _there(buffer: Buffer, copy: LoopNest, at: Expr, ranges: dict[str, Any]) -> Expr | None:
    """Where a copy has what lies at `at` in a buffer; None where it is no copy of all of it by rows."""
    e = copy.value.attr[1]
    axes = whole_source(copy.axes, copy.index, e, buffer)
    if axes is None:
        return None
    found = tidy(copy.index.subs(positions(axes, e, at, ranges)), ranges)
    return found if found.is_affine else None


def _kernel(finder: Finder, extern: Extern, copies: dict[Buffer, LoopNest]) -> tuple[Template, list[LoopNest]]:
    """The kernel's step, and the copies that it makes superfluous."""
    backward = extern.op is BACKWARD
    q, k, v = extern.args[1:4] if backward else extern.args[:3]
    words, keep, causal, scale = extern.args[-4:]
    (n, heads, rows, inner), keys, columns = q.shape, k.shape[2], v.shape[3]
    axes = tuple(
        Axis(x, size)
        for x, size in ((BATCH, n), (HEAD, heads), (ROW, rows), (KEY, keys), (INNER, inner), (COLUMN, columns))
    )
    ranges: dict[str, Any] = {axis.symbol.name: (0, axis.size) for axis in axes}
    names = TileNames((*axes, Axis(WORD, 1)))

    def element(buffer: Buffer, *at: Expr) -> Value:
        return names.value(finder.element(buffer, position(buffer, *at), ranges))

    batch = BATCH * heads + HEAD
    parts: dict[str, Any] = {
        "q": element(q, BATCH, HEAD, ROW, INNER),
        "k": element(k, BATCH, HEAD, KEY, INNER),
        "v": element(v, BATCH, HEAD, KEY, COLUMN),
        "words": element(words, (batch * ceildiv(as_expr(keys), 32) + WORD) * rows + ROW),
    }
    if backward:
        grad, out, logarithm = extern.args[0], *extern.args[4:6]
        parts |= {
            "grad": element(grad, BATCH, HEAD, ROW, COLUMN),
            "result": element(out, BATCH, HEAD, ROW, COLUMN),
            "logarithm": element(logarithm, BATCH, HEAD, ROW),
        }
    sized = names.sized(axes)
    kind = AttentionGradients if backward else DropoutAttention
    template = kind(sized[:2], sized[2:3], *sized[3:], keep=keep, causal=causal, scale=scale, **parts)

    taken: list[LoopNest] = []

    def store(buffer: Buffer, name: str, *at: Expr) -> Store:
        x = acc(name, torch.float32)
        value = x if buffer.dtype == torch.float32 else make("cast", buffer.dtype, (x,), "round")
        place = tidy(position(buffer, *at), ranges)
        there = _there(buffer, copies[buffer], place, ranges) if buffer in copies else None
        if there is not None:
            taken.append(copies[buffer])
            buffer, place = copies[buffer].buffer, there
        return names.store(buffer, place, value)

    results = [output for output in extern.outputs if output is not None]
    if backward:
        places = ((ROW, INNER), (KEY, INNER), (KEY, COLUMN))
        stages = [
            Stage(tuple(axis for axis in sized if axis.symbol in at), [], [store(result, name, BATCH, HEAD, *at)])
            for result, name, at in zip(results, template.results, places)
        ]
    else:
        stages = [
            Stage((sized[5],), [], [store(results[0], "mixed", BATCH, HEAD, ROW, COLUMN)]),
            Stage((), [], [store(results[1], "logarithm", BATCH, HEAD, ROW)]),
        ]
    return tile_kernel(
        ATTENTION_KERNEL, template, stages, names, finder.hints, extern, [extern.origin], extern.lines
    ), taken
