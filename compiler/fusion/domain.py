"""Iteration spaces: lists of factors in the order of the memory, outermost first, and how one maps onto another.

Two nests can share a kernel where their spaces have a common refinement: (4, 128 | 768) and (512 | 768) both are
(4, 128 | 768) once 512 is split. `|` stands before the axes that are reduced.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from ..lowering.ir import Axis
from ..lowering.ref import divides
from ..symbolic.expr import ONE, Expr, as_expr, integer, symbol

__all__ = ["Factor", "factors_of", "refine", "map_axes", "factor_symbol", "size_hint", "numel_hint"]

_symbols = [symbol(f"g{k}") for k in range(64)]


class Factor(NamedTuple):
    size: Expr
    reduced: bool = False


def factors_of(axes: Sequence[Axis], reduced: Sequence[Axis] = ()) -> list[Factor]:
    names = {axis.symbol.name for axis in reduced}
    return [Factor(as_expr(axis.size), axis.symbol.name in names) for axis in axes]


def refine(a: Sequence[Factor], b: Sequence[Factor], match_flags: bool) -> list[Factor] | None:
    """The coarsest common refinement of two spaces; flags come from `b` where not match_flags (then `a` has none), else
    they must agree. None where the spaces differ."""
    if len(a) == len(b) and all(x.size is y.size and (x.reduced == y.reduced or not match_flags) for x, y in zip(a, b)):
        return list(b)
    out: list[Factor] = []
    i = j = 0
    x = a[0].size if a else None
    y = b[0].size if b else None
    while i < len(a) and j < len(b):
        if match_flags and a[i].reduced != b[j].reduced:
            return None
        if x is y:
            out.append(Factor(x, b[j].reduced))
            i, j = i + 1, j + 1
            x = a[i].size if i < len(a) else None
            y = b[j].size if j < len(b) else None
            continue
        # the remaining inner part of the larger one is x // y (or y // x): take the outer part off
        q = _split(x, y, [f.size for f in b[j + 1 :]])
        if q is not None:
            out.append(Factor(y, b[j].reduced))
            x = q
            j += 1
            y = b[j].size if j < len(b) else None
            continue
        q = _split(y, x, [f.size for f in a[i + 1 :]])
        if q is None:
            return None
        out.append(Factor(x, b[j].reduced))
        y = q
        i += 1
        x = a[i].size if i < len(a) else None
    return out if i == len(a) and j == len(b) else None


def _split(big: Expr, outer: Expr, rest: Sequence[Expr]) -> Expr | None:
    """big / outer where outer divides big properly."""
    if not rest:
        return None
    if big.is_const and outer.is_const and big.value < outer.value:
        return None
    q = divides(outer, big)
    return None if q is None or q is ONE else q


def map_axes(axes: Sequence[Axis], factors: Sequence[Factor], chosen: Sequence[int]) -> dict[str, Expr] | None:
    """Each axis symbol as an expression over the symbols g<k> of the factors with indices `chosen`, which refine the
    axes.
    """
    out: dict[str, Expr] = {}
    k = 0
    for axis in axes:
        want = as_expr(axis.size)
        taken: list[int] = []
        prod = integer(1)
        while prod is not want:
            if k == len(chosen):
                return None
            taken.append(chosen[k])
            prod = prod * factors[chosen[k]].size
            k += 1
        e, stride = integer(0), integer(1)
        for t in reversed(taken):
            e, stride = e + _symbols[t] * stride, stride * factors[t].size
        out[axis.symbol.name] = e
    return out if k == len(chosen) else None


def factor_symbol(k: int) -> Expr:
    return _symbols[k]


def size_hint(e: object, hints: dict[str, int]) -> int:
    """A size at the hints; symbols without a hint stand for 64."""
    if isinstance(e, int):
        return e
    e = as_expr(e)
    if e.is_const:
        return e.value
    return e.eval({name: hints.get(name, 64) for name in e.symbol_names()})


def numel_hint(sizes: Sequence[object], hints: dict[str, int]) -> int:
    n = 1
    for size in sizes:
        n *= size_hint(size, hints)
    return n
