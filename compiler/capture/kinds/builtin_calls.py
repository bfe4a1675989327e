"""Native functions and classes: which are computed during capture, and how their arguments are prepared for it.

A native function is called during capture only where it is known to be pure. What it gets are inside values: outside
containers are read (and guarded) first, callables become callbacks into the interpreter, tensors never reach it.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import logging
import math
import operator
import re
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any, Callable

import torch

from ...guards import source as S
from ...guards.state import AUTOCAST_DEVICES, flag_name, read_field
from .callables import FUNCTIONS, KEEPS_TEXTS, function, own_class_method, python_function, run_handler
from ..tensors import tensor_calls
from ..machine.generators import InlineGenerator
from .native.native_methods import call_native_method
from .identity import subclasses
from ..numbers.late_text import LateText, join_texts
from ..machine.signals import Break, Raised
from ..library.watched_warnings import keeps_warnings
from ...graph.tensor import TraceTensor
from ..machine.stack_values import ATOMS, NATIVE_CONSTANTS, specialize
from .builtin_types import python_method
from .elements import as_index, as_number, settle_keys
from .classes import new_object
from .objects.texts import to_text
from .operators import get_item, native_operation

if TYPE_CHECKING:
    from ..machine.frame import Frame
    from ..machine.machine import Machine

__all__ = [
    "call_class_function",
    "is_logging",
    "is_pure",
    "log_effect",
    "made_by_native",
    "pure",
    "take_parts",
]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def made_by_native(machine: Machine, value: Any) -> Any:
    """Remember where a native iterator was made: a break that would have to carry it goes there."""
    machine.origins[id(value)] = machine.root_index
    machine.world.keep.append(value)
    return value


# --- pure native functions, called on plain values
PURE = set(
    (
        ord,
        chr,
        hex,
        bin,
        oct,
        math.sqrt,
        *(f for f in vars(math).values() if callable(f)),
        operator.index,
        sys.intern,
        re.escape,
        sys.getdefaultencoding,
        torch._C._get_tracing_state,
    )
)


_OF_INTEGERS = frozenset(
    (math.gcd, math.lcm, math.comb, math.perm, math.factorial, math.isqrt, math.prod, math.fsum, math.dist)
)


def is_pure(fn: Any) -> bool:
    """Whether `fn` is in PURE; foreign callables (a ctypes function) may not even be hashable."""
    try:
        return fn in PURE
    except TypeError:
        return False


def pure(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    if tensor_calls.holds_tensor(args):
        raise Break(
            "item",
            f"{fn.__name__}() needs the value of a tensor",
            f"use torch.{fn.__name__}" if hasattr(torch, fn.__name__) else "",
        )
    if len(args) == 1 and type(args[0]) not in ATOMS:
        method = python_method(type(args[0]), f"__{fn.__name__}__")
        if method is not None:
            return machine.call(method, [args[0]])
    args = [
        (
            as_number(machine, machine.deep_plain(arg))
            if getattr(fn, "__module__", "") == "math" and fn not in _OF_INTEGERS
            else as_index(machine, machine.deep_plain(arg))
        )
        for arg in args
    ]
    if fn in _OF_INTEGERS and any(
        isinstance(arg, (list, tuple)) and not all(type(v) in ATOMS or isinstance(v, _SYMBOLIC) for v in arg)
        for arg in args
    ):
        raise Break("c_call", f"{fn.__name__}() is called with objects")
    return native_operation(machine, functools.partial(fn, **kwargs) if kwargs else fn, *args)


def take_parts(machine: Machine, fn: Any, args: list) -> Any:
    if (source := machine.world.source_of(fn)) is not None:
        machine.world.guard(source, "ID", fn, "which items or attributes are taken")
    _, parts = fn.__reduce__()[:2]
    if type(fn) is operator.itemgetter:
        items = [get_item(machine, args[0], p) for p in parts]
    elif type(fn) is operator.attrgetter:
        items = []
        for part in parts:
            value = args[0]
            for name in part.split("."):
                value = machine.getattr(value, name)
            items.append(value)
    else:
        return _call_named(machine, fn, args)
    return items[0] if len(items) == 1 else tuple(items)


def _call_named(machine: Machine, fn: Any, args: list) -> Any:
    """operator.methodcaller(name, *arguments, **named)(object)."""
    maker, parts = fn.__reduce__()[:2]
    name, named = (maker.args[0], maker.keywords) if isinstance(maker, functools.partial) else (parts[0], {})
    given = list(parts) if isinstance(maker, functools.partial) else list(parts[1:])
    return machine.call(machine.getattr(args[0], name), given, dict(named))


def call_class_function(machine: Machine, fn: Any, owner: type, args: list, kwargs: dict) -> Any:
    """Static and class methods of native classes: dict.fromkeys, str.maketrans, chain.from_iterable, object.__new__,
    ...
    """
    name = fn.__name__
    if (own := own_class_method(fn, owner)) is not None:
        return run_handler(own, machine, [owner, *args], kwargs)
    if owner in NATIVE_CONSTANTS and name not in ("now", "today", "utcnow", "__new__"):
        return machine.native(fn, *[machine.deep_plain(arg) for arg in args], **kwargs)
    if owner in (datetime.date, datetime.datetime) and name != "__new__":
        raise Break("time")
    if name == "__new__":
        if not args or not isinstance(args[0], type):
            raise Raised(TypeError(f"{owner.__name__}.__new__(X): X is not a type object"))
        if owner is object or args[0].__new__ is object.__new__:
            return new_object(machine, *args, **kwargs)
        if issubclass(owner, (tuple, str, int, float, frozenset, list, dict, set)):
            obj = machine.native(
                owner.__new__,
                args[0],
                *[machine.plain(arg) if not isinstance(arg, InlineGenerator) else arg for arg in args[1:]],
                **kwargs,
            )
            return machine.world.create(obj)
        raise Break("c_call", f"{owner.__name__}.__new__ is called")
    if name == "fromkeys" and issubclass(owner, dict):
        keys = list(machine.iterate(args[0]))
        settle_keys(machine, keys)
        return machine.native(owner.fromkeys, keys, *args[1:], **kwargs)
    if owner is itertools.chain and name == "from_iterable":
        return made_by_native(machine, itertools.chain.from_iterable(map(machine.iterate, machine.iterate(args[0]))))
    if owner in (str, int, float, bytes):
        return machine.native(fn, *[machine.deep_plain(arg) for arg in args], **kwargs)
    if name == "__subclasses__":
        return subclasses(machine, args[0] if owner is type else owner)
    if name in ("mro", "__subclasshook__", "__subclasscheck__", "__instancecheck__"):
        return machine.native(fn, *args)
    if name == "__init_subclass__":
        return None
    return call_native_method(machine, fn, owner, args, kwargs)


# --- what torch is set to
def _initial(machine: Machine, field: str, present: Any) -> Any:
    if machine.backward_of and field == "grad_mode" and not machine.frames[-1].library:
        raise Break(
            "autograd_function", f"the backward of {machine.backward_of} asks for grad mode, which create_graph decides"
        )
    machine.world.state(field, machine.initial_state[field] if field in machine.initial_state else read_field(field))
    return present


for _fn, _field in (
    (torch._C.is_grad_enabled, "grad_mode"),
    (torch.is_inference_mode_enabled, "inference_mode"),
    (torch.get_default_dtype, "default_dtype"),
    (torch.get_num_threads, "num_threads"),
    (torch._C._get_float32_matmul_precision, "matmul_precision"),
    (torch._C._get_cublas_allow_tf32, "matmul_precision"),
    (torch._C._get_cudnn_allow_tf32, "matmul_precision"),
    (torch.is_anomaly_enabled, "anomaly"),
    (torch._C._get_cublas_allow_fp16_reduced_precision_reduction, "matmul_precision"),
    (torch._C._get_cublas_allow_bf16_reduced_precision_reduction, "matmul_precision"),
):
    FUNCTIONS[_fn] = lambda machine, fn=_fn, field=_field: _initial(machine, field, fn())
for (
    _name
) in """is_autocast_enabled get_autocast_dtype is_autocast_cache_enabled get_autocast_gpu_dtype get_autocast_cpu_dtype
    is_autocast_cpu_enabled is_any_autocast_enabled _is_any_autocast_enabled""".split():
    for _home in (torch, torch._C):
        if (_fn := getattr(_home, _name, None)) is not None and isinstance(_fn, types.BuiltinFunctionType):
            FUNCTIONS[_fn] = lambda machine, *a, fn=_fn: _autocast_state(machine, fn, a)


def _autocast_state(machine: Machine, fn: Any, args: tuple) -> Any:
    """What autocast is told or told of: relied on as it was when the frame began."""
    machine.world.state("autocast", machine.initial_state["autocast"])
    flag = flag_name(fn, args)
    if flag in _AUTOCAST_FLAGS:
        machine.world.state(flag, machine.flags_before.get(flag, fn(*args)))
    return fn(*args)


_AUTOCAST_FLAGS = (
    "torch.is_autocast_cache_enabled",
    "torch.get_autocast_gpu_dtype",
    "torch.get_autocast_cpu_dtype",
    *(f"torch.get_autocast_dtype:{device}" for device in AUTOCAST_DEVICES),
)
# the same, without a warning
_UNDEPRECATED = {
    "torch.get_autocast_gpu_dtype": "torch.get_autocast_dtype:cuda",
    "torch.get_autocast_cpu_dtype": "torch.get_autocast_dtype:cpu",
}
_STATE_CHANGES = [
    getattr(home, name)
    for home, name in (
        (torch._C, "_set_grad_enabled"),
        (torch, "set_autocast_enabled"),
        (torch, "set_autocast_dtype"),
        (torch, "set_autocast_cache_enabled"),
        (torch, "autocast_increment_nesting"),
        (torch, "autocast_decrement_nesting"),
        (torch, "clear_autocast_cache"),
        (torch, "set_autocast_cpu_enabled"),
        (torch, "set_autocast_cpu_dtype"),
        (torch, "set_autocast_gpu_dtype"),
    )
    if hasattr(home, name)
]


def _state_change(machine: Machine, fn: Callable, *args: Any, **kwargs: Any) -> Any:
    """grad mode and autocast: changed for real while capture goes on, and in the graph for the nodes that follow."""
    if kwargs:
        raise Break("unsupported", f"{fn.__name__} is called with keywords")
    if _AUTOCAST_FLAGS[0] not in machine.flags_before:
        machine.flags_before.update({flag: read_field(_UNDEPRECATED.get(flag, flag)) for flag in _AUTOCAST_FLAGS})
    machine.state_changed = True
    args = tuple(map(specialize, args))
    result = machine.native(fn, *args)
    if fn is torch._C._set_grad_enabled:
        machine.world.state("grad_mode", machine.initial_state["grad_mode"])
    else:
        machine.world.state("autocast", machine.initial_state["autocast"])
    machine.graph.record_state(fn, args)
    return result


for _fn in _STATE_CHANGES:
    FUNCTIONS[_fn] = functools.partial(lambda machine, *a, fn, **k: _state_change(machine, fn, *a, **k), fn=_fn)


def _flag(machine: Machine, fn: Any) -> Any:
    value = fn()
    machine.world.state(flag_name(fn, ()), value)
    return value


FUNCTIONS[sys.getrecursionlimit] = lambda machine: _flag(machine, sys.getrecursionlimit)


@function(torch._C._log_api_usage_once)
def _log_api_usage(machine: Machine, *args: Any) -> None:
    return None


# --- effects
_EFFECT_VALUES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    torch.dtype,
    torch.device,
    torch.SymInt,
    torch.SymFloat,
    LateText,
)


def _effect_value(machine: Machine, value: Any) -> Any:
    value = machine.deep_plain(value)
    if isinstance(value, TraceTensor):
        raise Break("print", "a tensor is printed or logged")
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple, torch.Size):
        return type(value)(_effect_value(machine, item) for item in value) if type(value) is not torch.Size else value
    if type(value) is dict:
        return {key: _effect_value(machine, item) for key, item in value.items()}
    if isinstance(value, _EFFECT_VALUES) or isinstance(value, Warning):
        return value
    raise Break("print", f"an object of type {type(value).__name__} is printed or logged")


_SAYING = frozenset(("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log"))


def is_logging(fn: Any) -> bool:
    name = getattr(fn, "__name__", "")
    return (
        name in ("warning_once", "info_once", "warn_once", "_warn_once")
        or name in _SAYING
        and fn.__module__ == "logging"
    )


def log_effect(machine: Machine, fn: Any, args: list, kwargs: dict) -> None:
    """A call whose purpose is its effect (logging, warnings): done after the graph has run, from the lines that the
    program called it on.
    """
    if getattr(fn, "__name__", "") == "exception" or kwargs.get("exc_info"):
        raise Break("c_call", "the exception that is being handled is logged, with its traceback")
    args = [
        arg if i == 0 and isinstance(arg, logging.Logger) else _effect_value(machine, arg) for i, arg in enumerate(args)
    ]
    kwargs = {name: _effect_value(machine, value) for name, value in kwargs.items()}
    level, frames = kwargs.get("stacklevel", 1), machine.frames
    if type(level) is int and level > len(frames):
        kwargs["stacklevel"] = level + 1  # the entry is a frame, too
    machine.effects.call(
        fn,
        args,
        kwargs,
        [(frame.position(), frame.scope) for frame in frames[-max(level, 1) if type(level) is int else 0 :]],
    )


@function(torch._C._is_torch_function_enabled)
def _is_torch_function_enabled(machine: Machine) -> bool:
    return not machine.functions_off  # relied on as it was when the frame began, as every frame relies on it


@function(warnings.warn)
@python_function(("warnings", "warn"), ("_py_warnings", "warn"))
def warn_(machine: Machine, *args: Any, **kwargs: Any) -> None:
    if keeps_warnings(machine):
        raise Break("c_call", "a warning is given where warnings.catch_warnings(record=True) keeps it in a list")
    if any(frame.program[frame.pc - 1][1].handler is not None for frame in machine.frames):
        for entry in machine.iterate(machine.getattr(warnings, "filters")):  # relied on
            if next(machine.iterate(entry)) == "error":
                raise Break(
                    "c_call", "a warning that may be raised as an exception is given inside of a try or with statement"
                )
    if len(args) > 2:  # warn(message, category, stacklevel, source)
        kwargs.update(zip(("stacklevel", "source"), args[2:]))
    log_effect(machine, warnings.warn, list(args[:2]), kwargs)


@function(warnings._filters_mutated)  # type: ignore[attr-defined]
def filters_mutated(machine: Machine) -> None:
    """Filters of warnings change: an effect, in order with the warnings."""
    machine.effects.call(warnings._filters_mutated, [], {})  # type: ignore[attr-defined]


def _in_a_try(frame: Frame) -> bool:
    """Whether a try statement, not only a with statement, hears what the call that the frame is at may raise."""
    ins = frame.program[frame.pc - 1][1]
    while ins.handler is not None:
        target = ins.handler.target
        after = frame.program[target.index + 1 : target.index + 2]
        if not after or after[0][1].op != "WITH_EXCEPT_START":
            return True
        ins = target
    return False


# Where classes of streams are from whose writes do not raise, as long as they are open.
_STREAMS = frozenset(("io", "_io", "builtins", "ipykernel", "_pytest"))


def _rely_on_stream(machine: Machine, name: str) -> None:
    """What is printed is printed when the graph has run: what the stream raises would pass the program's handlers."""
    stream, source = getattr(sys, name), S.attr(machine.world.anchor(sys), name)
    if type(stream).__module__.partition(".")[0] not in _STREAMS or getattr(stream, "closed", False):
        raise Break("print", f"inside of a try statement, print writes to a `sys.{name}` that may raise")
    machine.world.guard(source, "TYPE", type(stream), "print inside of a try statement")
    if stream is not None:
        machine.world.guard(S.attr(source, "closed"), "ID", False, "print inside of a try statement")


@function(print)
def print_(machine: Machine, *args: Any, sep: Any = " ", end: Any = "\n", file: Any = None, flush: Any = False) -> None:
    streams = [s for s in (sys.stdout, sys.stderr) if s is file]
    if file is not None and (not streams or machine.world.source_of(file) is None):
        raise Break("io", "print writes to a file")
    if any(_in_a_try(frame) for frame in machine.frames):
        _rely_on_stream(machine, "stderr" if file is sys.stderr and file is not None else "stdout")
    texts = [to_text(machine, arg, "str") for arg in args]
    named = {"end": end} if end not in ("\n", None) else {}
    if streams:
        named["file"] = file
    if machine.truth(flush):
        named["flush"] = True
    between = " " if sep is None else sep
    machine.effects.call(print, [join_texts([part for text in texts for part in (between, text)][1:])], named)


KEEPS_TEXTS.update((print_, warn_))
