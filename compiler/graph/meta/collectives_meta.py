"""Collectives (ops/collectives.py): results of their own, in the usual order of elements."""

from __future__ import annotations

from typing import Any, Sequence

from ...ops.messages import SPACE as _MESSAGES
from .core import TensorMeta, new, rule

__all__: list[str] = []

_SPACE = "_c10d_functional::"


def _like(meta: TensorMeta, rows: Any) -> TensorMeta:
    return new((rows, *meta.shape[1:]), meta.dtype, meta.device)


@rule(_SPACE + "wait_tensor", _SPACE + "_wrap_tensor_autograd")
def wait_tensor(t: TensorMeta) -> TensorMeta:
    return t


@rule(_SPACE + "all_reduce", _SPACE + "broadcast")
def same_on_each(t: TensorMeta, how: Any, group_name: Any) -> TensorMeta:
    return new(t.shape, t.dtype, t.device)


@rule(_SPACE + "all_gather_into_tensor")
def all_gather_into_tensor(t: TensorMeta, group_size: int, group_name: Any) -> TensorMeta:
    return _like(t, t.shape[0] * group_size) if t.shape else new((group_size,), t.dtype, t.device)


@rule(_SPACE + "reduce_scatter_tensor")
def reduce_scatter_tensor(t: TensorMeta, reduce_op: str, group_size: int, group_name: Any) -> TensorMeta:
    return _like(t, t.shape[0] // group_size)


@rule(_SPACE + "all_to_all_single")
def all_to_all_single(t: TensorMeta, outputs: Sequence[Any], inputs: Sequence[Any], group_name: Any) -> TensorMeta:
    return _like(t, sum(outputs))


@rule(f"{_MESSAGES}::send", f"{_MESSAGES}::barrier")
def nothing_to_read(t: TensorMeta, *how: Any) -> TensorMeta:
    return new((0,), t.dtype, t.device)


@rule(f"{_MESSAGES}::receive", f"{_MESSAGES}::reduce_to")
def of_the_same_size(t: TensorMeta, *how: Any) -> TensorMeta:
    return new(t.shape, t.dtype, t.device)


@rule(f"{_MESSAGES}::gather_to")
def gather(t: TensorMeta, mine: bool, root: int, size: int, group_name: Any) -> TensorMeta:
    return new((size, *t.shape) if mine else (0,), t.dtype, t.device)


@rule(f"{_MESSAGES}::scatter_from")
def scatter(t: TensorMeta, mine: bool, root: int, group_name: Any) -> TensorMeta:
    return new(t.shape[1:] if mine else t.shape, t.dtype, t.device)
