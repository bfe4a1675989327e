"""Attention among the steps: softmax(score(q @ k)) @ v, or a call of a library's.

Among lowered steps every spelling of it is the same: a product, element-wise nests, the maximum of a row, the sum of
its exponentials, a division, a second product. Whatever stands between the product and the softmax, scales, masks,
caps, biases that are gathered, becomes the score's expression. Calls of a library's attention are taken where launching
them takes longer than they run.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...lowering.ir import Axis, Buffer, LoopNest, Value, acc, cast, const, has_op, index, load, loads, prim, walk
from ...lowering.lowered import Extern, View
from ...lowering.ref import contiguous_strides, is_one
from ...lowering.rewrite import Rewriter, tidy
from ...ops.philox import arguments_of
from ...ops.tile_sizes import FEW_FLOPS
from ...symbolic.expr import ZERO, Expr, as_expr, symbol
from ..domain import size_hint
from .match import Match, Product, RowNumbers, ranges_of
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
    makes_scores,
    position,
)
from .row_patterns import softmax_of

__all__ = ["CALLS", "match_attention"]

WIDEST = 256  # columns of a head that a program holds
LEAST_KEYS = 16
# of attention in float32, whose products ordinary multiplications make slower than libraries do
FEW_FLOPS_IN_FULL = 3e8
PACKED = 64  # rows of all heads of a group that are one tile
# library's attention -> positions of the mask (None: there is none), the dropout's probability, is_causal
CALLS = {
    "aten._scaled_dot_product_flash_attention.default": (None, 3, 4),
    "aten._scaled_dot_product_efficient_attention.default": (3, 5, 6),
    "aten._scaled_dot_product_cudnn_attention.default": (3, 5, 6),
}


def match_attention(finder: Finder, extern: Extern, always: bool) -> Match:
    """The attention whose result `extern` makes. `always`: also where a library is the better choice. Raises
    NoMatch."""
    if is_product(extern):
        found = _second_product(finder, extern)
    elif str(extern.op) in CALLS and (always or _flops_of_call(finder, extern) < FEW_FLOPS):
        found = _call(finder, extern)
    else:
        raise NoMatch
    if not _fits(finder, found, always):
        raise NoMatch
    return found


def _fits(finder: Finder, found: Match, always: bool) -> bool:
    (product,) = found.products.values()
    q, k, v, widths = product.a, product.b, found.c, (product.inner, found.columns)
    values = [x for x in (found.score, found.factor) if x is not None]
    sizes = [size_hint(a.size, finder.hints) for a in (*found.batch, *found.rows, found.keys)]
    return (
        all(type(width) is int and 1 < width <= WIDEST for width in widths)
        and q.dtype == k.dtype
        and all(x.dtype in DTYPES for x in (q, k, v))
        and (q.dtype != torch.float32 or always or 2.0 * math.prod(sizes) * sum(widths) <= FEW_FLOPS_IN_FULL)
        and sizes[-1] >= LEAST_KEYS
        and not has_op(values, "check_index")
    )


# ---- softmax between two products
def _second_product(finder: Finder, extern: Extern) -> Match:
    base = extern.args[0]
    while isinstance(finder.made.get(base), View):
        base = finder.made[base].base
    nest = finder.made.get(base)
    if not isinstance(nest, LoopNest) or finder.producer(load(base, nest.index)) is None:
        raise NoMatch
    ranges = {axis.symbol.name: (0, axis.size) for axis in nest.domain}
    x, empty, weight = _softmax(finder, nest, ranges)
    score = finder.scores(x, ranges)
    for first in dict.fromkeys(w for w in loads([score]) if not w.args and makes_scores(finder.made.get(w.attr[0]))):
        try:
            return _between(finder, nest, score, first, extern, empty, weight)
        except NoMatch:
            continue
    raise NoMatch


def _softmax(finder: Finder, nest: LoopNest, ranges: dict[str, tuple]) -> tuple[Value, float, Value | None]:
    """(scores over the nest's axes, what a row gives that is masked as a whole, what its numbers are multiplied with),
    where the nest makes the softmax of something."""
    p, weight = finder.peeled(load(nest.buffer, nest.index), ranges), None
    while p.op == "mul" and finder.peeled(p.args[1], ranges).op != "reciprocal":
        other = next(
            (
                arg
                for arg in p.args
                if not any(
                    value.is_load and finder.leads(value.attr[0]) or value.is_accumulator for value in walk([arg])
                )
            ),
            None,
        )
        if other is None:
            raise NoMatch
        weight = cast(other, torch.float32) if weight is None else prim("mul", weight, cast(other, torch.float32))
        p = finder.peeled(next(arg for arg in p.args if arg is not other), ranges)
    return *softmax_of(finder, p, ranges), weight


def _between(
    finder: Finder, nest: LoopNest, score: Value, first: Value, last: Extern, empty: float, weight: Value | None
) -> Match:
    """The attention whose softmax is a nest's, whose first product is loaded by `first`, and whose last is `last`."""
    product: Extern = finder.made[first.attr[0]]
    plus = str(product.op) in PLUS
    a, b = product.args[1:3] if plus else product.args[:2]
    p, v = last.args
    out = first.attr[0]
    if out.stride != contiguous_strides(out.shape) or product.kwargs and not plus:
        raise NoMatch
    by_batch, by_row, (key,) = groups_of(nest.domain, out.shape)
    batch = tuple(Axis(symbol(f"i{k}"), axis.size) for k, axis in enumerate(by_batch))
    rows = tuple(Axis(symbol(f"m{k}"), axis.size) for k, axis in enumerate(by_row))
    keys = Axis(KEY, key.size)
    names: dict[str, Expr] = {  # from the nest's axes to a kernel's
        axis.symbol.name: mine.symbol for axis, mine in zip((*by_batch, *by_row, key), (*batch, *rows, keys))
    }
    inner, columns = a.shape[-1], v.shape[-1]
    ranges = ranges_of((*batch, *rows, keys), inner, columns)
    g, m = flat(batch), flat(rows)
    renamed = Rewriter(on_index=lambda x: tidy(x.subs(names), ranges))
    at = load(out, position(out, g, m, KEY))
    if not any(value is at for value in walk([renamed(score)])) or load(
        nest.buffer, tidy(nest.index.subs(names), ranges)
    ) is not finder.element(p, position(p, g, m, KEY), ranges):
        raise NoMatch
    q, x = finder.operand(finder.element(a, position(a, g, m, INNER), ranges), ranges)
    k, y = finder.operand(finder.element(b, position(b, g, INNER, KEY), ranges), ranges)
    added = _added(finder, product, (g, m, KEY), ranges) if plus else None
    return Match(
        step=last,
        batch=batch,
        rows=rows,
        keys=keys,
        columns=columns,
        products={at: Product(inner, q, k, x * y, added)},
        factor=None if weight is None else renamed(weight),
        c=finder.copied(finder.element(v, position(v, g, KEY, COLUMN), ranges), ranges),
        index=position(last.outputs[0], g, m, COLUMN),  # type: ignore[arg-type]
        lines=[*nest.lines, *last.lines, *product.lines],
        origins=[product.origin, *nest.origins, last.origin],
        score=renamed(score),
        empty=empty,
        numbers=RowNumbers(out, score, nest.domain, names),
    )


def _added(finder: Finder, product: Extern, at: tuple, ranges: dict[str, tuple]) -> tuple[Any, Value]:
    """(factor of the product, what is added) of a product like baddbmm's."""
    beta, alpha, c = product.kwargs.get("beta", 1), product.kwargs.get("alpha", 1), product.args[0]
    if (
        set(product.kwargs) - {"beta", "alpha"}
        or not all(isinstance(n, (int, float)) for n in (beta, alpha))
        or beta == 0
        or len(c.shape) != len(product.outputs[0].shape)  # type: ignore[union-attr]
    ):
        raise NoMatch
    more = cast(finder.element(c, position(c, *at), ranges), torch.float32)
    return alpha, more if beta == 1 else prim("mul", more, const(beta, torch.float32))


# ---- a library's call
def _flops_of_call(finder: Finder, extern: Extern) -> float:
    q, k = extern.args[:2]
    return 4.0 * math.prod(size_hint(size, finder.hints) for size in q.shape) * size_hint(k.shape[-2], finder.hints)


def _call(finder: Finder, extern: Extern) -> Match:
    mask_at, dropout_at, causal_at = CALLS[str(extern.op)]
    q, k, v = extern.args[:3]
    given = arguments_of(extern.op, extern.args, extern.kwargs)
    names = [arg.name for arg in extern.op._schema.arguments]
    causal, scale = given[names[causal_at]], given.get("scale")
    mask = given[names[mask_at]] if mask_at is not None else None
    out = extern.outputs[0]
    read = {
        output
        for output in extern.outputs[1:]
        if output is not None and (output in finder.readers or output in finder.needed)
    }
    if (
        given[names[dropout_at]] != 0
        or read
        or len(q.shape) != 4
        or out is None
        or not isinstance(scale, (float, int, type(None)))
        or causal
        and as_expr(q.shape[2]) is not as_expr(k.shape[2])
    ):
        raise NoMatch
    batch, rows, (n, h, hk, m) = _axes_of_heads(finder, q, k)
    keys, inner, columns = Axis(KEY, k.shape[2]), q.shape[3], v.shape[3]
    ranges = ranges_of((*batch, *rows, keys), inner, columns)

    def operand(buffer: Buffer, *at: Any) -> Value:
        return finder.copied(finder.element(buffer, position(buffer, *at), ranges), ranges)

    product = acc("product", torch.float32)
    x = prim("mul", product, const(1 / math.sqrt(q.shape[3]) if scale is None else scale, torch.float32))
    a, b, c = operand(q, n, h, m, INNER), operand(k, n, hk, KEY, INNER), operand(v, n, hk, KEY, COLUMN)
    if mask is not None:
        x = prim("add", x, cast(finder.element(mask, position(mask, n, h, m, KEY), ranges), torch.float32))
    if causal:
        x = prim("where", prim("le", index(KEY), index(as_expr(m))), x, const(-math.inf, torch.float32))
    return Match(
        step=extern,
        batch=tuple(batch),
        rows=tuple(rows),
        keys=keys,
        columns=columns,
        products={product: Product(inner, a, b)},
        factor=None,
        c=c,
        index=position(out, n, h, m, COLUMN),
        lines=[*extern.lines],
        origins=[extern.origin],
        score=x,
        empty=0.0,
    )


def _axes_of_heads(
    finder: Finder, buffer: Buffer, k: Buffer
) -> tuple[list[Axis], list[Axis], tuple[Expr, Expr, Expr, Expr]]:
    """(axes of the batch, axes of a tile's rows, where a row lies: the batch, q's head, k's head, the query)."""
    heads, shared = buffer.shape[1], k.shape[1]
    batch: list[Axis] = [] if is_one(buffer.shape[0]) else [Axis(symbol("i0"), buffer.shape[0])]
    n = batch[0].symbol if batch else ZERO
    rows: list[Axis] = [] if is_one(buffer.shape[2]) else [Axis(ROW, buffer.shape[2])]
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
    if size_hint(buffer.shape[2], finder.hints) * each <= PACKED:
        # the heads that share their keys are rows of one tile
        rows.insert(0, Axis(symbol("m1"), each))
        h = hk * each + symbol("m1")
    else:
        batch.append(Axis(symbol(f"i{len(batch)}"), each))
        h = hk * each + batch[-1].symbol
    return batch, rows, (n, h, hk, m)
