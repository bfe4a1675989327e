"""Calls that make tensors of sizes, numbers or sequences. They run on the meta device, and are nodes of the graph."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Callable

import torch

from ...graph import known_values
from ...graph.meta.factory_meta import device_of
from ...graph.tensor import from_meta, TensorMeta, TraceTensor
from ...symbolic.expr import maybe_int
from ..numbers import scalars
from ..arrays.array_value import Array, holds_array
from ..entry.graph_builder import PLAIN, PYTHON_DTYPES, real_meta
from ..machine.signals import Break, Raised
from ..machine.stack_values import specialize
from .tensor_calls import (
    CONVERSIONS,
    call_function,
    call_method,
    call_operator,
    copy_constructed,
    holds_tensor,
    is_current_gpu,
    note_current_gpu,
    plain_argument,
)
from .tensor_errors import true_error

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["FACTORIES", "call_factory", "call_legacy_constructor", "call_variable", "of_numbers"]

_SIZED = (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn)
FACTORIES = frozenset(
    (
        *_SIZED,
        torch.full,
        torch.arange,
        torch.linspace,
        torch.logspace,
        torch.eye,
        torch.randint,
        torch.randperm,
        torch.tensor,
        torch.scalar_tensor,
        torch.empty_strided,
        torch.as_tensor,
        torch.tril_indices,
        torch.triu_indices,
        torch.normal,
        torch.hann_window,
        torch.hamming_window,
        torch.blackman_window,
        torch.bartlett_window,
        torch.kaiser_window,
        torch.range,
        torch.empty_permuted,
        torch.asarray,
        torch.complex,
        torch.polar,
        torch.from_numpy,
    )
)


_MOST_NUMBERS = 16  # that vary, of a tensor that a graph makes: each is an input of it
_INFERRING = frozenset((torch.tensor, torch.as_tensor, torch.asarray))  # the dtype of numpy's numbers is the tensor's


def _flattened(data: Any) -> tuple[list, tuple[int, ...]]:
    """What lies in nested sequences, and their shape; nothing where they are ragged, which torch is to say."""
    if type(data) not in (list, tuple, torch.Size):
        return [data], ()
    parts = [_flattened(d) for d in data]
    shapes = {shape for _, shape in parts}
    if len(shapes) != 1:
        return [], (0,)
    return [number for numbers, _ in parts for number in numbers], (len(data), *shapes.pop())


def _check_sequence(machine: Machine, fn: Callable, data: Any = None) -> None:
    """Ragged sequences raise; on the meta device they don't."""
    if type(data) in (list, tuple) and not _flattened(data)[0]:
        machine.native(fn, data)


def call_factory(machine: Machine, fn: Callable, args: list, kwargs: dict) -> Any:
    """A function that makes a tensor from plain values. It never draws random numbers nor allocates: it runs on the
    meta device.
    """
    args, kwargs = (
        [machine.deep_plain(arg) for arg in args],
        {name: machine.deep_plain(value) for name, value in kwargs.items()},
    )
    made = _of_varying_numbers(machine, fn, args, kwargs)
    if made is not None:
        return made
    args, kwargs = scalars.pinned(args), scalars.pinned(kwargs)
    if args and type(args[0]) is range:
        args[0] = list(args[0])
    if fn in _INFERRING:
        _check_sequence(machine, fn, *args[:1])
    if holds_array(args):
        return CONVERSIONS["tensor"](machine, fn, args, kwargs)
    if fn is torch.eye and torch.SymInt in map(type, args) and not {"out", "requires_grad", "layout"} & set(kwargs):
        return _eye(machine, args, kwargs)
    if fn is torch.tensor and args and type(args[0]) is TraceTensor:
        return copy_constructed(machine, "torch.tensor", args[0], kwargs)
    if fn in _INFERRING and args and kwargs.get("dtype") is None and _holds_numpy_number(args[0]):
        kwargs = {**kwargs, "dtype": fn(args[0]).dtype}
    # the graph has plain numbers
    args, kwargs = (
        [plain_argument(machine, arg) for arg in args],
        {name: plain_argument(machine, value) for name, value in kwargs.items()},
    )
    if holds_tensor(args) or holds_tensor(kwargs):
        if fn in (torch.tensor, torch.asarray):
            raise Break("item", "a tensor is made from a list of tensors, whose values it reads", "use torch.stack")
        return call_function(machine, fn, args, kwargs)
    _refuse_factory(args, kwargs)
    asked = kwargs.get("device")
    device = device_of(asked)
    if is_current_gpu(asked) or asked is None and device.type == "cuda":
        note_current_gpu(machine)
    machine.world.state("default_device", None)
    meta = real_meta(_made_on_meta(machine, fn, args, kwargs), device)
    if not any(map(_symbolic, (*args, *kwargs.values()))):
        result = from_meta(meta, None)
        known_values.know_made(result, fn, args, kwargs)
        return machine.graph.record("call_function", fn, tuple(args), kwargs, result)
    shape = _symbolic_shape(fn, args, kwargs)
    if shape is None:
        args = [_specialized(arg) for arg in args]
        kwargs = {name: _specialized(value) for name, value in kwargs.items()}
    else:
        meta = _contiguous(machine, shape, meta)
    return machine.graph.record("call_function", fn, tuple(args), kwargs, from_meta(meta, machine.env))


def _of_varying_numbers(machine: Machine, fn: Callable, args: list, kwargs: dict) -> Any:
    """torch.tensor and torch.full of numbers that vary; None where there are none, or where they are to be fixed."""
    if fn in (torch.tensor, torch.as_tensor) and args and not kwargs.get("requires_grad"):
        return _tensor_of_numbers(machine, args[0], kwargs)
    if fn is torch.full and len(args) == 2:
        return scalars.filled(
            machine, "full", lambda number: call_factory(machine, fn, [args[0], number], kwargs), args[1]
        )
    return None


def _tensor_of_numbers(machine: Machine, data: Any, kwargs: dict) -> Any:
    """torch.tensor of numbers, alone or in nested sequences, of which one is a symbol: the graph reads them at each
    call. None for other data.
    """
    numbers, shape = _flattened(data)
    types = set(map(type, numbers))
    if not types <= {int, float, torch.SymInt, torch.SymFloat} or not any(map(_symbolic, numbers)):
        return None
    if len(numbers) > _MOST_NUMBERS and not machine.world.opts.fullgraph:
        raise Break(
            "unsupported",
            "a tensor is made of many numbers that vary",
            "no change is needed: Python makes it, and what uses it is compiled",
        )
    usual = torch.int64 if types <= {int, torch.SymInt} else torch.get_default_dtype()
    same = {"dtype": kwargs.get("dtype") or usual, "device": kwargs.get("device")}
    each = [call_factory(machine, torch.full, [(), number], dict(same)) for number in numbers]
    flat = call_function(machine, torch.stack, [each], {}) if shape else each[0]
    return call_method(machine, flat, "reshape", [shape], {}) if len(shape) > 1 else flat


def _refuse_factory(args: list, kwargs: dict) -> None:
    """Break for what cannot be made on the meta device, or is no plain value."""
    if kwargs.get("generator") is not None:
        raise Break("rng_state", "a torch.Generator is used")
    if kwargs.get("out") is not None:
        raise Break("unsupported", "a factory function with out=")
    for a in (*args, *kwargs.values()):
        if type(a).__name__ == "ndarray" and type(a).__module__ == "numpy":
            raise Break(
                "unsupported",
                "a tensor is made from a numpy array",
                "write torch.from_numpy(array).clone(), which is part of the graph",
            )
        if not _factory_argument(a):
            raise Break(
                "numpy" if type(a).__module__.startswith("numpy") else "unknown_object",
                f"a tensor is made from an object of type {type(a).__name__}",
            )


def _made_on_meta(machine: Machine, fn: Callable, args: list, kwargs: dict) -> Any:
    """What the factory makes of the numbers as they are now, without data."""
    hints, named = (
        [_hint(arg) for arg in args],
        {name: _hint(value) for name, value in kwargs.items()} | {"device": "meta"},
    )
    named.pop("pin_memory", None)
    try:
        return machine.native(fn, *hints, **named)
    except Raised as raised:
        raise Raised(true_error(fn, args, kwargs, raised.exc)) from None


def _contiguous(machine: Machine, shape: list, made: TensorMeta) -> TensorMeta:
    """The metadata of a contiguous tensor of that shape, whose sizes may vary."""
    exprs = tuple(maybe_int(machine.env.to_expr(size)) for size in shape)
    stride: list[Any] = []
    step: Any = 1
    for expr in reversed(exprs):
        stride.append(step)
        step = step * expr
    return TensorMeta(exprs, tuple(reversed(stride)), made.dtype, made.device, 0, made.requires_grad)


def _eye(machine: Machine, args: list, kwargs: dict) -> Any:
    """torch.eye of a size that varies."""
    device = {"device": kwargs.get("device")}
    rows, columns = (call_factory(machine, torch.arange, [n], dict(device)) for n in (args[0], args[-1]))
    ones = call_operator(machine, operator.eq, [call_method(machine, rows, "unsqueeze", [1], {}), columns])
    return call_method(machine, ones, "to", [kwargs.get("dtype") or torch.get_default_dtype()], {})


def call_legacy_constructor(machine: Machine, dtype: torch.dtype | None, args: list, kwargs: dict) -> Any:
    """torch.Tensor(...) and torch.FloatTensor(...): of a sequence's values, or uninitialised of given sizes."""
    wanted = {} if dtype is None else {"dtype": dtype}
    if kwargs or any(holds_tensor(machine.deep_plain(arg)) or type(arg) is Array for arg in args):
        raise Break(
            "unsupported",
            "a tensor is constructed by its class from another tensor",
            "use torch.tensor, torch.zeros or the like",
        )
    args = [plain_argument(machine, arg) for arg in args]
    if len(args) == 1 and isinstance(args[0], (list, tuple)) and not isinstance(args[0], torch.Size):
        machine.world.state("default_dtype", torch.get_default_dtype())
        return call_factory(machine, torch.tensor, args, wanted or {"dtype": torch.get_default_dtype()})
    return call_factory(
        machine,
        torch.empty,
        [list(args[0])] if args and isinstance(args[0], torch.Size) else [list(args) or [0]],
        wanted,
    )


def call_variable(machine: Machine, data: Any = None, requires_grad: Any = False, **options: Any) -> Any:
    """torch.autograd.Variable(x), of the times when tensors had no history: x without one."""
    if type(data) is not TraceTensor or options:
        raise Break("unsupported", "a Variable is made of no tensor", "use torch.tensor, torch.zeros or the like")
    result = call_method(machine, data, "detach", [], {})
    return call_method(machine, result, "requires_grad_", [], {}) if machine.truth(requires_grad) else result


def _factory_argument(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_factory_argument(item) for item in value)
    return (
        isinstance(value, (*PLAIN, torch.SymInt, torch.SymFloat, torch.SymBool, range))
        or type(value) is type
        and value in PYTHON_DTYPES
    )


def _holds_numpy_number(value: Any) -> bool:
    return type(value).__module__ == "numpy" or type(value) in (list, tuple) and any(map(_holds_numpy_number, value))


def _symbolic(value: Any) -> bool:
    return (
        isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
        or isinstance(value, (list, tuple))
        and any(map(_symbolic, value))
    )


def _hint(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return int(value.node.env.hint(value.node.env.to_expr(value)))
    if isinstance(value, (list, tuple)):
        return (
            type(value)(_hint(item) for item in value)
            if type(value) in (list, tuple)
            else [_hint(item) for item in value]
        )
    return _specialized(value)


def _specialized(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return (
            [_specialized(item) for item in value]
            if isinstance(value, list)
            else tuple(_specialized(item) for item in value)
        )
    return specialize(value)


def _symbolic_shape(fn: Callable, args: list, kwargs: dict) -> list | None:
    """The shape of a factory's result in size expressions, or None where it is not known in closed form."""
    if fn in _SIZED or fn is torch.full:
        size = kwargs.get("size", args[0] if args else ())
        if fn is not torch.full and not isinstance(size, (list, tuple)):
            size = args
        return list(size)
    if fn is torch.arange and not {"start", "step"} & set(kwargs):
        args = [*args, kwargs["end"]] if "end" in kwargs else args
        start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1) if len(args) == 2 else args
        if all(isinstance(arg, (int, torch.SymInt)) for arg in args) and isinstance(step, int) and step:
            return [(end - start + (step - 1)) // step if step > 0 else (start - end - (step + 1)) // -step]
    return None


# Functions that take a number for a tensor: torch.div(x.shape[0], 2, rounding_mode="trunc").
_OF_NUMBERS = frozenset(
    (
        torch.add,
        torch.sub,
        torch.subtract,
        torch.mul,
        torch.multiply,
        torch.div,
        torch.divide,
        torch.true_divide,
        torch.floor_divide,
    )
)
_NUMBERS = frozenset((bool, int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool))


def of_numbers(machine: Machine, fn: Callable, args: list, kwargs: dict) -> Any:
    """A function given a number where it takes a tensor, of which torch makes one without dimensions; NotImplemented
    for others.
    """
    named = not args
    first = kwargs.get("input") if named else args[0]
    if fn not in _OF_NUMBERS or type(first) not in _NUMBERS:
        return NotImplemented
    tensor = call_factory(machine, torch.full, [(), first], {"device": "cpu"})
    return call_function(
        machine, fn, [] if named else [tensor, *args[1:]], {**kwargs, "input": tensor} if named else kwargs
    )
