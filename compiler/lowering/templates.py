"""What one kernel computes as a whole, tile by tile, instead of by loops: contractions over the keys of a row
(attention, its gradients, chains of products), and attention with dropout.

Fusion finds them (fusion/tiled), and a printer has a text for each (codegen/triton/tiles). Their operands are values of
the loop IR (ir.py), whose stages go on from their results.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..symbolic.expr import Expr, add_all, as_expr, mul_all, symbol
from .ir import Axis, Template, Value

__all__ = ["AttentionGradients", "Contraction", "DropoutAttention", "InnerProduct", "Softmax", "WORD", "WeightedSum"]


@dataclass(frozen=True)
class InnerProduct:
    """`name` = sum(a * b for inner): a over batch, rows and inner, b over batch, keys and inner, of one dtype."""

    name: str
    inner: Axis
    a: Value
    b: Value


@dataclass(frozen=True)
class Softmax:
    """What is kept of a row: the softmax of `score` (float32, over batch, rows, keys and inner products). `empty`: what
    a row gives whose scores are all -inf, nan or 0."""

    score: Value
    empty: float


@dataclass(frozen=True)
class WeightedSum:
    """`name` = sum(factor * c for keys), in float32. `factor` (float32, over batch, rows, keys and inner products;
    None: 1) is rounded to the dtype of c, which is over batch, keys and columns."""

    name: str
    columns: Axis
    factor: Value | None
    c: Value


@dataclass
class Contraction(Template):
    """Sums over keys whose factors are made of inner products, which are never in memory. The kernel's outer axes are
    `batch` and `rows`. It has a stage for each sum, over its columns.

        for batch, rows in parallel:
            for keys:                 product = sum(a * b for inner), for each of `products`
            for columns of each sum:  sum(factor * c for keys), for each of `sums`

    With a `softmax`, that of its score is multiplied into every factor: attention is a product, a softmax and a sum.
    One more stage, of rows alone, may find their greatest score as "top" (-inf where there is none) and their sum of
    exp(score - top) as "total".
    """

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    keys: Axis
    products: tuple[InnerProduct, ...]
    sums: tuple[WeightedSum, ...]
    softmax: Softmax | None = None

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.outer, self.keys, *(product.inner for product in self.products), *(s.columns for s in self.sums))

    @property
    def outer(self) -> tuple[Axis, ...]:
        return (*self.batch, *self.rows)

    @property
    def results(self) -> tuple[str, ...]:
        return (*(s.name for s in self.sums), *(() if self.softmax is None else ("top", "total")))

    @property
    def flops(self) -> Expr:
        n = add_all(
            [as_expr(a.size) for a in (*(product.inner for product in self.products), *(s.columns for s in self.sums))]
        )
        return mul_all([2, *(a.size for a in (*self.outer, self.keys)), n])

    def roots(self) -> list[Value]:
        return [
            *(v for product in self.products for v in (product.a, product.b)),
            *([] if self.softmax is None else [self.softmax.score]),
            *(v for s in self.sums for v in (s.factor, s.c) if v is not None),
        ]


WORD = symbol("w0")  # of a key: the bits of 32 keys are one word


@dataclass
class DropoutAttention(Template):
    """Attention of 16-bit numbers as training runs it (ops/dropout_attention.py). q (over batch, rows, inner), k
    (batch, keys, inner) and v (batch, keys, columns) are loads, `words` is one over batch, rows and WORD; `keep`: the
    probability that a bit is 1.

        for batch, rows in parallel:
            p = softmax(q @ k * scale over keys that are not behind the row, where `causal`)
            for columns:               mixed = sum(p * bit / keep * v for keys)
            logarithm = log2(sum(exp(q @ k * scale) for keys))
    """

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    keys: Axis
    inner: Axis
    columns: Axis
    q: Value
    k: Value
    v: Value
    words: Value
    keep: float
    causal: bool
    scale: float

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.batch, *self.rows, self.keys, self.inner, self.columns)

    @property
    def outer(self) -> tuple[Axis, ...]:
        return (*self.batch, *self.rows)

    @property
    def results(self) -> tuple[str, ...]:
        return ("mixed", "logarithm")

    @property
    def flops(self) -> Expr:
        return mul_all(
            [2, *(a.size for a in (*self.batch, *self.rows, self.keys)), as_expr(self.inner.size) + self.columns.size]
        )

    def roots(self) -> list[Value]:
        return [self.q, self.k, self.v, self.words]


@dataclass
class AttentionGradients(DropoutAttention):
    """Its backward pass: the gradients dq (over batch, rows, inner), dk (batch, keys, inner) and dv (batch, keys,
    columns) from those of the result, `grad` (batch, rows, columns), the result and its `logarithm` (batch, rows)."""

    grad: Value
    result: Value
    logarithm: Value

    @property
    def outer(self) -> tuple[Axis, ...]:
        return self.batch

    @property
    def results(self) -> tuple[str, ...]:
        return "dq", "dk", "dv"

    @property
    def flops(self) -> Expr:
        return super().flops * 5 // 2

    def roots(self) -> list[Value]:
        return [*super().roots(), self.grad, self.result, self.logarithm]
