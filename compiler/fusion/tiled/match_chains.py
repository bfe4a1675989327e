"""Chains of matrix products as one kernel: sum(f(a @ b, ...) * c), where what f makes of the products is never in
memory (templates.Contraction).

So are the gradients of attention, f(q @ k, g @ v) @ k and the like, and any product of what is computed, element by
element, from others that are narrow enough to be made again where they are needed. Chains are taken where all that read
a product are chains: then it is not made at all. Those that go through the same products along the same rows are one
kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence

import torch

from ...ops.tile_sizes import DTYPES, WIDEST, fills
from ...lowering.ir import (
    Axis,
    Buffer,
    LoopNest,
    Stage,
    Value,
    acc,
    cast,
    const,
    load,
    prim,
    round_to,
    walk,
)
from ...lowering.templates import Contraction, InnerProduct, WeightedSum
from ...lowering.lowered import Extern, LoweredStep, View
from ...lowering.rewrite import Rewriter, mapped, tidy, with_operands
from ...symbolic.expr import Expr, as_expr, symbol
from .mask_conditions import normal_form
from ..domain import numel_hint, size_hint
from .producers import (
    COLUMN,
    INNER,
    KEY,
    ROW,
    Finder,
    NoMatch,
    flat,
    groups_of,
    is_product,
    made_by,
    on_gpu,
    position,
    read_by,
    replaced,
)
from .tile_kernel import CHAIN_KERNEL, TileNames, tile_kernel
from ..inline import does_more
from ..schedule import Template

__all__ = ["chains"]


@dataclass
class _Chain:
    """One product `step` of what is computed from others. Over axes i<k> (batch), m0 (rows), r0 (keys), d0, c0."""

    step: Extern
    batch: tuple[Axis, ...]
    row: Axis
    key: Axis
    columns: Any
    factor: Value  # with loads of the products
    products: dict[
        Value, tuple[Any, Value, Value, float]
    ]  # such a load -> inner size, a over rows, b over keys, what their product is scaled by
    c: Value
    index: Expr  # of the result in its buffer
    lines: list[tuple]
    origins: list[str]

    @property
    def rows(self) -> tuple[Axis, ...]:
        return (self.row,)

    @property
    def space(self) -> tuple:
        return tuple((a.symbol, as_expr(a.size)) for a in (*self.batch, self.row, self.key))

    def ranges(self, inner: Any = 1) -> dict[str, tuple]:
        return {
            a.symbol.name: (0, a.size)
            for a in (*self.batch, self.row, self.key, Axis(INNER, inner), Axis(COLUMN, self.columns))
        }


@dataclass
class _Bundle:
    """Chains that are one kernel."""

    chains: list[_Chain]
    products: dict[Value, tuple[Any, Value, Value, float]]
    template: Template | None = None
    gone: list[Any] = field(default_factory=list)  # the steps that it stands for


def chains(
    steps: Sequence[LoweredStep], needed: Sequence[Buffer], hints: dict[str, int], opts: Any
) -> list[LoweredStep]:
    """The steps with chains of products of GPU tensors as Template steps (option `attention`: "library" leaves them
    alone).
    """
    calls = [s for s in steps if isinstance(s, Extern) and is_product(s) and on_gpu(s)]
    if len(calls) < 2 or opts.get("attention", "auto") == "library" or opts.get("emulate_precision", False):
        return list(steps)
    finder = Finder(steps, needed, hints)
    found = []
    for s in calls:
        try:
            found.append(_chain(finder, s))
        except NoMatch:
            continue
    while found:
        bundles = _bundles(found)
        results = {c.step.outputs[0] for c in found}
        gone = [x for b in bundles for x in _build(finder, b, results)]
        templates = [b.template for b in bundles if b.template is not None]
        dead = finder.superfluous(gone, *templates)
        ids = {id(s) for s in dead}
        kept = [c for c in found if all(id(finder.made[w.attr[0]]) in ids for w in c.products)]
        if len(kept) == len(found):
            return _placed(finder, bundles, ids) or list(steps)
        found = kept  # (without those whose products are made in any case)
    return list(steps)


# ---- finding
def _chain(finder: Finder, s: Extern) -> _Chain:
    """The product as a chain. Raises NoMatch."""
    for side in (0, 1):
        base = s.args[side]
        while isinstance(finder.made.get(base), View):
            base = finder.made[base].base
        nest = finder.made.get(base)
        if (
            isinstance(nest, LoopNest)
            and nest.buffer.dtype in DTYPES
            and finder.producer(load(base, nest.index)) is not None
            and finder.leads(base)
        ):
            try:
                return _of_operand(finder, s, side, nest)
            except NoMatch:  # (of projections, the other operand may lead to a product as well)
                continue
    raise NoMatch


def _of_operand(finder: Finder, s: Extern, side: int, nest: LoopNest) -> _Chain:
    """A chain whose factor is operand `side`, which a nest makes."""
    own = {a.symbol.name: (0, a.size) for a in nest.domain}
    value = finder.scores(load(nest.buffer, nest.index), own)
    first = next((w for w in walk([value]) if _is_narrow(finder, w)), None)
    if first is None:
        raise NoMatch
    by_batch, one, other = groups_of(nest.domain, first.attr[0].shape)
    if len(one) != 1:
        raise NoMatch
    batch = tuple([Axis(symbol(f"i{k}"), a.size) for k, a in enumerate(by_batch)])
    g = flat(batch)
    names: dict[str, Expr] = {a.symbol.name: b.symbol for a, b in zip(by_batch, batch)}
    p, c = s.args[side], s.args[1 - side]
    for row, key in ((one[0], other[0]), (other[0], one[0])):
        m = names | {row.symbol.name: ROW, key.symbol.name: KEY}
        ranges = {a.symbol.name: (0, a.size) for a in batch} | {ROW.name: (0, row.size), KEY.name: (0, key.size)}
        at = (ROW, KEY) if side == 0 else (KEY, ROW)
        if finder.element(p, position(p, g, *at), ranges) is load(nest.buffer, tidy(nest.index.subs(m), ranges)):
            break
    else:
        raise NoMatch
    out = s.outputs[0]
    assert out is not None
    columns = c.shape[-1 if side == 0 else -2]
    factor = Rewriter(on_index=lambda e: tidy(e.subs(m), ranges))(value)
    chain = _Chain(
        s,
        batch,
        Axis(ROW, row.size),
        Axis(KEY, key.size),
        columns,
        factor,
        {},
        factor,
        as_expr(0),
        [*s.lines, *nest.lines],
        [*nest.origins, s.origin],
    )
    ranges = chain.ranges()
    chain.c = finder.copied(
        finder.element(c, position(c, g, *((KEY, COLUMN) if side == 0 else (COLUMN, KEY))), ranges), ranges
    )
    chain.index = position(out, g, *((ROW, COLUMN) if side == 0 else (COLUMN, ROW)))
    for w in walk([factor]):
        if _is_narrow(finder, w):
            found = _operands(finder, chain, w, g)
            if found is not None:
                chain.products[w] = found
    if not chain.products or not _fits(finder, chain):
        raise NoMatch
    return chain


def _is_narrow(finder: Finder, w: Value) -> bool:
    """Whether a value is an element of a product that may be made again where it is needed."""
    s = finder.made.get(w.attr[0]) if w.op == "load" and not w.args else None
    return (
        s is not None
        and is_product(s)
        and on_gpu(s)
        and type(s.args[0].shape[-1]) is int
        and s.args[0].shape[-1] <= WIDEST
    )


def _operands(finder: Finder, chain: _Chain, w: Value, g: Expr) -> tuple[Any, Value, Value, float] | None:
    """What the element `w` of a product is summed of, where that is the element of the chain's row and key."""
    product = finder.made[w.attr[0]]
    a, b = product.args
    out, inner = w.attr[0], a.shape[-1]
    ranges = chain.ranges(inner)
    if w.attr[1] is tidy(position(out, g, ROW, KEY), ranges):
        of_row, of_key = (
            finder.element(a, position(a, g, ROW, INNER), ranges),
            finder.element(b, position(b, g, INNER, KEY), ranges),
        )
    elif w.attr[1] is tidy(position(out, g, KEY, ROW), ranges):
        of_row, of_key = (
            finder.element(b, position(b, g, INNER, ROW), ranges),
            finder.element(a, position(a, g, KEY, INNER), ranges),
        )
    else:
        return None
    (x, k), (y, n) = finder.operand(of_row, ranges), finder.operand(of_key, ranges)
    return (inner, x, y, k * n) if x.dtype == y.dtype and x.dtype in DTYPES else None


def _fits(finder: Finder, chain: _Chain) -> bool:
    hints = finder.hints
    if (
        type(chain.columns) is not int
        or not 1 < chain.columns <= WIDEST
        or chain.c.dtype not in DTYPES
        or chain.c.dtype != chain.step.args[0].dtype
    ):
        return False
    rows, keys, batch = (
        size_hint(chain.row.size, hints),
        size_hint(chain.key.size, hints),
        numel_hint([a.size for a in chain.batch], hints),
    )
    return fills(batch, rows, keys) and not any(x.op == "check_index" for x in walk([chain.factor]))


# ---- building
def _bundles(found: Sequence[_Chain]) -> list[_Bundle]:
    """Chains over the same space, the products of one among those of the other."""
    out: list[_Bundle] = []
    for c in sorted(found, key=lambda c: -len(c.products)):
        for b in out:
            if (
                b.chains[0].space == c.space
                and c.products.keys() <= b.products.keys()
                and all(b.products[w] == x for w, x in c.products.items())
            ):
                b.chains.append(c)
                break
        else:
            out.append(_Bundle([c], dict(c.products)))
    for b in out:
        b.chains.sort(
            key=lambda c: len(c.products)
        )  # (a tile that needs fewer products comes first, and its numbers are gone early)
    return out


def _build(finder: Finder, bundle: _Bundle, results: set[Buffer | None]) -> list[Any]:
    """Make the kernel of a bundle, a Template step; the steps that it stands for. `results`: of all chains."""
    first = bundle.chains[0]
    axes = (*first.batch, first.row, first.key)
    names = TileNames((*axes, Axis(INNER, 1), Axis(COLUMN, 1)))
    batch, (row, key) = names.sized(first.batch), names.sized(axes[-2:])
    made: dict[Value, Value] = {}
    products = []
    for k, (w, (inner, x, y, scale)) in enumerate(bundle.products.items()):
        name = f"product{k}"
        made[w] = acc(name, torch.float32)
        if scale != 1:
            made[w] = prim("mul", made[w], const(scale, torch.float32))
        products.append(InnerProduct(name, Axis(INNER, inner), names.value(x), names.value(y)))
    sums, stages, more = [], [], []
    for j, c in enumerate(bundle.chains):
        name, ranges = f"sum{j}", c.ranges()
        factor = c.factor
        for w in c.products:
            factor = replaced(factor, w, made[w])
        factor = normal_form(_unrounded(cast(finder.expanded(factor, ranges, finder.cheap), torch.float32)))
        out = c.step.outputs[0]
        assert out is not None
        buffer, at, value, _, followers = finder.followers(c, out, ranges, name)
        if any(v.op == "load" and _memory(finder, v.attr[0]) in results for v in walk([value])):
            # what follows two chains would be in both, and each wait for the other
            buffer, at, value, followers = (
                out,
                tidy(c.index, ranges),
                round_to(acc(name, torch.float32), out.dtype),
                [],
            )
        columns = Axis(COLUMN, c.columns)
        sums.append(WeightedSum(name, columns, names.value(factor), names.value(c.c)))
        stages.append(Stage((columns,), [], [names.store(buffer, at, value)]))
        more += followers
    bundle.template = tile_kernel(
        CHAIN_KERNEL,
        Contraction(batch, (row,), key, tuple(products), tuple(sums)),
        stages,
        names,
        finder.hints,
        bundle.chains[-1].step,
        (o for x in (*bundle.chains, *more) for o in x.origins),
        (x for c in bundle.chains for x in c.lines),
    )
    bundle.gone = [*(c.step for c in bundle.chains), *more]
    return bundle.gone


def _unrounded(root: Value) -> Value:
    """The value without roundings to 16 bits on the way: a tile's numbers are in registers, and rounded where they are
    multiplied.
    """

    def rule(v: Value, args: tuple[Value, ...]) -> Value:
        x = args[0] if args else v
        widened = v.op == "cast" and v.dtype == torch.float32 and x.op == "cast" and x.dtype in DTYPES
        return x.args[0] if widened and x.args[0].dtype == torch.float32 else with_operands(v, args)

    return mapped(root, rule)


def _memory(finder: Finder, b: Buffer) -> Buffer:
    """What a buffer is a view of."""
    while isinstance(v := finder.made.get(b), View):
        b = v.base
    return b


# ---- placing
def _placed(finder: Finder, bundles: Sequence[_Bundle], dead: set[int]) -> list[LoweredStep] | None:
    """The steps with the bundles' kernels: each where the first of its results was made, behind what it reads and was
    made later. None where that does not go: one of its results leads to another, or what has to come earlier has
    effects."""
    at = {id(s): i for i, s in enumerate(finder.first)}
    kernels = [(min(at[id(s)] for s in b.gone), b.template) for b in bundles if b.template is not None]
    new = {id(t) for _, t in kernels}
    order: list[Any] = [
        t
        for _, t in sorted(
            [*((i + 0.5, s) for i, s in enumerate(finder.first) if id(s) not in dead), *kernels], key=lambda x: x[0]
        )
    ]
    at |= {id(b.template): max(at[id(s)] for s in b.gone) for b in bundles}
    makers: dict[Buffer, list[Any]] = {}
    for s in order:
        for b in made_by(s):
            makers.setdefault(b, []).append(s)
    done: dict[int, Any] = {}

    def missing(x: Any) -> Any:
        """Something that x reads and that is not there yet. (Of several that write one buffer, those that come before
        x.)
        """
        return next(
            (
                y
                for b in read_by(x)
                for y in makers.get(b, ())
                if y is not x and id(y) not in done and (len(makers[b]) == 1 or at[id(y)] < at[id(x)])
            ),
            None,
        )

    for s in order:
        path = [s]  # each step waits for the next
        while path:
            x = path[-1]
            before = missing(x) if id(x) not in done else None
            if before is not None and (any(y is before for y in path) or does_more(before) and id(before) not in new):
                return None
            if before is not None:
                path.append(before)
            else:
                done.setdefault(id(x), path.pop())
    return list(done.values())
