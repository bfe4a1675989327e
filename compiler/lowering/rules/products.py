"""Matrix products. On machines where generated code multiplies faster than the library that torch calls, a float32 product on the
CPU is a loop nest like any other reduction, which later operators join as its epilogue; elsewhere it is a library call."""
from __future__ import annotations

from typing import Any, Sequence

import torch

from ... import machine
from ...symbolic.expr import as_expr
from ..ir import Value, const, prim
from ..lower import Lowering, rule, strides_of
from ..promote import operand
from ..ref import Ref, dim_symbol, is_one, remap, ref_of_buffer, same, strided

LEAST = 8          # of every size; below, a vector of the result is mostly empty
WORK = 16384       # multiplications


def generated(lo: Lowering, node: Any, refs: Sequence[Ref]) -> bool:
    """Whether this product is worth a loop nest."""
    choice = lo.opts.get("cpu_products", "auto")
    if choice == "library" or lo.emulate or not (choice == "generated" or machine.generated_products_win()):
        return False
    m = lo.meta(node)
    if m.dtype != torch.float32 or m.device.type != "cpu" or any(r.dtype != torch.float32 for r in refs):
        return False
    a, b = refs[-2:]
    hints = lo.aten.env.hints if lo.aten.env is not None else {}
    rows, k, columns = (_hint(s, hints) for s in (a.shape[-2], a.shape[-1], b.shape[-1]))
    if min(k, columns) < LEAST or rows < 2 or rows * k * columns < WORK:
        return False
    return all(type(s) is not int or s > 1 for s in (*a.shape, *b.shape)) and same(a.shape[-1], b.shape[-2])


def _hint(s: Any, hints: dict[str, int]) -> int:
    e = as_expr(s)
    return e.value if e.is_const else int(e.eval({n: hints.get(n, 64) for n in e.symbol_names()}))


def in_memory(lo: Lowering, x: Ref) -> Ref | None:
    """The operand as a strided view of a buffer, so that nothing is computed inside the product; None where elements coincide."""
    v = strided(x)
    if v is None:
        x = ref_of_buffer(lo.realise(x))
        v = strided(x)
    if v is None or any(type(st) is int and st == 0 for st, s in zip(v[1], x.shape) if not is_one(s)):
        return None
    return x


def nest(lo: Lowering, node: Any, a: Ref, b: Ref, stride: Any, suffix: str) -> Ref | None:
    """sum over k of a[..., m, k] * b[..., k, n] as a loop nest."""
    x, y = in_memory(lo, a), in_memory(lo, b)
    if x is None or y is None:
        return None
    batch = a.shape[:-2]
    n = len(batch) + 3
    shape = (*batch, a.shape[-2], b.shape[-1], a.shape[-1])
    ds = {d: dim_symbol(n, d) for d in range(len(batch))}
    left = remap(x, shape, {**ds, len(batch): dim_symbol(n, n - 3), len(batch) + 1: dim_symbol(n, n - 1)})
    right = remap(y, shape, {**ds, len(batch): dim_symbol(n, n - 1), len(batch) + 1: dim_symbol(n, n - 2)})
    out = lo.reduce("sum", prim("mul", left.value, right.value), shape, [n - 1], False, stride=stride, suffix=suffix, logical_order=True)
    lo.steps[-1].product = True
    return out


@rule("aten.mm.default", "aten.bmm.default")
def mm(lo: Lowering, node: Any, a: Ref, b: Ref, **kwargs: Any) -> Any:
    if not kwargs and generated(lo, node, (a, b)):
        out = nest(lo, node, a, b, strides_of(lo.meta(node)), "")
        if out is not None:
            return out
    return lo.extern(node, (a, b), kwargs, "matrix product")


@rule("aten.addmm.default", "aten.baddbmm.default")
def addmm(lo: Lowering, node: Any, c: Ref, a: Ref, b: Ref, *, beta: Any = 1, alpha: Any = 1, **kwargs: Any) -> Any:
    if not kwargs and isinstance(alpha, (int, float)) and isinstance(beta, (int, float)) and generated(lo, node, (c, a, b)):
        out = nest(lo, node, a, b, None, "_product")
        if out is not None:
            return lo.pointwise(_plus(c, out, beta, alpha))
    return lo.extern(node, (c, a, b), {"beta": beta, "alpha": alpha, **kwargs}, "matrix product")


def _plus(c: Ref, product: Ref, beta: Any, alpha: Any) -> Value:
    """beta * c + alpha * product; with beta 0, c is not looked at."""
    v = product.value if alpha == 1 else prim("mul", product.value, const(alpha, torch.float32))
    if beta == 0:
        return v
    w = operand(c, torch.float32)
    return prim("add", v, w if beta == 1 else prim("mul", w, const(beta, torch.float32)))
