"""What else is computed of attention's scores than their softmax: the maximum and the sum of exponentials of each row,
and what follows from these alone.

An attention kernel has both numbers at its end (templates.Contraction: "top", "total"), so that it stores what others
read of them: the logarithm of the sum, which training keeps and programs ask for (return_lse), in any spelling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...lowering.ir import Buffer, LoopNest, Value, load, loads
from ...lowering.lowered import View
from ...lowering.rewrite import Rewriter, tidy
from ...symbolic.expr import Expr, as_expr
from .match import RowNumbers
from .producers import KEY, Finder, NoMatch, inverse
from .row_patterns import number_of_row

__all__ = ["RowResult", "row_results"]


@dataclass
class RowResult:
    """A nest of rows alone, and what it stores, where: over a kernel's axes, of its accs."""

    nest: LoopNest
    index: Expr
    value: Value


def row_results(finder: Finder, numbers: RowNumbers, ranges: dict[str, tuple]) -> dict[Buffer, RowResult]:
    """Nests that are such, by what they store. `ranges`: of the kernel's axes."""
    scores, domain, names = numbers.scores, numbers.domain, numbers.names
    key = next(name for name, e in names.items() if e is KEY)
    mine = {axis.symbol.name: (0, axis.size) for axis in domain}
    out: dict[Buffer, RowResult] = {}
    for nest in _reductions(finder, numbers.product):
        if len(nest.domain) != len(domain) or not all(
            as_expr(axis.size) is as_expr(b.size) for axis, b in zip(nest.domain, domain)
        ):
            continue
        m: dict[str, Expr] = {axis.symbol.name: b.symbol for axis, b in zip(nest.domain, domain)}
        if m[nest.reduce_axes[0].symbol.name].name != key:
            continue
        try:
            in_its_symbols = Rewriter(lambda e, m=m: tidy(e.subs(m), mine))  # type: ignore[misc]
            made = number_of_row(finder, nest.reduce_op, in_its_symbols(nest.value), scores, mine)
        except NoMatch:
            continue
        if made is not None:
            out[nest.buffer] = RowResult(nest, tidy(nest.index.subs(m).subs(names), ranges), made)
    todo = list(out)
    while todo:
        b = todo.pop()
        for nest in finder.readers.get(b, ()):
            if (
                isinstance(nest, LoopNest)
                and nest.buffer not in out
                and finder.producer(load(nest.buffer, nest.index)) is nest
            ):
                found = _follows(nest, b, out, ranges)
                if found is not None:
                    out[nest.buffer] = found
                    todo.append(nest.buffer)
    return out


def _reductions(finder: Finder, product: Buffer) -> list[LoopNest]:
    """What reduces to one number what is computed of a product, element by element."""
    out: list[LoopNest] = []
    todo, seen = [product], {product}
    while todo:
        for s in finder.readers.get(todo.pop(), ()):
            b: Any = s.buffer if isinstance(s, (View, LoopNest)) else None
            if b is None or b in seen or finder.made.get(b) is not s:
                continue
            seen.add(b)
            if isinstance(s, View) or s.reduce_op is None and finder.leads(b):
                todo.append(b)
            elif (
                s.reduce_op in ("max", "sum")
                and not s.scan
                and len(s.reduce_axes) == 1
                and s.value.dtype == torch.float32
            ):
                out.append(s)
    return out


def _follows(
    nest: LoopNest, buffer: Buffer, known: dict[Buffer, RowResult], ranges: dict[str, tuple]
) -> RowResult | None:
    """An element-wise nest that reads `buffer`, where it reads what is known of the same row alone."""
    reads = loads([nest.value])
    e = next((read.attr[1] for read in reads if read.attr[0] is buffer), None)
    if e is None or any(read.args or read.attr[0] not in known for read in reads):
        return None
    m = inverse(nest.domain, e, known[buffer].index, ranges)
    if m is None or any(tidy(read.attr[1].subs(m), ranges) is not known[read.attr[0]].index for read in reads):
        return None
    value = Rewriter(lambda e: tidy(e.subs(m), ranges), lambda x, _: known[x].value)(nest.value)
    return RowResult(nest, tidy(nest.index.subs(m), ranges), value)
