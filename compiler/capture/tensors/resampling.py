"""Resampling (F.interpolate) where sizes vary: the C++ functions that torch's Python code calls take numbers alone; the
operators below them take symbols.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from . import tensor_calls
from ..numbers import size_floats
from ..kinds.callables import FUNCTIONS, python_function
from ..kinds.parameters import interpret
from ...graph.tensor import TraceTensor

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__: list[str] = []

_aten = torch.ops.aten
_NAMES = tuple(
    """upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa""".split()
)


@python_function(("torch.nn.functional", "interpolate"))
def _interpolate(machine: Machine, x: Any, size: Any = None, *args: Any, **kwargs: Any) -> Any:
    given = machine.iterate(size) if isinstance(size, (list, tuple)) else [size]
    if type(x) is TraceTensor and any(type(s) is torch.SymInt for s in (*x.shape, *given)):
        return interpret(machine, torch.nn.functional.interpolate, [x, size, *args], kwargs)
    return tensor_calls.call_function(machine, torch.nn.functional.interpolate, [x, size, *args], kwargs)


def _resample(machine: Machine, x: Any, size: Any = None, *rest: Any, fn: Any, below: Any, **kwargs: Any) -> Any:
    """`rest` ends with the scale factors; in front of them may stand align_corners."""
    if type(x) is TraceTensor and rest and not kwargs:
        *more, factors = rest
        sizes = list(machine.iterate(size)) if size is not None else _scaled(machine, x, factors)
        if sizes is not None and any(type(size) is torch.SymInt for size in (*sizes, *x.shape)):
            scales = [None] * len(sizes) if factors is None else list(machine.iterate(factors))
            return tensor_calls.call_function(machine, below, [x, sizes, *more, *scales], {})
    return tensor_calls.call_function(machine, fn, [x, size, *rest], kwargs)


def _scaled(machine: Machine, x: TraceTensor, factors: Any) -> list | None:
    """The sizes of the result, each a size of x times its factor, rounded down; None where they can't be told for every
    size.
    """
    if factors is None:
        return None
    sizes: list = []
    for size, factor in zip(x.shape[2:], machine.iterate(factors)):
        if type(factor) not in (int, float):
            return None
        if type(size) is int:
            sizes.append(math.floor(size * float(factor)))
            continue
        product = size_floats.operation(machine, operator.mul, (size, float(factor)))
        whole = size_floats.to_int(machine, product, math.floor) if type(product) is torch.SymFloat else None
        if whole is None:
            return None
        sizes.append(whole)
    return sizes


for _name in _NAMES:
    _fn = getattr(torch._C._nn, _name)
    FUNCTIONS[_fn] = functools.partial(_resample, fn=_fn, below=getattr(_aten, _name).default)
