"""Matrix products."""

from __future__ import annotations

from typing import Any

import torch

from ...symbolic.expr import IntLike, as_expr, ceildiv, integer
from .core import TensorMeta, broadcast_shapes, fold, new, rule, same
from .pointwise_meta import common_device

__all__: list[str] = []


def _inner(a: IntLike, b: IntLike, what: str) -> None:
    if not same(a, b):
        raise RuntimeError(what)


def _dtypes(*ts: TensorMeta) -> None:
    dtype = ts[0].dtype
    for t in ts[1:]:
        if t.dtype != dtype:
            raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {dtype} != {t.dtype}")


def _text(x: TensorMeta) -> str:
    return "x".join(map(str, x.shape))


@rule("mm")
def mm(a: TensorMeta, b: TensorMeta, out_dtype: Any = None) -> TensorMeta:
    if a.ndim != 2 or b.ndim != 2:
        raise RuntimeError("self must be a matrix" if a.ndim != 2 else "mat2 must be a matrix")
    _dtypes(a, b)
    _inner(a.shape[1], b.shape[0], f"mat1 and mat2 shapes cannot be multiplied ({_text(a)} and {_text(b)})")
    return new((a.shape[0], b.shape[1]), out_dtype or a.dtype, common_device([a, b]))


@rule("bmm")
def bmm(a: TensorMeta, b: TensorMeta, out_dtype: Any = None) -> TensorMeta:
    if a.ndim != 3 or b.ndim != 3:
        raise RuntimeError("batch1 must be a 3D tensor" if a.ndim != 3 else "batch2 must be a 3D tensor")
    _dtypes(a, b)
    _inner(
        a.shape[0],
        b.shape[0],
        f"batch1 and batch2 must have the same number of batches, got {a.shape[0]} and {b.shape[0]}",
    )
    _inner(
        a.shape[2],
        b.shape[1],
        "Expected size for first two dimensions of batch2 tensor to be: "
        f"[{a.shape[0]}, {a.shape[2]}] but got: [{b.shape[0]}, {b.shape[1]}].",
    )
    return new((a.shape[0], a.shape[1], b.shape[2]), out_dtype or a.dtype, common_device([a, b]))


def _expands(x: TensorMeta, shape: tuple, what: str) -> None:
    if broadcast_shapes(x.shape, shape) != tuple(shape) and not all(map(same, broadcast_shapes(x.shape, shape), shape)):
        raise RuntimeError(f"{what}: {list(x.shape)} cannot be expanded to {list(shape)}")


@rule("addmm")
def addmm(x: TensorMeta, a: TensorMeta, b: TensorMeta, *_: Any, beta: Any = 1, alpha: Any = 1) -> TensorMeta:
    out = mm(a, b)
    _expands(x, out.shape, "addmm")
    if x.dtype != out.dtype:
        raise RuntimeError(f"self and mat2 must have the same dtype, but got {x.dtype} and {out.dtype}")
    return out


@rule("_addmm_activation")
def addmm_activation(x: TensorMeta, a: TensorMeta, b: TensorMeta, *_: Any, **__: Any) -> TensorMeta:
    return addmm(x, a, b)


@rule("baddbmm")
def baddbmm(x: TensorMeta, a: TensorMeta, b: TensorMeta, *_: Any, beta: Any = 1, alpha: Any = 1) -> TensorMeta:
    out = bmm(a, b)
    _expands(x, out.shape, "baddbmm")
    return out


@rule("addbmm")
def addbmm(x: TensorMeta, a: TensorMeta, b: TensorMeta, *_: Any, beta: Any = 1, alpha: Any = 1) -> TensorMeta:
    out = bmm(a, b)
    return new(out.shape[1:], out.dtype, out.device)


@rule("mv")
def mv(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    if a.ndim != 2 or b.ndim != 1:
        raise RuntimeError(f"vector + matrix @ vector expected, got {a.ndim}D and {b.ndim}D")
    _dtypes(a, b)
    _inner(a.shape[1], b.shape[0], f"size mismatch, got input ({a.shape[0]}), mat ({_text(a)}), vec ({b.shape[0]})")
    return new((a.shape[0],), a.dtype, a.device)


@rule("addmv")
def addmv(x: TensorMeta, a: TensorMeta, b: TensorMeta, *_: Any, beta: Any = 1, alpha: Any = 1) -> TensorMeta:
    return mv(a, b)


@rule("dot", "vdot")
def dot(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    if a.ndim != 1 or b.ndim != 1:
        raise RuntimeError(f"1D tensors expected, but got {a.ndim}D and {b.ndim}D tensors")
    if a.dtype != b.dtype:
        raise RuntimeError(f"dot : expected both vectors to have same dtype, but found {a.dtype} and {b.dtype}")
    _inner(
        a.shape[0],
        b.shape[0],
        "inconsistent tensor size, expected tensor [%s] and src [%s] to have the same number of elements"
        % (a.shape[0], b.shape[0]),
    )
    return new((), a.dtype, a.device)


_GROUPED = (torch.float32, torch.bfloat16, torch.float16)
LINE = 16  # bytes that strides of a grouped product are multiples of


def _lines(meta: TensorMeta) -> None:
    """Raises as eager does where a matrix does not begin its rows, or columns, on multiples of LINE."""
    *_, rows, columns = meta.stride
    if not all(type(n) is int for n in (*meta.shape[-2:], rows, columns)):
        return
    n, k = meta.shape[-2:]
    along = columns if rows == 1 and columns >= max(1, n) else rows if columns == 1 and rows >= max(1, k) else None
    if along is None:
        raise RuntimeError(
            f"Invalid strides/sizes, got {list(meta.stride)} for strides and {list(meta.shape)} for sizes"
        )
    if along * meta.dtype.itemsize % LINE:
        raise RuntimeError("strides should be multiple of 16 bytes")


@rule("_grouped_mm")
def grouped_mm(
    a: TensorMeta, b: TensorMeta, offs: TensorMeta | None = None, bias: Any = None, out_dtype: torch.dtype | None = None
) -> TensorMeta:
    """Products of groups: of rows of a, columns of b or what is summed over, which end at `offs`, where an operand is
    no batch of matrices.
    """
    if a.dtype not in _GROUPED or a.dtype != b.dtype:
        raise RuntimeError(
            f"Expected mat_a and mat_b to be Float32, BFloat16 or Float16 matrices of one dtype, got {a.dtype} and"
            f" {b.dtype}"
        )
    if a.ndim not in (2, 3) or b.ndim not in (2, 3):
        raise RuntimeError(f"mat_a and mat_b have to be 2 or 3 dimensional, got {a.ndim}D and {b.ndim}D tensors")
    parted = a.ndim == 2 or b.ndim == 2
    if parted != (offs is not None):
        raise RuntimeError("Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d")
    if offs is not None and (offs.ndim != 1 or offs.dtype != torch.int32):
        raise RuntimeError("Offsets have to be int32" if offs.ndim == 1 else f"offs has to be 1D, got {offs.ndim}D")
    if bias is not None:
        raise RuntimeError("Bias not supported yet")
    if out_dtype not in (None, a.dtype):
        raise RuntimeError("Grouped gemm output dtype must match `mat_a` dtype")
    if a.ndim == 3 or b.ndim == 3:
        _inner(a.shape[-1], b.shape[-2], "contraction dimension of mat_a and mat_b must match")
    groups = offs.shape[0] if offs is not None else a.shape[0]
    for meta in (a, b):
        if meta.ndim == 3:
            _inner(meta.shape[0], groups, "matrix batch sizes have to match")
        _lines(meta)
    rows, columns = a.shape[-2], b.shape[-1]
    shape = (rows, columns) if a.ndim != b.ndim else (groups, rows, columns)
    unit = LINE // a.dtype.itemsize
    line = fold(ceildiv(as_expr(columns), integer(unit)) * unit)
    return new(shape, a.dtype, common_device([a, b]), (line, 1) if a.ndim != b.ndim else (fold(rows * line), line, 1))


@rule("_scaled_mm")
def scaled_mm(
    a: TensorMeta,
    b: TensorMeta,
    scale_a: TensorMeta,
    scale_b: TensorMeta,
    bias: TensorMeta | None = None,
    scale_result: TensorMeta | None = None,
    out_dtype: torch.dtype | None = None,
    *_: Any,
    **__: Any,
) -> TensorMeta:
    """(a x b) of 8-bit floats, times the scales. Which types, scales and strides a device takes, its kernel says."""
    if a.ndim != 2 or b.ndim != 2:
        raise RuntimeError(f"mat_a and mat_b must be matrices, got {a.ndim}D and {b.ndim}D tensors")
    _inner(a.shape[1], b.shape[0], f"mat1 and mat2 shapes cannot be multiplied ({_text(a)} and {_text(b)})")
    return new((a.shape[0], b.shape[1]), out_dtype or a.dtype, common_device([a, b]))


@rule("_weight_int4pack_mm")
def weight_int4pack_mm(x: TensorMeta, w: TensorMeta, group: int, scales: TensorMeta) -> TensorMeta:
    """x times weights of 4 bits, which lie in tiles of 8 columns."""
    if x.ndim != 2 or w.ndim != 4:
        raise RuntimeError(f"expected a matrix and weights in tiles (4D), got {x.ndim}D and {w.ndim}D tensors")
    return new((x.shape[0], fold(w.shape[0] * 8)), x.dtype, x.device)


@rule("_weight_int4pack_mm_for_cpu", "_weight_int8pack_mm")
def weight_pack_mm(x: TensorMeta, w: TensorMeta, *scales: Any) -> TensorMeta:
    if x.ndim != 2 or w.ndim != 2:
        raise RuntimeError(f"expected two matrices, got {x.ndim}D and {w.ndim}D tensors")
    return new((x.shape[0], w.shape[0]), x.dtype, x.device)
