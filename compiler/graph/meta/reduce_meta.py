"""Reductions and scans."""

from __future__ import annotations

import math
from typing import Any

import torch

from .core import DataDependentError, TensorMeta, is_zero, new, norm_dim, norm_dims, numel, rule
from .strides import like
from .types import is_int, result_type, to_complex_real

__all__ = ["reduced"]


def reduced(x: TensorMeta, dims: Any, keepdim: bool, dtype: torch.dtype) -> TensorMeta:
    """The result of reducing `dims` (None or empty: all). Reductions allocate contiguous results."""
    ds = set(norm_dims(dims, x.ndim))
    full = [1 if dim in ds else size for dim, size in enumerate(x.shape)]
    shape = full if keepdim else [size for dim, size in enumerate(x.shape) if dim not in ds]
    return new(shape, dtype, x.device)


def _sum_dtype(x: TensorMeta, dtype: torch.dtype | None) -> torch.dtype:
    return dtype or (torch.int64 if is_int(x.dtype) else x.dtype)


@rule("sum", "nansum", "prod")
def sum_(x: TensorMeta, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TensorMeta:
    return reduced(x, dim, keepdim, _sum_dtype(x, dtype))


@rule("mean")
def mean(x: TensorMeta, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TensorMeta:
    d = dtype or x.dtype
    if is_int(d):
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex "
            f"dtype. Got: {str(x.dtype).removeprefix('torch.').capitalize()}"
        )
    return reduced(x, dim, keepdim, d)


def _float_needed(x: TensorMeta, what: str) -> None:
    if is_int(x.dtype):
        raise RuntimeError(f"{what} only support floating point and complex dtypes")


@rule("var", "std")
def var(
    x: TensorMeta, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> TensorMeta:
    if isinstance(dim, bool):  # var(x, unbiased)
        dim = None
    _float_needed(x, "std and var")
    return reduced(x, dim, keepdim, to_complex_real(x.dtype))


@rule("var_mean", "std_mean")
def var_mean(
    x: TensorMeta, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> tuple[TensorMeta, TensorMeta]:
    if isinstance(dim, bool):
        dim = None
    _float_needed(x, "var_mean and std_mean")
    return reduced(x, dim, keepdim, to_complex_real(x.dtype)), reduced(x, dim, keepdim, x.dtype)


def _nonempty(x: TensorMeta, dims: Any, what: str) -> None:
    if not x.shape:
        return
    if any(is_zero(x.shape[d]) for d in norm_dims(dims, x.ndim)):
        if dims is None or (isinstance(dims, (tuple, list)) and not dims):
            raise RuntimeError(
                f"{what}(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
                "reduction dim with the 'dim' argument."
            )
        raise IndexError(f"{what}(): Expected reduction dim {dims} to have non-zero size.")


@rule("amax", "amin")
def amax(x: TensorMeta, dim: Any = (), keepdim: bool = False) -> TensorMeta:
    _nonempty(x, dim, "amax")
    return reduced(x, dim, keepdim, x.dtype)


@rule("max", "min")
def max_(x: TensorMeta, *args: Any, **kwargs: Any) -> Any:
    if len(args) == 0 and "dim" not in kwargs:
        if x.shape and is_zero(numel(x.shape)):
            raise RuntimeError(
                "max(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction "
                "dim with the 'dim' argument."
            )
        return new((), x.dtype, x.device)
    return max_dim(x, *args, **kwargs)


@rule("max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode")
def max_dim(x: TensorMeta, dim: int = -1, keepdim: bool = False) -> tuple[TensorMeta, TensorMeta]:
    _nonempty(x, dim, "max")
    return reduced(x, dim, keepdim, x.dtype), reduced(x, dim, keepdim, torch.int64)


@rule("kthvalue")
def kthvalue(x: TensorMeta, k: int, dim: int = -1, keepdim: bool = False) -> tuple[TensorMeta, TensorMeta]:
    return max_dim(x, dim, keepdim)


@rule("median", "nanmedian")
def median(x: TensorMeta) -> TensorMeta:
    return new((), x.dtype, x.device)


@rule("aminmax")
def aminmax(x: TensorMeta, *, dim: int | None = None, keepdim: bool = False) -> tuple[TensorMeta, TensorMeta]:
    _nonempty(x, dim, "aminmax")
    r = reduced(x, dim, keepdim, x.dtype)
    return r, r.replace()


@rule("argmax", "argmin")
def argmax(x: TensorMeta, dim: int | None = None, keepdim: bool = False) -> TensorMeta:
    _nonempty(x, dim, "argmax")
    return reduced(x, dim, keepdim, torch.int64)


@rule("any", "all")
def any_(x: TensorMeta, dim: Any = None, keepdim: bool = False) -> TensorMeta:
    dtype = torch.uint8 if x.dtype is torch.uint8 else torch.bool
    if isinstance(dim, (list, tuple)) and not dim:  # an empty list reduces nothing
        return like(x, dtype)
    return reduced(x, dim, keepdim, dtype)


@rule("_is_all_true", "_is_any_true")
def is_all_true(x: TensorMeta) -> TensorMeta:
    if x.dtype is not torch.bool:
        raise RuntimeError(f"_is_all_true and _is_any_true take tensors of bools, got {x.dtype}")
    return new((), torch.bool, x.device)


@rule("logsumexp")
def logsumexp(x: TensorMeta, dim: Any, keepdim: bool = False) -> TensorMeta:
    return reduced(x, dim, keepdim, torch.get_default_dtype() if is_int(x.dtype) else x.dtype)


@rule("norm", "linalg_vector_norm")
def norm(
    x: TensorMeta, p: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorMeta:
    dims = [dim] if isinstance(dim, int) else dim or range(x.ndim)
    if (
        p is not None
        and (p < 0 or p == math.inf)
        and x.shape
        and any(is_zero(x.shape[d]) for d in norm_dims(dims, x.ndim))
    ):
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {p} norm on an empty tensor because the operation does not have an"
            " identity"
        )
    return reduced(x, dim, keepdim, to_complex_real(dtype or x.dtype))


@rule("count_nonzero")
def count_nonzero(x: TensorMeta, dim: Any = None) -> TensorMeta:
    return reduced(x, dim, False, torch.int64)


@rule("cumsum", "cumprod")
def cumsum(x: TensorMeta, dim: int, *, dtype: torch.dtype | None = None) -> TensorMeta:
    norm_dim(dim, x.ndim)
    return new(x.shape, _sum_dtype(x, dtype), x.device)


@rule("logcumsumexp")
def logcumsumexp(x: TensorMeta, dim: int) -> TensorMeta:
    return new(x.shape, x.dtype, x.device)


@rule("cummax", "cummin")
def cummax(x: TensorMeta, dim: int) -> tuple[TensorMeta, TensorMeta]:
    norm_dim(dim, x.ndim)
    return new(x.shape, x.dtype, x.device), new(x.shape, torch.int64, x.device)


@rule("_softmax", "_log_softmax")
def softmax(x: TensorMeta, dim: int, half_to_float: bool) -> TensorMeta:
    norm_dim(dim, x.ndim)
    if is_int(x.dtype):
        raise NotImplementedError(f'"softmax_kernel_impl" not implemented for {x.dtype}')
    return new(x.shape, torch.float32 if half_to_float else x.dtype, x.device)


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(grad: TensorMeta, out: TensorMeta, dim: int, dtype: torch.dtype) -> TensorMeta:
    return new(grad.shape, dtype, grad.device)


@rule("_safe_softmax")
def safe_softmax(x: TensorMeta, dim: int, dtype: torch.dtype | None = None) -> TensorMeta:
    return new(x.shape, dtype or x.dtype, x.device)


@rule("trace")
def trace(x: TensorMeta) -> TensorMeta:
    if x.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {x.ndim}")
    return new((), _sum_dtype(x, None), x.device)


@rule("dist")
def dist(a: TensorMeta, b: TensorMeta, p: Any = 2) -> TensorMeta:
    return new((), to_complex_real(result_type([a, b])), a.device)


@rule("equal")
def equal(*_: Any) -> Any:
    raise DataDependentError("torch.equal depends on the data")


@rule(
    "_local_scalar_dense",
    "is_nonzero",
    "item",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
)
def data_dependent(*args: Any, **kwargs: Any) -> Any:
    raise DataDependentError("the result depends on the data")


@rule("repeat_interleave.Tensor")
def repeat_interleave(repeats: TensorMeta, *, output_size: Any = None) -> TensorMeta:
    if output_size is None:
        raise DataDependentError("the result depends on the data")
    if repeats.ndim != 1 or repeats.dtype not in (torch.int32, torch.int64):
        raise RuntimeError("repeat_interleave takes one dimension of int32 or int64 counts")
    return new((output_size,), repeats.dtype, repeats.device)
