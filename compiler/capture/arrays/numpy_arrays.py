"""numpy's arrays during capture: tensors of the graph that the program sees as arrays.

An array from outside is an input of the graph, a tensor over the array's own memory; an array that leaves the graph is
the tensor's numpy(). Functions and methods are those of torch._numpy, torch's translation of numpy
(ops/numpy_calls.py). What numpy computes of constants alone is computed by numpy. What the translation would do
otherwise than numpy breaks.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from typing import TYPE_CHECKING, Any, Callable, cast

import torch

from ...ops.numpy_calls import numpy_call
from ...graph.tensor import TraceTensor
from ..tensors import tensor_calls
from .array_value import Array, array_class, array_dtype, holds_array, make_array
from .numpy_samples import try_beside
from .outside_arrays import varying_number
from ..kinds.callables import PYTHON_FUNCTIONS
from ..machine.signals import Break, Raised
from ..machine.stack_values import ATOMS, constant_only

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["call_numpy", "from_tensor", "to_tensor"]

_NOT_FOLLOWED = "what native code does with an array is not traced"
_LARGEST = 1 << 20  # elements of a constant that numpy computes during capture

# by their __array__; others give tensors back, or ask for methods
_TAKES_TENSORS = frozenset(("array", "asarray", "ones_like", "zeros_like", "full_like"))

# Translated with another meaning, or with results that are another choice among equals.
_DIFFERENT = frozenset(
    """argsort argpartition partition eig eigh eigvals eigvalsh svd qr lstsq unique nonzero argwhere flatnonzero extract
    compress where1 tolist item bincount histogram histogram2d histogramdd resize fill put copyto putmask place
    put_along_axis fill_diagonal array_equal array_equiv allclose vander corrcoef cov result_type promote_types can_cast
    issubdtype finfo iinfo dtype save ix_ r_ c_ s_ mgrid ogrid index_exp isclose empty_like view base flags iscomplexobj
    isrealobj isscalar unwrap gradient round_ ldexp frexp modf divmod __divmod__ __rdivmod__ mode broadcast_shapes shape
    ndim size flat sort""".split()
)
_ALSO = frozenset(("sort",))  # a function, while the method sorts in place
_INTEGER_DIVISION = frozenset(
    """floor_divide remainder mod fmod __floordiv__ __rfloordiv__ __mod__ __rmod__ __ifloordiv__ __imod__ gcd
    lcm""".split()
)
_POWERS = frozenset(("power", "float_power", "__pow__", "__rpow__", "__ipow__"))
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
_COMPARED = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")


# --- in and out
def from_tensor(machine: Machine, tensor: TraceTensor, force: Any = False) -> Array:
    """tensor.numpy()."""
    if tensor.device.type != "cpu" or tensor.requires_grad or force or tensor.dtype is torch.bfloat16:
        raise Break("numpy")
    return make_array(machine.getattr(tensor, "data"))  # what numpy writes, no version counts


def to_tensor(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    """torch.from_numpy, as_tensor, asarray share the array's memory; torch.tensor copies it."""
    value, rest = args[0], args[1:]
    if type(value) in (list, tuple) and fn in (torch.tensor, torch.as_tensor, torch.asarray) and not rest:
        stacked = _stacked(machine, value)
        wanted = {name: item for name, item in kwargs.items() if item is not None}
        if set(wanted) - {"dtype", "device"}:
            raise Break("numpy", "arrays become a tensor")
        return tensor_calls.call_method(machine, stacked, "to", [], wanted) if wanted else stacked
    if type(value) is not Array or rest or kwargs and fn is torch.from_numpy:
        raise Break("numpy", "an array becomes a tensor")
    if value._number:
        raise Break("numpy", "a number of numpy's becomes a tensor")
    own = value._tensor
    tensor = (
        tensor_calls.call_method(machine, own, "clone", [], {}) if fn is torch.tensor else machine.getattr(own, "data")
    )
    wanted = {name: item for name, item in kwargs.items() if name in ("dtype", "device") and item is not None}
    if set(kwargs) - {"dtype", "device", "copy"} or kwargs.get("copy"):
        raise Break("numpy", "an array becomes a tensor")
    return tensor_calls.call_method(machine, tensor, "to", [], wanted) if wanted else tensor


def _stacked(machine: Machine, values: Any) -> TraceTensor:
    """A tensor of a sequence of arrays, or of numpy's numbers, of one shape and dtype."""
    parts = [
        value._tensor if type(value) is Array else _stacked(machine, value) if type(value) in (list, tuple) else None
        for value in values
    ]
    if not parts or any(part is None or part.dtype != parts[0].dtype for part in parts):
        raise Break("numpy", "arrays become a tensor")
    return tensor_calls.call_function(machine, torch.stack, [parts], {})


# --- functions
@functools.cache
def _names() -> dict[int, tuple[Any, str]]:
    """id of a function of numpy's -> (the function, its name for numpy_call)."""
    import numpy
    import torch._numpy as tnp

    found: dict[int, tuple[Any, str]] = {}
    for prefix, home, translated in (
        ("", numpy, tnp),
        ("linalg.", numpy.linalg, tnp.linalg),
        ("fft.", numpy.fft, tnp.fft),
    ):
        for name in dir(translated):
            fn = getattr(home, name, None)
            if (
                not name.startswith("_")
                and callable(getattr(translated, name))
                and fn is not None
                and callable(fn)
                and not isinstance(fn, type)
                and (name not in _DIFFERENT or name in _ALSO)
            ):
                found.setdefault(id(fn), (fn, prefix + name))
    return found


def call_numpy(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    """fn(*args, **kwargs) of numpy."""
    args, kwargs = (
        [machine.deep_plain(arg) for arg in args],
        {key: machine.deep_plain(value) for key, value in kwargs.items()},
    )
    if tensor_calls.holds_tensor(args) or tensor_calls.holds_tensor(kwargs):
        if getattr(fn, "__name__", "") not in _TAKES_TENSORS or not args or not isinstance(args[0], TraceTensor):
            raise Break("numpy", "numpy is given a tensor", "write tensor.numpy()")
        args[0] = from_tensor(machine, args[0])
    name = _names().get(id(fn), (None, ""))[1]
    if isinstance(fn, types.FunctionType) and not name and not holds_array(args) and not holds_array(kwargs):
        return machine.call_python(fn, args, kwargs)  # Python like any other: numpy.iinfo's properties
    shown = getattr(fn, "__name__", type(fn).__name__)
    if not holds_array(args) and not holds_array(kwargs):
        return _constant(machine, fn, shown, args, kwargs)
    simple = _SIMPLE.get(shown)
    if simple is not None and len(args) == 1 and type(args[0]) is Array and not kwargs:
        return simple(args[0]._tensor)
    if not name or kwargs.get("out") is not None:
        raise Break("numpy", f"numpy.{shown} is called")
    return _record(machine, name, args, kwargs, fn)


_SIMPLE: dict[str, Callable] = {
    "shape": lambda t: tuple(t.shape),
    "ndim": lambda t: t.dim(),
    "size": lambda t: t.numel(),
}


def _constant(machine: Machine, fn: Any, shown: str, args: list, kwargs: dict) -> Any:
    """numpy's own result for constants; an array is made anew at each call."""
    import numpy

    def fixed(v: Any) -> bool:
        return (
            constant_only(v)
            or isinstance(v, (numpy.generic, numpy.dtype, type))
            or type(v) in (list, tuple)
            and all(map(fixed, v))
        )

    args, kwargs = (
        [int(arg) if isinstance(arg, torch.SymInt) else arg for arg in args],
        {name: int(value) if isinstance(value, torch.SymInt) else value for name, value in kwargs.items()},
    )
    if not all(map(fixed, (*args, *kwargs.values()))) or shown not in _OF_CONSTANTS and id(fn) not in _names():
        raise Break("numpy", f"numpy.{shown} is called")
    return _wrap_constant(machine, shown, machine.native(fn, *args, **kwargs))


def _wrap_constant(machine: Machine, shown: str, value: Any) -> Any:
    import numpy

    if type(value) is numpy.ndarray:
        if value.size > _LARGEST:
            raise Break("numpy", f"numpy.{shown} makes a large constant")
        try:
            real = torch.from_numpy(numpy.array(value, copy=True))
        except (TypeError, ValueError):
            raise Break("numpy", f"numpy.{shown} makes an array that torch has no dtype for") from None
        trace = machine.world.load_tensor(real, machine.world.anchor(real))
        return make_array(tensor_calls.call_method(machine, trace, "clone", [], {}))
    if type(value) in (list, tuple):
        return type(value)(_wrap_constant(machine, shown, item) for item in value)
    if type(value) not in ATOMS:
        machine.world.anchor(value)
    return value


_OF_CONSTANTS = frozenset(
    """array asarray arange zeros ones full eye identity linspace logspace geomspace tri hanning hamming blackman kaiser
    bartlett tile repeat prod sum cumsum concatenate stack meshgrid indices isscalar promote_types result_type
    issubdtype can_cast broadcast_shapes prod max min argsort argmax argmin isclose allclose array_equal cumprod diff
    dot outer transpose ravel reshape sqrt round around""".split()
)


def _argument(machine: Machine, value: Any) -> Any:
    """A value as a node's argument: arrays by their tensors, dtypes by their names."""
    import numpy

    cls = type(value)
    if cls is Array:
        return value._tensor
    if cls in (list, tuple):
        return cls(_argument(machine, item) for item in value)
    if cls is range:
        return list(value)
    if isinstance(value, numpy.dtype):
        return value.name
    if isinstance(value, type):
        if issubclass(value, numpy.generic) or value in (int, float, bool, complex):
            return numpy.dtype(value).name
        raise Break("numpy", f"numpy is given the class {value.__name__}")
    if isinstance(value, numpy.generic):  # a number whose dtype counts
        real = torch.from_numpy(numpy.array(value))
        return machine.world.load_tensor(real, machine.world.anchor(real))
    if cls is slice:
        return slice(*(_argument(machine, v) for v in (value.start, value.stop, value.step)))
    if cls in ATOMS or isinstance(value, (torch.SymInt, torch.SymFloat)):
        return value
    raise Break("numpy", f"numpy is given an object of type {cls.__name__}")


def _whole(value: Any) -> bool:
    if type(value) is Array:
        return not (value._tensor.dtype.is_floating_point or value._tensor.dtype.is_complex)
    return not isinstance(value, (float, complex))


def _check_values(name: str, args: list) -> None:
    """Break where numpy looks at values: division of integers by zero, powers with negative exponents."""
    last = name.rpartition(".")[2]
    if last in _INTEGER_DIVISION and all(map(_whole, args[:2])):
        divisor = args[0] if last.startswith("__r") else args[1]
        if type(divisor) is not int or divisor == 0:
            raise Break("numpy", "integers are divided, and numpy gives 0 where it divides by 0")
    if last in _POWERS and all(map(_whole, args[:2])):
        exponent = args[0] if last == "__rpow__" else args[1]
        if type(exponent) is not int or exponent < 0:
            raise Break("numpy", "integers are raised to powers that may be negative, which numpy refuses")


def _record(machine: Machine, name: str, args: list, kwargs: dict, fn: Any = None) -> Any:
    """One node for numpy's function `fn` (None: the method in `name`); its result as the program sees it."""
    if len(args) > 1:
        _check_values(name, args)
    last = name.rpartition(".")[2]
    given = [_argument(machine, arg) for arg in args]
    named = {key: _argument(machine, value) for key, value in kwargs.items()}
    try:
        call = numpy_call(name)
        sample = try_beside(
            machine.env,
            fn if fn is not None else lambda first, *rest, **named: getattr(first, last)(*rest, **named),
            call,
            args,
            kwargs,
            given,
            named,
        )
        result = tensor_calls.call_function(machine, call, given, named)
    except (Raised, AttributeError):  # numpy has its own errors and words
        raise Break("numpy", f"numpy's {last} refuses what it is given, or torch has no translation of it") from None
    if sample is None:
        raise Break("numpy", f"torch's translation of numpy's {last} differs from numpy for such arguments")
    return _wrapped(machine, last, result, sample, args)


def _wrapped(machine: Machine, name: str, result: Any, like: Any, args: list) -> Any:
    """A traced result as the program sees it; `like` is numpy's own result for arguments of the same kind."""
    if isinstance(result, TraceTensor):
        shares = any(type(arg) is Array and arg._tensor.tt_storage is result.tt_storage for arg in args)
        if shares != like.shares or not like.writeable:
            if not shares or not like.writeable:
                raise Break("numpy", f"numpy's {name} gives a view that torch does not give, or one that is read-only")
            result = tensor_calls.call_method(machine, result, "clone", [], {})
        elif like.contiguous and not shares and not result.is_contiguous():
            result = tensor_calls.call_method(machine, result, "contiguous", [], {})
        return make_array(
            result, like.number, None, shares and like.shares and any(type(arg) is Array and arg._fixed for arg in args)
        )
    if type(result) in (list, tuple):
        return like.kind(_wrapped(machine, name, v, part, args) for v, part in zip(result, like.parts))
    if result is None or type(result) in ATOMS or isinstance(result, torch.SymInt):
        return result
    raise Break("numpy", f"numpy's {name} gives an object of type {type(result).__name__}")


# --- what the program does with an array
def _handler(name: str) -> Callable:
    """Register what stands for the method `name` of Array, and make the method."""

    def add(fn: Callable) -> Callable:
        def method(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(_NOT_FOLLOWED)

        method.__name__, method.__qualname__, method.__module__ = name, f"Array.{name}", __name__
        PYTHON_FUNCTIONS[(__name__, f"Array.{name}")] = fn
        setattr(Array, name, method)
        return fn

    return add


def _operand(machine: Machine, value: Any) -> Any:
    """The other operand, or NotImplemented where it is not numpy's to answer."""
    import numpy

    if type(value) is Array or isinstance(value, (int, float, complex, torch.SymInt, numpy.generic)):
        return value
    if type(value) is torch.SymFloat:
        return float(value)
    if isinstance(value, TraceTensor):
        raise Break(
            "numpy",
            "an array and a tensor meet in one operation",
            "convert one of them: torch.from_numpy(array) or tensor.numpy()",
        )
    if type(value) in (list, tuple):
        return machine.deep_plain(value)
    raise Break("numpy", f"an array meets an object of type {type(value).__name__}")


def _operator(machine: Machine, array: Array, b: Any, *, name: str) -> Any:
    if (
        type(b) is TraceTensor
        and array._number
        and array._source is not None
        and (plain := name.strip("_")) in _PYTHONS
    ):
        pair = [varying_number(machine, array), b]  # a plain number to torch
        swapped = plain not in vars(operator)
        return tensor_calls.call_operator(machine, _PYTHONS[plain], pair[::-1] if swapped else pair)
    b = _operand(machine, b)
    if name.startswith("__i") and name != "__invert__":
        if array._number:
            return NotImplemented  # numbers are replaced, not changed
        _refuse_fixed(array, "output array")
        _record(machine, f"array.{name}", [array, b], {})
        return array
    return _record(machine, f"array.{name}", [array, b], {})


# names of operators that a tensor and a number have, and of the same with their sides changed
_PYTHONS = {
    form: getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
    for form in (name, f"r{name}")
} | {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def _refuse_fixed(array: Array, what: str) -> None:
    if array._fixed:
        raise Raised(ValueError(f"{what} is read-only"))


for _name in _BINARY:
    for _form in ("__{}__", "__r{}__", "__i{}__"):
        if _form != "__i{}__" or _name != "matmul":
            _handler(_form.format(_name))(functools.partial(_operator, name=_form.format(_name)))
for _name in _COMPARED:
    _handler(_name)(functools.partial(_operator, name=_name))
for _name in ("__neg__", "__pos__", "__abs__", "__invert__"):
    _handler(_name)(lambda machine, a, name=_name: _record(machine, f"array.{name}", [a], {}))


@_handler("__getitem__")
def _get_item(machine: Machine, a: Array, key: Any) -> Any:
    key = machine.deep_plain(key)
    parts = key if isinstance(key, tuple) else (key,)
    if any(part is True or part is False for part in parts) or a._number:
        raise Break("numpy", "an array is indexed by a bool")
    if any(type(part) is Array and part._tensor.dtype is torch.bool for part in parts):
        raise Break("data_dependent_shape")
    return _record(machine, "array.__getitem__", [a, key], {})


@_handler("__setitem__")
def _set_item(machine: Machine, a: Array, key: Any, value: Any) -> None:
    key = machine.deep_plain(key)
    _refuse_fixed(a, "assignment destination")
    machine.graph.writes_to(a._tensor)
    _record(machine, "array.__setitem__", [a, key, _operand(machine, value)], {})


@_handler("__len__")
def _length(machine: Machine, a: Array) -> Any:
    if a._tensor.dim() == 0:
        raise Raised(
            TypeError(
                f"object of type '{array_class(a).__name__}' has no len()" if a._number else "len() of unsized object"
            )
        )
    return a._tensor.shape[0]


@_handler("__iter__")
def _iterate(machine: Machine, a: Array) -> Any:
    if a._tensor.dim() == 0:
        raise Raised(
            TypeError(
                f"'{array_class(a).__name__}' object is not iterable" if a._number else "iteration over a 0-d array"
            )
        )
    return iter([_get_item(machine, a, i) for i in range(int(a._tensor.shape[0]))])


def _refuse(machine: Machine, array: Array, *args: Any, why: str, kind: str = "numpy") -> Any:
    raise Break(kind, why)


for _name, _kind in (
    ("__bool__", "data_dependent_branch"),
    ("__int__", "item"),
    ("__float__", "item"),
    ("__complex__", "item"),
    ("__index__", "item"),
    ("__repr__", "print"),
    ("__str__", "print"),
    ("__format__", "print"),
    ("__contains__", "data_dependent_branch"),
    ("__divmod__", "numpy"),
    ("__rdivmod__", "numpy"),
    ("__round__", "numpy"),
    ("__imatmul__", "numpy"),
    ("__array__", "numpy"),
):
    _handler(_name)(functools.partial(_refuse, why=f"the values of an array are needed by {_name}", kind=_kind))


@functools.cache
def _methods() -> frozenset[str]:
    import numpy
    import torch._numpy as tnp

    return frozenset(
        n
        for n in dir(tnp.ndarray)
        if hasattr(numpy.ndarray, n)
        and not n.startswith("_")
        and n not in _DIFFERENT
        and callable(getattr(tnp.ndarray, n))
    )


def _imaginary(machine: Machine, array: Array) -> Array:
    """`a.imag`: a view of complex numbers, zeros for others, which nobody may write to."""
    if array._tensor.dtype.is_complex:
        return _record(machine, "imag", [array], {}, sys.modules["numpy"].imag)
    tensor, order = array._tensor, tuple(reversed(range(array._tensor.dim())))
    columns = not tensor.is_contiguous() and tensor.permute(order).is_contiguous()
    zeros = tensor_calls.call_function(
        machine,
        torch.zeros_like,
        [tensor_calls.call_method(machine, tensor, "permute", [order], {}) if columns else tensor],
        {"memory_format": torch.contiguous_format},
    )
    return make_array(
        tensor_calls.call_method(machine, zeros, "permute", [order], {}) if columns else zeros,
        array._number,
        None,
        not array._number,
    )


_PROPERTIES: dict[str, Callable] = {
    "shape": lambda machine, a: tuple(a._tensor.shape),
    "ndim": lambda machine, a: a._tensor.dim(),
    "size": lambda machine, a: a._tensor.numel(),
    "itemsize": lambda machine, a: a._tensor.element_size(),
    "nbytes": lambda machine, a: a._tensor.element_size() * a._tensor.numel(),
    "strides": lambda machine, a: tuple(s * a._tensor.element_size() for s in a._tensor.stride()),
    "T": lambda machine, a: (
        _record(machine, "array.transpose", [a], {})
        if a._tensor.dim() != 1
        else _record(machine, "array.reshape", [a, -1], {})
    ),
    "real": lambda machine, a: (
        a if not a._tensor.dtype.is_complex else _record(machine, "real", [a], {}, sys.modules["numpy"].real)
    ),
    "imag": _imaginary,
}


@_handler("__getattr__")
def _attribute(machine: Machine, a: Array, name: str) -> Any:
    numpy = sys.modules["numpy"]
    if name == "dtype":
        machine.world.anchor(array_dtype(a))
        return array_dtype(a)
    found = _PROPERTIES.get(name)
    if found is not None:
        return found(machine, a)
    if name == "tolist":
        return machine.getattr(a._tensor, name)
    if name in _methods():
        return types.MethodType(_method(name), a)
    if hasattr(numpy.ndarray, name):
        raise Break("numpy", f"{name} of an array is used")
    raise Raised(
        AttributeError(f"'{array_class(a).__module__}.{array_class(a).__name__}' object has no attribute '{name}'")
    )


@_handler("__setattr__")
def _set_attribute(machine: Machine, a: Array, name: str, value: Any) -> None:
    raise Break("numpy", f"{name} of an array is set")


@functools.cache
def _method(name: str) -> types.FunctionType:
    def run(machine: Machine, array: Array, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("out") is not None:
            raise Break("numpy", f"the method {name} of an array is given a place for its result")
        return _record(
            machine,
            f"array.{name}",
            [array, *(machine.deep_plain(arg) for arg in args)],
            {key: machine.deep_plain(value) for key, value in kwargs.items()},
        )

    def method(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(_NOT_FOLLOWED)

    method.__name__, method.__qualname__, method.__module__ = name, f"Array.{name}", __name__
    PYTHON_FUNCTIONS[(__name__, f"Array.{name}")] = run
    return cast(types.FunctionType, method)


tensor_calls.CONVERSIONS.update(numpy=from_tensor, tensor=to_tensor)
