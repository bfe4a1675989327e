"""Views: results that share their argument's memory. Strides and offsets follow the argument's."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ...symbolic import expr as E
from ...symbolic.expr import IntLike
from .core import (
    TensorMeta,
    contiguous_strides,
    decide,
    fix,
    fold,
    is_one,
    is_zero,
    less,
    norm_dim,
    norm_dims,
    numel,
    rule,
    same,
    state,
)
from .types import to_complex_real

__all__ = ["view_strides", "infer_size", "clamp_index"]


def infer_size(shape: Sequence[IntLike], n: IntLike) -> tuple:
    """The shape with its -1 filled in for n elements."""
    shape = tuple(shape)
    hole = None
    known: IntLike = 1
    for i, size in enumerate(shape):
        if isinstance(size, int) and size == -1:
            if hole is not None:
                raise RuntimeError("only one dimension can be inferred")
            hole = i
        else:
            if isinstance(size, int) and size < 0:
                raise RuntimeError(f"invalid shape dimension {size}")
            known = known * size
    known = fold(known)
    if hole is not None:
        if is_zero(known):
            raise RuntimeError(
                f"cannot reshape tensor of {n} elements into shape {list(shape)} because the unspecified "
                "dimension size -1 can be any value and is ambiguous"
            )
        q = fold(E.floordiv(n, known)) if not (isinstance(n, int) and isinstance(known, int)) else n // known
        if not same(fold(q * known), n):
            raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {n}")
        return (*shape[:hole], q, *shape[hole + 1 :])
    if not same(known, n):
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {n}")
    return shape


def view_strides(old_shape: Sequence[IntLike], old_stride: Sequence[IntLike], shape: Sequence[IntLike]) -> tuple | None:
    """Strides of a view of another shape, None where memory would have to be copied (at::detail::computeStride)."""
    n = numel(old_shape)
    if state.env is not None and state.env.has_unbacked and state.env.surely_contiguous(old_shape, old_stride):
        return contiguous_strides(shape)
    if is_zero(n):
        return tuple(old_stride) if tuple(old_shape) == tuple(shape) else contiguous_strides(shape)
    if not old_shape:
        return (1,) * len(shape)
    out: list[IntLike] = [0] * len(shape)
    view_d = len(shape) - 1
    chunk_stride = old_stride[-1]
    tensor_numel: IntLike = 1
    view_numel: IntLike = 1
    for dim in range(len(old_shape) - 1, -1, -1):
        tensor_numel = fold(tensor_numel * old_shape[dim])
        if dim == 0 or (
            not is_one(old_shape[dim - 1]) and not same(old_stride[dim - 1], fold(tensor_numel * chunk_stride))
        ):
            while view_d >= 0 and (_lt(view_numel, tensor_numel) or is_one(shape[view_d])):
                out[view_d] = fold(view_numel * chunk_stride)
                view_numel = fold(view_numel * shape[view_d])
                view_d -= 1
            if not same(view_numel, tensor_numel):
                return None
            if dim > 0:
                chunk_stride = old_stride[dim - 1]
                tensor_numel = view_numel = 1
    return tuple(out) if view_d == -1 else None


def _lt(a: IntLike, b: IntLike) -> bool:
    return a is not b and less(a, b)


def viewed(
    x: TensorMeta,
    shape: Sequence[IntLike],
    stride: Sequence[IntLike],
    offset: IntLike = 0,
    dtype: torch.dtype | None = None,
) -> TensorMeta:
    return TensorMeta(tuple(shape), tuple(stride), dtype or x.dtype, x.device, fold(x.storage_offset + offset))


@rule("view", "_unsafe_view")
def view(x: TensorMeta, shape: Any) -> TensorMeta:
    if isinstance(shape, torch.dtype):
        return view_dtype(x, shape)
    shape = infer_size(shape, x.numel())
    stride = view_strides(x.shape, x.stride, shape)
    if stride is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans "
            "across two contiguous subspaces). Use .reshape(...) instead."
        )
    return viewed(x, shape, stride)


@rule("view.dtype")
def view_dtype(x: TensorMeta, dtype: torch.dtype) -> TensorMeta:
    if dtype.itemsize == x.dtype.itemsize:
        return viewed(x, x.shape, x.stride, 0, dtype)
    if not x.shape:
        raise RuntimeError(f"self.dim() cannot be 0 to view {x.dtype} as {dtype} (different element sizes)")
    if not is_one(x.stride[-1]):
        raise RuntimeError("self.stride(-1) must be 1 to view as a dtype of another size")
    big, small = max(dtype.itemsize, x.dtype.itemsize), min(dtype.itemsize, x.dtype.itemsize)
    r = big // small
    if dtype.itemsize < x.dtype.itemsize:
        shape = (*x.shape[:-1], fold(x.shape[-1] * r))
        stride = (*(fold(s * r) for s in x.stride[:-1]), 1)
        return TensorMeta(shape, stride, dtype, x.device, fold(x.storage_offset * r))
    for s in (x.shape[-1], *x.stride[:-1], x.storage_offset):
        if fix(s) % r:
            raise RuntimeError(f"sizes, strides and offset must be divisible by {r} to view {x.dtype} as {dtype}")
    return TensorMeta(
        (*x.shape[:-1], fix(x.shape[-1]) // r),
        (*(fix(s) // r for s in x.stride[:-1]), 1),
        dtype,
        x.device,
        fix(x.storage_offset) // r,
    )


@rule("_reshape_alias")
def reshape_alias(x: TensorMeta, shape: Sequence[IntLike], stride: Sequence[IntLike]) -> TensorMeta:
    return viewed(x, shape, stride)


@rule("alias", "detach", "lift_fresh", "lift", "view_as", "_autocast_to_full_precision", "_conj", "_neg_view")
def alias(x: TensorMeta, *_: Any) -> TensorMeta:
    return viewed(x, x.shape, x.stride)


@rule("permute")
def permute(x: TensorMeta, dims: Sequence[int]) -> TensorMeta:
    if len(dims) != x.ndim:
        raise RuntimeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the "
            f"desired ordering of dimensions i.e. input.dim() = {x.ndim} is not equal to len(dims) = "
            f"{len(dims)}"
        )
    ds = norm_dims(dims, x.ndim) if dims else ()
    return viewed(x, [x.shape[d] for d in ds], [x.stride[d] for d in ds])


@rule("transpose.int", "transpose")
def transpose(x: TensorMeta, a: int, b: int) -> TensorMeta:
    a, b = norm_dim(a, x.ndim), norm_dim(b, x.ndim)
    if not x.shape:
        return viewed(x, (), ())
    shape, stride = list(x.shape), list(x.stride)
    shape[a], shape[b] = shape[b], shape[a]
    stride[a], stride[b] = stride[b], stride[a]
    return viewed(x, shape, stride)


@rule("t")
def t(x: TensorMeta) -> TensorMeta:
    if x.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {x.ndim}D")
    return viewed(x, x.shape[::-1], x.stride[::-1])


@rule("expand")
def expand(x: TensorMeta, size: Sequence[IntLike], implicit: bool = False) -> TensorMeta:
    lead = len(size) - x.ndim
    if lead < 0:
        raise RuntimeError(
            f"expand(...): the number of sizes provided ({len(size)}) must be greater or equal to the number "
            f"of dimensions in the tensor ({x.ndim})"
        )
    shape: list[IntLike] = []
    stride: list[IntLike] = []
    for i, want in enumerate(size):
        if i < lead:
            if isinstance(want, int) and want < 0:
                raise RuntimeError(
                    f"The expanded size of the tensor ({want}) isn't allowed in a leading, non-existing dimension {i}"
                )
            shape.append(want)
            # as in C++: a new dimension gets the stride that would keep the tensor contiguous if its size were 1
            stride.append(0 if not is_one(want) else _outer_stride(x))
            continue
        have, st = x.shape[i - lead], x.stride[i - lead]
        if isinstance(want, int) and want == -1:
            want = have
        if want is have or (isinstance(have, int) and isinstance(want, int) and have == want):
            shape.append(have)
            stride.append(st)
        elif is_one(have):
            shape.append(want)
            stride.append(0)
        elif same(have, want):
            shape.append(want)
            stride.append(st)
        else:
            raise RuntimeError(
                f"The expanded size of the tensor ({want}) must match the existing size ({have}) at "
                f"non-singleton dimension {i}.  Target sizes: {list(size)}.  Tensor sizes: {list(x.shape)}"
            )
    return viewed(x, shape, stride)


def _outer_stride(x: TensorMeta) -> IntLike:
    return fold(x.shape[0] * x.stride[0]) if x.shape else 1


def clamp_index(i: IntLike, n: IntLike) -> IntLike:
    """A slice bound as Python means it: negative counts from the end, then kept within [0, n]."""
    if isinstance(i, int) and isinstance(n, int):
        if i < 0:
            i += n
        return min(max(i, 0), n)
    if isinstance(i, int) and i >= 2**62:
        return n
    if not isinstance(i, int) and i is n:
        return n
    if decide(E.lt(i, 0)):
        i = fold(i + n)
        if decide(E.lt(i, 0)):
            return 0
    return n if decide(E.gt(i, n)) else i  # (a batch that ends at the end is like the others)


@rule("slice.Tensor", "slice")
def slice_(
    x: TensorMeta, dim: int = 0, start: IntLike | None = None, end: IntLike | None = None, step: IntLike = 1
) -> TensorMeta:
    if not x.shape:
        raise RuntimeError("slice() cannot be applied to a 0-dim tensor.")
    dim = norm_dim(dim, x.ndim)
    if less(step, 1):
        raise RuntimeError("slice step must be positive")
    n = x.shape[dim]
    lo = 0 if start is None else clamp_index(start, n)
    hi = n if end is None else clamp_index(end, n)
    if not (isinstance(lo, int) and lo == 0) and hi is not lo and less(hi, lo):
        hi = lo
    size = fold((hi - lo + (step - 1)) // step) if step != 1 else fold(hi - lo)
    shape, stride = list(x.shape), list(x.stride)
    shape[dim], stride[dim] = size, fold(stride[dim] * step)
    return viewed(x, shape, stride, fold(lo * x.stride[dim]))


@rule("select.int", "select")
def select(x: TensorMeta, dim: int, index: IntLike) -> TensorMeta:
    if not x.shape:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    dim = norm_dim(dim, x.ndim)
    n = x.shape[dim]
    bad = (
        (not -n <= index < n)
        if isinstance(index, int) and isinstance(n, int)
        else (decide(E.ge(index, n)) or decide(E.lt(index + n, 0)))
    )
    if bad:
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(x.shape)} at dimension {dim}")
    if less(index, 0):
        index = fold(index + n)
    return viewed(
        x, x.shape[:dim] + x.shape[dim + 1 :], x.stride[:dim] + x.stride[dim + 1 :], fold(index * x.stride[dim])
    )


@rule("squeeze")
def squeeze(x: TensorMeta, dim: Any = None) -> TensorMeta:
    dims = (
        range(x.ndim)
        if dim is None
        else norm_dims(dim, x.ndim)
        if not (isinstance(dim, (list, tuple)) and not dim)
        else ()
    )
    keep = [dim for dim in range(x.ndim) if dim not in dims or not is_one(x.shape[dim])]
    return viewed(x, [x.shape[d] for d in keep], [x.stride[d] for d in keep])


@rule("unsqueeze")
def unsqueeze(x: TensorMeta, dim: int) -> TensorMeta:
    dim = norm_dim(dim, x.ndim + 1)
    st = fold(x.shape[dim] * x.stride[dim]) if dim < x.ndim else 1
    return viewed(x, (*x.shape[:dim], 1, *x.shape[dim:]), (*x.stride[:dim], st, *x.stride[dim:]))


@rule("as_strided")
def as_strided(
    x: TensorMeta, size: Sequence[IntLike], stride: Sequence[IntLike], storage_offset: IntLike | None = None
) -> TensorMeta:
    off = x.storage_offset if storage_offset is None else storage_offset
    return TensorMeta(tuple(size), tuple(stride), x.dtype, x.device, off)


@rule("split.Tensor", "unsafe_split", "split")
def split(x: TensorMeta, size: Any, dim: int = 0) -> list[TensorMeta]:
    if isinstance(size, (list, tuple)):
        return split_with_sizes(x, size, dim)
    dim = norm_dim(dim, x.ndim)
    n = x.shape[dim]
    if less(size, 0) or is_zero(size) and not is_zero(n):
        raise RuntimeError(f"split_size can only be 0 if dimension size is 0, but got dimension size of {n}")
    if is_zero(n):
        return [slice_(x, dim, 0, 0)]
    if isinstance(n, int) and isinstance(size, int):
        return [slice_(x, dim, i, min(i + size, n)) for i in range(0, n, size)]
    count = -(-state.env.hint(n) // state.env.hint(size))
    same(fold(E.ceildiv(n, size)), count)  # the number of parts is fixed (a guard on it), their sizes are not
    return [slice_(x, dim, fold(size * i), n if i == count - 1 else fold(size * (i + 1))) for i in range(count)]


@rule("split_with_sizes", "unsafe_split_with_sizes")
def split_with_sizes(x: TensorMeta, sizes: Sequence[IntLike], dim: int = 0) -> list[TensorMeta]:
    dim = norm_dim(dim, x.ndim)
    total: IntLike = 0
    for size in sizes:
        total = total + size
    if not same(fold(total), x.shape[dim]):
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {x.shape[dim]} (input tensor's size at "
            f"dimension {dim}), but got split_sizes={list(sizes)}"
        )
    out, at = [], 0
    for size in sizes:
        shape = list(x.shape)
        shape[dim] = size
        out.append(viewed(x, shape, x.stride, fold(at * x.stride[dim])))
        at = fold(at + size)
    return out


@rule("unbind.int", "unbind")
def unbind(x: TensorMeta, dim: int = 0) -> list[TensorMeta]:
    dim = norm_dim(dim, x.ndim)
    return [select(x, dim, i) for i in range(fix(x.shape[dim]))]


@rule("unfold")
def unfold(x: TensorMeta, dim: int, size: IntLike, step: IntLike) -> TensorMeta:
    dim = norm_dim(dim, x.ndim)
    if not x.shape:
        if less(1, size):
            raise RuntimeError(f"maximum size for tensor at dimension 0 is 1 but size is {size}")
        return viewed(x, (size,), (1,))
    step = fix(step)
    shape, stride = list(x.shape), list(x.stride)
    if less(shape[dim], size):
        raise RuntimeError(f"maximum size for tensor at dimension {dim} is {shape[dim]} but size is {size}")
    if step <= 0:
        raise RuntimeError(f"step is {step} but must be > 0")
    st = stride[dim]
    shape[dim] = fold((shape[dim] - size) // step + 1)
    stride[dim] = fold(st * step)
    return viewed(x, [*shape, size], [*stride, st])


@rule("diagonal")
def diagonal(x: TensorMeta, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorMeta:
    a, b = norm_dim(dim1, x.ndim), norm_dim(dim2, x.ndim)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    rows, cols = x.shape[a], x.shape[b]
    if offset >= 0:
        cols = fold(cols - offset)
        start = fold(x.stride[b] * offset)
    else:
        rows = fold(rows + offset)
        start = fold(x.stride[a] * -offset)
    if isinstance(rows, int) and isinstance(cols, int):
        n: IntLike = max(min(rows, cols), 0)
    else:
        n = cols if less(cols, rows) else rows
        if less(n, 0):
            n = 0
    if isinstance(n, int) and n == 0:
        start = 0
    keep = [dim for dim in range(x.ndim) if dim not in (a, b)]
    return viewed(
        x, [*(x.shape[d] for d in keep), n], [*(x.stride[d] for d in keep), fold(x.stride[a] + x.stride[b])], start
    )


@rule("view_as_real")
def view_as_real(x: TensorMeta) -> TensorMeta:
    return TensorMeta(
        (*x.shape, 2),
        (*(fold(stride * 2) for stride in x.stride), 1),
        to_complex_real(x.dtype),
        x.device,
        fold(x.storage_offset * 2),
    )


@rule("view_as_complex")
def view_as_complex(x: TensorMeta) -> TensorMeta:
    c = {torch.float32: torch.complex64, torch.float64: torch.complex128, torch.float16: torch.complex32}.get(x.dtype)
    if c is None or not x.shape or not same(x.shape[-1], 2):
        raise RuntimeError("Tensor must have a last dimension of size 2 and a floating dtype")
    if not is_one(x.stride[-1]):
        raise RuntimeError("Tensor must have a last dimension with stride 1")
    halves = [_half(s) for s in (*x.stride[:-1], x.storage_offset)]
    return TensorMeta(x.shape[:-1], tuple(halves[:-1]), c, x.device, halves[-1])


def _half(stride: IntLike) -> IntLike:
    if not isinstance(stride, int) and state.env is not None:
        stride = fold(state.env.replace(stride))  # the last dimension is known to be 2 by now
    if not same(stride % 2, 0):
        raise RuntimeError("Tensor must have a stride divisible by 2 for all but last dimension")
    return fold(stride // 2)


def _copying(view_rule: Any) -> Any:
    """The `*_copy` form: the view's shape in fresh contiguous memory."""

    def f(*args: Any, **kwargs: Any) -> Any:
        r = view_rule(*args, **kwargs)

        def fresh(meta: TensorMeta) -> TensorMeta:
            return TensorMeta(meta.shape, contiguous_strides(meta.shape), meta.dtype, meta.device)

        return [fresh(m) for m in r] if isinstance(r, list) else fresh(r)

    return f


for _name, _f in {
    "permute": permute,
    "transpose": transpose,
    "t": t,
    "expand": expand,
    "slice": slice_,
    "select": select,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "split": split,
    "split_with_sizes": split_with_sizes,
    "unbind": unbind,
    "unfold": unfold,
    "diagonal": diagonal,
    "view": view,
    "as_strided": as_strided,
    "alias": alias,
    "detach": alias,
}.items():
    rule(f"{_name}_copy")(_copying(_f))
