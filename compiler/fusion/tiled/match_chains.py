"""Chains of matrix products among the steps: sum(f(a @ b, ...) * c), where what f makes of the products need not be in
memory.

The gradients of attention are such chains, f(q @ k, g @ v) @ k and the like. So is any product of what is computed
element by element from other products, where those are narrow enough to be made again.
"""

from __future__ import annotations

from typing import Any, Sequence

from ...lowering.ir import Axis, Buffer, LoopNest, Value, has_op, is_plain_load, load, loads, walk
from ...lowering.lowered import Extern, View
from ...lowering.rewrite import Rewriter, tidy
from ...ops.tile_sizes import DTYPES, WIDEST, fills
from ...symbolic.expr import Expr, symbol
from ..domain import numel_hint, size_hint
from .match import Match, Product, ranges_of
from .producers import COLUMN, INNER, KEY, ROW, Finder, NoMatch, flat, groups_of, is_product, on_gpu, position

__all__ = ["match_chain"]


def match_chain(finder: Finder, extern: Extern, always: bool) -> Match:
    """The chain whose last product is `extern`. Raises NoMatch."""
    if not is_product(extern):
        raise NoMatch
    for side in (0, 1):
        base = extern.args[side]
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
                return _of_operand(finder, extern, side, nest)
            except NoMatch:  # (of projections, the other operand may lead to a product as well)
                continue
    raise NoMatch


def _of_operand(finder: Finder, extern: Extern, side: int, nest: LoopNest) -> Match:
    """A chain whose factor is operand `side`, which a nest makes."""
    first = _first_product(finder, nest)
    if first is None:
        raise NoMatch
    by_batch, one, other = groups_of(nest.domain, first.shape)
    if len(one) != 1:
        raise NoMatch
    batch = tuple([Axis(symbol(f"i{k}"), a.size) for k, a in enumerate(by_batch)])
    g = flat(batch)
    names: dict[str, Expr] = {a.symbol.name: b.symbol for a, b in zip(by_batch, batch)}
    p, c = extern.args[side], extern.args[1 - side]
    for row, key in ((one[0], other[0]), (other[0], one[0])):
        m = names | {row.symbol.name: ROW, key.symbol.name: KEY}
        ranges = {axis.symbol.name: (0, axis.size) for axis in batch} | {
            ROW.name: (0, row.size),
            KEY.name: (0, key.size),
        }
        at = (ROW, KEY) if side == 0 else (KEY, ROW)
        if finder.element(p, position(p, g, *at), ranges) is load(nest.buffer, tidy(nest.index.subs(m), ranges)):
            break
    else:
        raise NoMatch
    out = extern.outputs[0]
    assert out is not None
    columns = c.shape[-1 if side == 0 else -2]
    own = {axis.symbol.name: (0, axis.size) for axis in nest.domain}
    factor = Rewriter(on_index=lambda e: tidy(e.subs(m), ranges))(finder.scores(load(nest.buffer, nest.index), own))
    space = (*batch, Axis(ROW, row.size), Axis(KEY, key.size))
    ranges = ranges_of(space, 1, columns)
    products = {
        value: _product(finder, value, space, columns, g) for value in walk([factor]) if _is_narrow(finder, value)
    }
    chain = Match(
        step=extern,
        batch=batch,
        rows=space[-2:-1],
        keys=space[-1],
        columns=columns,
        products={name: product for name, product in products.items() if product is not None},
        factor=factor,
        c=finder.copied(
            finder.element(c, position(c, g, *((KEY, COLUMN) if side == 0 else (COLUMN, KEY))), ranges), ranges
        ),
        index=position(out, g, *((ROW, COLUMN) if side == 0 else (COLUMN, ROW))),
        lines=[*extern.lines, *nest.lines],
        origins=[*nest.origins, extern.origin],
    )
    if not chain.products or not _fits(finder, chain):
        raise NoMatch
    return chain


def _first_product(finder: Finder, nest: LoopNest) -> Buffer | None:
    """The first narrow product that a nest's elements are computed of: seen without computing them. (Through windows
    and pads that takes long, and is no chain: the product has another shape.)"""
    seen: set[Buffer] = set()
    left = loads([nest.value])[::-1]
    while left:
        value = left.pop()
        b = value.attr[0]
        if _is_narrow(finder, value):
            return b
        if b in seen:
            continue
        seen.add(b)
        maker = finder.maker(b) if finder.leads(b) else None
        if maker is not None:
            left += loads([maker.value])[::-1]
    return None


def _is_narrow(finder: Finder, value: Value) -> bool:
    """Whether a value is an element of a product that may be made again where it is needed."""
    return is_plain_load(value) and _made_narrow(finder, value.attr[0])


def _made_narrow(finder: Finder, buffer: Buffer) -> bool:
    s = finder.made.get(buffer)
    return (
        s is not None
        and is_product(s)
        and on_gpu(s)
        and type(s.args[0].shape[-1]) is int
        and s.args[0].shape[-1] <= WIDEST
    )


def _product(finder: Finder, value: Value, space: Sequence[Axis], columns: Any, expr: Expr) -> Product | None:
    """What the element `value` of a product is summed of, where that is the element of the chain's row and key."""
    product = finder.made[value.attr[0]]
    a, b = product.args
    out, inner = value.attr[0], a.shape[-1]
    ranges = ranges_of(space, inner, columns)
    if value.attr[1] is tidy(position(out, expr, ROW, KEY), ranges):
        of_row, of_key = (
            finder.element(a, position(a, expr, ROW, INNER), ranges),
            finder.element(b, position(b, expr, INNER, KEY), ranges),
        )
    elif value.attr[1] is tidy(position(out, expr, KEY, ROW), ranges):
        of_row, of_key = (
            finder.element(b, position(b, expr, INNER, ROW), ranges),
            finder.element(a, position(a, expr, KEY, INNER), ranges),
        )
    else:
        return None
    (x, k), (y, n) = finder.operand(of_row, ranges), finder.operand(of_key, ranges)
    return Product(inner, x, y, k * n) if x.dtype == y.dtype and x.dtype in DTYPES else None


def _fits(finder: Finder, chain: Match) -> bool:
    hints, factor = finder.hints, chain.factor
    assert factor is not None
    if (
        type(chain.columns) is not int
        or not 1 < chain.columns <= WIDEST
        or chain.c.dtype not in DTYPES
        or chain.c.dtype != chain.step.args[0].dtype
    ):
        return False
    rows, keys, batch = (
        size_hint(chain.rows[0].size, hints),
        size_hint(chain.keys.size, hints),
        numel_hint([a.size for a in chain.batch], hints),
    )
    return fills(batch, rows, keys) and not has_op([factor], "check_index")
