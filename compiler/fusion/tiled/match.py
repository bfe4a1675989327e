"""What a matcher finds: one sum over the keys of a row, of which contractions.py makes a kernel.

product = sum(a * b for inner)        each of `products`, made again where it is needed
result = sum(factor * c for keys)     with a `score`, its softmax over the keys is one more factor
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from ...lowering.ir import Axis, Buffer, Value, const, prim
from ...lowering.lowered import Extern
from ...symbolic.expr import Expr, as_expr
from .producers import COLUMN, INNER

__all__ = ["Match", "Product", "RowNumbers", "ranges_of"]


@dataclass(frozen=True)
class Product:
    """An inner product: `a` over batch, rows and inner, `b` over batch, keys and inner. What is scaled in a copy of an
    operand is scaled here; `plus`: (factor of the product, what is added to it), as baddbmm has it."""

    inner: int
    a: Value
    b: Value
    scale: float = 1.0
    plus: tuple[Any, Value] | None = None

    def element(self, made: Value) -> Value:
        """What stands for an element, where `made` is the sum."""
        if self.scale != 1:
            made = prim("mul", made, const(self.scale, torch.float32))
        if self.plus is None:
            return made
        factor, added = self.plus
        return prim("add", made if factor == 1 else prim("mul", made, const(factor, torch.float32)), added)


@dataclass(frozen=True)
class RowNumbers:
    """Where steps may read numbers of the softmax's rows: its scores are made from `product`, over `domain`, whose axes
    are those of a kernel by `names`."""

    product: Buffer
    scores: Value
    domain: Sequence[Axis]
    names: dict[str, Expr]


@dataclass
class Match:
    """Over axes i<k> (batch), m<k> (rows), r0 (keys), d0 (inner), c0 (columns)."""

    step: Extern  # that makes the result, as its first output
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    keys: Axis
    columns: Any
    products: dict[Value, Product]  # by what stands for an element in `factor` and `score`: a load, or its sum
    factor: Value | None
    c: Value
    index: Expr  # of the result in its buffer
    lines: list[tuple]
    origins: list[str]
    score: Value | None = None
    empty: float = math.nan  # what a row gives whose scores are all -inf
    numbers: RowNumbers | None = None

    @property
    def space(self) -> tuple:
        return tuple((axis.symbol, as_expr(axis.size)) for axis in (*self.batch, *self.rows, self.keys))

    def ranges(self) -> dict[str, tuple]:
        inner = max((product.inner for product in self.products.values()), default=1)
        return ranges_of((*self.batch, *self.rows, self.keys), inner, self.columns)


def ranges_of(axes: Sequence[Axis], inner: Any, columns: Any) -> dict[str, tuple]:
    return {axis.symbol.name: (0, axis.size) for axis in (*axes, Axis(INNER, inner), Axis(COLUMN, columns))}
