"""Numbers that a tensor's type cannot hold: `torch.full((2,), 1e300)`, `x.clamp(min=1e300)`, `x.add(y, alpha=1e300)`.

Eager's kernels refuse them as they convert them, each in its own words; operators that take a number as a tensor (`x *
1e300`) give inf. Kernels of ours would give inf for all.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable

import torch

__all__ = ["AS_TENSORS", "number_too_large"]

AS_TENSORS = frozenset(
    """add sub rsub mul truediv div divide multiply subtract true_divide floordiv floor_divide mod remainder fmod eq ne
    lt le gt ge maximum minimum xlogy float_power iadd isub imul itruediv ifloordiv imod""".split()
)
_FILL = frozenset(
    """full full_like new_full fill clamp clip clamp_min clamp_max masked_fill index_fill scatter pad hardtanh threshold
    scalar_tensor fill_diagonal rsub pow""".split()
)
# that do not hold every int64
_NARROW = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.float16))
_SCALES = ("alpha", "beta", "value")
_HELD_BY_ALL = 127  # by every type but bool: numbers from 0 to that


def number_too_large(target: Callable | str, args: tuple, kwargs: dict, result: Any) -> Any:
    """A number among the arguments of a call that eager may refuse for the type of the `result`; None where there is
    none.
    """
    dtype = getattr(result, "dtype", None)
    if dtype is None or dtype is torch.bool:
        return None
    name = (target if isinstance(target, str) else getattr(target, "__name__", "")).rstrip("_")
    if dtype in _NARROW and name in _FILL:
        limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        for a in (*args, *kwargs.values()):
            if type(a) is torch.SymInt and not (a <= int(limits.max) and a >= int(limits.min)):
                # (each answer is guarded)
                return a
    large = [
        a
        for place, a in (*enumerate(args), *kwargs.items())
        if (type(a) is float and math.isfinite(a) or type(a) is int)
        and not 0 <= a <= _HELD_BY_ALL
        and _is_element(name, place)
    ]
    for a in large:
        if type(a) is int and not -1 << 63 <= a < 1 << 63:
            return a
        scales = any(kwargs.get(scale) is a for scale in _SCALES)
        if dtype.is_floating_point or dtype.is_complex:
            if abs(a) > torch.finfo(dtype).max and (scales or name not in AS_TENSORS):
                return a
        elif (scales or name in _FILL) and not torch.iinfo(dtype).min <= a <= torch.iinfo(dtype).max:
            return a
    return None


@functools.lru_cache(maxsize=1024)
def _is_element(name: str, place: int | str) -> bool:
    """Whether the argument at this position, or of this name, may become an element of a tensor: not a size, a
    dimension or an index. Of what is no operator of torch's, any may.
    """
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return True
    types = {
        str(argument.type).removeprefix("Optional[").rstrip("]")
        for overload in packet.overloads()
        for i, argument in enumerate(getattr(packet, overload)._schema.arguments)
        if place in (i, argument.name)
    }
    return not types.isdisjoint(("number", "float")) or "Tensor" in types and "int" not in types
