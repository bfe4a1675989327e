"""Operators that make tensors: from nothing, in the likeness of another, or as a copy."""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch

from ...symbolic import expr as E
from ...symbolic.expr import IntLike
from .core import TensorMeta, broadcast_shapes, fix, fold, new, rule, same, strides_for
from .strides import like, preserve_strides

__all__ = ["device_of"]


def device_of(device: Any) -> torch.device:
    """The device that torch takes this for: "cuda" is the current GPU, None the default device."""
    d = torch.get_default_device() if device is None else torch.device(device)
    if d.type == "cuda" and d.index is None and torch.cuda.is_available():
        d = torch.device("cuda", torch.cuda.current_device())
    return d


def _make(shape: Sequence[IntLike], dtype: torch.dtype | None, layout: Any, device: Any, fmt: Any = None) -> TensorMeta:
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"{layout} tensors are not traced")
    shape = tuple(shape)
    for size in shape:
        if isinstance(size, int) and size < 0:
            raise RuntimeError(f"Trying to create tensor with negative dimension {size}: {list(shape)}")
    stride = strides_for(shape, fmt) if fmt is not None else None
    return new(shape, dtype or torch.get_default_dtype(), device_of(device), stride)


@rule("empty.memory_format", "zeros", "ones", "rand", "randn", "empty")
def zeros(
    shape: Sequence[IntLike],
    *_: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    memory_format: Any = None,
    **__: Any,
) -> TensorMeta:
    return _make(shape, dtype, layout, device, memory_format)


@rule("empty_strided")
def empty_strided(
    shape: Sequence[IntLike], stride: Sequence[IntLike], *, dtype: Any = None, device: Any = None, **__: Any
) -> TensorMeta:
    return new(shape, dtype or torch.get_default_dtype(), device_of(device), stride)


def _value_dtype(value: Any) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, (int, E.Expr)):
        return torch.int64
    if isinstance(value, complex):
        return torch.complex128 if torch.get_default_dtype() is torch.float64 else torch.complex64
    return torch.get_default_dtype()


@rule("full")
def full(
    shape: Sequence[IntLike], value: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, **__: Any
) -> TensorMeta:
    return _make(shape, dtype or _value_dtype(value), layout, device)


@rule("scalar_tensor")
def scalar_tensor(
    value: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> TensorMeta:
    return _make((), dtype, layout, device)


@rule("arange")
def arange(
    *args: Any,
    start: Any = 0,
    end: Any = None,
    step: Any = 1,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    **__: Any,
) -> TensorMeta:
    if len(args) == 1:
        end = args[0]
    elif len(args) >= 2:
        start, end = args[:2]
        step = args[2] if len(args) > 2 else step
    nums = (start, end, step)
    if dtype is None:
        dtype = torch.int64 if all(isinstance(number, (int, E.Expr)) for number in nums) else torch.get_default_dtype()
    if not isinstance(step, E.Expr) and step == 0:
        raise RuntimeError("step must be nonzero")
    if any(isinstance(number, E.Expr) for number in nums):
        step = fix(step)
        d = (
            fold((E.as_expr(end) - start + (step - 1)) // step)
            if step > 0
            else fold((E.as_expr(start) - end + (-step - 1)) // -step)
        )
        n: IntLike = d if not isinstance(d, int) else max(d, 0)
    else:
        size = (end - start) / step
        if size < 0:
            raise RuntimeError("upper bound and lower bound inconsistent with step sign")
        n = -(-(end - start) // step) if all(isinstance(number, int) for number in nums) else math.ceil(size)
    return _make((n,), dtype, layout, device)


@rule("linspace", "logspace")
def linspace(
    start: Any, end: Any, steps: IntLike, *_: Any, dtype: Any = None, layout: Any = None, device: Any = None, **__: Any
) -> TensorMeta:
    return _make((steps,), dtype, layout, device)


@rule("eye")
def eye(
    n: IntLike, m: IntLike | None = None, *, dtype: Any = None, layout: Any = None, device: Any = None, **__: Any
) -> TensorMeta:
    return _make((n, n if m is None else m), dtype, layout, device)


@rule("tril_indices", "triu_indices")
def tril_indices(*_: Any, **__: Any) -> TensorMeta:
    raise NotImplementedError("the size of tril_indices is not traced")


@rule("randint")
def randint(*args: Any, dtype: Any = torch.int64, layout: Any = None, device: Any = None, **__: Any) -> TensorMeta:
    shape = next(arg for arg in args if isinstance(arg, list))
    return _make(shape, dtype or torch.int64, layout, device)


@rule("randperm")
def randperm(n: IntLike, *, dtype: Any = torch.int64, layout: Any = None, device: Any = None, **__: Any) -> TensorMeta:
    return _make((n,), dtype or torch.int64, layout, device)


@rule("normal")
def normal(
    mean: Any, std: Any = 1, size: Any = None, *, dtype: Any = None, layout: Any = None, device: Any = None, **__: Any
) -> TensorMeta:
    from .pointwise_meta import pointwise
    from .types import result_type

    if size is not None:
        return _make(size, dtype, layout, device)
    xs = [mean, std]
    meta = pointwise(xs, result_type(xs))
    return new(meta.shape, meta.dtype, meta.device)


# ---- in the likeness of a tensor
@rule("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
def made_like(
    x: TensorMeta, *_: Any, dtype: Any = None, device: Any = None, memory_format: Any = None, **__: Any
) -> TensorMeta:
    return _like(x, dtype, device, memory_format)


def _like(x: TensorMeta, dtype: Any, device: Any, fmt: Any) -> TensorMeta:
    stride = preserve_strides(x) if fmt in (None, torch.preserve_format) else strides_for(x.shape, fmt)
    return TensorMeta(x.shape, stride, dtype or x.dtype, x.device if device is None else device_of(device))


@rule("new_empty", "new_zeros", "new_ones", "new_full")
def new_filled(
    x: TensorMeta,
    shape: Sequence[IntLike],
    *_: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    **__: Any,
) -> TensorMeta:
    return _make(shape, dtype or x.dtype, layout, x.device if device is None else device)


@rule("new_empty_strided")
def new_empty_strided(
    x: TensorMeta,
    shape: Sequence[IntLike],
    stride: Sequence[IntLike],
    *,
    dtype: Any = None,
    device: Any = None,
    **__: Any,
) -> TensorMeta:
    return new(shape, dtype or x.dtype, x.device if device is None else device_of(device), stride)


# ---- copies
@rule("clone")
def clone(x: TensorMeta, *, memory_format: Any = None) -> TensorMeta:
    return _like(x, None, None, memory_format)


@rule("contiguous")
def contiguous(x: TensorMeta, *, memory_format: Any = torch.contiguous_format) -> TensorMeta:
    return _like(x, None, None, memory_format)


@rule("_to_copy")
def to_copy(
    x: TensorMeta, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **__: Any
) -> TensorMeta:
    return _like(x, dtype, device, memory_format)


@rule("copy")
def copy(x: TensorMeta, src: TensorMeta, non_blocking: bool = False) -> TensorMeta:
    out = broadcast_shapes(x.shape, src.shape)
    if len(out) != x.ndim or not all(map(same, out, x.shape)):
        raise RuntimeError(
            f"The size of tensor a ({list(x.shape)}) must match the size of tensor b ({list(src.shape)})"
        )
    return like(x)


@rule("tril", "triu")
def tril(x: TensorMeta, diagonal: int = 0) -> TensorMeta:
    if x.ndim < 2:
        raise RuntimeError("tril: input tensor must have at least 2 dimensions")
    return new(x.shape, x.dtype, x.device)


@rule("bernoulli", "bernoulli.p")
def bernoulli(x: TensorMeta, *_: Any, **__: Any) -> TensorMeta:
    return new(x.shape, x.dtype, x.device)


@rule(
    "_unsafe_index_put",
    "zero_functional",
    "hardtanh",
    "nan_to_num",
    "normal_functional",
    "uniform",
    "random",
    "random.from",
    "random.to",
    "exponential",
    "cauchy",
    "geometric",
    "log_normal",
)
def same_like(x: TensorMeta, *_: Any, **__: Any) -> TensorMeta:
    return like(x)


@rule("poisson", "binomial", "_standard_gamma", "_sample_dirichlet")
def drawn(x: TensorMeta, *_: Any, **__: Any) -> TensorMeta:
    return new(x.shape, x.dtype, x.device)


@rule("multinomial")
def multinomial(x: TensorMeta, num_samples: int, replacement: bool = False, *, generator: Any = None) -> TensorMeta:
    return new((*x.shape[:-1], num_samples), torch.int64, x.device)


@rule("complex", "polar")
def complex_(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    from .pointwise_meta import pointwise

    return pointwise(
        [a, b], {torch.float64: torch.complex128, torch.float16: torch.complex32}.get(a.dtype, torch.complex64)
    )


@rule("native_dropout")
def native_dropout(x: TensorMeta, p: float, train: bool | None) -> tuple[TensorMeta, TensorMeta]:
    return (
        like(x),
        like(x, torch.bool),
    )
