"""Truth values as bits: of a mask that forward keeps for backward alone, a GPU's memory holds an eighth
(autograd/saved_masks.py says of which).

Byte k holds elements 8 k to 8 k + 7 as they lie in memory, the first in its lowest bit. There are bytes for whole words
of 32 bits: kernels read words, and change them bit by bit where neighbours are computed far apart.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ..symbolic.expr import as_expr, ceildiv, maybe_int, mul_all

__all__ = ["PACK", "UNPACK", "bytes_for", "packed", "unpacked"]

WORD = 32
_ours = torch.library.Library("tcompile", "FRAGMENT")
# `order`: of the mask's dimensions, as they lie in memory
_ours.define("pack_bits(Tensor mask, int[] order) -> Tensor")
_ours.define("unpack_bits(Tensor bits, SymInt[] size, int[] order) -> Tensor")


def bytes_for(shape: Sequence[Any]) -> Any:
    """How many bytes hold the bits of a tensor of this shape."""
    return maybe_int(ceildiv(as_expr(mul_all(shape)), WORD) * (WORD // 8))


def packed(flat: torch.Tensor) -> torch.Tensor:
    """Truth values, whole bytes of them, as bytes."""
    return (flat.reshape(-1, 8).to(torch.uint8) << torch.arange(8, dtype=torch.uint8, device=flat.device)).sum(
        1, dtype=torch.uint8
    )


def unpacked(flat: torch.Tensor) -> torch.Tensor:
    """The bits of the memory of bytes or words."""
    return (
        (flat.view(torch.uint8)[:, None] >> torch.arange(8, dtype=torch.uint8, device=flat.device) & 1)
        .to(torch.bool)
        .reshape(-1)
    )


def _pack(mask: torch.Tensor, order: list[int]) -> torch.Tensor:
    flat = mask.permute(order).reshape(-1)
    return packed(torch.nn.functional.pad(flat, (0, -flat.numel() % WORD)))


def _unpack(bits: torch.Tensor, size: list[int], order: list[int]) -> torch.Tensor:
    laid = [size[dim] for dim in order]
    numel = torch.Size(laid).numel()
    return unpacked(bits)[:numel].reshape(laid).permute([order.index(dim) for dim in range(len(order))])


_ours.impl("pack_bits", _pack, "CompositeExplicitAutograd")
_ours.impl("unpack_bits", _unpack, "CompositeExplicitAutograd")
PACK, UNPACK = torch.ops.tcompile.pack_bits.default, torch.ops.tcompile.unpack_bits.default
