"""The stand-in for a numpy array on the interpreted stack: a tensor of the graph that the program sees as an array."""

from __future__ import annotations

import sys
from typing import Any

from ...graph.tensor import TraceTensor
from ...guards.source import Source

__all__ = ["Array", "make_array", "array_class", "array_dtype", "array_like", "holds_array"]


class Array:
    """An array, or a number, of numpy's. Its methods and operators are handlers (numpy_arrays.py) that interpret the
    program's calls.

    _tensor   the TraceTensor that holds its elements, on the CPU
    _number   it is a number of numpy's (numpy.float64), not an array without dimensions
    _source   where it came from, for an array from outside
    _fixed    it is read-only: the imaginary part of real numbers
    """

    __slots__ = ("_tensor", "_number", "_source", "_fixed")
    __hash__ = None  # type: ignore[assignment]
    _tensor: TraceTensor
    _number: bool
    _source: Source | None
    _fixed: bool


def make_array(tensor: TraceTensor, number: bool = False, source: Source | None = None, fixed: bool = False) -> Array:
    made = object.__new__(Array)
    for name, value in (("_tensor", tensor), ("_number", number), ("_source", source), ("_fixed", fixed)):
        object.__setattr__(made, name, value)
    return made


def array_dtype(value: Array) -> Any:
    """numpy's dtype of it."""
    return sys.modules["numpy"].dtype(str(value._tensor.dtype).partition(".")[2])


def array_class(value: Array) -> type:
    """The class that the program sees."""
    return array_dtype(value).type if value._number else sys.modules["numpy"].ndarray


def array_like(value: Array) -> Any:
    """A real object of that class."""
    numpy = sys.modules["numpy"]
    return array_dtype(value).type(0) if value._number else numpy.empty((0,) * value._tensor.dim(), array_dtype(value))


def holds_array(value: Any, depth: int = 0) -> bool:
    """Whether a value is an Array or a container of some."""
    if type(value) is Array:
        return True
    if depth < 4 and isinstance(value, (list, tuple)):
        return any(holds_array(item, depth + 1) for item in value)
    return depth < 4 and isinstance(value, dict) and any(holds_array(item, depth + 1) for item in value.values())
