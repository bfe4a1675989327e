"""Indexing, gathering, joining, sorting, padding."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ...symbolic.expr import IntLike
from .core import (
    DataDependentError,
    TensorMeta,
    broadcast_shapes,
    contiguous_strides,
    fold,
    is_zero,
    less,
    new,
    numel,
    norm_dim,
    norm_dims,
    rule,
    same,
    strides_for,
    suggest_format,
)
from .strides import elementwise_strides, like, preserve_strides
from .types import promote
from .views_meta import diagonal, select, slice_

__all__: list[str] = []

_INDEX_DTYPES = (torch.int64, torch.int32, torch.bool, torch.uint8)


@rule("cat")
def cat(xs: Sequence[TensorMeta], dim: int = 0) -> TensorMeta:
    if not xs:
        raise RuntimeError("torch.cat(): expected a non-empty list of Tensors")
    dtype = xs[0].dtype
    for x in xs[1:]:
        dtype = promote(dtype, x.dtype)
    # a one-dimensional tensor of size 0 is left out whatever the others' shape
    live = [x for x in xs if not (x.ndim == 1 and isinstance(x.shape[0], int) and x.shape[0] == 0)]
    if not live:
        norm_dim(dim, 1)
        return new((0,), dtype, xs[0].device)
    first = live[0]
    if not first.shape:
        raise RuntimeError("zero-dimensional tensor (at position 0) cannot be concatenated")
    dim = norm_dim(dim, first.ndim)
    total: IntLike = 0
    for x in live:
        if x.ndim != first.ndim:
            raise RuntimeError(f"Tensors must have same number of dimensions: got {first.ndim} and {x.ndim}")
        for d in range(first.ndim):
            if d != dim and not same(x.shape[d], first.shape[d]):
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {dim}. Expected size {first.shape[d]} "
                    f"but got size {x.shape[d]} for tensor number 1 in the list."
                )
        total = fold(total + x.shape[dim])
    shape = (*first.shape[:dim], total, *first.shape[dim + 1 :])
    fmt = suggest_format(live[0])
    if fmt is not torch.contiguous_format and any(suggest_format(x) is not fmt for x in live[1:]):
        fmt = torch.contiguous_format
    return new(shape, dtype, first.device, strides_for(shape, fmt))


@rule("stack")
def stack(xs: Sequence[TensorMeta], dim: int = 0) -> TensorMeta:
    if not xs:
        raise RuntimeError("stack expects a non-empty TensorList")
    dim = norm_dim(dim, xs[0].ndim + 1)
    dtype = xs[0].dtype
    for x in xs[1:]:
        dtype = promote(dtype, x.dtype)
        if len(x.shape) != len(xs[0].shape) or not all(map(same, x.shape, xs[0].shape)):
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(xs[0].shape)} at entry 0 and "
                f"{list(x.shape)} at entry 1"
            )
    # as eager's: joined along a dimension that is parted afterwards, or, behind the last one, along one of size 1
    ndim = xs[0].ndim
    parts = xs if dim < ndim else [x.replace(shape=(*x.shape, 1), stride=(*x.stride, 1)) for x in xs]
    joined = cat(parts, dim)
    inner = joined.stride[dim]
    outer = (fold(inner * xs[0].shape[dim]), inner) if dim < ndim else (inner,)
    shape = (*xs[0].shape[:dim], len(xs), *xs[0].shape[dim:])
    if any(map(is_zero, shape)):
        return new(shape, dtype, xs[0].device)
    return new(shape, dtype, xs[0].device, (*joined.stride[:dim], *outer, *joined.stride[dim + 1 :]))


@rule("index_select")
def index_select(x: TensorMeta, dim: int, index: TensorMeta) -> TensorMeta:
    dim = norm_dim(dim, x.ndim)
    if index.ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("index_select(): Expected dtype int32 or int64 for index")
    if not x.shape:
        _require(same(numel(index.shape), 1), "index_select(): Index to scalar can have only 1 value")
        return new((), x.dtype, x.device)
    n = index.shape[0] if index.shape else 1
    return new((*x.shape[:dim], n, *x.shape[dim + 1 :]), x.dtype, x.device)


@rule("gather")
def gather(x: TensorMeta, dim: int, index: TensorMeta, *, sparse_grad: bool = False) -> TensorMeta:
    norm_dim(dim, x.ndim)
    if index.dtype not in (torch.int64, torch.int32) and not any(is_zero(size) for size in index.shape):
        raise RuntimeError("gather(): Expected dtype int32/int64 for index")
    if max(index.ndim, 1) != max(x.ndim, 1) and not any(is_zero(size) for size in index.shape):
        raise RuntimeError("Index tensor must have the same number of dimensions as input tensor")
    return new(index.shape, x.dtype, x.device)


def _laid_out(x: TensorMeta) -> TensorMeta:
    return TensorMeta(x.shape, contiguous_strides(x.shape), x.dtype, x.device)


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise RuntimeError(message)


_INDEX_TYPES = (torch.int64, torch.int32)


@rule("scatter", "scatter_add", "scatter_reduce")
def scatter(x: TensorMeta, dim: int, index: TensorMeta, src: Any = None, reduce: str = "sum", **__: Any) -> TensorMeta:
    dim = norm_dim(dim, x.ndim)
    tensor = isinstance(src, TensorMeta)
    _require(
        reduce in ("sum", "prod", "mean", "amax", "amin", "add", "multiply"),
        "reduce argument must be either sum, prod, mean, amax or amin.",
    )
    _require(not tensor or src.dtype is x.dtype, "scatter(): Expected self.dtype to be equal to src.dtype")
    if any(is_zero(size) for size in index.shape):
        return _laid_out(x)
    _require(index.dtype in _INDEX_TYPES, "scatter(): Expected dtype int32/int64 for index")
    own, at, given = (tensor_meta.shape or (1,) for tensor_meta in (x, index, src if tensor else index))
    _require(len(own) == len(at), "Index tensor must have the same number of dimensions as self tensor")
    _require(len(at) == len(given), "Index tensor must have the same number of dimensions as src tensor")
    for d in range(len(at)):
        _require(
            (d == dim or not less(own[d], at[d])) and not less(given[d], at[d]),
            f"Expected index {list(index.shape)} to be no larger than self {list(x.shape)} apart from dimension {dim}"
            " and to be no larger size than src",
        )
    return _laid_out(x)


@rule("index_add", "index_reduce")
def index_add(
    x: TensorMeta, dim: int, index: TensorMeta, source: TensorMeta, reduce: str = "prod", **__: Any
) -> TensorMeta:
    dim = norm_dim(dim, x.ndim)
    _require(
        reduce in ("prod", "mean", "amax", "amin"),
        "index_reduce(): Expected reduce to be one of prod, mean, amax or amin",
    )
    _require(index.ndim <= 1, "Index is supposed to be a vector")
    _require(index.dtype in _INDEX_TYPES, "Expected dtype int32/int64 for index")
    _require(source.dtype is x.dtype, "self and source expected to have the same dtype")
    own, given = x.shape or (1,), source.shape or (1,)
    _require(len(own) == len(given), "source and destination must have the same number of dimensions")
    _require(same(given[dim], (index.shape or (1,))[0]), "Number of indices should be equal to source.size(dim)")
    for d in range(len(own)):
        _require(d == dim or same(own[d], given[d]), "source and destination must have the same sizes apart from dim")
    return _laid_out(x)


def _with_gaps(x: TensorMeta) -> TensorMeta:
    """A clone of all of the memory, gaps included (at::clone_preserve_strides); a plain clone where elements
    overlap.
    """
    overlaps = any(
        isinstance(st, int) and st == 0 and not (isinstance(size, int) and size < 2)
        for size, st in zip(x.shape, x.stride)
    )
    return TensorMeta(x.shape, preserve_strides(x) if overlaps else x.stride, x.dtype, x.device)


@rule("as_strided_scatter")
def as_strided_scatter(x: TensorMeta, *_: Any, **__: Any) -> TensorMeta:
    return _with_gaps(x)


@rule("index_copy")
def index_copy(x: TensorMeta, dim: int, index: TensorMeta, source: TensorMeta) -> TensorMeta:
    _require(index.dtype is torch.int64, "index_copy_(): Expected a long tensor for index")
    return index_add(x, dim, index, source)


@rule("index_fill")
def index_fill(x: TensorMeta, dim: int, index: TensorMeta, value: Any) -> TensorMeta:
    norm_dim(dim, x.ndim)
    _require(
        index.ndim <= 1 and index.dtype in _INDEX_TYPES,
        "index_fill_(): Expected dtype int32/int64 for a one-dimensional index",
    )
    _require(
        not isinstance(value, TensorMeta) or value.ndim == 0, "index_fill_ only supports a 0-dimensional value tensor"
    )
    return like(x)


@rule("put")
def put(x: TensorMeta, index: TensorMeta, source: TensorMeta, accumulate: bool = False) -> TensorMeta:
    _require(
        index.dtype is torch.int64 and source.dtype is x.dtype,
        "put_(): self and source expected to have the same dtype, the index int64",
    )
    _require(
        same(numel(index.shape), numel(source.shape)),
        "put_(): Expected source and index to have the same number of elements",
    )
    return like(x)


def _scattered(view_rule: Any) -> Any:
    """slice_scatter and its kin: the source must have the view's shape."""

    def f(x: TensorMeta, src: TensorMeta, *args: Any, **kwargs: Any) -> TensorMeta:
        part = view_rule(x, *args, **kwargs)
        if len(part.shape) != len(src.shape) or not all(map(same, part.shape, src.shape)):
            raise RuntimeError(
                f"expected src to have a size equal to the slice of self. src size = {list(src.shape)}, slice size = "
                f"{list(part.shape)}"
            )
        return _with_gaps(x)

    return f


rule("slice_scatter")(_scattered(slice_))
rule("select_scatter")(_scattered(select))
rule("diagonal_scatter")(_scattered(diagonal))


@rule("masked_scatter")
def masked_scatter(x: TensorMeta, mask: TensorMeta, source: TensorMeta) -> TensorMeta:
    if mask.dtype is not torch.bool:
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}")
    _require(source.dtype is x.dtype, "masked_scatter: expected self and source to have same dtypes")
    shape = broadcast_shapes(x.shape, mask.shape)
    return TensorMeta(shape, contiguous_strides(shape), x.dtype, x.device)


@rule("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(
    x: TensorMeta,
    indices: Sequence[TensorMeta | None],
    values: TensorMeta,
    accumulate: bool = False,
    unsafe: bool = False,
) -> TensorMeta:
    if len(indices) > x.ndim:
        raise IndexError(f"too many indices for tensor of dimension {x.ndim} (got {len(indices)})")
    if any(i is not None and (i.dtype.is_floating_point or i.dtype.is_complex) for i in indices):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    if values.dtype != x.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {x.dtype} for the destination "
            f"and {values.dtype} for the source."
        )
    return like(x)


@rule("index.Tensor", "_unsafe_index.Tensor")
def index(x: TensorMeta, indices: Sequence[TensorMeta | None]) -> TensorMeta:
    if len(indices) > x.ndim:
        raise IndexError(f"too many indices for tensor of dimension {x.ndim} (got {len(indices)})")
    for i in indices:
        if i is None:
            continue
        if i.dtype in (torch.bool, torch.uint8):
            raise DataDependentError("indexing with a mask: the size of the result depends on the data")
        if i.dtype not in _INDEX_DTYPES:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    slots: list[TensorMeta | None] = [*indices, *[None] * (x.ndim - len(indices))]
    where = [d for d, slot in enumerate(slots) if slot is not None]
    if not where:
        return TensorMeta(x.shape, x.stride, x.dtype, x.device, x.storage_offset)
    shape_of_index = broadcast_shapes(*[slot.shape for slot in slots if slot is not None])
    for d in where:
        if is_zero(x.shape[d]) and not any(is_zero(s) for s in shape_of_index):
            raise IndexError("index is out of bounds for dimension with size 0")
    adjacent = where == list(range(where[0], where[-1] + 1))
    # as advanced indexing in C++: an operand whose indexed dimensions are replaced by the index's (stride 0), moved to
    # the front unless they are adjacent; the result then takes TensorIterator's strides over it and the indices
    before = [dim for dim in range(x.ndim) if slots[dim] is None and adjacent and dim < where[0]]
    after = [dim for dim in range(x.ndim) if slots[dim] is None and dim not in before]
    shape = (*(x.shape[d] for d in before), *shape_of_index, *(x.shape[d] for d in after))
    restrided = TensorMeta(
        shape,
        (*(x.stride[d] for d in before), *[0] * len(shape_of_index), *(x.stride[d] for d in after)),
        x.dtype,
        x.device,
    )
    operands = [restrided]
    for d in where:
        i = slots[d]
        full = TensorMeta(
            (*[1] * len(before), *i.shape, *[1] * len(after)),
            (*[0] * len(before), *i.stride, *[0] * len(after)),
            i.dtype,
            i.device,
        )
        operands.append(full)
    return TensorMeta(shape, elementwise_strides(shape, operands), x.dtype, x.device)


@rule("nonzero_static")
def nonzero_static(x: TensorMeta, *, size: IntLike, fill_value: int = -1) -> TensorMeta:
    return new((size, x.ndim), torch.int64, x.device)


@rule("take")
def take(x: TensorMeta, index: TensorMeta) -> TensorMeta:
    if is_zero(numel(x.shape)) and not is_zero(numel(index.shape)):
        raise IndexError("take(): tried to take from an empty tensor")
    return new(index.shape, x.dtype, x.device)


@rule("take_along_dim")
def take_along_dim(x: TensorMeta, index: TensorMeta, dim: int | None = None) -> TensorMeta:
    return gather(x, dim or 0, index)


@rule("embedding")
def embedding(
    weight: TensorMeta, idx: TensorMeta, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> TensorMeta:
    if weight.ndim != 2:
        raise RuntimeError("'weight' must be 2-D")
    if idx.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; "
            f"but got {idx.dtype} instead (while checking arguments for embedding)"
        )
    return new((*idx.shape, weight.shape[1]), weight.dtype, weight.device)


@rule("embedding_dense_backward")
def embedding_backward(grad: TensorMeta, idx: TensorMeta, n: IntLike, *_: Any) -> TensorMeta:
    return new((n, grad.shape[-1]), grad.dtype, grad.device)


@rule("topk")
def topk(
    x: TensorMeta, k: IntLike, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[TensorMeta, TensorMeta]:
    dim = norm_dim(dim, x.ndim)
    if x.shape and less(x.shape[dim], k):
        raise RuntimeError("selected index k out of range")
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :]) if x.shape else ()
    return new(shape, x.dtype, x.device), new(shape, torch.int64, x.device)


@rule("sort")
def sort(
    x: TensorMeta, *args: Any, dim: int = -1, descending: bool = False, stable: bool | None = None
) -> tuple[TensorMeta, TensorMeta]:
    # results keep the strides of a dense input
    stride = preserve_strides(x)
    return TensorMeta(x.shape, stride, x.dtype, x.device), TensorMeta(x.shape, stride, torch.int64, x.device)


@rule("argsort")
def argsort(x: TensorMeta, *args: Any, **kwargs: Any) -> TensorMeta:
    return sort(x)[1]


@rule("constant_pad_nd")
def constant_pad_nd(x: TensorMeta, pad: Sequence[IntLike], value: Any = 0) -> TensorMeta:
    if len(pad) % 2 or len(pad) // 2 > x.ndim:
        raise RuntimeError(
            f"Length of pad should be even and no more than twice the input's dimensions, got {len(pad)}"
        )
    shape = list(x.shape)
    for i in range(len(pad) // 2):
        dim = x.ndim - 1 - i
        shape[dim] = fold(shape[dim] + pad[2 * i] + pad[2 * i + 1])
        if less(shape[dim], 0):
            raise RuntimeError(
                f"The input size {x.shape[dim]}, plus negative padding {pad[2 * i]} and {pad[2 * i + 1]}, "
                "resulted in a negative output size, which is invalid."
            )
    if all(isinstance(amount, int) and amount <= 0 for amount in pad):  # nothing is added: a copy of what is left
        return new(shape, x.dtype, x.device, preserve_strides(x.replace(shape=tuple(shape))))
    return new(shape, x.dtype, x.device, strides_for(shape, suggest_format(x)))


def _edge_pad(reflect: bool) -> Any:
    def f(x: TensorMeta, pad: Sequence[IntLike]) -> TensorMeta:
        n = len(pad) // 2
        _require(
            n + 1 <= x.ndim <= n + 2,
            f"Expected {n + 1}D or {n + 2}D tensor with possibly 0 batch size, but got {x.ndim}D",
        )
        _require(
            not any(map(is_zero, x.shape[x.ndim - n - 1 :])),
            "Expected a tensor with non-zero dimensions, apart from the batch size",
        )
        shape = list(x.shape)
        for i in range(n):
            dim = x.ndim - 1 - i
            for amount in pad[2 * i : 2 * i + 2] if reflect else ():
                _require(
                    less(amount, x.shape[dim]), "Padding size should be less than the corresponding input dimension"
                )
            shape[dim] = fold(shape[dim] + pad[2 * i] + pad[2 * i + 1])
            _require(less(0, shape[dim]), f"input (size {x.shape[dim]}) is too small for padding {list(pad)}")
        fmt = torch.contiguous_format
        if n == 2 and x.ndim == 4 or n == 3 and x.device.type == "cpu":
            fmt = suggest_format(x)
        return new(shape, x.dtype, x.device, strides_for(shape, fmt))

    return f


rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")(_edge_pad(True))
rule("replication_pad1d", "replication_pad2d", "replication_pad3d")(_edge_pad(False))


@rule("roll")
def roll(x: TensorMeta, shifts: Any, dims: Any = ()) -> TensorMeta:
    _require(
        len(shifts) == (len(dims) or 1), f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}"
    )
    if not dims:
        return new(x.shape, x.dtype, x.device)
    if any(is_zero(size) for size in x.shape):
        return like(x)
    for shift, dim in zip(shifts, dims):  # as eager's, which joins two parts for each
        start = fold(-shift % x.shape[dim])
        x = cat(
            [x.replace(shape=(*x.shape[:dim], n, *x.shape[dim:][1:])) for n in (fold(x.shape[dim] - start), start)], dim
        )
    return x


@rule("flip")
def flip(x: TensorMeta, dims: Sequence[int]) -> TensorMeta:
    norm_dims(dims, x.ndim)
    return like(x)


@rule("repeat")
def repeat(x: TensorMeta, repeats: Sequence[IntLike]) -> TensorMeta:
    lead = len(repeats) - x.ndim
    if lead < 0:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    return new([fold(r * s) for r, s in zip(repeats, (*[1] * lead, *x.shape))], x.dtype, x.device)


@rule("pixel_shuffle")
def pixel_shuffle(x: TensorMeta, r: int) -> TensorMeta:
    *b, c, h, w = x.shape
    if not is_zero(fold(c % (r * r))):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor,"
            f" but input.size(-3)={c} is not divisible by {r * r}"
        )
    return _shuffled(x, (*b, fold(c // (r * r)), fold(h * r), fold(w * r)))


@rule("pixel_unshuffle")
def pixel_unshuffle(x: TensorMeta, r: int) -> TensorMeta:
    *b, c, h, w = x.shape
    if x.device.type == "cpu" and any(map(is_zero, x.shape)):
        return like(x)  # (torch's kernel copies what is empty as it is)
    for name, n, at in (("height", h, -2), ("width", w, -1)):
        if not is_zero(fold(n % r)):
            raise RuntimeError(
                f"pixel_unshuffle expects {name} to be divisible by downscale_factor, but input.size({at})={n} is not"
                f" divisible by {r}"
            )
    return _shuffled(x, (*b, fold(c * r * r), fold(h // r), fold(w // r)))


def _shuffled(x: TensorMeta, shape: Sequence[IntLike]) -> TensorMeta:
    """Channels last stay so on the CPU; elsewhere a reshape makes the result."""
    if x.device.type != "cpu":
        return new(shape, x.dtype, x.device)
    fmt = suggest_format(x)
    if fmt is torch.channels_last_3d:
        raise RuntimeError("Unsupported memory format. Supports only ChannelsLast, Contiguous")
    return new(shape, x.dtype, x.device, strides_for(shape, fmt))


@rule("channel_shuffle")
def channel_shuffle(x: TensorMeta, groups: int) -> TensorMeta:
    return new(x.shape, x.dtype, x.device, strides_for(x.shape, suggest_format(x)))


@rule("isin.Tensor_Tensor", "isin.Tensor_Scalar")
def isin(x: TensorMeta, *_: Any, **__: Any) -> TensorMeta:
    return new(x.shape, torch.bool, x.device)


@rule("slice_backward", "select_backward", "diagonal_backward", "unfold_backward")
def view_backward(grad: TensorMeta, sizes: Sequence[IntLike], *_: Any) -> TensorMeta:
    return new(sizes, grad.dtype, grad.device)
