"""oneDNN's LSTM on the CPU. Its forward hands its backward a workspace of a size that the library alone knows: it is
asked, by a run on zeros.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .core import TensorMeta, fix, new, rule

__all__: list[str] = []


@rule("tcompile::rnn_layer")
def rnn_layer(*args: Any) -> tuple:
    x, w_hh, workspace = args[0], args[2], args[-1]
    if not workspace and not all(isinstance(size, int) for size in x.shape):
        made = (
            new((*x.shape[:2], w_hh.shape[1]), x.dtype, x.device),
            *(new(a.shape, a.dtype, a.device) for a in args[5:7]),
        )
        return *made, None  # (no workspace where no gradient is asked for)
    tensors = [(tuple(map(fix, arg.shape)), tuple(map(fix, arg.stride)), arg.dtype) for arg in args[:7]]
    batch_sizes, others = tuple(map(fix, args[8])), tuple(fix(arg) for arg in args[9:])
    found = _results(tuple(tensors), args[7], batch_sizes, *others)
    return tuple(m and TensorMeta(m[0], m[1], m[2], args[0].device) for m in found)


@functools.lru_cache(maxsize=128)
def _results(tensors: tuple, reverse: bool, batch_sizes: tuple, *others: Any) -> list[tuple | None]:
    zeros = [torch.empty_strided(shape, stride, dtype=dtype).zero_() for shape, stride, dtype in tensors]
    out = torch.ops.tcompile.rnn_layer.default(*zeros, reverse, batch_sizes, *others)
    # (no workspace where no gradient is asked for)
    return [None if tensor is None else (tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in out]


@rule("mkldnn_rnn_layer_backward")
def rnn_layer_backward(x: TensorMeta, *args: Any) -> tuple:
    """The gradients of x, four weights, hx and cx: float32 whatever these are."""
    return tuple(new(tensor.shape, torch.float32, tensor.device) for tensor in (x, *args[:6]))
