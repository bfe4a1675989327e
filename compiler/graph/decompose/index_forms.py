"""Factories, masks made of indices, and indexing in the closed set's forms."""

from __future__ import annotations

from typing import Any

import torch

from ...ops.closed_set import contents_of_empty
from ..meta.core import TensorMeta, is_zero, norm_dim, suggest_format
from .table import Builder, Node, decomposition, shape_of

__all__: list[str] = []

aten = torch.ops.aten


def _made(builder: Builder, op: Any, value: Any, *args: Any, **kwargs: Any) -> Node:
    """A constant fill with the metadata that `op` gives."""
    meta: TensorMeta = builder.meta(op, args, kwargs)
    node = builder.full(meta.shape, value, meta.dtype, meta.device)
    node.meta["val"] = meta
    return node


def _filler(op: Any, value: Any) -> Any:
    def f(builder: Builder, *args: Any, **kwargs: Any) -> Node:
        return _made(builder, op, value, *args, **kwargs)

    return f


for _op, _v in (
    (aten.zeros.default, 0),
    (aten.ones.default, 1),
    (aten.zeros_like.default, 0),
    (aten.ones_like.default, 1),
    (aten.new_zeros.default, 0),
    (aten.new_ones.default, 1),
):
    decomposition(_op)(_filler(_op, _v))


def _unfilled(op: Any) -> Any:
    """A fill that nobody needs: `unwritten` says so to who writes it as a whole."""

    def f(builder: Builder, *args: Any, **kwargs: Any) -> Any:
        node = _made(builder, op, contents_of_empty(builder.meta(op, args, kwargs).dtype), *args, **kwargs)
        node.meta["unwritten"] = True
        return node

    return f


for _op in (aten.empty_like.default, aten.empty.memory_format, aten.new_empty.default):
    decomposition(_op)(_unfilled(_op))


@decomposition(aten.full.default)
def full(builder: Builder, size: Any, value: Any, **kwargs: Any) -> Node:
    return _made(builder, aten.full.default, value, size, value, **kwargs)


@decomposition(aten.full_like.default)
def full_like(builder: Builder, x: Node, value: Any, **kwargs: Any) -> Node:
    return _made(builder, aten.full_like.default, value, x, value, **kwargs)


@decomposition(aten.new_full.default)
def new_full(builder: Builder, x: Node, size: Any, value: Any, **kwargs: Any) -> Node:
    return _made(builder, aten.new_full.default, value, x, size, value, **kwargs)


@decomposition(aten.scalar_tensor.default)
def scalar_tensor(builder: Builder, value: Any, **kwargs: Any) -> Node:
    return _made(builder, aten.scalar_tensor.default, value, value, **kwargs)


@decomposition(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(builder: Builder, *args: Any, **kwargs: Any) -> Any:
    op = (aten.arange.default, aten.arange.start, aten.arange.start_step)[len(args) - 1]
    meta = builder.meta(op, args, kwargs)
    start, end, step = {1: (0, *args, 1), 2: (*args, 1), 3: args}[len(args)]
    return builder.emit(aten.arange.start_step, start, end, step, val=meta, dtype=meta.dtype, device=meta.device)


@decomposition(aten.eye.default, aten.eye.m)
def eye(builder: Builder, n: Any, m: Any = None, **kwargs: Any) -> Any:
    op, args = (aten.eye.default, (n,)) if m is None else (aten.eye.m, (n, m))
    tensor = builder.meta(op, args, kwargs)
    rows = builder.unsqueeze(builder.iota(tensor.shape[0], torch.int64, tensor.device), 1)
    cols = builder.iota(tensor.shape[1], torch.int64, tensor.device)
    return (
        builder.cast(builder.compare("eq", rows, cols), tensor.dtype)
        if tensor.dtype is not torch.bool
        else builder.compare("eq", rows, cols)
    )


def _triangle(compare: str) -> Any:
    def f(builder: Builder, x: Node, diagonal: int = 0) -> Any:
        meta = x.meta["val"]
        rows = builder.unsqueeze(builder.iota(meta.shape[-2], torch.int64, meta.device), 1)
        cols = builder.iota(meta.shape[-1], torch.int64, meta.device)
        keep = builder.compare(compare, builder.sub(cols, rows), diagonal)
        return builder.where(keep, x, False if meta.dtype is torch.bool else 0)

    return f


decomposition(aten.tril.default)(_triangle("le"))
decomposition(aten.triu.default)(_triangle("ge"))


# ---- indexing
@decomposition(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(builder: Builder, x: Node, indices: Any) -> Any:
    if any(i is not None and i.meta["val"].dtype in (torch.bool, torch.uint8) for i in indices):
        return NotImplemented
    return builder.emit(aten.index.Tensor, x, [None if i is None else builder.cast(i, torch.int64) for i in indices])


@decomposition(aten.index_select.default)
def index_select(builder: Builder, x: Node, dim: int, idx: Node) -> Any:
    if not shape_of(x):
        return builder.emit(aten.clone.default, x)
    d = norm_dim(dim, len(shape_of(x)))
    if not shape_of(idx):
        idx = builder.emit(aten.unsqueeze.default, idx, 0)
    return builder.emit(aten.index_select.default, x, d, builder.cast(idx, torch.int64))


@decomposition(aten.embedding.default)
def embedding(
    builder: Builder, weight: Node, idx: Node, padding_idx: Any = -1, scale: bool = False, sparse: bool = False
) -> Any:
    return builder.emit(aten.embedding.default, weight, builder.cast(idx, torch.int64))


@decomposition(aten.gather.default)
def gather(builder: Builder, x: Node, dim: int, idx: Node, *, sparse_grad: bool = False) -> Any:
    if not shape_of(x) or not shape_of(idx):
        return NotImplemented
    return builder.emit(aten.gather.default, x, norm_dim(dim, len(shape_of(x))), builder.cast(idx, torch.int64))


@decomposition(aten.take.default)
def take(builder: Builder, x: Node, idx: Node) -> Any:
    from ..meta.core import numel

    return builder.emit(aten.index.Tensor, builder.view(x, [numel(shape_of(x))]), [builder.cast(idx, torch.int64)])


@decomposition(aten.constant_pad_nd.default)
def constant_pad_nd(builder: Builder, x: Node, pad: Any, value: Any = 0) -> Any:
    if all(isinstance(p, int) and p == 0 for p in pad):
        return builder.emit(aten.clone.default, x)
    return builder.emit(aten.constant_pad_nd.default, x, list(pad), value)


@decomposition(aten.pixel_shuffle.default)
def pixel_shuffle(builder: Builder, x: Node, r: int) -> Any:
    *lead, c, h, w = shape_of(x)
    n = len(lead)
    y = builder.view(x, [*lead, c // (r * r), r, r, h, w])
    return _shuffled(builder, x, y, [n, n + 3, n + 1, n + 4, n + 2], [*lead, c // (r * r), h * r, w * r])


@decomposition(aten.pixel_unshuffle.default)
def pixel_unshuffle(builder: Builder, x: Node, r: int) -> Any:
    *lead, c, h, w = shape_of(x)
    n = len(lead)
    if x.meta["val"].device.type == "cpu" and any(map(is_zero, x.meta["val"].shape)):
        return builder.emit(aten.clone.default, x)
    y = builder.view(x, [*lead, c, h // r, r, w // r, r])
    return _shuffled(builder, x, y, [n, n + 2, n + 4, n + 1, n + 3], [*lead, c * r * r, h // r, w // r])


def _shuffled(builder: Builder, x: Node, y: Node, order: list[int], shape: list[Any]) -> Node:
    """y, a view of x, with its last dimensions in another order, as a tensor of `shape`: channels last where x is, on
    the CPU.
    """
    meta = x.meta["val"]
    y = builder.emit(aten.permute.default, y, [*range(order[0]), *order])
    y = builder.view(builder.emit(aten.clone.default, y, memory_format=torch.contiguous_format), shape)
    fmt = suggest_format(meta) if meta.device.type == "cpu" else torch.contiguous_format
    return y if fmt is torch.contiguous_format else builder.emit(aten.clone.default, y, memory_format=fmt)


@decomposition(aten.index_put.default)
def index_put(builder: Builder, x: Node, indices: Any, values: Node, accumulate: bool = False) -> Any:
    """One number written where a mask holds is a choice."""
    meta, v = x.meta["val"], values.meta["val"]
    masks = [(d, i) for d, i in enumerate(indices) if i is not None]
    if (
        len(masks) != 1
        or masks[0][1].meta["val"].dtype is not torch.bool
        or v.shape not in ((), (1,))
        or meta.dtype.is_complex
        or masks[0][1].meta["val"].device != meta.device
        or v.device != meta.device
        and v.shape != ()
    ):
        return NotImplemented
    d, mask = masks[0]
    shape = mask.meta["val"].shape
    if tuple(meta.shape[d : d + len(shape)]) != tuple(shape):
        return NotImplemented
    rest = len(meta.shape) - d - len(shape)
    mask = builder.unsqueeze(mask, *[len(shape)] * rest) if rest else mask
    value = values if v.shape == () else builder.emit(aten.squeeze.dims, values, [0])
    if accumulate:
        value = (
            builder.add(x, value) if meta.dtype is not torch.bool else builder.emit(aten.logical_or.default, x, value)
        )
    return builder.where(mask, value, x)  # (the number may lie on the CPU while all else does not)
