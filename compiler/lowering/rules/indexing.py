"""Reading at computed positions: an index tensor becomes part of a load's index. Positions are checked as eager checks
them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import torch

from ...symbolic.expr import Expr, as_expr
from ...symbolic.simplify import bounds
from ..ir import Value, cast, check_index, const, index, indirect_symbol, prim
from ..context import Lowering
from ..rewrite import still_checked
from ..rule_table import NoRule, rule
from ..ref import Ref, dim_symbol, is_empty, is_one, ranges_of, remap


def refuse_nothing(size: Any) -> None:
    """Nothing can be read at any position of a dimension of size 0, not even before the position is found to be wrong:
    torch's kernel says so.
    """
    if as_expr(size) is as_expr(0):
        raise NoRule("an index into a dimension of size 0")


def position(i: Value, size: Any, message: str, wrap: bool, shape: Sequence[Any] = ()) -> Expr:
    """An index expression for the element of an index tensor: wrapped where negative counts from the end, and checked.
    What is made of axes (an arange) and known to be in range over `shape` needs neither."""
    refuse_nothing(size)
    i = cast(i, torch.int64)
    if i.op == "index":
        least, most = bounds(i.attr, ranges_of(shape))
        if least is not None and most is not None and least >= 0 and type(size) is int and most < size:
            return i.attr
    n = extent(size)
    return indirect_symbol(check_index(from_the_end(i, n) if wrap else i, n, message))


def extent(size: Any) -> Value:
    return const(size, torch.int64) if type(size) is int else index(as_expr(size))


def from_the_end(i: Value, value: Value) -> Value:
    """A position among `value` of which negative ones count from the end."""
    return prim("where", prim("lt", i, const(0, torch.int64)), prim("add", i, value), i)


@rule("aten.embedding.default")
def embedding(lo: Lowering, node: Any, weight: Ref, ids: Ref, *args: Any, **kw: Any) -> Ref:
    shape = lo.out_shape()
    ndim = len(shape)
    at = remap(ids, ids.shape + (1,), {dim: dim_symbol(ndim, dim) for dim in range(ids.ndim)})
    row = position(at.value, weight.shape[0], "IndexError: index out of range in self", False, shape)
    return lo.pointwise(_read(weight, shape, {0: row, 1: dim_symbol(ndim, ndim - 1)}))


def _read(x: Ref, shape: tuple, of_dim: dict[int, Any]) -> Value:
    """x at the given positions. A position is checked even where it leaves nothing to choose: in a dimension of size 1,
    or one that is expanded.
    """
    asked = set().union(*(e.symbol_names() for e in of_dim.values() if isinstance(e, Expr)))
    return still_checked(remap(x, shape, of_dim).value, asked)


@rule("aten.index_select.default")
def index_select(lo: Lowering, node: Any, x: Ref, dim: int, ids: Ref) -> Ref:
    if x.ndim == 0:
        raise NoRule("index_select of a 0-dim tensor")
    shape = lo.out_shape()
    dim %= x.ndim
    at = remap(
        Ref((1,), ids.dtype, ids.value) if ids.ndim == 0 else ids,
        (ids.shape[0] if ids.ndim else 1,) + (1,) * (x.ndim - 1 - dim),
        {0: dim_symbol(x.ndim, dim)},
    )
    m: dict[int, Any] = {d: dim_symbol(x.ndim, d) for d in range(x.ndim)}
    m[dim] = position(at.value, x.shape[dim], "IndexError: index out of range in self", False, shape)
    return lo.pointwise(_read(x, shape, m))


@rule("aten.gather.default")
def gather(lo: Lowering, node: Any, x: Ref, dim: int, ids: Ref, **kw: Any) -> Ref:
    x, ids = (Ref((1,), t.dtype, t.value) if t.ndim == 0 else t for t in (x, ids))
    dim %= x.ndim
    m: dict[int, Any] = {d: dim_symbol(x.ndim, d) if not is_one(ids.shape[d]) else 0 for d in range(x.ndim)}
    message = f"RuntimeError: index out of bounds for dimension {dim} with size {x.shape[dim]}"
    if is_empty(ids.shape):
        return lo.pointwise(const(0, x.dtype))  # nothing is read: nothing is out of bounds
    m[dim] = position(ids.value, x.shape[dim], message, False, ids.shape)
    return lo.pointwise(_read(x, ids.shape, m))


class Indexed(NamedTuple):
    """What tensors of indices do to the dimensions of what they index."""

    used: list[tuple[int, Ref]]  # the dimensions that are indexed, with the tensor of each
    kept: list[int]  # the others
    first: int  # where the dimensions of the index tensors go among those
    width: int  # how many these are


def indexed(x: Ref, ids: Sequence[Ref | None], of_masks: str) -> Indexed:
    """Raises NoRule with `of_masks` where a mask is among the tensors, or there is none."""
    used = [(dim, places) for dim, places in enumerate(ids) if places is not None]
    if not used or any(places.dtype in (torch.bool, torch.uint8) for _, places in used):
        raise NoRule(of_masks)
    dims = [dim for dim, _ in used]
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    kept = [dim for dim in range(x.ndim) if dim not in dims]
    return Indexed(used, kept, dims[0] if adjacent else 0, max(places.ndim for _, places in used))


@rule("aten.index.Tensor")
def index_tensor(lo: Lowering, node: Any, x: Ref, ids: Sequence[Ref | None]) -> Ref:
    used, kept, first, width = indexed(x, ids, "indexing by a mask: the result's size depends on values")
    shape = lo.out_shape()
    ndim = len(shape)
    m: dict[int, Any] = {}
    for k, d in enumerate(kept):
        m[d] = dim_symbol(ndim, k if k < first else k + width)
    tail = ndim - first - width  # dimensions of the result to the right of the index's
    for d, i in used:
        at = remap(i, i.shape + (1,) * tail, {k: dim_symbol(i.ndim + tail, k) for k in range(i.ndim)})
        message = f"IndexError: index is out of bounds for dimension {d} with size {x.shape[d]}"
        if is_empty(shape):
            return lo.pointwise(const(0, x.dtype))  # as above
        m[d] = position(at.value, x.shape[d], message, True, shape)
    return lo.pointwise(_read(x, shape, m))
