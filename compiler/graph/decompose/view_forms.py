"""Views in the closed set's few forms, and joins of views."""

from __future__ import annotations

from typing import Any

import torch

from ..meta.core import fold, is_one, norm_dim, norm_dims, numel
from ..meta.views_meta import clamp_index, less
from .table import Builder, Node, decomposition, shape_of

__all__: list[str] = []

aten = torch.ops.aten


@decomposition(aten.t.default)
def t(builder: Builder, x: Node) -> Any:
    ndim = len(shape_of(x))
    return x if ndim < 2 else builder.emit(aten.permute.default, x, [1, 0])


@decomposition(aten.transpose.int)
def transpose(builder: Builder, x: Node, d0: int, d1: int) -> Any:
    ndim = len(shape_of(x))
    if ndim == 0:
        return x
    order = list(range(ndim))
    i, j = norm_dim(d0, ndim), norm_dim(d1, ndim)
    order[i], order[j] = order[j], order[i]
    return x if i == j else builder.emit(aten.permute.default, x, order)


@decomposition(aten.permute.default)
def permute(builder: Builder, x: Node, dims: Any) -> Any:
    ndim = len(shape_of(x))
    order = [dim % ndim for dim in dims] if ndim else []
    return x if order == list(range(ndim)) else builder.emit(aten.permute.default, x, order)


@decomposition(aten.expand.default)
def expand(builder: Builder, x: Node, size: Any, implicit: bool = False) -> Any:
    meta = builder.meta(aten.expand.default, (x, list(size)), {})
    return x if meta.shape == shape_of(x) else builder.emit(aten.expand.default, x, list(meta.shape), val=meta)


@decomposition(aten.view.default, aten._unsafe_view.default)
def view(builder: Builder, x: Node, shape: Any) -> Any:
    from ..meta.views_meta import infer_size

    return builder.view(x, infer_size(shape, numel(shape_of(x))))


@decomposition(aten.alias.default, aten.detach.default, aten.lift_fresh.default)
def alias(builder: Builder, x: Node) -> Any:
    return x


@decomposition(aten.lift.default)
def lift(builder: Builder, x: Node) -> Any:
    return builder.emit(aten.clone.default, x)


@decomposition(aten.slice.Tensor)
def slice_(builder: Builder, x: Node, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    d = norm_dim(dim, len(shape_of(x)))
    lo, hi = _slice_bounds(shape_of(x)[d], start, end)
    n = shape_of(x)[d]
    if step == 1 and isinstance(lo, int) and lo == 0 and (hi is n or (isinstance(hi, int) and hi == n)):
        return x
    return builder.emit(aten.slice.Tensor, x, d, lo, hi, step)


def _slice_bounds(n: Any, start: Any, end: Any) -> tuple:
    lo = 0 if start is None else clamp_index(start, n)
    hi = n if end is None else clamp_index(end, n)
    if not (isinstance(lo, int) and lo == 0) and hi is not lo and less(hi, lo):
        hi = lo
    return lo, hi


@decomposition(aten.select.int)
def select(builder: Builder, x: Node, dim: int, index: Any) -> Any:
    d = norm_dim(dim, len(shape_of(x)))
    if less(index, 0):
        index = fold(index + shape_of(x)[d])
    return builder.emit(aten.select.int, x, d, index)


@decomposition(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(builder: Builder, x: Node, dim: Any = None) -> Any:
    shape = shape_of(x)
    if dim is None:
        dims: Any = range(len(shape))
    elif isinstance(dim, (list, tuple)) and not dim:
        return x
    else:
        dims = norm_dims(dim, len(shape)) if shape else ()
    gone = [dim for dim in dims if is_one(shape[dim])]
    return builder.emit(aten.squeeze.dims, x, gone) if gone else x


@decomposition(aten.unsqueeze.default)
def unsqueeze(builder: Builder, x: Node, dim: int) -> Any:
    return builder.emit(aten.unsqueeze.default, x, norm_dim(dim, len(shape_of(x)) + 1))


@decomposition(aten.diagonal.default)
def diagonal(builder: Builder, x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    ndim = len(shape_of(x))
    return builder.emit(aten.diagonal.default, x, offset, dim1 % ndim, dim2 % ndim)


@decomposition(aten.unfold.default)
def unfold(builder: Builder, x: Node, dim: int, size: Any, step: Any) -> Any:
    if not shape_of(x):
        return builder.emit(aten.unsqueeze.default, x, 0) if size == 1 else NotImplemented
    return builder.emit(aten.unfold.default, x, norm_dim(dim, len(shape_of(x))), size, step)


@decomposition(aten.view.dtype)
def bitcast(builder: Builder, x: Node, dtype: torch.dtype) -> Any:
    same = dtype.itemsize == x.meta["val"].dtype.itemsize
    return builder.emit(aten.view.dtype, x, dtype) if same else NotImplemented


# ---- copies of views, and joins
_COPIES = {
    aten.permute_copy.default: aten.permute.default,
    aten.expand_copy.default: aten.expand.default,
    aten.t_copy.default: aten.t.default,
    aten.transpose_copy.int: aten.transpose.int,
    aten.squeeze_copy.default: aten.squeeze.default,
    aten.squeeze_copy.dim: aten.squeeze.dim,
    aten.squeeze_copy.dims: aten.squeeze.dims,
    aten.as_strided_copy.default: aten.as_strided.default,
    aten.unsqueeze_copy.default: aten.unsqueeze.default,
    aten.slice_copy.Tensor: aten.slice.Tensor,
    aten.select_copy.int: aten.select.int,
    aten.view_copy.default: aten.view.default,
    aten.view_copy.dtype: aten.view.dtype,
    aten.alias_copy.default: aten.alias.default,
    aten.diagonal_copy.default: aten.diagonal.default,
}
for _copy, _view in _COPIES.items():

    def _fresh(builder: Builder, *args: Any, _view: Any = _view, **kwargs: Any) -> Any:
        return builder.emit(
            aten.clone.default, builder.call(_view, *args, **kwargs), memory_format=torch.contiguous_format
        )

    decomposition(_copy)(_fresh)


@decomposition(aten.cat.default)
def cat(builder: Builder, xs: Any, dim: int = 0) -> Any:
    from ..meta.types import promote

    dtype = xs[0].meta["val"].dtype
    for x in xs[1:]:
        dtype = promote(dtype, x.meta["val"].dtype)
    live = [x for x in xs if shape_of(x) != (0,)]
    if not live:
        return builder.full((0,), 0, dtype, xs[0].meta["val"].device)
    n = norm_dim(dim, len(shape_of(live[0])))
    some = [x for x in live if not (isinstance(shape_of(x)[n], int) and shape_of(x)[n] == 0)] or live[:1]
    some = [builder.cast(x, dtype) for x in some]
    if len(some) == 1:
        return builder.emit(aten.clone.default, some[0])
    return builder.emit(aten.cat.default, some, n)


@decomposition(aten.stack.default)
def stack(builder: Builder, xs: Any, dim: int = 0) -> Any:
    d = norm_dim(dim, len(shape_of(xs[0])) + 1)
    return cat(builder, [builder.emit(aten.unsqueeze.default, x, d) for x in xs], d)


@decomposition(aten.repeat.default)
def repeat(builder: Builder, x: Node, repeats: Any) -> Any:
    shape = shape_of(x)
    lead = len(repeats) - len(shape)
    if any(isinstance(r, int) and r == 0 for r in repeats):
        sizes = [r if i < lead else r * shape[i - lead] for i, r in enumerate(repeats)]
        return builder.full(sizes, 0, x.meta["val"].dtype, x.meta["val"].device)
    if all(isinstance(r, int) and r == 1 for r in repeats[lead:]) or not shape:
        y = x
        for _ in range(lead):
            y = builder.emit(aten.unsqueeze.default, y, 0)
        return builder.emit(
            aten.clone.default, builder.expand(y, [*repeats[:lead], *shape]), memory_format=torch.contiguous_format
        )
    wide, tall, final = [], [], []
    for i, r in enumerate(repeats):
        s = shape[i - lead] if i >= lead else None
        if s is None:
            wide.append(1)
            tall.append(r)
            final.append(r)
        else:
            wide += [1, s]
            tall += [r, s]
            final.append(fold(r * s))
    y = builder.expand(builder.view(x, wide), tall)
    return builder.view(builder.emit(aten.clone.default, y, memory_format=torch.contiguous_format), final)


@decomposition(aten.roll.default)
def roll(builder: Builder, x: Node, shifts: Any, dims: Any = ()) -> Any:
    shape = shape_of(x)
    if not shape or any(isinstance(size, int) and size == 0 for size in shape):
        return builder.emit(aten.clone.default, x)
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    flat = not dims
    y = builder.view(x, [numel(shape)]) if flat else x
    for shift, d in zip(shifts, [0] if flat else ([dims] if isinstance(dims, int) else dims)):
        d = norm_dim(d, len(shape_of(y)))
        n = shape_of(y)[d]
        k = fold(shift % n)  # a size that varies may divide the shift: one part has no elements then
        if not (isinstance(k, int) and k == 0):
            parts = [builder.emit(aten.slice.Tensor, y, d, *ends, 1) for ends in ((n - k, n), (0, n - k))]
            y = builder.emit(aten.cat.default, parts, d)
    return builder.emit(aten.clone.default, builder.view(y, shape))


@decomposition(aten.flip.default)
def flip(builder: Builder, x: Node, dims: Any) -> Any:
    ds = list(norm_dims(dims, len(shape_of(x)))) if dims and shape_of(x) else []
    return builder.emit(aten.flip.default, x, ds) if ds else builder.emit(aten.clone.default, x)


@decomposition(aten.slice_scatter.default)
def slice_scatter(
    builder: Builder, x: Node, src: Node, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Any:
    d = norm_dim(dim, len(shape_of(x)))
    lo, hi = _slice_bounds(shape_of(x)[d], start, end)
    src = builder.cast(src, x.meta["val"].dtype)
    n = shape_of(x)[d]
    if step == 1 and isinstance(lo, int) and lo == 0 and (hi is n or (isinstance(hi, int) and hi == n)):
        return builder.emit(aten.clone.default, src)
    return builder.emit(aten.slice_scatter.default, x, src, d, lo, hi, step)


@decomposition(aten.select_scatter.default)
def select_scatter(builder: Builder, x: Node, src: Node, dim: int, index: Any) -> Any:
    d = norm_dim(dim, len(shape_of(x)))
    if less(index, 0):
        index = fold(index + shape_of(x)[d])
    return builder.emit(aten.select_scatter.default, x, builder.cast(src, x.meta["val"].dtype), d, index)


@decomposition(aten.clone.default)
def clone(builder: Builder, x: Node, *, memory_format: Any = None) -> Any:
    return builder.emit(
        aten.clone.default, x, val=builder.meta(aten.clone.default, (x,), {"memory_format": memory_format})
    )


@decomposition(aten.copy.default)
def copy(builder: Builder, x: Node, src: Node, non_blocking: bool = False) -> Any:
    meta = x.meta["val"]
    if src.meta["val"].device != meta.device:
        return NotImplemented
    return builder.emit(aten.clone.default, builder.expand(builder.cast(src, meta.dtype), meta.shape))
