"""Views: substitutions of index symbols. Nothing is computed or copied. Whether the result must alias its base is the
graph stage's business (it has made the graph functional and describes the outputs)."""

from __future__ import annotations

from typing import Any

import torch

from ...symbolic.expr import Expr, as_expr, maximum, maybe_int, minimum
from ...symbolic.places import coincide
from ..ir import const, index, load, prim
from ..context import Lowering
from ..rule_table import NoRule, rule, view_rule
from ..buffer_strides import same_strides, strides_of
from ..ref import Ref, axis, dim_symbol, flat_index, is_one, ranges_of, remap, reshape, same, shape_of, strided
from ..rewrite import tidy


@view_rule("aten.view.default")
def view(lo: Lowering, node: Any, x: Ref, *args: Any) -> Ref:
    return reshape(x, lo.out_shape())


@view_rule("aten.view.dtype")
def view_dtype(lo: Lowering, node: Any, x: Ref, dtype: torch.dtype) -> Ref:
    if dtype == x.dtype:
        return x
    raise NoRule("view as another dtype")


@view_rule("aten.expand.default")
def expand(lo: Lowering, node: Any, x: Ref, *args: Any, **kw: Any) -> Ref:
    return Ref(lo.out_shape(), x.dtype, x.value)  # symbols are counted from the right: nothing to substitute


@view_rule("aten.permute.default")
def permute(lo: Lowering, node: Any, x: Ref, dims: Any) -> Ref:
    return _permute(x, [dim % x.ndim for dim in dims])


def _permute(x: Ref, dims: list[int]) -> Ref:
    ndim = x.ndim
    return remap(x, tuple(x.shape[dim] for dim in dims), {dim: dim_symbol(ndim, k) for k, dim in enumerate(dims)})


@view_rule("aten.unsqueeze.default")
def unsqueeze(lo: Lowering, node: Any, x: Ref, dim: int) -> Ref:
    n = x.ndim + 1
    dim %= n
    return remap(
        x, x.shape[:dim] + (1,) + x.shape[dim:], {d: dim_symbol(n, d if d < dim else d + 1) for d in range(x.ndim)}
    )


@view_rule("aten.squeeze.dims")
def squeeze(lo: Lowering, node: Any, x: Ref, dims: Any = None) -> Ref:
    chosen = range(x.ndim) if dims is None else ([dims] if isinstance(dims, int) else dims)
    gone = {d % x.ndim for d in chosen} if x.ndim else set()
    kept = [dim for dim in range(x.ndim) if dim not in gone or not is_one(x.shape[dim])]
    return remap(x, tuple(x.shape[d] for d in kept), {d: dim_symbol(len(kept), k) for k, d in enumerate(kept)})


def _wrap(i: Any, size: Any) -> Any:
    """A Python index that may be negative."""
    return i if isinstance(i, Expr) or i >= 0 else maybe_int(as_expr(size) + i)


@view_rule("aten.select.int")
def select(lo: Lowering, node: Any, x: Ref, dim: int, i: Any) -> Ref:
    dim %= x.ndim
    kept = [d for d in range(x.ndim) if d != dim]
    m: dict[int, Any] = {d: dim_symbol(len(kept), k) for k, d in enumerate(kept)}
    m[dim] = _wrap(i, x.shape[dim])
    return remap(x, tuple(x.shape[d] for d in kept), m)


def slice_start(start: Any, size: Any) -> Any:
    """Where a slice begins: clamped as Python clamps."""
    if start is None:
        return 0
    start = _wrap(start, size)
    if type(start) is int and type(size) is int:
        return min(max(start, 0), size)
    if type(start) is int and start <= 0:
        return max(start, 0)
    return maybe_int(minimum(maximum(start, 0), size))


@view_rule("aten.slice.Tensor")
def slice_(lo: Lowering, node: Any, x: Ref, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Ref:
    dim %= x.ndim
    shape = lo.out_shape()
    if same(shape[dim], x.shape[dim]) and step == 1:
        return x
    first = as_expr(slice_start(start, x.shape[dim]))
    # a symbolic start that was recorded to leave a whole tail needs no clamp: size = end - start says where it is
    if first.op in ("min", "max") and end is not None and isinstance(end, int) and end >= 2**62:
        first = as_expr(x.shape[dim]) - as_expr(shape[dim]) * step
    s = dim_symbol(x.ndim, dim)
    return remap(x, shape, {dim: first if is_one(shape[dim]) else first + s * step})


# (recorded graphs have the pieces as slices, but for copies)
@rule("aten.split_copy.Tensor", "aten.split_with_sizes_copy.default", any_dtype=True)
def split(lo: Lowering, node: Any, x: Ref, sizes: Any, dim: int = 0) -> tuple:
    dim %= x.ndim
    out, first = [], as_expr(0)
    for k in range(len(lo.meta())):
        shape = lo.out_shape(k=k)
        out.append(remap(x, shape, {dim: first if is_one(shape[dim]) else first + dim_symbol(x.ndim, dim)}))
        first = first + shape[dim]
    return tuple(out)


@rule("aten.unbind_copy.int", any_dtype=True)
def unbind(lo: Lowering, node: Any, x: Ref, dim: int = 0) -> tuple:
    return tuple(select(lo, node, x, dim, k) for k in range(len(lo.meta())))


@view_rule("aten.diagonal.default")
def diagonal(lo: Lowering, node: Any, x: Ref, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Ref:
    ndim = x.ndim
    d1, d2 = dim1 % ndim, dim2 % ndim
    shape = lo.out_shape()
    kept = [dim for dim in range(ndim) if dim not in (d1, d2)]
    m: dict[int, Any] = {d: dim_symbol(ndim - 1, k) for k, d in enumerate(kept)}
    k = as_expr(0) if is_one(shape[-1]) else dim_symbol(ndim - 1, ndim - 2)
    m[d1], m[d2] = k + max(-offset, 0), k + max(offset, 0)
    return remap(x, shape, m)


@view_rule("aten.unfold.default")
def unfold(lo: Lowering, node: Any, x: Ref, dim: int, size: Any, step: Any) -> Ref:
    if x.ndim == 0:
        raise NoRule("unfold of a 0-dim tensor")
    dim %= x.ndim
    shape = lo.out_shape()
    n = x.ndim + 1
    m: dict[int, Any] = {dim: dim_symbol(n, dim) for dim in range(x.ndim)}
    at = as_expr(0) if is_one(shape[dim]) else dim_symbol(n, dim) * step
    m[dim] = at if is_one(shape[-1]) else at + dim_symbol(n, n - 1)
    return remap(x, shape, m)


@view_rule("aten.as_strided.default")
def as_strided(lo: Lowering, node: Any, x: Ref, size: Any, stride: Any, offset: Any = None) -> Ref:
    v, layout, shape = strided(x), strides_of(node.args[0].meta["val"]), lo.out_shape()
    if v is not None and same_strides(x.shape, v[1], layout):
        base, at = v[0], as_expr(v[2])
    else:  # a copy whose copying was left out, or a value that is nowhere yet
        base, at = lo.realise(x, layout, fresh=True), as_expr(0)
    if offset is not None:
        at = at + offset
    return Ref(shape, x.dtype, load(base, flat_index(shape, shape_of(stride)) + at))


# ---- elements moved by index arithmetic: new tensors in eager, index maps here
@rule("aten.flip.default")
def flip(lo: Lowering, node: Any, x: Ref, dims: Any) -> Ref:
    ndim = x.ndim
    m = {dim % ndim: as_expr(x.shape[dim]) - 1 - dim_symbol(ndim, dim % ndim) for dim in dims}
    return lo.pointwise(remap(x, x.shape, m).value)


# ---- a part of a tensor replaced
def no_shared_memory(lo: Lowering) -> None:
    """Eager keeps strides under which elements share memory (a window's), and the part is written over all that lie
    there: its kernel does.
    """
    meta = lo.meta()
    if coincide(shape_of(meta.shape), strides_of(meta)):
        raise NoRule("elements that share memory")


@rule("aten.slice_scatter.default")
def slice_scatter(
    lo: Lowering, node: Any, x: Ref, src: Ref, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Ref:
    dim %= x.ndim
    no_shared_memory(lo)
    first = as_expr(slice_start(start, x.shape[dim]))
    at = axis(x.shape, dim)
    count = as_expr(src.shape[dim])
    ranges = ranges_of(x.shape)
    inside = [prim("ge", index(at), index(first)), prim("lt", index(at), index(first + (count - 1) * step + 1))]
    rel = at - first
    if step != 1:
        inside.append(prim("eq", index(tidy(rel % step, ranges)), const(0, torch.int64)))
    if type(src.shape[dim]) is int and src.shape[dim] == 0:
        return lo.pointwise(x.value)
    cond = inside[0]
    for c in inside[1:]:
        cond = prim("logical_and", cond, c)
    s = remap(src, x.shape, {dim: tidy(rel // step, ranges) if step != 1 else rel})
    return lo.pointwise(prim("masked", cond, s.value, x.value))


@rule("aten.select_scatter.default")
def select_scatter(lo: Lowering, node: Any, x: Ref, src: Ref, dim: int, i: Any) -> Ref:
    ndim = x.ndim
    dim %= ndim
    no_shared_memory(lo)
    kept = [d for d in range(ndim) if d != dim]
    s = remap(src, x.shape, {k: dim_symbol(ndim, d) for k, d in enumerate(kept)})
    cond = prim("eq", index(axis(x.shape, dim)), index(as_expr(_wrap(i, x.shape[dim]))))
    return lo.pointwise(prim("where", cond, s.value, x.value))
