"""Positions in 32 bits, so that masks of pads, joins and triangles, and numbers made of positions, leave the vectors as
wide as the data's.

A position that is known to be small becomes a float by way of int32. a < b is the sign of a - b, which stays right
where the difference at the first lane is held within 2**30: `index` nodes of type int32 are such differences, whatever
the sizes. What a small position is compared with (the length of a row, in int64) is held likewise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ...lowering.ir import Kernel, Stage, Value, cast, const, index, known_position, make, prim, walk
from ...lowering.primitives import COMPARISONS
from ...lowering.rewrite import Rewriter
from ...symbolic.expr import Expr, integer, maximum, minimum

__all__ = ["shorten_positions", "held", "is_short_index"]

_MOST = 1 << 30


def held(expr: Expr) -> Expr:
    """`expr` where it is small, else something of its sign that is large."""
    return minimum(maximum(expr, integer(-_MOST)), integer(_MOST))


def is_short_index(value: Value) -> bool:
    """A position as int32: its lanes are counted in int32 from the start."""
    return value.op == "cast" and value.dtype is torch.int32 and value.args[0].op == "index"


def shorten_positions(kernel: Kernel) -> Kernel:
    """The same kernel with comparisons of affine positions as comparisons of their difference with 0, and such
    casts.
    """
    outer = {axis.symbol.name: axis.size for axis in kernel.outer}
    stages = []
    for st in kernel.stages:
        short = _Shortener({**outer, **{axis.symbol.name: axis.size for axis in st.axes}})
        stages.append(
            Stage(
                st.axes,
                [replace(acc, value=short(acc.value)) for acc in st.accs],
                [replace(store, value=short(store.value)) for store in st.stores],
            )
        )
    return replace(kernel, stages=stages)


class _Shortener(Rewriter):
    def __init__(self, sizes: dict[str, Any]):
        super().__init__()
        self.sizes = sizes

    def _is_small(self, expr: Expr) -> bool:
        if not expr.is_affine:
            return False
        reach = 0
        for coeff, atoms in expr.terms():
            sizes = [self.sizes.get(atom.name) for atom in atoms]
            if len(sizes) > 1 or not all(isinstance(size, int) for size in sizes):
                return False
            reach += abs(coeff) * max(1, *sizes, 1)
        return reach < _MOST

    def _rebuild(self, value: Value) -> Value:
        value = super()._rebuild(value)
        if (
            value.op == "cast"
            and value.dtype.is_floating_point
            and value.args[0].op == "index"
            and value.args[0].dtype == torch.int64
            and self._is_small(value.args[0].attr)
        ):
            return make("cast", value.dtype, (cast(value.args[0], torch.int32),), value.attr)
        if value.op not in COMPARISONS or value.args[0].dtype != torch.int64:
            return value
        a, b = map(known_position, value.args)
        if a is None or b is None:
            return self._beside_numbers(value)
        if not (a - b).is_affine or not (a - b).symbol_names():
            return value
        return make(value.op, torch.bool, (index(a - b, torch.int32), const(0, torch.int32)))

    def _beside_numbers(self, value: Value) -> Value:
        """A small position compared with a number of int64 that is the same for all of its lanes."""
        at = next(
            (
                arg
                for arg in value.args
                if arg.op == "index" and not arg.args and arg.attr.symbol_names() and self._is_small(arg.attr)
            ),
            None,
        )
        if at is None or any(_varies_with(arg, at.attr.symbol_names()) for arg in value.args if arg is not at):
            return value
        return prim(
            value.op,
            *(
                cast(
                    (
                        arg
                        if arg is at
                        else prim(
                            "minimum", prim("maximum", arg, const(-_MOST, torch.int64)), const(_MOST, torch.int64)
                        )
                    ),
                    torch.int32,
                )
                for arg in value.args
            ),
        )


def _varies_with(x: Value, names: frozenset[str]) -> bool:
    return any(value.op == "acc" or value.symbols & names for value in walk([x]))
