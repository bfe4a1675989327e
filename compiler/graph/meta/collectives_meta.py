"""Collectives (ops/collectives.py): results of their own, in the usual order of elements."""

from __future__ import annotations

from typing import Any, Sequence

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
