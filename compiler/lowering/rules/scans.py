"""Running sums, products, maxima: one pass along a dimension, each element stored with what came before it.

As eager's kernels do it: on the CPU float32 adds up in double, float16 and bfloat16 in float32; of equal maxima the
last one's position is given. A GPU adds up the pieces of a row as a tree, which is exact enough in float32. One long
row alone is left to torch's kernel, which shares it among all processors."""

from __future__ import annotations

from typing import Any

import torch

from ..ir import Axis, LoopNest, Value, cast, const, indirect_symbol, is_position, prim
from ..context import Lowering, summed
from ..rule_table import NoRule, rule
from ..buffer_strides import memory_order, strides_of
from ..promote import operand
from ..ref import Ref, dim_symbol, flat_index, is_one, numel, ref_of_buffer, remap, reshape
from .scatters import checked, on_cpu

__all__ = ["scan", "running_dtype"]


LONG = 16384  # elements of a row that a GPU shares among its processors where there are few rows
FEW = 16


def running_dtype(dtype: torch.dtype, device: str = "cpu") -> torch.dtype:
    """What a running sum is kept in."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    return torch.float64 if dtype == torch.float32 and device == "cpu" else dtype


def may_scan(lo: Lowering, shape: tuple, dim: int, dtype: torch.dtype) -> None:
    """Whether generated code scans rows of `dtype` along `dim`; NoRule where torch's kernel is the better one."""
    if _device(lo) != "cuda":
        return on_cpu(lo, "scan")
    if dtype == torch.bool:
        raise NoRule("a scan of booleans")
    rows: Any = 1
    for d, size in enumerate(shape):
        rows = rows * (1 if d == dim else size)
    if type(shape[dim]) is int and shape[dim] > LONG and type(rows) is int and rows < FEW:
        raise NoRule("a scan of long rows")


def _device(lo: Lowering) -> str:
    return torch.device(lo._device()).type


def scan(
    lo: Lowering,
    op: str,
    value: Value,
    shape: tuple,
    dim: int,
    dtype: torch.dtype,
    stride: Any = None,
    suffix: str = "",
) -> Ref:
    """The running `op` of `value` (over j symbols of `shape`) along `dim`, as a buffer of `dtype`."""
    may_scan(lo, shape, dim, value.dtype)
    if is_one(shape[dim]):
        value = summed(value) if op in ("sum", "logaddexp") else value
        return lo.store(const(0, dtype) if is_position(op) else cast(value, dtype), shape, dtype, stride, suffix)
    buffer = lo._buffer(lo._node_name() + suffix, shape, dtype, stride)
    along = Axis(dim_symbol(len(shape), dim), shape[dim])
    axes = tuple(axis for axis in memory_order(shape, buffer.stride) if axis.symbol is not along.symbol)
    lo.steps.append(
        LoopNest(
            buffer,
            axes,
            flat_index(shape, buffer.stride),
            value,
            (along,),
            op,
            (*axes, along),
            origins=lo.origins(),
            lines=lo.lines(),
            scan=True,
        )
    )
    return ref_of_buffer(buffer)


def _running(lo: Lowering, op: str, x: Ref, dim: int) -> Ref:
    meta = lo.meta()
    v = cast(operand(x, meta.dtype), running_dtype(meta.dtype, _device(lo)))
    if not x.ndim:
        return lo.pointwise(operand(x, meta.dtype))
    return scan(lo, op, v, lo.out_shape(), dim % x.ndim, meta.dtype, strides_of(meta))


@rule("aten.cumsum.default")
def cumsum(lo: Lowering, node: Any, x: Ref, dim: int, *, dtype: Any = None) -> Ref:
    return _running(lo, "sum", x, dim)


@rule("aten.cumprod.default")
def cumprod(lo: Lowering, node: Any, x: Ref, dim: int, *, dtype: Any = None) -> Ref:
    return _running(lo, "prod", x, dim)


@rule("aten.logcumsumexp.default")
def logcumsumexp(lo: Lowering, node: Any, x: Ref, dim: int) -> Ref:
    if not x.dtype.is_floating_point:
        raise NoRule("logarithms of integers")
    return _running(lo, "logaddexp", x, dim)


def _extremum(op: str) -> Any:
    def f(lo: Lowering, node: Any, x: Ref, dim: int) -> tuple[Ref, Ref]:
        values, at = lo.meta(k=0), lo.meta(k=1)
        if not x.ndim:
            return lo.pointwise(x.value, 0), lo.pointwise(const(0, torch.int64), 1)
        v = x.value if x.dtype not in (torch.float16, torch.bfloat16) else cast(x.value, torch.float32)
        shape = lo.out_shape(k=0)
        may_scan(lo, shape, dim % x.ndim, v.dtype)
        return (
            scan(lo, op, v, shape, dim % x.ndim, x.dtype, strides_of(values), "_0"),
            scan(lo, "arg" + op, v, shape, dim % x.ndim, torch.int64, strides_of(at), "_1"),
        )

    return f


rule("aten.cummax.default")(_extremum("max"))
rule("aten.cummin.default")(_extremum("min"))


@rule("aten.masked_scatter.default")
def masked_scatter(lo: Lowering, node: Any, x: Ref, mask: Ref, source: Ref) -> Ref:
    """The k-th element for which the mask holds, in row-major order, is the k-th of the source."""
    shape = lo.out_shape()
    if source.dtype != x.dtype:
        raise NoRule("a source of another dtype")
    total, given = numel(shape), numel(source.shape)
    if any(type(size) is int and size == 0 for size in shape) or (type(given) is int and given == 0):
        raise NoRule("an empty source")
    wide = Ref(shape, torch.bool, mask.value)  # (positions count from the right: broadcasting changes nothing)
    flat = reshape(wide, (total,))
    count = scan(lo, "sum", cast(flat.value, torch.int64), (total,), 0, torch.int64, suffix="_count")
    at = reshape(count, shape)
    message = "RuntimeError: masked_scatter: the mask holds for more elements than the source has"
    k = checked(prim("sub", at.value, const(1, torch.int64)), given, message)
    line = reshape(source, (given,))
    read = remap(line, shape, {0: indirect_symbol(k)}).value if not is_one(given) else line.value
    if is_one(given):
        read = prim("where", prim("eq", k, const(0, torch.int64)), read, const(0, read.dtype))
    return lo.pointwise(prim("masked", wide.value, read, operand(x, lo.meta().dtype)))
