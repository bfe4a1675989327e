"""Calls of attention with dropout of our own (ops/dropout_attention.py) as kernels: templates.DropoutAttention forward,
templates.AttentionGradients backward.
"""

from __future__ import annotations

from typing import Any, Iterable, Sequence, TypeGuard

import torch

from ...ops.dropout_attention import ATTENTION, BACKWARD
from ...lowering.ir import Axis, Buffer, Kernel, LoopNest, Stage, Store, Value, acc, load, make
from ...lowering.templates import WORD, AttentionGradients, DropoutAttention
from ...lowering.lowered import Extern, LoweredStep, View
from ...lowering.rewrite import Rewriter, is_affine, positions, tidy
from ...symbolic.expr import Expr, as_expr, ceildiv, maybe_int, symbol
from ..memory.placed_copies import is_copy, whole_source
from .producers import position, read_by
from ..parameter_names import FormalNames
from ..schedule import Launch, Template

__all__ = ["dropout_attention"]

BATCH, HEAD, ROW, KEY, INNER, COLUMN = (symbol(n) for n in ("i0", "i1", "m0", "r0", "d0", "c0"))


def dropout_attention(
    steps: Sequence[LoweredStep], needed: Iterable[Buffer], hints: dict[str, int]
) -> list[LoweredStep]:
    """The steps with such calls on a GPU as Template steps, which write where copies of their results would lie."""
    if not any(isinstance(s, Extern) and s.op in (ATTENTION, BACKWARD) for s in steps):
        return list(steps)
    views = {s.buffer: s for s in steps if isinstance(s, View)}
    readers: dict[Buffer, list[Any]] = {}
    for s in steps:
        for b in read_by(s):
            readers.setdefault(b, []).append(s)
    copies: dict[Buffer, LoopNest] = {}
    kept = set(needed)
    for s in steps:
        for b in s.outputs if _fits(s) else ():
            (copy,) = readers.get(b, []) if len(readers.get(b, [])) == 1 else [None]
            if isinstance(copy, LoopNest) and is_copy(copy) and b not in kept and b.dtype == copy.buffer.dtype:
                copies[b] = copy
    out: list[Any] = []
    gone: set[int] = set()
    for s in steps:
        if _fits(s):
            template, taken = _kernel(s, views, copies, hints)
            gone |= {id(x) for x in taken}
            out.append(template)
        elif id(s) not in gone:
            out.append(s)
    return out


def _fits(s: Any) -> TypeGuard[Extern]:
    if not isinstance(s, Extern) or s.op not in (ATTENTION, BACKWARD):
        return False
    heads = [x.shape[3] for x in (s.args[1:4] if s.op is BACKWARD else s.args[:3])]
    return (
        s.outputs[0] is not None
        and torch.device(s.outputs[0].device or "cpu").type == "cuda"
        and all(type(n) is int for n in heads)
    )


def _there(b: Buffer, copy: LoopNest, at: Expr, ranges: dict[str, Any]) -> Expr | None:
    """Where a copy has what lies at `at` in a buffer; None where it is no copy of all of it by rows."""
    e = copy.value.attr[1]
    axes = whole_source(copy.axes, copy.index, e, b)
    if axes is None:
        return None
    found = tidy(copy.index.subs(positions(axes, e, at, ranges)), ranges)
    return found if is_affine(found) else None


def _kernel(
    s: Extern, views: dict[Buffer, View], copies: dict[Buffer, LoopNest], hints: dict[str, int]
) -> tuple[Template, list[LoopNest]]:
    """The kernel's step, and the copies that it makes superfluous."""
    backward = s.op is BACKWARD
    q, k, v = s.args[1:4] if backward else s.args[:3]
    words, keep, causal, scale = s.args[-4:]
    (n, heads, rows, inner), keys, columns = q.shape, k.shape[2], v.shape[3]
    axes = tuple(
        Axis(x, size)
        for x, size in ((BATCH, n), (HEAD, heads), (ROW, rows), (KEY, keys), (INNER, inner), (COLUMN, columns))
    )
    ranges: dict[str, Any] = {a.symbol.name: (0, a.size) for a in axes}
    formal = FormalNames({*ranges, WORD.name})
    rename = Rewriter(formal.size, formal.load)

    def element(b: Buffer, *at: Expr) -> Value:
        e = position(b, *at)
        while b in views:  # (one buffer for all parts of a wider product)
            e, b = as_expr(views[b].offset) + e, views[b].base
        return rename(load(b, tidy(e, ranges)))

    batch = BATCH * heads + HEAD
    parts: dict[str, Any] = {
        "q": element(q, BATCH, HEAD, ROW, INNER),
        "k": element(k, BATCH, HEAD, KEY, INNER),
        "v": element(v, BATCH, HEAD, KEY, COLUMN),
        "words": element(words, (batch * ceildiv(as_expr(keys), 32) + WORD) * rows + ROW),
    }
    if backward:
        grad, out, logarithm = s.args[0], *s.args[4:6]
        parts |= {
            "grad": element(grad, BATCH, HEAD, ROW, COLUMN),
            "result": element(out, BATCH, HEAD, ROW, COLUMN),
            "logarithm": element(logarithm, BATCH, HEAD, ROW),
        }
    sized = [Axis(a.symbol, maybe_int(formal.size(as_expr(a.size)))) for a in axes]
    kind = AttentionGradients if backward else DropoutAttention
    template = kind(tuple(sized[:2]), (sized[2],), *sized[3:], keep=keep, causal=causal, scale=scale, **parts)

    written: dict[Buffer, None] = {}
    taken: list[LoopNest] = []

    def store(b: Buffer, name: str, *at: Expr) -> Store:
        x = acc(name, torch.float32)
        value = x if b.dtype == torch.float32 else make("cast", b.dtype, (x,), "round")
        place = tidy(position(b, *at), ranges)
        there = _there(b, copies[b], place, ranges) if b in copies else None
        if there is not None:
            taken.append(copies[b])
            b, place = copies[b].buffer, there
        written[b] = None
        return Store(formal.output(b), formal.size(place), value)

    results = [b for b in s.outputs if b is not None]
    if backward:
        places = ((ROW, INNER), (KEY, INNER), (KEY, COLUMN))
        stages = [
            Stage(tuple(a for a in sized if a.symbol in at), [], [store(b, name, BATCH, HEAD, *at)])
            for b, name, at in zip(results, template.results, places)
        ]
    else:
        stages = [
            Stage((sized[5],), [], [store(results[0], "mixed", BATCH, HEAD, ROW, COLUMN)]),
            Stage((), [], [store(results[1], "logarithm", BATCH, HEAD, ROW)]),
        ]
    kernel = Kernel(
        "attention",
        template.outer,
        stages,
        list(formal.inputs.values()),
        list(formal.outputs.values()),
        [],
        list(formal.sizes.values()),
        [],
        [s.origin] if s.origin else [],
        list(dict.fromkeys(tuple(x) for x in s.lines)),
        ["attention: its scores are never in memory"],
        formal.hints(hints),
        [],
        template,
    )
    launch = Launch(kernel, list(formal.inputs), list(formal.outputs), [symbol(x) for x in formal.sizes])
    return (
        Template(
            s.op,
            tuple(launch.inputs),
            {},
            list(written),
            reason="attention",
            origin=s.origin,
            lines=s.lines,
            launch=launch,
        ),
        taken,
    )
