"""Matrix products. On machines where generated code multiplies faster than the library that torch calls, a float32
product on the CPU is a loop nest like any other reduction, which later operators join as its epilogue; elsewhere it is
a library call, but for those on a GPU that gpu_products.py knows."""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch

from ....base import processor
from ....symbolic.expr import as_expr
from ...ir import Value, const, index, prim, round_to
from ...context import Lowering
from ...rule_table import NoRule, rule
from ...buffer_strides import strides_of
from ...promote import operand
from ...ref import Ref, dim_symbol, is_one, numel, remap, same
from .gpu_products import few_rows, hint, in_memory, on_gpu

LEAST = 8  # of every size; below, a vector of the result is mostly empty
WORK = 4096  # multiplications
# elements of an attention's scores, up to which they are better kept than computed piece by piece. Beyond a few times a
# core's cache they come from memory: of torch's kernel's time, 0.8 to 0.95 for 0.5 MB, 1.0 for 1.9 MB, 1.05 to 1.2 for
# 3.7 MB, 1.1 to 2 for 12 to 25 MB (one thread, 0.5 MB of cache)
SCORES = 1 << 19


def generated(lo: Lowering, node: Any, refs: Sequence[Ref]) -> bool:
    """Whether this product is worth a loop nest."""
    a, b = refs[-2:]
    if any(ref.dtype != torch.float32 for ref in refs):
        return False
    return worth_it(lo, lo.meta(node), (a.shape[-2], a.shape[-1], b.shape[-1]), same(a.shape[-1], b.shape[-2]))


def worth_it(lo: Lowering, m: Any, sizes: Sequence[Any], fits: bool) -> bool:
    """Whether a product of these (rows, inner size, columns), whose result is `m`, is worth a loop nest."""
    choice = lo.opts.get("cpu_products", "auto")
    if choice == "library" or lo.emulate or not (choice == "generated" or processor.generated_products_win()):
        return False
    rows, k, columns = (hint(lo, size) for size in sizes)
    if not fits or m.dtype != torch.float32 or m.device.type != "cpu" or min(k, columns) < LEAST:
        return False
    return rows == 1 or rows * k * columns >= WORK


def in_float32(lo: Lowering, node: Any, a: Ref, b: Ref) -> Ref | None:
    """The product in float32 where neither torch's library nor a product's own kernel is as good: on a GPU, and on a
    CPU of a few rows with a matrix that is computed from fewer bytes, which is never stored then."""
    m = lo.meta(node)
    if m.on_gpu or m.device.type != "cpu":
        return on_gpu(lo, node, a, b)
    ours = not lo.emulate and lo.opts.get("cpu_products", "auto") != "library" and a.dtype == b.dtype == m.dtype
    return few_rows(lo, m, a, b) if ours else None


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
    out = lo.reduce(
        "sum",
        prim("mul", left.value, right.value),
        shape,
        [n - 1],
        False,
        stride=stride,
        suffix=suffix,
        logical_order=True,
    )
    lo.steps[-1].product = True
    return out


@rule("aten.mm.default", "aten.bmm.default")
def mm(lo: Lowering, node: Any, a: Ref, b: Ref, **kwargs: Any) -> Any:
    out = in_float32(lo, node, a, b) if not kwargs else None
    if out is not None:
        return lo.pointwise(round_to(out.value, lo.meta().dtype))
    if not kwargs and generated(lo, node, (a, b)):
        out = nest(lo, node, a, b, strides_of(lo.meta(node)), "")
        if out is not None:
            return out
    return lo.extern(node, (a, b), kwargs, "matrix product")


@rule("aten.addmm.default", "aten.baddbmm.default")
def addmm(lo: Lowering, node: Any, c: Ref, a: Ref, b: Ref, *, beta: Any = 1, alpha: Any = 1, **kwargs: Any) -> Any:
    plain = not kwargs and isinstance(alpha, (int, float)) and isinstance(beta, (int, float))
    out = in_float32(lo, node, a, b) if plain else None
    if out is not None:
        return lo.pointwise(round_to(_plus(c, out, beta, alpha), lo.meta().dtype))
    if (
        not kwargs
        and isinstance(alpha, (int, float))
        and isinstance(beta, (int, float))
        and generated(lo, node, (c, a, b))
    ):
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


@rule("aten._scaled_dot_product_flash_attention_for_cpu.default")
def attention(
    lo: Lowering,
    node: Any,
    q: Ref,
    k: Ref,
    v: Ref,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Ref | None = None,
    scale: Any = None,
) -> Any:
    """Scores, their exponentials, and the product with the values: two products whose epilogues scale, mask and divide.
    Rows that are masked as a whole give 0, as in torch's kernel."""
    args = (q, k, v, dropout_p, is_causal)
    kwargs = {"attn_mask": attn_mask, "scale": scale}
    if not isinstance(dropout_p, (int, float)) or dropout_p != 0.0 or not _attention_fits(lo, node, q, k, v, scale):
        return lo.extern(node, args, kwargs, "attention")
    keys = remap(
        k,
        (*k.shape[:-2], k.shape[-1], k.shape[-2]),
        {0: dim_symbol(4, 0), 1: dim_symbol(4, 1), 2: dim_symbol(4, 3), 3: dim_symbol(4, 2)},
    )
    product = nest(lo, node, q, keys, None, "_product")
    if product is None:
        return lo.extern(node, args, kwargs, "attention")
    f32 = torch.float32
    x = prim("mul", product.value, const(1.0 / math.sqrt(q.shape[-1]) if scale is None else scale, f32))
    if attn_mask is not None:
        x = prim("add", x, operand(attn_mask, f32))
    if is_causal:
        row, column = (index(as_expr(0) if is_one(product.shape[d]) else dim_symbol(4, d)) for d in (2, 3))
        x = prim("where", prim("le", column, row), x, const(-math.inf, f32))
    scores = lo.store(x, product.shape, f32, suffix="_scores")
    top = lo.reduce("max", scores.value, scores.shape, [3], True, suffix="_max")
    lowest = prim("eq", top.value, const(-math.inf, f32))
    e = lo.store(
        prim("exp", prim("sub", scores.value, prim("where", lowest, const(0.0, f32), top.value))),
        scores.shape,
        f32,
        suffix="_exp",
    )
    total = lo.reduce("sum", e.value, scores.shape, [3], True, suffix="_sum")
    out = nest(lo, node, e, v, None, "_mixed")
    if out is None:
        raise NoRule("values whose elements share memory")
    result = lo.store(
        prim("div", out.value, prim("where", lowest, const(1.0, f32), total.value)),
        out.shape,
        f32,
        strides_of(lo.meta(k=0)),
        "_0",
    )
    log = prim("add", top.value, prim("log", total.value))
    flat = remap(Ref(top.shape, f32, log), top.shape[:3], {d: dim_symbol(3, d) for d in range(3)})
    return result, lo.store(flat.value, flat.shape, f32, strides_of(lo.meta(k=1)), "_1")


def _attention_fits(lo: Lowering, node: Any, q: Ref, k: Ref, v: Ref, scale: Any) -> bool:
    if any(r.ndim != 4 or r.dtype != torch.float32 for r in (q, k, v)) or not (
        scale is None or isinstance(scale, (int, float))
    ):
        return False
    if not all(same(size, y) and same(size, z) for size, y, z in zip(q.shape[:2], k.shape, v.shape)) or not same(
        k.shape[2], v.shape[2]
    ):
        return False
    if not isinstance(q.shape[-1], int) or hint(lo, numel((*q.shape[:3], k.shape[2]))) > SCORES:
        return False
    return (
        worth_it(lo, lo.meta(node, 0), (q.shape[2], q.shape[3], k.shape[2]), same(q.shape[3], k.shape[3]))
        and hint(lo, v.shape[3]) >= LEAST
    )
