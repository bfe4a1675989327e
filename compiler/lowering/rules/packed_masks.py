"""Masks kept as bits (ops/mask_bits.py): a nest stores truth values to a buffer of bits, and what reads them loads from
one.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ...ops import mask_bits
from ...symbolic.expr import Expr, as_expr
from ..ir import Axis, LoopNest, load
from ..context import Lowering
from ..rule_table import NoRule, rule
from ..ref import Ref, dim_symbol, is_one

__all__: list[str] = []


def _places(shape: Sequence[Any], order: Sequence[int]) -> tuple[tuple[Axis, ...], Expr]:
    """The axes as they lie in memory, and the position of a bit over them."""
    axes = tuple(Axis(dim_symbol(len(shape), dim), shape[dim]) for dim in order if not is_one(shape[dim]))
    e = as_expr(0)
    for axis in axes:
        e = e * axis.size + axis.symbol
    return axes, e


@rule(mask_bits.PACK)
def pack_bits(lo: Lowering, node: Any, mask: Ref, order: Sequence[int]) -> Ref:
    buffer = lo.new_buffer(lo.out_shape(), torch.uint8)
    buffer.bits = True
    axes, e = _places(mask.shape, order)
    lo.steps.append(LoopNest(buffer, axes, e, mask.value, domain=axes, origins=lo.origins(), lines=lo.lines()))
    return Ref(buffer.shape, buffer.dtype, load(buffer, dim_symbol(1, 0)))  # (as bytes it is but a result of the graph)


@rule(mask_bits.UNPACK)
def unpack_bits(lo: Lowering, node: Any, kept: Ref, size: Sequence[Any], order: Sequence[int]) -> Ref:
    if not lo.on_gpu:
        raise NoRule("bits, which only kernels on a GPU read")
    buffer, source = lo.realise(kept), node.args[0]
    if buffer.kind != "input" or any(user.target is not mask_bits.UNPACK for user in source.users):
        buffer = lo.view(
            buffer, buffer.shape, buffer.stride, 0, bits=True
        )  # (words that are drawn in this graph, for one)
    buffer.bits = True
    shape = lo.out_shape()
    return Ref(shape, torch.bool, load(buffer, _places(shape, order)[1]))
