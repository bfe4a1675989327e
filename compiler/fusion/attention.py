"""Attention as one kernel: softmax(score(q @ k)) @ v whose scores are never in memory (ir.Attention).

Found among the lowered steps, where every spelling of it is the same: a product, element-wise nests, the maximum of a row, the sum of its
exponentials, a division, a second product. Whatever stands between the product and the softmax, scales, masks, caps, biases that are
gathered, becomes the score's expression; what is done with each element of the result joins the kernel, and so does a copy into another
layout. Calls of a library's attention are taken where launching them takes longer than they run.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Sequence

import torch

from ..lowering.ir import Attention, Axis, Buffer, Kernel, LoopNest, Stage, Store, Value, acc, cast, const, index, load, make, prim, walk
from ..lowering.lowered import Extern, LoweredStep, View
from ..lowering.ref import contiguous_strides, is_one
from ..lowering.rewrite import Rewriter, is_affine, positions, tidy, value_at
from ..philox import arguments_of
from ..symbolic.expr import ONE, ZERO, Expr, as_expr, maybe_int, mul_all, symbol
from .conditions import normal_form
from .domain import size_hint
from .formal import FormalNames, scalars_and_checks
from .inline import buffers_read, does_more
from .schedule import Launch, Template

if TYPE_CHECKING:
    from .attention_rows import RowResult

__all__ = ["attention", "position", "read_by"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDEST = 256                       # columns of a head that a program holds
LEAST_KEYS = 16
FEW_FLOPS = 4e9                    # of a library's call that takes less time than launching it
FEW_FLOPS_IN_FULL = 3e8            # of attention in float32, whose products ordinary multiplications make slower than libraries do
LONGEST = 64                       # nests between the two products
INDEX_ONLY, WITH_LOADS = 40, 12    # values of a mask that are computed again for each score: of positions alone, of what memory holds
PACKED = 64                        # rows of all heads of a group that are one tile
ROW, KEY, INNER, COLUMN = symbol("m0"), symbol("r0"), symbol("d0"), symbol("c0")
# library's attention -> positions of the mask (None: there is none), the dropout's probability, is_causal
_CALLS = {"aten._scaled_dot_product_flash_attention.default": (None, 3, 4),
          "aten._scaled_dot_product_efficient_attention.default": (3, 5, 6),
          "aten._scaled_dot_product_cudnn_attention.default": (3, 5, 6)}


class _NoMatch(Exception):
    pass


def attention(steps: Sequence[LoweredStep], needed: Sequence[Buffer], hints: dict[str, int], opts: Any) -> list[LoweredStep]:
    """The steps with attention of GPU tensors as Template steps, where that is the better choice (option `attention`)."""
    wanted = opts.get("attention", "auto")
    calls = [s for s in steps if isinstance(s, Extern) and (str(s.op) in _CALLS or _is_product(s)) and _on_gpu(s)]
    if not calls or wanted == "library" or opts.get("emulate_precision", False):
        return list(steps)
    finder = _Finder(steps, needed, hints, wanted == "generated")
    for s in calls:
        try:
            if _is_product(s):
                finder.second_product(s)
            elif wanted == "generated" or _flops(s, hints) < FEW_FLOPS:
                finder.call(s)
        except _NoMatch:
            continue
    return finder.steps()


def _is_product(s: Extern) -> bool:
    return type(s) is Extern and str(s.op) in ("aten.bmm.default", "aten.mm.default") and not s.kwargs       # (a Template stands for more than its operator)


def _makes_scores(s: Any) -> bool:
    return type(s) is Extern and (_is_product(s) or str(s.op) in _PLUS)


def _on_gpu(s: Extern) -> bool:
    b = next((b for b in s.outputs if b is not None), None)
    return b is not None and torch.device(b.device or "cpu").type == "cuda"


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
    step: Extern                   # that makes the result
    index: Expr                    # of the result in its first output
    lines: list[tuple]
    origins: list[str]
    scores: tuple = ()             # (product, scores over the softmax's axes, these, the kernel's for them), where they are steps of their own

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.batch, *self.rows, self.keys, Axis(INNER, self.inner), Axis(COLUMN, self.columns))

    def ranges(self) -> dict[str, tuple]:
        return {a.symbol.name: (0, a.size) for a in self.axes}


class _Finder:
    """Who makes and who reads each buffer, and what stands for what: `steps()` are the steps with kernels in the place of what they do."""

    def __init__(self, steps: Sequence[LoweredStep], needed: Sequence[Buffer], hints: dict[str, int], always: bool = False):
        self.first, self.needed, self.hints, self.always = list(steps), frozenset(needed), hints, always
        self.instead: dict[int, Template] = {}           # id of a step -> the kernel in its place
        self.dead: set[int] = set()                      # ids of steps that nothing needs any more
        self.made: dict[Buffer, Any] = {}                # by one step alone
        self.readers: dict[Buffer, list[Any]] = {}
        self.order: dict[int, int] = {}                  # id of a step -> its place
        self.ends: dict[Buffer, int] = {}                # place of the last step that makes it
        self._leads: dict[Buffer, bool] = {}
        several: set[Buffer] = set()
        for k, s in enumerate(self.first):
            self.order[id(s)] = k
            for b in _made_by(s):
                self.ends[b] = k
                if b in self.made:
                    several.add(b)
                self.made[b] = s
            for b in read_by(s):
                self.readers.setdefault(b, []).append(s)
        for b in several:
            del self.made[b]

    def steps(self) -> list[LoweredStep]:
        return [self.instead.get(id(s), s) for s in self.first if id(s) in self.instead or id(s) not in self.dead]

    def superfluous(self, gone: Sequence[Any], step: Template) -> list[Any]:
        """The steps that nothing needs once `gone` are not there and `step` is: those, and what leads to them alone."""
        dead, todo, kept = {id(s) for s in gone}, list(gone), {*step.args, *step.outputs} | self.needed
        out = list(gone)
        while todo:
            for b in read_by(todo.pop()):
                p = self.made.get(b)
                if p is None or id(p) in dead or does_more(p) or any(x in kept or any(id(r) not in dead for r in self.readers.get(x, ())) for x in _made_by(p)):
                    continue
                dead.add(id(p))
                todo.append(p)
                out.append(p)
        return out

    def put(self, step: Template, place: Any, dead: Sequence[Any]) -> None:
        """Have `step` run in the place of another, without those that are superfluous then."""
        for s in dead:
            self.dead.add(id(s))
            for b in read_by(s):
                self.readers[b].remove(s)
        self.instead[id(place)] = step
        self.order[id(step)] = self.order[id(place)]
        for b in step.args:
            self.readers.setdefault(b, []).append(step)
        for b in _made_by(step):
            self.made[b] = step
            self.ends[b] = self.order[id(step)]
        self._leads.clear()

    # ---- values
    def element(self, b: Buffer, at: Expr, ranges: dict[str, tuple]) -> Value:
        """A load of what lies at a flat position of a buffer, views seen through."""
        while isinstance(self.made.get(b), View):
            view = self.made[b]
            b, at = view.base, as_expr(view.offset) + at
        return load(b, tidy(at, ranges))

    def producer(self, v: Value) -> LoopNest | None:
        """The element-wise nest that made what is loaded."""
        s = self.made.get(v.attr[0]) if v.op == "load" else None
        if isinstance(s, LoopNest) and s.reduce_op is None and not s.alone and not s.product and not any(x.op == "check_index" for x in walk([s.value])):
            return s
        return None

    def peeled(self, v: Value, ranges: dict[str, tuple]) -> Value:
        """What a value is computed by, through conversions and element-wise nests."""
        for _ in range(LONGEST):
            if v.op == "cast" and v.dtype.is_floating_point and v.args[0].dtype.is_floating_point:
                v = v.args[0]
                continue
            nest = self.producer(v)
            if nest is None:
                return v
            v = value_at(nest, v.attr[1], ranges)
        raise _NoMatch

    def expanded(self, v: Value, ranges: dict[str, tuple], wanted: Any) -> Value:
        """A value with the loads that `wanted(buffer, value)` names computed; `value`: what is read, computed as far as that goes."""
        made: dict[int, Value | None] = {}

        def rewritten(v: Value, depth: int) -> Value:
            def on_load(b: Buffer, e: Expr) -> Value | None:
                x = load(b, e)
                if x.id not in made:
                    nest = self.producer(x)
                    new = rewritten(value_at(nest, e, ranges), depth + 1) if nest is not None and depth < LONGEST else None
                    made[x.id] = new if new is not None and wanted(b, new) else None
                return made[x.id]
            return Rewriter(on_load=on_load, drop_rounding=True)(v)
        return rewritten(v, 0)

    def leads(self, b: Buffer, depth: int = 0) -> bool:
        """Whether a buffer is computed, element by element, from a product."""
        known = self._leads.get(b)
        if known is None:
            s = self.made.get(b)
            if isinstance(s, View):
                known = self.leads(s.base, depth + 1)
            elif isinstance(s, Extern):
                known = _makes_scores(s)
            elif isinstance(s, LoopNest) and s.reduce_op is None and not s.alone and depth < LONGEST:
                known = any(self.leads(v.attr[0], depth + 1) for v in walk([s.value]) if v.op == "load")
            else:
                known = False
            self._leads[b] = known
        return known

    def same(self, a: Value, b: Value, ranges: dict[str, tuple]) -> bool:
        return a is b or self.scores(a, ranges) is self.scores(b, ranges)

    def scores(self, v: Value, ranges: dict[str, tuple]) -> Value:
        return self.expanded(v, ranges, lambda b, new: self.leads(b))

    def copied(self, v: Value, ranges: dict[str, tuple]) -> Value:
        """An operand as it lies before it was copied into another layout or converted; or the load itself."""
        best = v
        for _ in range(LONGEST):
            nest = self.producer(v)
            if nest is None:
                return best
            v = value_at(nest, v.attr[1], ranges)
            while v.op == "cast" and v.dtype.is_floating_point and v.args[0].dtype in DTYPES and v.dtype.itemsize >= v.args[0].dtype.itemsize:
                v = v.args[0]
            if v.op != "load" or v.args or v.dtype not in DTYPES:
                return best
            best = v
        return best

    def operand(self, v: Value, ranges: dict[str, tuple]) -> tuple[Value, float]:
        """(operand of the first product, what it is scaled by): a factor that was multiplied into a copy of it belongs to the score."""
        x, factor = self.copied(v, ranges), 1.0
        nest = self.producer(x)
        if nest is not None and x.dtype == torch.float32:
            new = value_at(nest, x.attr[1], ranges)
            if new.op in ("mul", "div") and new.args[1].op == "const" and new.args[1].attr and new.args[0].op in ("load", "cast"):
                inner = new.args[0].args[0] if new.args[0].op == "cast" else new.args[0]
                if inner.op == "load" and inner.dtype in DTYPES:
                    factor = new.args[1].attr if new.op == "mul" else 1 / new.args[1].attr
                    return self.copied(inner, ranges), factor
        return x, factor

    # ---- softmax between two products
    def second_product(self, s: Extern) -> None:
        p, v = s.args
        base = p
        while isinstance(self.made.get(base), View):
            base = self.made[base].base
        nest = self.made.get(base)
        if not isinstance(nest, LoopNest) or self.producer(load(base, nest.index)) is None:
            raise _NoMatch
        ranges = {a.symbol.name: (0, a.size) for a in nest.domain}
        x, empty = self._softmax(nest, ranges)
        score = self.scores(x, ranges)
        for first in dict.fromkeys(w for w in walk([score]) if w.op == "load" and not w.args and _makes_scores(self.made.get(w.attr[0]))):
            try:
                parts = self._between(nest, score, first, s, p, v, empty)
            except _NoMatch:
                continue
            self._take(parts, self.made[first.attr[0]])
            return
        raise _NoMatch

    def _softmax(self, nest: LoopNest, ranges: dict[str, tuple]) -> tuple[Value, float]:
        """(scores over the nest's axes, what a row gives that is masked as a whole), where the nest makes the softmax of something."""
        p, empty = self.peeled(load(nest.buffer, nest.index), ranges), math.nan
        if p.op == "where" and p.args[1].op == "const" and p.args[1].attr == 0:
            none = self.row(p.args[0], "all", ranges)
            p, empty = self.peeled(p.args[2], ranges), 0.0
        else:
            none = None
        if p.op == "div":
            e, total = p.args
        elif p.op == "mul" and self.peeled(p.args[1], ranges).op == "reciprocal":
            e, total = p.args[0], self.peeled(p.args[1], ranges).args[0]
        else:
            raise _NoMatch
        power = self.peeled(e, ranges)
        less = self.peeled(power.args[0], ranges) if power.op == "exp" else power
        if less.op != "sub":
            raise _NoMatch
        x, top = less.args
        if not self.same(self.row(top, "max", ranges), x, ranges) or not self.same(self.row(total, "sum", ranges), e, ranges):
            raise _NoMatch
        if none is not None:
            low = self.peeled(none, ranges)
            if low.op != "eq" or low.args[1].op != "const" or low.args[1].attr != -math.inf or not self.same(low.args[0], x, ranges):
                raise _NoMatch
        return x, empty

    def row(self, v: Value, op: str, ranges: dict[str, tuple]) -> Value:
        """What is reduced over the keys to the number of a row `v`, over the axes of `ranges`."""
        v = self.peeled(v, ranges)
        nest = self.made.get(v.attr[0]) if v.op == "load" else None
        if not isinstance(nest, LoopNest) or nest.reduce_op != op or nest.scan or len(nest.reduce_axes) != 1:
            raise _NoMatch
        over = nest.reduce_axes[0]
        used = v.attr[1].symbol_names()
        free = [n for n, (_, size) in ranges.items() if n not in used and as_expr(size) is as_expr(over.size)]
        if len(free) != 1 and over.symbol.name in free:  # (of several axes of one size, the one that the rule reduces under the same name)
            free = [over.symbol.name]
        if len(free) != 1:
            raise _NoMatch
        m = {} if v.attr[1] is nest.index else positions(nest.axes, nest.index, v.attr[1], ranges)
        m[over.symbol.name] = symbol(free[0])
        return Rewriter(on_index=lambda e: tidy(e.subs(m), ranges))(nest.value)

    def _between(self, nest: LoopNest, score: Value, first: Value, last: Extern, p: Buffer, v: Buffer, empty: float) -> _Parts:
        """The parts of an attention whose softmax is a nest's, whose first product is loaded by `first`, and whose last is `last`."""
        product: Extern = self.made[first.attr[0]]
        plus = str(product.op) in _PLUS
        a, b = product.args[1:3] if plus else product.args[:2]
        out, e = first.attr
        if out.stride != contiguous_strides(out.shape) or product.kwargs and not plus:
            raise _NoMatch
        groups = _groups(nest.domain, out.shape)
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
        parts = _Parts(tuple(batch), tuple(rows), Axis(KEY, key.size), *(None,) * 3, inner, columns, score, empty, last, ZERO, [], [])    # type: ignore[arg-type]
        ranges = parts.ranges()
        g, m = _flat(batch), _flat(rows)
        x_of_nest = score
        score = Rewriter(on_index=lambda x: tidy(x.subs(names), ranges))(score)
        at = load(out, position(out, g, m, KEY))
        if not any(w is at for w in walk([score])) or load(nest.buffer, tidy(nest.index.subs(names), ranges)) is not \
                self.element(p, position(p, g, m, KEY), ranges):
            raise _NoMatch
        q, x = self.operand(self.element(a, position(a, g, m, INNER), ranges), ranges)
        k, y = self.operand(self.element(b, position(b, g, INNER, KEY), ranges), ranges)
        made = acc("product", torch.float32)
        if x * y != 1:
            made = prim("mul", made, const(x * y, torch.float32))
        if plus:
            beta, alpha = product.kwargs.get("beta", 1), product.kwargs.get("alpha", 1)
            if set(product.kwargs) - {"beta", "alpha"} or not all(isinstance(n, (int, float)) for n in (beta, alpha)) or beta == 0:
                raise _NoMatch
            c = product.args[0]
            if len(c.shape) != len(out.shape):
                raise _NoMatch
            more = cast(self.element(c, position(c, g, m, KEY), ranges), torch.float32)
            made = prim("add", made if alpha == 1 else prim("mul", made, const(alpha, torch.float32)),
                        more if beta == 1 else prim("mul", more, const(beta, torch.float32)))
        parts.q, parts.k = q, k
        parts.v = self.copied(self.element(v, position(v, g, KEY, COLUMN), ranges), ranges)
        parts.score = _replaced(cast(score, torch.float32), at, made)
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
        if given[names[dropout_at]] != 0 or read or len(q.shape) != 4 or out is None or not isinstance(scale, (float, int, type(None))):
            raise _NoMatch
        if causal and as_expr(q.shape[2]) is not as_expr(k.shape[2]):
            raise _NoMatch
        heads, shared = q.shape[1], k.shape[1]
        batch: list[Axis] = [] if is_one(q.shape[0]) else [Axis(symbol("i0"), q.shape[0])]
        n = batch[0].symbol if batch else ZERO
        rows: list[Axis] = [] if is_one(q.shape[2]) else [Axis(ROW, q.shape[2])]
        m = rows[0].symbol if rows else ZERO
        if as_expr(heads) is as_expr(shared):
            batch += [] if is_one(heads) else [Axis(symbol(f"i{len(batch)}"), heads)]
            h = hk = batch[-1].symbol if not is_one(heads) else ZERO
        else:
            if not (type(heads) is int and type(shared) is int and heads % shared == 0):
                raise _NoMatch
            each = heads // shared
            hk = symbol(f"i{len(batch)}") if shared > 1 else ZERO
            batch += [Axis(hk, shared)] if shared > 1 else []
            if size_hint(q.shape[2], self.hints) * each <= PACKED:      # the heads that share their keys are rows of one tile
                rows.insert(0, Axis(symbol("m1"), each))
                h = hk * each + symbol("m1")
            else:
                batch.append(Axis(symbol(f"i{len(batch)}"), each))
                h = hk * each + batch[-1].symbol
        parts = _Parts(tuple(batch), tuple(rows), Axis(KEY, k.shape[2]), *(None,) * 3, q.shape[3], v.shape[3], None, 0.0, s, ZERO,    # type: ignore[arg-type]
                       [*s.lines], [s.origin])
        ranges = parts.ranges()
        parts.q = self.copied(self.element(q, position(q, n, h, m, INNER), ranges), ranges)
        parts.k = self.copied(self.element(k, position(k, n, hk, KEY, INNER), ranges), ranges)
        parts.v = self.copied(self.element(v, position(v, n, hk, KEY, COLUMN), ranges), ranges)
        x = prim("mul", acc("product", torch.float32), const(1 / math.sqrt(q.shape[3]) if scale is None else scale, torch.float32))
        if mask is not None:
            x = prim("add", x, cast(self.element(mask, position(mask, n, h, m, KEY), ranges), torch.float32))
        if causal:
            x = prim("where", prim("le", index(KEY), index(as_expr(m))), x, const(-math.inf, torch.float32))
        parts.score = x
        parts.index = position(out, n, h, m, COLUMN)
        self._take(parts, s)

    # ---- what both become
    def _take(self, parts: _Parts, first: Extern) -> None:
        """Put the kernel in the place of its steps. `first`: a step that has to become superfluous by that."""
        ranges = parts.ranges()
        fits = type(parts.inner) is int and type(parts.columns) is int and 1 < parts.inner <= WIDEST and 1 < parts.columns <= WIDEST
        if not fits or parts.q.dtype != parts.k.dtype or any(x.dtype not in DTYPES for x in (parts.q, parts.k, parts.v)):
            raise _NoMatch
        if parts.q.dtype == torch.float32 and not self.always and self._flops(parts) > FEW_FLOPS_IN_FULL:
            raise _NoMatch
        if size_hint(parts.keys.size, self.hints) < LEAST_KEYS or any(x.op == "check_index" for x in walk([parts.score])):
            raise _NoMatch
        score = normal_form(self.expanded(parts.score, ranges, self._cheap))
        out = parts.step.outputs[0]
        buffer, at, value, place, more = self._followers(parts, out, ranges)
        formal = FormalNames({a.symbol.name for a in parts.axes})
        rw = Rewriter(formal.size, formal.load)

        def sized(axes: Sequence[Axis]) -> tuple[Axis, ...]:
            return tuple(Axis(a.symbol, maybe_int(formal.size(as_expr(a.size)))) for a in axes)
        batch, rows, (keys, inner, columns) = sized(parts.batch), sized(parts.rows), sized(parts.axes[-3:])
        template = Attention(batch, rows, keys, inner, columns, rw(parts.q), rw(parts.k), rw(parts.v), rw(score), parts.empty)
        rest = self._rows(parts, [parts.step, *more], [parts.q, parts.k, parts.v, score, value], buffer)
        stages = [Stage((), [], [Store(formal.output(buffer), formal.size(at), rw(value))])]
        if rest:
            stages.append(Stage((), [], [Store(formal.output(r.nest.buffer), formal.size(r.index), rw(r.value)) for r in rest]))
        params, checks = scalars_and_checks([*template.roots(), *(x for s in stages for x in s.roots())])
        nests = [*more, *(r.nest for r in rest)]
        origins = list(dict.fromkeys(x for x in (*parts.origins, *(o for n in nests for o in n.origins)) if x))
        kernel = Kernel("attention", (*batch, *rows, columns), stages, list(formal.inputs.values()), list(formal.outputs.values()), [],
                        list(formal.sizes.values()), params, origins, list(dict.fromkeys(tuple(x) for x in parts.lines)),
                        ["attention: its scores are never in memory"], formal.hints(self.hints), checks, template)
        launch = Launch(kernel, list(formal.inputs), list(formal.outputs), [symbol(n) for n in formal.sizes], [n for n, _ in params])
        step = Template(parts.step.op, tuple(launch.inputs), {}, list(launch.outputs), reason="attention", origin=parts.step.origin, lines=parts.step.lines, launch=launch)
        dead = self.superfluous([parts.step, *nests], step)
        if not any(s is first for s in dead):            # something else reads the scores
            raise _NoMatch
        self.put(step, self._place(step, place, dead), dead)

    def _rows(self, parts: _Parts, gone: Sequence[Any], values: Sequence[Value], buffer: Buffer) -> list[RowResult]:
        """What the kernel stores besides `buffer`: numbers of rows that steps read which stay when `gone` are not there. `values`: what it computes."""
        from .attention_rows import row_results
        if not parts.scores:
            return []
        product, scores, domain, names = parts.scores
        key = next(n for n, e in names.items() if e is KEY)
        found = row_results(self, product, scores, domain, names, key, parts.ranges())
        reads = tuple(dict.fromkeys(v.attr[0] for v in walk(values) if v.op == "load"))
        tried = Template(parts.step.op, reads, {}, [buffer], reason="attention")
        dead = {id(s) for s in self.superfluous([*gone, *(r.nest for r in found.values())], tried)}
        return [r for b, r in found.items() if b in self.needed or any(id(s) not in dead for s in self.readers.get(b, ()))]

    def _place(self, step: Template, place: Any, dead: Sequence[Any]) -> Any:
        """Which of the steps that go the kernel runs in the place of: after what makes all that it reads, before all that reads what it makes."""
        gone = {id(s) for s in dead}
        after = max((self.ends[b] for b in step.args if b in self.ends), default=-1)
        before = min((self.order[id(s)] for b in _made_by(step) for s in self.readers.get(b, ()) if id(s) not in gone), default=len(self.first))
        if after < self.order[id(place)] < before:
            return place
        fits = [s for s in dead if after < self.order[id(s)] < before]
        if not fits:
            raise _NoMatch
        return max(fits, key=lambda s: self.order[id(s)])

    def _flops(self, parts: _Parts) -> float:
        return 2.0 * math.prod(size_hint(a.size, self.hints) for a in (*parts.batch, *parts.rows, parts.keys)) * (parts.inner + parts.columns)

    def _cheap(self, b: Buffer, new: Value) -> bool:
        """Whether a mask's element is better computed for each score than read."""
        values = walk([new])
        reads = [v for v in values if v.op == "load"]
        over = {n for v in values if v.op in ("load", "index") for n in (v.attr[1] if v.op == "load" else v.attr).symbol_names()}
        if not any(n == KEY.name or n.startswith("m") for n in over):
            return len(values) <= INDEX_ONLY             # (once for a program)
        if not reads:
            return len(values) <= INDEX_ONLY
        both = [v for v in reads if KEY.name in v.attr[1].symbol_names() and any(n.startswith("m") for n in v.attr[1].symbol_names())]
        return len(reads) <= (4 if not both else 1) and len(values) <= WITH_LOADS and not any(v.op in _COSTLY for v in values)

    def _joins(self, b: Buffer, new: Value) -> bool:
        """Whether what the result meets is computed where it does."""
        return len(self.readers.get(b, ())) == 1 and b not in self.needed and sum(v.op == "load" for v in walk([new])) <= 2

    def _followers(self, parts: _Parts, out: Buffer, ranges: dict[str, tuple]) -> tuple[Buffer, Expr, Value, Any, list[LoopNest]]:
        """(buffer, index, value) of what the kernel stores, the step in whose place it runs, and the nests that it takes in."""
        mixed = acc("mixed", torch.float32)
        value = mixed if out.dtype == torch.float32 else make("cast", out.dtype, (mixed,), "round")
        buffer, at, place, more = out, tidy(parts.index, ranges), parts.step, []
        total = mul_all([a.size for a in (*parts.batch, *parts.rows)]) * parts.columns
        while buffer not in self.needed:
            readers = self.readers.get(buffer, [])
            nest = readers[0] if len(readers) == 1 else None
            if not isinstance(nest, LoopNest) or self.made.get(nest.buffer) is not nest or self.producer(load(nest.buffer, nest.index)) is None:
                break
            reads = {v for v in walk([nest.value]) if v.op == "load"}
            mine = [v for v in reads if v.attr[0] is buffer]
            if len(mine) != 1 or mine[0].args or len(reads) > 3 or mul_all([a.size for a in nest.domain]) is not total:
                break
            m = _inverse(nest.domain, mine[0].attr[1], at, ranges)
            if m is None:
                break
            value = self.expanded(_at_place(nest.value, m, buffer, value, ranges), ranges, self._joins)
            buffer, at, place = nest.buffer, tidy(nest.index.subs(m), ranges), nest
            more.append(nest)
        return buffer, at, value, place, more


_PLUS = ("aten.baddbmm.default", "aten.addmm.default")
_COSTLY = frozenset(("exp", "log", "tanh", "sin", "cos", "pow", "erf", "div_floor", "remainder", "sqrt", "log1p", "expm1"))


def _made_by(s: LoweredStep) -> list[Buffer]:
    return [b for b in s.outputs if b is not None] if isinstance(s, Extern) else [s.buffer]


def read_by(s: LoweredStep) -> list[Buffer]:
    return list(dict.fromkeys(v.attr[0] for v in walk([s.value]) if v.op == "load") if isinstance(s, LoopNest) else dict.fromkeys(buffers_read(s)))


def _flat(axes: Sequence[Axis]) -> Expr:
    """The position along all axes together."""
    e = ZERO
    for a in axes:
        e = e * a.size + a.symbol
    return e


def position(b: Buffer, *at: Any) -> Expr:
    """Where an element lies in a buffer; of a matrix, the first coordinate is left out."""
    e = ZERO
    for size, stride, x in zip(reversed(b.shape), reversed(b.stride), reversed(at)):
        if not is_one(size):
            e = e + as_expr(x) * stride
    return e


def _groups(domain: Sequence[Axis], shape: Sequence[Any]) -> list[list[Axis]]:
    """The axes of a nest, in the order of memory, that together are the dimensions of a product: batch, rows, keys."""
    left = list(domain)
    out: list[list[Axis]] = []
    for want in reversed(shape):
        taken: list[Axis] = []
        n: Expr = ONE
        while n is not as_expr(want):
            if not left:
                raise _NoMatch
            taken.insert(0, left.pop())
            n = n * as_expr(taken[0].size)
        out.insert(0, taken)
    if left or len(out[-1]) != 1:
        raise _NoMatch
    return [[]] * (3 - len(out)) + out


def _replaced(root: Value, old: Value, new: Value) -> Value:
    return Rewriter(drop_rounding=True, known={old.id: new if new.dtype == old.dtype else make("cast", old.dtype, (new,), "round")})(root)


def _at_place(value: Value, m: dict[str, Expr], b: Buffer, element: Value, ranges: dict[str, tuple]) -> Value:
    """A reader's value with its axes renamed, where `element` stands for what it loads of `b`."""
    return Rewriter(lambda e: tidy(e.subs(m), ranges), lambda buffer, e: element if buffer is b else None, True)(value)


def _inverse(domain: Sequence[Axis], e: Expr, at: Expr, ranges: dict[str, tuple]) -> dict[str, Expr] | None:
    """Each axis of a nest that reads `e`, as an expression where that is `at`; None where elements of what is read are left out or come twice."""
    whole: dict[str, Expr] = {}                          # axis that is divided -> itself, of its two parts
    axes: list[Axis] = []
    for a in domain:
        by = {x.args[1] for _, atoms in e.terms() for x in atoms if x.op in ("floordiv", "mod") and x.args[0] is a.symbol}
        k = by.pop() if len(by) == 1 else None
        if k is None or not k.is_const or type(a.size) is not int or a.size % k.value:
            axes.append(a)
            continue
        high, low = (Axis(symbol(f"{a.symbol.name}_{part}"), n) for part, n in (("high", a.size // k.value), ("low", k.value)))
        axes += [high, low]
        whole[a.symbol.name] = high.symbol * k + low.symbol
    if whole:
        e = tidy(e.subs(whole), {a.symbol.name: (0, a.size) for a in axes})
    if not is_affine(e):
        return None
    left = {a.symbol.name: a for a in axes}
    order: list[Axis] = []
    rest, want = e, ONE
    while left:                                          # from the fastest axis of what is read
        a = next((a for a in left.values() if e.coeff(a.symbol.name) is want), None)    # type: ignore[assignment]
        if a is None:
            return None
        del left[a.symbol.name]
        order.insert(0, a)
        rest, want = rest - a.symbol * want, want * a.size
    if rest is not ZERO:
        return None
    m = positions(order, e, at, ranges)
    return {a.symbol.name: tidy(whole[a.symbol.name].subs(m), ranges) if a.symbol.name in whole else m[a.symbol.name] for a in domain}
