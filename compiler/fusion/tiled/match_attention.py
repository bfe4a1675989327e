"""Attention as one kernel: softmax(score(q @ k)) @ v whose scores are never in memory (templates.Contraction).

Found among the lowered steps, where every spelling of it is the same: a product, element-wise nests, the maximum of a
row, the sum of its exponentials, a division, a second product. Whatever stands between the product and the softmax,
scales, masks, caps, biases that are gathered, becomes the score's expression; what is done with each element of the
result joins the kernel, and so does a copy into another layout. Calls of a library's attention are taken where
launching them takes longer than they run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Sequence

import torch

from ...lowering.ir import (
    Axis,
    Buffer,
    LoopNest,
    Stage,
    Value,
    acc,
    cast,
    const,
    index,
    load,
    prim,
    walk,
)
from ...lowering.templates import Contraction, InnerProduct, Softmax, WeightedSum
from ...lowering.lowered import Extern, LoweredStep, View
from ...lowering.ref import contiguous_strides, is_one
from ...lowering.rewrite import Rewriter, tidy
from ...ops.philox import arguments_of
from ...ops.tile_sizes import FEW_FLOPS
from ...symbolic.expr import ZERO, Expr, as_expr, symbol
from .mask_conditions import normal_form
from ..domain import size_hint
from .producers import (
    COLUMN,
    DTYPES,
    INNER,
    KEY,
    PLUS,
    ROW,
    Finder,
    NoMatch,
    flat,
    groups_of,
    is_product,
    made_by,
    makes_scores,
    on_gpu,
    position,
    replaced,
)
from .row_patterns import softmax_of
from .tile_kernel import ATTENTION_KERNEL, TileNames, tile_kernel
from ..schedule import Template

if TYPE_CHECKING:
    from .attention_rows import RowResult

__all__ = ["attention"]

WIDEST = 256  # columns of a head that a program holds
LEAST_KEYS = 16
FEW_FLOPS_IN_FULL = (
    3e8  # of attention in float32, whose products ordinary multiplications make slower than libraries do
)
PACKED = 64  # rows of all heads of a group that are one tile
# library's attention -> positions of the mask (None: there is none), the dropout's probability, is_causal
_CALLS = {
    "aten._scaled_dot_product_flash_attention.default": (None, 3, 4),
    "aten._scaled_dot_product_efficient_attention.default": (3, 5, 6),
    "aten._scaled_dot_product_cudnn_attention.default": (3, 5, 6),
}


def attention(
    steps: Sequence[LoweredStep], needed: Sequence[Buffer], hints: dict[str, int], opts: Any
) -> list[LoweredStep]:
    """The steps with attention of GPU tensors as Template steps, where that is the better choice (option
    `attention`).
    """
    wanted = opts.get("attention", "auto")
    calls = [s for s in steps if isinstance(s, Extern) and (str(s.op) in _CALLS or is_product(s)) and on_gpu(s)]
    if not calls or wanted == "library" or opts.get("emulate_precision", False):
        return list(steps)
    finder = _Attentions(steps, needed, hints, wanted == "generated")
    for s in calls:
        try:
            if is_product(s):
                finder.second_product(s)
            elif wanted == "generated" or _flops(s, hints) < FEW_FLOPS:
                finder.call(s)
        except NoMatch:
            continue
    return finder.steps()


def _flops(s: Extern, hints: dict[str, int]) -> float:
    q, k = s.args[:2]
    return 4.0 * math.prod(size_hint(n, hints) for n in q.shape) * size_hint(k.shape[-2], hints)


@dataclass
class _Parts:
    """An attention over axes i<k> (batch), m<k> (rows), r0, d0, c0."""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    keys: Axis
    q: Value
    k: Value
    v: Value
    inner: Any
    columns: Any
    score: Value
    empty: float
    step: Extern  # that makes the result
    index: Expr  # of the result in its first output
    lines: list[tuple]
    origins: list[str]
    weight: Value | None = None  # what softmax's results are multiplied with
    # (product, scores over the softmax's axes, these, the kernel's for them), where they are steps of their own
    scores: tuple = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.batch, *self.rows, self.keys, Axis(INNER, self.inner), Axis(COLUMN, self.columns))

    def ranges(self) -> dict[str, tuple]:
        return {a.symbol.name: (0, a.size) for a in self.axes}


class _Attentions(Finder):
    def __init__(
        self, steps: Sequence[LoweredStep], needed: Sequence[Buffer], hints: dict[str, int], always: bool = False
    ):
        super().__init__(steps, needed, hints)
        self.always = always

    # ---- softmax between two products
    def second_product(self, s: Extern) -> None:
        p, v = s.args
        base = p
        while isinstance(self.made.get(base), View):
            base = self.made[base].base
        nest = self.made.get(base)
        if not isinstance(nest, LoopNest) or self.producer(load(base, nest.index)) is None:
            raise NoMatch
        ranges = {a.symbol.name: (0, a.size) for a in nest.domain}
        x, empty, weight = self._softmax(nest, ranges)
        score = self.scores(x, ranges)
        for first in dict.fromkeys(
            w for w in walk([score]) if w.op == "load" and not w.args and makes_scores(self.made.get(w.attr[0]))
        ):
            try:
                parts = self._between(nest, score, first, s, p, v, empty, weight)
            except NoMatch:
                continue
            self._take(parts, self.made[first.attr[0]])
            return
        raise NoMatch

    def _softmax(self, nest: LoopNest, ranges: dict[str, tuple]) -> tuple[Value, float, Value | None]:
        """(scores over the nest's axes, what a row gives that is masked as a whole, what its numbers are multiplied
        with), where the nest makes the softmax of something."""
        p, weight = self.peeled(load(nest.buffer, nest.index), ranges), None
        while p.op == "mul" and self.peeled(p.args[1], ranges).op != "reciprocal":
            other = next(
                (
                    x
                    for x in p.args
                    if not any(v.op == "load" and self.leads(v.attr[0]) or v.op == "acc" for v in walk([x]))
                ),
                None,
            )
            if other is None:
                raise NoMatch
            weight = cast(other, torch.float32) if weight is None else prim("mul", weight, cast(other, torch.float32))
            p = self.peeled(next(x for x in p.args if x is not other), ranges)
        return *softmax_of(self, p, ranges), weight

    def _between(
        self,
        nest: LoopNest,
        score: Value,
        first: Value,
        last: Extern,
        p: Buffer,
        v: Buffer,
        empty: float,
        weight: Value | None,
    ) -> _Parts:
        """The parts of an attention whose softmax is a nest's, whose first product is loaded by `first`, and whose last
        is `last`.
        """
        product: Extern = self.made[first.attr[0]]
        plus = str(product.op) in PLUS
        a, b = product.args[1:3] if plus else product.args[:2]
        out, e = first.attr
        if out.stride != contiguous_strides(out.shape) or product.kwargs and not plus:
            raise NoMatch
        groups = groups_of(nest.domain, out.shape)
        # from the nest's symbols to those of a kernel
        names: dict[str, Expr] = {}
        batch, rows = [], []
        for k, axis in enumerate(groups[0]):
            batch.append(Axis(symbol(f"i{k}"), axis.size))
            names[axis.symbol.name] = batch[-1].symbol
        for k, axis in enumerate(groups[1]):
            rows.append(Axis(symbol(f"m{k}"), axis.size))
            names[axis.symbol.name] = rows[-1].symbol
        (key,) = groups[2]
        names[key.symbol.name] = KEY
        inner, columns = a.shape[-1], v.shape[-1]
        parts = _Parts(
            tuple(batch),
            tuple(rows),
            Axis(KEY, key.size),
            *(None,) * 3,
            inner,
            columns,
            score,
            empty,
            last,
            ZERO,
            [],
            [],
        )  # type: ignore[arg-type]
        ranges = parts.ranges()
        g, m = flat(batch), flat(rows)
        x_of_nest = score
        score = Rewriter(on_index=lambda x: tidy(x.subs(names), ranges))(score)
        at = load(out, position(out, g, m, KEY))
        if not any(w is at for w in walk([score])) or load(
            nest.buffer, tidy(nest.index.subs(names), ranges)
        ) is not self.element(p, position(p, g, m, KEY), ranges):
            raise NoMatch
        q, x = self.operand(self.element(a, position(a, g, m, INNER), ranges), ranges)
        k, y = self.operand(self.element(b, position(b, g, INNER, KEY), ranges), ranges)
        made = acc("product", torch.float32)
        if x * y != 1:
            made = prim("mul", made, const(x * y, torch.float32))
        if plus:
            beta, alpha = product.kwargs.get("beta", 1), product.kwargs.get("alpha", 1)
            if (
                set(product.kwargs) - {"beta", "alpha"}
                or not all(isinstance(n, (int, float)) for n in (beta, alpha))
                or beta == 0
            ):
                raise NoMatch
            c = product.args[0]
            if len(c.shape) != len(out.shape):
                raise NoMatch
            more = cast(self.element(c, position(c, g, m, KEY), ranges), torch.float32)
            made = prim(
                "add",
                made if alpha == 1 else prim("mul", made, const(alpha, torch.float32)),
                more if beta == 1 else prim("mul", more, const(beta, torch.float32)),
            )
        if weight is not None:
            parts.weight = Rewriter(on_index=lambda x: tidy(x.subs(names), ranges))(weight)
        parts.q, parts.k = q, k
        parts.v = self.copied(self.element(v, position(v, g, KEY, COLUMN), ranges), ranges)
        parts.score = replaced(cast(score, torch.float32), at, made)
        parts.scores = (out, x_of_nest, nest.domain, names)
        parts.index = position(last.outputs[0], g, m, COLUMN)
        parts.lines = [*nest.lines, *last.lines, *product.lines]
        parts.origins = [product.origin, *nest.origins, last.origin]
        return parts

    # ---- a library's call
    def call(self, s: Extern) -> None:
        mask_at, dropout_at, causal_at = _CALLS[str(s.op)]
        q, k, v = s.args[:3]
        given = arguments_of(s.op, s.args, s.kwargs)
        names = [a.name for a in s.op._schema.arguments]
        causal, scale = given[names[causal_at]], given.get("scale")
        mask = given[names[mask_at]] if mask_at is not None else None
        out = s.outputs[0]
        read = {b for b in s.outputs[1:] if b is not None and (b in self.readers or b in self.needed)}
        if (
            given[names[dropout_at]] != 0
            or read
            or len(q.shape) != 4
            or out is None
            or not isinstance(scale, (float, int, type(None)))
        ):
            raise NoMatch
        if causal and as_expr(q.shape[2]) is not as_expr(k.shape[2]):
            raise NoMatch
        batch, rows, (n, h, hk, m) = self._axes_of_heads(q, k)
        parts = _Parts(
            tuple(batch),
            tuple(rows),
            Axis(KEY, k.shape[2]),
            *(None,) * 3,
            q.shape[3],
            v.shape[3],
            None,
            0.0,
            s,
            ZERO,  # type: ignore[arg-type]
            [*s.lines],
            [s.origin],
        )
        ranges = parts.ranges()
        parts.q = self.copied(self.element(q, position(q, n, h, m, INNER), ranges), ranges)
        parts.k = self.copied(self.element(k, position(k, n, hk, KEY, INNER), ranges), ranges)
        parts.v = self.copied(self.element(v, position(v, n, hk, KEY, COLUMN), ranges), ranges)
        x = prim(
            "mul",
            acc("product", torch.float32),
            const(1 / math.sqrt(q.shape[3]) if scale is None else scale, torch.float32),
        )
        if mask is not None:
            x = prim("add", x, cast(self.element(mask, position(mask, n, h, m, KEY), ranges), torch.float32))
        if causal:
            x = prim("where", prim("le", index(KEY), index(as_expr(m))), x, const(-math.inf, torch.float32))
        parts.score = x
        parts.index = position(out, n, h, m, COLUMN)
        self._take(parts, s)

    def _axes_of_heads(self, q: Buffer, k: Buffer) -> tuple[list[Axis], list[Axis], tuple[Expr, Expr, Expr, Expr]]:
        """(axes of the batch, axes of a tile's rows, where a row lies: the batch, q's head, k's head, the query)."""
        heads, shared = q.shape[1], k.shape[1]
        batch: list[Axis] = [] if is_one(q.shape[0]) else [Axis(symbol("i0"), q.shape[0])]
        n = batch[0].symbol if batch else ZERO
        rows: list[Axis] = [] if is_one(q.shape[2]) else [Axis(ROW, q.shape[2])]
        m = rows[0].symbol if rows else ZERO
        if as_expr(heads) is as_expr(shared):
            batch += [] if is_one(heads) else [Axis(symbol(f"i{len(batch)}"), heads)]
            h = hk = batch[-1].symbol if not is_one(heads) else ZERO
            return batch, rows, (n, h, hk, m)
        if not (type(heads) is int and type(shared) is int and heads % shared == 0):
            raise NoMatch
        each = heads // shared
        hk = symbol(f"i{len(batch)}") if shared > 1 else ZERO
        batch += [Axis(hk, shared)] if shared > 1 else []
        if size_hint(q.shape[2], self.hints) * each <= PACKED:  # the heads that share their keys are rows of one tile
            rows.insert(0, Axis(symbol("m1"), each))
            h = hk * each + symbol("m1")
        else:
            batch.append(Axis(symbol(f"i{len(batch)}"), each))
            h = hk * each + batch[-1].symbol
        return batch, rows, (n, h, hk, m)

    # ---- what both become
    def _take(self, parts: _Parts, first: Extern) -> None:
        """Put the kernel in the place of its steps. `first`: a step that has to become superfluous by that."""
        ranges = parts.ranges()
        fits = (
            type(parts.inner) is int
            and type(parts.columns) is int
            and 1 < parts.inner <= WIDEST
            and 1 < parts.columns <= WIDEST
        )
        if (
            not fits
            or parts.q.dtype != parts.k.dtype
            or any(x.dtype not in DTYPES for x in (parts.q, parts.k, parts.v))
        ):
            raise NoMatch
        if parts.q.dtype == torch.float32 and not self.always and self._flops(parts) > FEW_FLOPS_IN_FULL:
            raise NoMatch
        if size_hint(parts.keys.size, self.hints) < LEAST_KEYS or any(
            x.op == "check_index" for x in walk([parts.score, *([] if parts.weight is None else [parts.weight])])
        ):
            raise NoMatch
        score = normal_form(self.expanded(parts.score, ranges, self.cheap))
        weight = (
            None
            if parts.weight is None
            else self._read_where_drawn(parts, self.expanded(parts.weight, ranges, self.cheap), ranges)
        )
        out = parts.step.outputs[0]
        buffer, at, value, place, more = self.followers(parts, out, ranges)
        names = TileNames(parts.axes)
        batch, rows = names.sized(parts.batch), names.sized(parts.rows)
        keys, inner, columns = names.sized(parts.axes[-3:])
        q, k, v = (names.value(x) for x in (parts.q, parts.k, parts.v))
        softmax = Softmax(names.value(score), parts.empty)
        mixed = WeightedSum("mixed", columns, None if weight is None else names.value(weight), v)
        template = Contraction(batch, rows, keys, (InnerProduct("product", inner, q, k),), (mixed,), softmax)
        rest = self._rows(
            parts,
            [parts.step, *more],
            [parts.q, parts.k, parts.v, score, value, *([] if weight is None else [weight])],
            buffer,
        )
        stages = [Stage((columns,), [], [names.store(buffer, at, value)])]
        if rest:
            stages.append(Stage((), [], [names.store(r.nest.buffer, r.index, r.value) for r in rest]))
        nests = [*more, *(r.nest for r in rest)]
        step = tile_kernel(
            ATTENTION_KERNEL,
            template,
            stages,
            names,
            self.hints,
            parts.step,
            (*parts.origins, *(o for n in nests for o in n.origins)),
            parts.lines,
        )
        dead = self.superfluous([parts.step, *nests], step)
        if not any(s is first for s in dead):  # something else reads the scores
            raise NoMatch
        self.put(step, self._place(step, place, dead), dead)

    def _rows(self, parts: _Parts, gone: Sequence[Any], values: Sequence[Value], buffer: Buffer) -> list[RowResult]:
        """What the kernel stores besides `buffer`: numbers of rows that steps read which stay when `gone` are not
        there. `values`: what it computes.
        """
        from .attention_rows import row_results

        if not parts.scores:
            return []
        product, scores, domain, names = parts.scores
        key = next(n for n, e in names.items() if e is KEY)
        found = row_results(self, product, scores, domain, names, key, parts.ranges())
        reads = tuple(dict.fromkeys(v.attr[0] for v in walk(values) if v.op == "load"))
        tried = Template(parts.step.op, reads, {}, [buffer], reason="attention")
        dead = {id(s) for s in self.superfluous([*gone, *(r.nest for r in found.values())], tried)}
        return [
            r for b, r in found.items() if b in self.needed or any(id(s) not in dead for s in self.readers.get(b, ()))
        ]

    def _read_where_drawn(self, parts: _Parts, weight: Value, ranges: dict[str, tuple]) -> Value:
        """A dropout's mask as it is in memory, where something else needs it there: each element drawn alone takes four
        times as long as neighbours together.
        """
        known: dict[int, Value] = {}
        conditions = [v for v in walk([weight]) if v.dtype == torch.bool and any(x.op == "philox" for x in v.args)]
        for nest in self.first if conditions else ():
            if (
                not isinstance(nest, LoopNest)
                or nest.value.dtype != torch.bool
                or nest.buffer.dtype != torch.bool
                or not any(x.op == "philox" for x in nest.value.args)
            ):
                continue
            axes = [a.symbol.name for a in nest.domain]
            if [as_expr(a.size) for a in nest.domain] == [
                as_expr(a.size) for a in (*parts.batch, *parts.rows, parts.keys)
            ]:
                m = dict(zip(axes, (a.symbol for a in (*parts.batch, *parts.rows, parts.keys))))
                same = Rewriter(on_index=lambda e, m=m: tidy(e.subs(m), ranges))(nest.value)  # type: ignore[misc]
                known |= {c.id: load(nest.buffer, tidy(nest.index.subs(m), ranges)) for c in conditions if c is same}
        return Rewriter(known=known)(weight) if known else weight

    def _place(self, step: Template, place: Any, dead: Sequence[Any]) -> Any:
        """Which of the steps that go the kernel runs in the place of: after what makes all that it reads, before all
        that reads what it makes.
        """
        gone = {id(s) for s in dead}
        after = max((self.ends[b] for b in step.args if b in self.ends), default=-1)
        before = min(
            (self.order[id(s)] for b in made_by(step) for s in self.readers.get(b, ()) if id(s) not in gone),
            default=len(self.first),
        )
        if after < self.order[id(place)] < before:
            return place
        fits = [s for s in dead if after < self.order[id(s)] < before]
        if not fits:
            raise NoMatch
        return max(fits, key=lambda s: self.order[id(s)])

    def _flops(self, parts: _Parts) -> float:
        return (
            2.0
            * math.prod(size_hint(a.size, self.hints) for a in (*parts.batch, *parts.rows, parts.keys))
            * (parts.inner + parts.columns)
        )
