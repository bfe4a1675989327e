"""numpy arrays from outside: inputs of the graph, tensors over the arrays' own memory; and numbers of numpy's, which
are plain numbers to the guards.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from ...graph.tensor import TraceTensor, trace_tensor_like
from ...guards import source as S
from ...guards.guard import TensorSpec
from .array_value import make_array

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["load_array", "load_number", "varying_number"]

_KINDS = "biufc"  # of numbers that are numbers of Python's, too
_WIDEST = 8  # bytes of a real number whose item() is one of Python's: beyond it numpy gives its own


def load_array(machine: Machine, real: Any, source: S.Source, why: str) -> Any:
    """The Array of an ndarray from outside, or None where a tensor cannot stand for it."""
    world, numpy = machine.world, sys.modules["numpy"]
    if (
        type(real) is not numpy.ndarray
        or not real.flags.aligned
        or not real.dtype.isnative
        or any(stride < 0 for stride in real.strides)
        or not real.flags.writeable
    ):
        return None
    try:
        tensor = torch.from_numpy(real)
    except (TypeError, ValueError):
        return None
    if any(stride % real.itemsize for stride in real.strides):
        return None
    known = world.arrays.get(id(real))
    if known is not None:
        if known._source is not source:
            world.guard(source, "ALIAS", known._source, "same array")
        return known
    world.guard(source, "TYPE", numpy.ndarray, why)
    world.guard(S.attr(source, "dtype"), "ID", real.dtype, "dtype of an array")
    world.guard(S.attr(source, "ndim"), "EQUALS", real.ndim, "dimensions of an array")
    flags = S.attr(source, "flags")
    world.guard(S.attr(flags, "writeable"), "ID", True, "an array that may be changed")
    shape, dims = S.attr(source, "shape"), {}
    for dim, n in enumerate(real.shape):
        size = world.load(n, S.item(shape, dim), "size of an array")
        if isinstance(size, torch.SymInt):
            dims[dim] = size
    if real.flags.c_contiguous:
        world.guard(S.attr(flags, "c_contiguous"), "ID", True, "layout of an array")
    else:
        for dim, s in enumerate(real.strides):
            world.guard(S.item(S.attr(source, "strides"), dim), "EQUALS", s, "layout of an array")
    trace = trace_tensor_like(tensor, world.env if dims else None, dims)
    inner = S.array(source)
    shape_, stride = (
        tuple(world.env.to_expr(x) if isinstance(x, torch.SymInt) else int(x) for x in xs)
        for xs in (trace.shape, trace.stride())
    )
    spec = TensorSpec(torch.Tensor, tensor.dtype, tensor.device, False, shape_, stride)
    world.register(real, source)
    _add_input(machine, tensor, trace, inner, spec)
    made = world.arrays[id(real)] = world.register(make_array(trace, False, source), source)
    return made


def load_number(machine: Machine, real: Any, source: S.Source, why: str) -> Any:
    """The stack value of a number of numpy's from outside: itself, relied on by type and value as Python's numbers are;
    an Array where it varies. None for what is no such number.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(real, numpy.generic) or type(real).__module__ != "numpy":
        return None
    if real.dtype.kind not in _KINDS or real.itemsize > _WIDEST * (2 if real.dtype.kind == "c" else 1):
        return None
    world = machine.world
    world.guard(source, "TYPE", type(real), why)
    number = world.load(real.item(), S.number(source), why)
    if isinstance(number, (torch.SymInt, torch.SymFloat)):
        return _varying(machine, real, source)
    return world.register(real, source)


def _varying(machine: Machine, real: Any, source: S.Source) -> Any:
    tensor = S.tensor_of_number(real)
    inner = S.array(source, number=True)
    trace = trace_tensor_like(tensor, None, {})
    spec = TensorSpec(torch.Tensor, tensor.dtype, tensor.device, False, (), ())
    _add_input(machine, tensor, trace, inner, spec)
    return machine.world.register(make_array(trace, True, source), source)


def _add_input(machine: Machine, tensor: torch.Tensor, trace: TraceTensor, source: S.Source, spec: TensorSpec) -> None:
    """The tensor that an array is to the graph, as its input."""
    machine.world.register(tensor, source)
    machine.world.tensors[id(tensor)] = trace
    machine.world.reals[id(trace)] = tensor
    machine.graph.add_input(tensor, trace, source, spec, False)


def varying_number(machine: Machine, value: Any) -> Any:
    """What torch takes a number of numpy's for that came from outside and varies: a number of Python's that varies."""
    return machine.world.loaded[S.number(value._source)] if value._number and value._source is not None else value
