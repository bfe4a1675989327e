"""What one kernel computes as a whole, tile by tile, instead of by loops: attention, its gradients, chains of products.

Fusion finds them (fusion/tiled), and a printer has a text for each (codegen/triton/tiles). Their operands are values of
the loop IR (ir.py), whose stages go on from their results.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..symbolic.expr import Expr, add_all, as_expr, mul_all, symbol
from .ir import Axis, Template, Value

__all__ = ["Attention", "AttentionGradients", "AttentionTemplate", "ChainedProducts", "DropoutAttention", "WORD"]


@dataclass
class AttentionTemplate(Template):
    """What forms of attention have in common: their axes, and queries, keys and values as loads over them."""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    keys: Axis
    inner: Axis
    columns: Axis
    q: Value
    k: Value
    v: Value

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.batch, *self.rows, self.keys, self.inner, self.columns)

    @property
    def flops(self) -> Expr:
        return mul_all(
            [2, *(a.size for a in (*self.batch, *self.rows, self.keys)), as_expr(self.inner.size) + self.columns.size]
        )


@dataclass
class Attention(AttentionTemplate):
    """softmax(score) @ v, where scores are never in memory. The kernel's outer axes are `batch`, `rows` and `columns`;
    its first stage finds the result as `acc` "mixed" (float32). There may be a second one, of rows alone, which finds
    their greatest score as "top" (-inf where there is none) and their sum of exp(score - top) as "total".

        for batch, rows in parallel:
            for keys:                  product = sum(q * k for inner)
            for columns:               mixed = sum(softmax(score) * weight * v for keys)

    q (over batch, rows, inner), k (batch, keys, inner) and v (batch, keys, columns) are of one dtype; `score` is
    float32, over batch, rows, keys and `acc` "product". `empty`: what a row gives whose scores are all -inf, nan or 0.
    `weight` (float32, over batch, rows and keys; None: 1): a dropout's mask.
    """

    score: Value
    empty: float
    weight: Value | None = None

    @property
    def outer(self) -> tuple[Axis, ...]:
        """The kernel's outer axes."""
        return (*self.batch, *self.rows, self.columns)

    @property
    def results(self) -> tuple[str, ...]:
        """What the kernel's stages find, float32."""
        return ("mixed", "top", "total")

    def roots(self) -> list[Value]:
        return [self.q, self.k, self.v, self.score, *([] if self.weight is None else [self.weight])]


WORD = symbol("w0")  # of a key: the bits of 32 keys are one word


@dataclass
class DropoutAttention(AttentionTemplate):
    """Attention of 16-bit numbers as training runs it (ops/dropout_attention.py). q, k and v are loads as in Attention,
    `words` is one over batch, rows and WORD; `keep`: the probability that a bit is 1.

        for batch, rows in parallel:
            p = softmax(q @ k * scale over keys that are not behind the row, where `causal`)
            for columns:               mixed = sum(p * bit / keep * v for keys)
            logarithm = log2(sum(exp(q @ k * scale) for keys))
    """

    words: Value
    keep: float
    causal: bool
    scale: float

    @property
    def outer(self) -> tuple[Axis, ...]:
        return (*self.batch, *self.rows)

    @property
    def results(self) -> tuple[str, ...]:
        return ("mixed", "logarithm")

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


@dataclass
class ChainedProducts(Template):
    """Sums over keys of columns times what is computed from products, which are never in memory. The kernel's outer
    axes are `batch` and `rows`; it has a stage for each result, over its columns, which finds the sum as `acc` "sum0",
    "sum1" ... (float32).

        for batch, rows in parallel:
            for keys:                    product<k> = sum(a * b for inner), for each of `products`
            for columns of each result:  sum<j> = sum(factor * c for keys)

    `products`: (inner axis, a over batch, rows and it, b over batch, keys and it), of 16 bits. `sums`: (columns,
    factor, c): float32, over batch, rows, keys and `acc` "product<k>", rounded to the 16 bits of c, which is over
    batch, keys and columns.
    """

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    keys: Axis
    products: tuple[tuple[Axis, Value, Value], ...]
    sums: tuple[tuple[Axis, Value, Value], ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.outer, self.keys, *(p[0] for p in self.products), *(s[0] for s in self.sums))

    @property
    def outer(self) -> tuple[Axis, ...]:
        """The kernel's outer axes."""
        return (*self.batch, *self.rows)

    @property
    def results(self) -> tuple[str, ...]:
        return tuple([f"sum{j}" for j in range(len(self.sums))])

    @property
    def flops(self) -> Expr:
        n = add_all([as_expr(x[0].size) for x in (*self.products, *self.sums)])
        return mul_all([2, *(a.size for a in (*self.outer, self.keys)), n])

    def roots(self) -> list[Value]:
        return [*(v for _, a, b in self.products for v in (a, b)), *(v for _, f, c in self.sums for v in (f, c))]
