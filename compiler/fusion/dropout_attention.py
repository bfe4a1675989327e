"""Calls of attention with dropout of our own (../dropout_attention.py) as kernels: ir.DropoutAttention forward, ir.AttentionGradients backward."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterable, Sequence, TypeGuard

import torch

from ..dropout_attention import ATTENTION, BACKWARD
from ..lowering.ir import WORD, AttentionGradients, Axis, Buffer, DropoutAttention, Kernel, LoopNest, Stage, Store, Value, acc, load, make
from ..lowering.lowered import Extern, LoweredStep, View
from ..lowering.rewrite import Rewriter, is_affine, positions, tidy
from ..symbolic.expr import Expr, add_all, as_expr, ceildiv, maybe_int, mul_all, symbol
from .attention import position, read_by
from .copies import is_copy, whole, whole_source
from .formal import FormalNames
from .schedule import Launch, Template

__all__ = ["dropout_attention"]

BATCH, HEAD, ROW, KEY, INNER, COLUMN = (symbol(n) for n in ("i0", "i1", "m0", "r0", "d0", "c0"))


def dropout_attention(steps: Sequence[LoweredStep], needed: Iterable[Buffer], hints: dict[str, int], drop_rounding: bool = True) -> list[LoweredStep]:
    """The steps with such calls on a GPU as Template steps, which write where copies of their results would lie. `drop_rounding`: sums that are rounded to
    be converted back are not."""
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
            copy, = readers.get(b, []) if len(readers.get(b, [])) == 1 else [None]
            if isinstance(copy, LoopNest) and is_copy(copy) and b not in kept and b.dtype == copy.buffer.dtype:
                copies[b] = copy
    out: list[Any] = []
    gone: set[int] = set()
    for s in steps:
        if _fits(s):
            template, taken = _kernel(s, views, copies, readers, kept, hints, drop_rounding)
            gone |= {id(x) for x in taken}
            out.append(template)
        elif id(s) not in gone:
            out.append(s)
    return out


def _fits(s: Any) -> TypeGuard[Extern]:
    if not isinstance(s, Extern) or s.op not in (ATTENTION, BACKWARD):
        return False
    heads = [x.shape[3] for x in (s.args[1:4] if s.op is BACKWARD else s.args[:3])]
    return s.outputs[0] is not None and torch.device(s.outputs[0].device or "cpu").type == "cuda" and all(type(n) is int for n in heads)


def _there(b: Buffer, copy: LoopNest, at: Expr, ranges: dict[str, Any]) -> Expr | None:
    """Where a copy has what lies at `at` in a buffer; None where it is no copy of all of it by rows."""
    e = copy.value.attr[1]
    axes = whole_source(copy.axes, copy.index, e, b)
    if axes is None:
        return None
    found = tidy(copy.index.subs(positions(axes, e, at, ranges)), ranges)
    return found if is_affine(found) else None


def _sums(places: Sequence[tuple[Buffer, Expr]], rows: Sequence[Expr], ranges: dict[str, Any], readers: dict[Buffer, list[Any]]) -> tuple[LoopNest, list[Expr]] | None:
    """The nest that sums what lies in these places, all of one buffer, over the first axis of the batch and `rows`: a bias's gradient. And where it stores
    each of the sums."""
    (b, _), *others = places
    if any(x is not b for x, _ in others):
        return None
    for nest in readers.get(b, ()):
        if not isinstance(nest, LoopNest) or nest.reduce_op != "sum" or nest.scan or nest.alone or nest.product or nest.mode != "set" or nest.buffer.dtype != torch.float32:
            continue
        value = nest.value.args[0] if nest.value.op == "cast" and nest.value.dtype == torch.float32 else nest.value
        axes = whole(nest.domain, value.attr[1], b) if value.op == "load" and not value.args and value.attr[0] is b else None
        if axes is None:
            continue
        reduced, out = {a.symbol.name for a in nest.reduce_axes}, []
        for (_, place), row in zip(places, rows):
            at = positions(axes, value.attr[1], place, ranges)
            over = {n for name, e in at.items() if name in reduced for n in e.symbol_names()}
            left = {n for name, e in at.items() if name not in reduced for n in e.symbol_names()}
            if row.name in over and over <= {BATCH.name, row.name} and not left & {BATCH.name, row.name}:
                out.append(tidy(nest.index.subs(at), ranges))
        if len(out) == len(places) and all(map(is_affine, out)):
            return nest, out
    return None


def _as_handed_out(nest: LoopNest, at: list[Expr], ranges: dict[str, Any], readers: dict[Buffer, list[Any]], needed: set[Buffer]) -> tuple[list[LoopNest], list[Expr]]:
    """The same, and the nest that rounds the sums and converts them back, as autocast has it, if that is all that becomes of them."""
    if nest.buffer in needed or len(readers.get(nest.buffer, ())) != 1:
        return [nest], at
    after, = readers[nest.buffer]
    value = after.value if isinstance(after, LoopNest) else None
    while value is not None and value.op == "cast" and value.dtype.is_floating_point:
        value = value.args[0]
    if value is None or value.op != "load" or value.args or after.buffer.dtype != torch.float32 or after.reduce_op is not None or after.alone or after.product or after.mode != "set":
        return [nest], at
    moved = [_there(nest.buffer, replace(after, value=value), e, ranges) for e in at]
    return ([nest], at) if None in moved else ([nest, after], [e for e in moved if e is not None])


def _count(b: Buffer) -> Expr:
    return as_expr(mul_all(list(b.shape)))


def _kernel(s: Extern, views: dict[Buffer, View], copies: dict[Buffer, LoopNest], readers: dict[Buffer, list[Any]], needed: set[Buffer],
            hints: dict[str, int], drop_rounding: bool) -> tuple[Template, list[LoopNest]]:
    """The kernel's step, and the nests that it makes superfluous."""
    backward = s.op is BACKWARD
    q, k, v = s.args[1:4] if backward else s.args[:3]
    words, keep, causal, scale = s.args[-4:]
    (n, heads, rows, inner), keys, columns = q.shape, k.shape[2], v.shape[3]
    axes = tuple(Axis(x, size) for x, size in ((BATCH, n), (HEAD, heads), (ROW, rows), (KEY, keys), (INNER, inner), (COLUMN, columns)))
    ranges: dict[str, Any] = {a.symbol.name: (0, a.size) for a in axes}
    formal = FormalNames({*ranges, WORD.name})
    rename = Rewriter(formal.size, formal.load)

    def element(b: Buffer, *at: Expr) -> Value:
        e = position(b, *at)
        while b in views:                                # (one buffer for all parts of a wider product)
            e, b = as_expr(views[b].offset) + e, views[b].base
        return rename(load(b, tidy(e, ranges)))
    batch = BATCH * heads + HEAD
    parts: dict[str, Any] = {"q": element(q, BATCH, HEAD, ROW, INNER), "k": element(k, BATCH, HEAD, KEY, INNER), "v": element(v, BATCH, HEAD, KEY, COLUMN),
                             "words": element(words, (batch * ceildiv(as_expr(keys), 32) + WORD) * rows + ROW)}
    if backward:
        grad, out, logarithm = s.args[0], *s.args[4:6]
        parts |= {"grad": element(grad, BATCH, HEAD, ROW, COLUMN), "result": element(out, BATCH, HEAD, ROW, COLUMN), "logarithm": element(logarithm, BATCH, HEAD, ROW)}
    sized = [Axis(a.symbol, maybe_int(formal.size(as_expr(a.size)))) for a in axes]
    kind = AttentionGradients if backward else DropoutAttention
    template = kind(tuple(sized[:2]), (sized[2],), *sized[3:], keep=keep, causal=causal, scale=scale, **parts)
    placed: list[tuple[Buffer, Expr]] = []

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
        placed.append((b, place))
        return Store(formal.output(b), formal.size(place), value)
    results = [b for b in s.outputs if b is not None]
    if backward:
        places = ((ROW, INNER), (KEY, INNER), (KEY, COLUMN))
        stages = [Stage(tuple(a for a in sized if a.symbol in at), [], [store(b, name, BATCH, HEAD, *at)]) for b, name, at in zip(results, template.results, places)]
        summed = _sums(placed, [row for row, _ in places], ranges, readers) if _count(placed[0][0]) is add_all([_count(b) for b in results]) else None
        if summed is not None:
            nest, at_sums = summed
            nests, at_sums = _as_handed_out(nest, at_sums, ranges, readers, needed) if drop_rounding else ([nest], at_sums)
            taken += nests
            sums = nests[-1].buffer
            written[sums] = None
            assert isinstance(template, AttentionGradients)
            template = replace(template, sums=True)
            stages += [Stage(tuple(a for a in sized if a.symbol is column), [], [Store(formal.output(sums), formal.size(at), acc(name, torch.float32))])
                       for (_, column), at, name in zip(places, at_sums, template.results[3:])]
    else:
        stages = [Stage((sized[5],), [], [store(results[0], "mixed", BATCH, HEAD, ROW, COLUMN)]), Stage((), [], [store(results[1], "logarithm", BATCH, HEAD, ROW)])]
    kernel = Kernel("attention", template.outer, stages, list(formal.inputs.values()), list(formal.outputs.values()), [], list(formal.sizes.values()), [],
                    [s.origin] if s.origin else [], list(dict.fromkeys(tuple(x) for x in s.lines)), ["attention: its scores are never in memory"],
                    formal.hints(hints), [], template)
    launch = Launch(kernel, list(formal.inputs), list(formal.outputs), [symbol(x) for x in formal.sizes])
    return Template(s.op, tuple(launch.inputs), {}, list(written), reason="attention", origin=s.origin, lines=s.lines, launch=launch), taken
