"""The functions that plans call besides kernels: torch's by the name of the least overhead, and what makes results of a
plan's memory. (What runs a package needs these, and nothing else of this folder.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import InternalError
from ..ops import philox
from ..ops.functional_forms import counting

__all__ = ["direct_function", "other_name", "as_planned", "changed", "view_of"]

# Operators whose torch function takes the same positional arguments and has less overhead than the OpOverload.
_DIRECT = {
    "aten.mm.default": torch.mm,
    "aten.bmm.default": torch.bmm,
    "aten.addmm.default": torch.addmm,
    "aten.mm.out": torch.mm,
    "aten.bmm.out": torch.bmm,
    "aten.addmm.out": torch.addmm,
    "aten.baddbmm.out": torch.baddbmm,
    "aten.baddbmm.default": torch.baddbmm,
    "aten.convolution.default": torch.convolution,
    str(philox.STATE): philox.draw,
}


def other_name(op: Any) -> Callable | None:
    """A function with the operator's arguments and less overhead; None where there is none."""
    return _DIRECT.get(str(op)) or counting(op)


def direct_function(op: Any) -> Callable:
    """What to call for an operator, with the operator's arguments: of its names the one with the least overhead."""
    return other_name(op) or getattr(op, "_op", op)


def view_of(base: torch.Tensor, shape: tuple, stride: tuple, offset: int, dtype: torch.dtype | None) -> torch.Tensor:
    """A result that is a view of `base`, whose elements it may read as another dtype's; the offset, in those, counts
    from where `base` begins. Gradients through it are the bridge's business, not the plan's."""
    if base.requires_grad:
        with torch.no_grad():
            return _view_of(base, shape, stride, offset, dtype)
    return _view_of(base, shape, stride, offset, dtype)


def changed(tensor: torch.Tensor, n: int) -> torch.Tensor:
    """A result that the program has changed n times after making it: its version says so, whatever the operators that
    wrote into it on the way counted.
    """
    torch._C._autograd._unsafe_set_version_counter((tensor,), (n,))
    return tensor


def as_planned(tensor: torch.Tensor, shape: tuple, stride: tuple) -> torch.Tensor:
    """`tensor` with the planned strides: itself, or a copy where the operator laid its result out in another way."""
    if tensor is None or tensor.stride() == stride and tensor.shape == shape:
        return tensor  # None: an operator leaves out a result that is not needed (a workspace)
    if tensor.shape != shape:
        raise InternalError(f"an operator gave the shape {tuple(tensor.shape)} where {shape} was planned")
    if all(a == b or size == 1 for size, a, b in zip(shape, tensor.stride(), stride)):
        return tensor  # strides of dimensions of size 1 address nothing
    out = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
    out.data.copy_(tensor)  # to autograd no change of the result
    return out


def _view_of(base: torch.Tensor, shape: tuple, stride: tuple, offset: int, dtype: torch.dtype | None) -> torch.Tensor:
    begin = base.storage_offset()
    if dtype is None:
        return base.as_strided(shape, stride, begin + offset)
    per = max(1, dtype.itemsize // base.dtype.itemsize)
    n = base.untyped_storage().nbytes() // base.dtype.itemsize - begin
    flat = base.as_strided((n // per * per,), (1,), begin).view(dtype)
    return flat.as_strided(shape, stride, flat.storage_offset() + offset)
