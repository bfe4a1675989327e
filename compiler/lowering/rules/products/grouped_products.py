"""Products of groups on a GPU as loop nests (product_groups.py), where a product of tiles would be one
(gpu_products.py), and where the library's call is slower for certain. It has no kernel for float16: it asks the host
where groups end, and multiplies one by one, which takes three times as long. Its tiles are made for many rows of a
group."""

from __future__ import annotations

from typing import Any

import torch

from ...product_groups import Ends, group_at, of_group, of_its_group
from ...ir import index, indirect_symbol, round_to
from ...context import Lowering
from ...rule_table import NoRule, rule
from ...ref import Ref, dim_symbol, is_one, remap, strided
from ....symbolic.expr import as_expr, symbol
from .gpu_products import hint, in_memory, may_be_ours, on_gpu, operands, sum_of_products

LEAST_ROWS = 2
FEW_ROWS = (
    8  # of a group on the average, up to which the weights are all that counts: 0.6 of the library's time, on an H200
)


@rule("aten._grouped_mm.default")
def grouped_mm(
    lo: Lowering, node: Any, a: Ref, b: Ref, offs: Ref | None = None, bias: Ref | None = None, out_dtype: Any = None
) -> Ref:
    meta = lo.meta()
    if offs is None:
        out = on_gpu(lo, node, a, b)
    else:
        out = _in_groups(lo, node, meta, a, b, offs) if bias is None and may_be_ours(lo, meta, a, b) else None
    if out is None:
        raise NoRule("matrix product")
    return lo.pointwise(round_to(out.value, meta.dtype))


def _in_groups(lo: Lowering, node: Any, m: Any, a: Ref, b: Ref, offs: Ref) -> Ref | None:
    """The product in float32; None where the library multiplies."""
    line = strided(in_memory(lo, offs) or offs)
    if line is None or type(offs.shape[0]) is not int or not offs.shape[0] or hint(lo, a.shape[-2]) < LEAST_ROWS:
        return None
    found = operands(lo, node, m, a, b, _better(m, a, b, offs))
    if found is None:
        return None
    x, y = found
    ends = Ends(line[0], symbol("lane") * line[1][0] + line[2], offs.shape[0])
    d = [dim_symbol(4, k) for k in range(4)]  # group, row, column, place in the sum
    if a.ndim == b.ndim:
        shape = (offs.shape[0], a.shape[-2], b.shape[-1], a.shape[-1])
        left, right = remap(x, shape, {0: d[1], 1: d[3]}), remap(y, shape, {0: d[3], 1: d[2]})
        group, which = group_at(ends, index(d[3])), index(as_expr(0) if is_one(shape[0]) else d[0])
        return sum_of_products(lo, of_group(group, which, left.value), of_group(group, which, right.value), shape)
    shape = (a.shape[-2], b.shape[-1], a.shape[-1])
    rows = a.ndim == 2
    group = group_at(ends, index(d[1] if rows else d[2]))
    one = {} if is_one(offs.shape[0]) else {0: indirect_symbol(group)}
    left = remap(x, shape, {0: d[1], 1: d[3]} if rows else {**one, 1: d[1], 2: d[3]})
    right = remap(y, shape, {**one, 1: d[3], 2: d[2]} if rows else {0: d[3], 1: d[2]})
    if rows:
        return sum_of_products(lo, left.value, of_its_group(group, ends, right.value), shape)
    return sum_of_products(lo, of_its_group(group, ends, left.value), right.value, shape)


def _better(m: Any, a: Ref, b: Ref, offs: Ref) -> bool:
    """Whether tiles of ours are faster for certain: of sizes that stay, which tiles are chosen for."""
    if not all(type(size) is int for x in (a, b) for size in x.shape):
        return False
    return m.dtype == torch.float16 or a.ndim == 2 and b.ndim == 3 and a.shape[0] <= FEW_ROWS * offs.shape[0]
