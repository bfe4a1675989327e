"""Writing at computed positions: a copy of the tensor, then a nest that stores over it. Positions are checked as eager
checks them; of several values for one position the last one stays, in row-major order of the positions, as in eager's
loops.

The axes that are positions themselves (the columns, where whole rows are written) are independent of each other: they
are the nest's kept axes, which threads may share. The others run in order, and are given as `reduce_axes` without a
`reduce_op`.

On a GPU there is no order, in eager's kernels neither: all axes are kept ones, sums are atomic additions, and any of
several values for one position stays. Under deterministic algorithms, and for what has no atomic addition, torch's
kernels run.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

from ...symbolic.expr import Expr, as_expr
from ...symbolic.places import disjoint
from ..ir import Axis, Buffer, LoopNest, Value, cast, check_index, const, index, prim, put, put_symbol
from ..context import Lowering
from ..rule_table import NoRule, rule
from ..buffer_strides import strides_of
from ..promote import compute_dtype, operand, rounded
from ..ref import (
    Ref,
    axis,
    contiguous_strides,
    dim_symbol,
    is_empty,
    is_one,
    numel,
    ref_of_buffer,
    remap,
    reshape,
    same,
)
from .indexing import extent, from_the_end, indexed, refuse_nothing
from .views import no_shared_memory

__all__ = ["on_cpu", "may_write", "start", "store_at", "checked"]

MODES = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}
IDENTITY = {"add": 0, "mul": 1, "max": float("-inf"), "min": float("inf")}


def on_cpu(lo: Lowering, what: str = "scattered writes") -> None:
    """Kernels of other devices have no order among their iterations."""
    if torch.device(lo._device()).type != "cpu":
        raise NoRule(what)


ATOMIC = frozenset((torch.float32, torch.float64, torch.int32, torch.int64))  # what a GPU adds up in memory


def may_write(lo: Lowering, mode: str, dtype: torch.dtype) -> None:
    """Whether generated code may write elements of `dtype` at computed positions; NoRule where that is torch's kernels'
    work.
    """
    if lo.on_gpu:
        if torch.are_deterministic_algorithms_enabled():
            raise NoRule("scattered writes under deterministic algorithms")
        if mode != "set" and (mode != "add" or dtype not in ATOMIC):
            raise NoRule("scattered writes")
    else:
        on_cpu(lo)


def start(lo: Lowering, x: Ref | Value, k: int | None = None) -> Buffer:
    """A copy of x (or a value in every element), laid out as the node's result, for later nests to write over."""
    meta = lo.meta(k=k)
    shape, stride = lo.out_shape(k=k), strides_of(meta)
    if any(type(st) is int and st == 0 and not is_one(size) for size, st in zip(shape, stride)):
        stride = None
    return lo.store(cast(x.value if isinstance(x, Ref) else x, meta.dtype), shape, meta.dtype, stride).value.attr[0]


def store_at(
    lo: Lowering,
    buffer: Buffer,
    shape: Sequence[Any],
    value: Value,
    at: Sequence[Expr | Value],
    mode: str = "set",
    strides: Sequence[Any] | None = None,
) -> Ref:
    """Over `shape`, store `value` at position `at` of each of b's dimensions (or of `strides`): an axis, or a checked
    position.
    """
    if is_empty(shape) or (is_empty(buffer.shape) and not any(isinstance(position, Value) for position in at)):
        return ref_of_buffer(buffer)
    ndim = len(shape)
    flat = as_expr(0)
    positions: list[Value] = []
    for position, st in zip(at, buffer.stride or (1,) if strides is None else strides):
        if isinstance(position, Value):
            positions.append(position)
            position = put_symbol(len(positions) - 1)
        flat = flat + position * st
    axes = tuple(Axis(dim_symbol(ndim, dim), size) for dim, size in enumerate(shape) if not is_one(size))
    own = {position.name for position in at if isinstance(position, Expr) and position.is_symbol}
    if torch.device(lo._device()).type != "cpu":
        own = {a.symbol.name for a in axes}
    kept = tuple(a for a in axes if a.symbol.name in own)
    order = tuple(a for a in axes if a.symbol.name not in own)
    lo.steps.append(
        LoopNest(
            buffer=buffer,
            axes=kept,
            index=flat,
            value=put(cast(value, buffer.dtype), positions),
            reduce_axes=order,
            reduce_op=None,
            domain=axes,
            mode=mode,
            origins=lo.origins(),
            lines=lo.lines(),
        )
    )
    return ref_of_buffer(buffer)


def checked(i: Value, size: Any, message: str, wrap: bool = False) -> Value:
    """A position as a value: wrapped where negative ones count from the end, and checked."""
    refuse_nothing(size)
    i, n = cast(i, torch.int64), extent(size)
    return check_index(from_the_end(i, n) if wrap else i, n, message)


def _lifted(x: Any) -> Any:
    """A tensor without dimensions as one of one element."""
    return Ref((1,), x.dtype, x.value) if isinstance(x, Ref) and x.ndim == 0 else x


# ---- along one dimension: every element has a position of its own
def _along(lo: Lowering, buffer: Buffer, dim: int, ids: Ref, value: Any, mode: str) -> None:
    """b[..., ids[...], ...] = value[...] along `dim`."""
    ids, value = _lifted(ids), _lifted(value)
    ndim = ids.ndim
    dim %= ndim
    size = buffer.shape[dim] if buffer.shape else 1
    position = checked(ids.value, size, f"RuntimeError: index out of bounds for dimension {dim} with size {size}")
    if isinstance(value, Ref):
        written = remap(value, ids.shape, {dim: axis(ids.shape, dim) for dim in range(ndim)}).value
    else:
        written = operand(value, buffer.dtype)
    store_at(
        lo,
        buffer,
        ids.shape,
        written,
        [position if dim_of == dim else axis(ids.shape, dim_of) for dim_of in range(ndim)],
        mode,
    )


def _written(lo: Lowering, write: Callable, x: Ref, dim: int, ids: Ref, source: Any, mode: str) -> Ref:
    """A copy of x over which `write` writes, as `_along` and `_slices` do."""
    may_write(lo, mode, x.dtype)
    buffer = start(lo, x)
    write(lo, buffer, dim, ids, source, mode)
    return ref_of_buffer(buffer)


@rule("aten.scatter.src", "aten.scatter.value", "aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter(lo: Lowering, node: Any, x: Ref, dim: int, ids: Ref, src: Any, *, reduce: str | None = None) -> Ref:
    return _written(lo, _along, x, dim, ids, src, "set" if reduce is None else MODES[reduce])


@rule("aten.scatter_add.default")
def scatter_add(lo: Lowering, node: Any, x: Ref, dim: int, ids: Ref, src: Ref) -> Ref:
    return _written(lo, _along, x, dim, ids, src, "add")


@rule("aten.scatter_reduce.two")
def scatter_reduce(
    lo: Lowering, node: Any, x: Ref, dim: int, ids: Ref, src: Ref, reduce: str, *, include_self: bool = True
) -> Ref:
    return _reduced(lo, x, reduce, include_self, lambda b, value, mode: _along(lo, b, dim, ids, value, mode), src)


def _reduced(
    lo: Lowering, x: Ref, reduce: str, include_self: bool, write: Callable[[Buffer, Any, str], Any], source: Ref
) -> Ref:
    """A copy of x with `source` reduced into the places that `write(buffer, value, mode)` knows, over what was there or
    not.
    """
    if reduce == "mean":
        return _mean(lo, x, include_self, write, source)
    mode = MODES[reduce]
    may_write(lo, mode, x.dtype)
    buffer = start(lo, x)
    if not include_self:
        write(buffer, identity(mode, buffer.dtype), "set")
    write(buffer, source, mode)
    return ref_of_buffer(buffer)


def _mean(lo: Lowering, x: Ref, include_self: bool, write: Callable[[Buffer, Any, str], Any], source: Ref) -> Ref:
    """The mean of what a place receives: sums over counts (eager divides integers towards minus infinity). A place that
    receives nothing keeps its own."""
    on_cpu(lo)
    total, counts = start(lo, x if include_self else const(0, x.dtype)), start(lo, const(int(include_self), x.dtype))
    write(total, source, "add")
    write(counts, 1, "add")
    up, n = compute_dtype(x.dtype), ref_of_buffer(counts).value
    none = prim("eq", n, const(0, x.dtype))
    mean = prim(
        "div" if x.dtype.is_floating_point else "div_floor",
        operand(ref_of_buffer(total), up),
        cast(prim("where", none, const(1, x.dtype), n), up),
    )
    return lo.pointwise(prim("where", none, x.value, rounded(mean, x.dtype)))


def identity(mode: str, dtype: torch.dtype) -> bool | int | float:
    """What combining with leaves a value as it is."""
    if dtype == torch.bool:
        return mode in ("mul", "min")
    if mode in ("max", "min") and not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return info.min if mode == "max" else info.max
    return IDENTITY[mode]


# ---- rows and blocks
@rule("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(lo: Lowering, node: Any, x: Ref, ids: Sequence[Ref | None], values: Ref, accumulate: bool = False) -> Ref:
    may_write(lo, "add" if accumulate else "set", x.dtype)
    of_masks = "writing where a mask holds: the number of elements depends on values"
    used, kept, first, width = indexed(x, ids, of_masks)
    common = _broadcast([i.shape for _, i in used], width)
    shape = (*(x.shape[d] for d in kept[:first]), *common, *(x.shape[d] for d in kept[first:]))
    ndim = len(shape)
    tail = ndim - first - width  # dimensions to the right of the index's
    buffer = start(lo, x)
    at: list[Any] = [None] * x.ndim
    for k, d in enumerate(kept):
        at[d] = axis(shape, k if k < first else k + width)
    for d, i in used:
        value = remap(i, i.shape + (1,) * tail, {k: dim_symbol(i.ndim + tail, k) for k in range(i.ndim)}).value
        at[d] = checked(
            value, x.shape[d], f"IndexError: index is out of bounds for dimension {d} with size {x.shape[d]}", True
        )
    if values.ndim > ndim or any(
        not is_one(size) and not same(size, s) for size, s in zip(reversed(values.shape), reversed(shape))
    ):
        raise NoRule("the shape of the values differs from the shape they are written to")
    return store_at(lo, buffer, shape, values.value, at, "add" if accumulate else "set")


def _broadcast(shapes: Sequence[Sequence[Any]], width: int) -> tuple:
    out: list[Any] = [1] * width
    for shape in shapes:
        for k, size in enumerate(reversed(shape), 1):
            if not is_one(size):
                if not is_one(out[-k]) and not same(out[-k], size):
                    raise NoRule("index tensors whose sizes are not known to be equal")
                out[-k] = size
    return tuple(out)


@rule("aten.put.default")
def put_flat(lo: Lowering, node: Any, x: Ref, ids: Ref, source: Ref, accumulate: bool = False) -> Ref:
    may_write(lo, "add" if accumulate else "set", x.dtype)
    buffer = start(lo, x)
    if not same(numel(ids.shape), numel(source.shape)):
        raise NoRule("the number of values differs from the number of elements they are written to")
    source = reshape(source, ids.shape)
    total: Any = 1
    for size in buffer.shape:
        total = size * total
    position = checked(
        ids.value, total, f"IndexError: out of range: tried to access an index on a tensor of {total} elements.", True
    )
    mode = "add" if accumulate else "set"
    if all(map(same, buffer.stride, contiguous_strides(buffer.shape))):
        return store_at(lo, buffer, ids.shape, source.value, [position], mode, (1,))
    return store_at(lo, buffer, ids.shape, source.value, _places(position, buffer.shape), mode)


def _places(position: Value, shape: Sequence[Any]) -> list[Value]:
    """A row-major position as one for each dimension."""
    out: list[Value] = []
    for size in reversed(shape):
        extent_of = const(size, torch.int64) if type(size) is int else index(as_expr(size))
        out.insert(0, prim("remainder", position, extent_of))
        position = prim("div_trunc", position, extent_of)
    return out


@rule("aten.diagonal_scatter.default")
def diagonal_scatter(lo: Lowering, node: Any, x: Ref, src: Ref, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Ref:
    dim1, dim2 = dim1 % x.ndim, dim2 % x.ndim
    no_shared_memory(lo)
    buffer = start(lo, x)
    shape = src.shape
    rest = [dim for dim in range(x.ndim) if dim not in (dim1, dim2)]
    at: list[Any] = [None] * x.ndim
    for k, d in enumerate(rest):
        at[d] = axis(shape, k)
    along = axis(shape, len(shape) - 1)
    at[dim1], at[dim2] = along + max(0, -offset), along + max(0, offset)
    if is_empty(shape):
        return ref_of_buffer(buffer)
    return _store_strided(lo, buffer, shape, cast(src.value, x.dtype), at, buffer.stride)


@rule("aten.as_strided_scatter.default")
def as_strided_scatter(lo: Lowering, node: Any, x: Ref, src: Ref, size: Any, stride: Any, offset: Any = 0) -> Ref:
    shape = src.shape
    if not disjoint(shape, stride):
        raise NoRule("positions that may coincide")
    no_shared_memory(lo)
    buffer = start(lo, x)
    if is_empty(shape):
        return ref_of_buffer(buffer)
    return _store_strided(
        lo,
        buffer,
        shape,
        src.value,
        [*(axis(shape, dim) for dim in range(len(shape))), as_expr(0 if offset is None else offset)],
        [*stride, 1],
    )


def _store_strided(
    lo: Lowering, buffer: Buffer, shape: Sequence[Any], value: Value, at: Sequence[Expr], strides: Sequence[Any]
) -> Ref:
    """A store at positions that are no data: every element at its own."""
    flat = as_expr(0)
    for position, st in zip(at, strides):
        flat = flat + position * st
    axes = tuple(Axis(dim_symbol(len(shape), dim), size) for dim, size in enumerate(shape) if not is_one(size))
    lo.steps.append(
        LoopNest(
            buffer, axes, flat, put(cast(value, buffer.dtype), ()), (), None, axes, "set", lo.origins(), lo.lines()
        )
    )
    return ref_of_buffer(buffer)


@rule("aten.max_unpool2d.default", "aten.max_unpool3d.default")
def max_unpool(lo: Lowering, node: Any, x: Ref, ids: Ref, size: Sequence[Any], *args: Any) -> Ref:
    return _into_planes(lo, x, ids, size, "set")


@rule("aten.max_pool2d_with_indices_backward.default")
def max_pool_backward(lo: Lowering, node: Any, grad: Ref, x: Ref, *args: Any) -> Ref:
    on_cpu(lo, "pooling")  # (a GPU has a rule of its own: pooling.py)
    return _into_planes(lo, grad, args[-1], x.shape[-2:], "add")


def _into_planes(lo: Lowering, x: Ref, ids: Ref, size: Sequence[Any], mode: str) -> Ref:
    """The elements of x in planes of zeros, each at the row-major position that `ids` has for it."""
    may_write(lo, mode, x.dtype)
    k = len(size)
    buffer = start(lo, const(0, x.dtype))
    volume: Any = 1
    for s in size:
        volume = s * volume
    position = checked(ids.value, volume, "RuntimeError: Found an invalid max index")
    planes = x.ndim - k
    at: list[Any] = [axis(x.shape, dim) for dim in range(planes)]
    if all(map(same, buffer.stride, contiguous_strides(buffer.shape))):
        return store_at(lo, buffer, x.shape, x.value, [*at, position], mode, (*buffer.stride[:planes], 1))
    return store_at(lo, buffer, x.shape, x.value, [*at, *_places(position, size)], mode)


@rule("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    lo: Lowering, node: Any, grad: Ref, ids: Ref, rows: Any, padding: Any, by_frequency: bool
) -> Ref:
    may_write(lo, "add", grad.dtype)
    if by_frequency or not isinstance(padding, int):
        raise NoRule("gradients scaled by how often a row is used")
    buffer = start(lo, const(0, grad.dtype))
    ndim = grad.ndim
    at = remap(ids, ids.shape + (1,), {dim: dim_symbol(ndim, dim) for dim in range(ids.ndim)}).value
    position = checked(at, rows, "IndexError: index out of range in self")
    value = grad.value
    if padding >= 0:
        value = prim(
            "where", prim("eq", cast(at, torch.int64), const(padding, torch.int64)), const(0, value.dtype), value
        )
    return store_at(lo, buffer, grad.shape, value, [position, axis(grad.shape, ndim - 1)], "add")


# ---- whole slices at positions of one dimension
def _slices(lo: Lowering, buffer: Buffer, dim: int, ids: Ref, value: Any, mode: str) -> None:
    """b[..., ids[k], ...] = value[..., k, ...]; `value` is a tensor of that shape, a number, or a tensor without
    dimensions.
    """
    ids, value = _lifted(ids), _lifted(value) if buffer.shape else value
    shape = list(buffer.shape) or [1]
    dim %= len(shape)
    size = shape[dim]
    shape[dim] = ids.shape[0]
    i = remap(ids, (ids.shape[0], *(1,) * (len(shape) - 1 - dim)), {0: dim_symbol(len(shape), dim)}).value
    position = checked(i, size, "IndexError: index out of range in self")
    written = value.value if isinstance(value, Ref) else operand(value, buffer.dtype)
    store_at(lo, buffer, shape, written, [position if d == dim else axis(shape, d) for d in range(len(shape))], mode)


@rule("aten.index_add.default")
def index_add(lo: Lowering, node: Any, x: Ref, dim: int, ids: Ref, source: Ref, *, alpha: Any = 1) -> Ref:
    if alpha != 1 or isinstance(alpha, Expr):
        up = compute_dtype(x.dtype)
        source = Ref(source.shape, x.dtype, rounded(prim("mul", operand(source, up), operand(alpha, up)), x.dtype))
    return _written(lo, _slices, x, dim, ids, source, "add")


@rule("aten.index_copy.default")
def index_copy(lo: Lowering, node: Any, x: Ref, dim: int, ids: Ref, source: Ref) -> Ref:
    return _written(lo, _slices, x, dim, ids, source, "set")


@rule("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(lo: Lowering, node: Any, x: Ref, dim: int, ids: Ref, value: Any) -> Ref:
    may_write(lo, "set", x.dtype)
    buffer = start(lo, x)
    ids, shape = _lifted(ids), list(buffer.shape) or [1]
    wrapped = from_the_end(cast(_lifted(ids).value, torch.int64), extent(shape[dim % len(shape)]))
    _slices(lo, buffer, dim, Ref(ids.shape, torch.int64, wrapped), value, "set")
    return ref_of_buffer(buffer)


@rule("aten.index_reduce.default")
def index_reduce(
    lo: Lowering, node: Any, x: Ref, dim: int, ids: Ref, source: Ref, reduce: str, *, include_self: bool = True
) -> Ref:
    return _reduced(lo, x, reduce, include_self, lambda b, value, mode: _slices(lo, b, dim, ids, value, mode), source)
