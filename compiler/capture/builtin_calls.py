"""Native functions and classes: which are computed during capture, and how their arguments are prepared for it.

A native function is called during capture only where it is known to be pure. What it gets are inside values: outside
containers are read (and guarded) first, callables become callbacks into the interpreter, tensors never reach it.
"""
from __future__ import annotations

import builtins
import collections
import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
import logging
import math
import operator
import re
import sys
import types
import typing
import warnings
from typing import TYPE_CHECKING, Any, Callable

import torch

from . import containers, tensor_calls
from .generators import InlineGenerator, PythonIterator
from .inline_policy import is_trusted_module
from .signals import Break, Raised
from .world import ATOMS, MISSING, TraceTensor

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["FUNCTIONS", "CLASSES", "PYTHON_FUNCTIONS", "BREAK_MODULES", "call_native", "call_native_method", "log_effect"]

FUNCTIONS: dict[Any, Callable] = {}                             # native function -> handler(machine, *args, **kwargs)
CLASSES: dict[type, Callable] = {}                              # class -> handler(machine, *args, **kwargs)
PYTHON_FUNCTIONS: dict[tuple[str, str], Callable] = {}          # (module, qualified name) -> handler, instead of interpreting
BREAK_MODULES: dict[str, str] = {
    "random": "random_python", "torch.random": "rng_state", "torch.cuda.random": "rng_state", "torch.utils.checkpoint": "higher_order",
    "torch._functorch.apis": "higher_order", "torch._functorch.eager_transforms": "higher_order", "torch._functorch.vmap": "higher_order",
    "torch.autograd": "backward", "torch.autograd.function": "autograd_function", "torch._compile": "disabled", "subprocess": "io",
    "socket": "io", "threading": "unsupported", "multiprocessing": "unsupported", "pickle": "io", "torch.serialization": "io",
    "torch._higher_order_ops.cond": "higher_order", "torch.nn.init": "rng_state", "asyncio.events": "async", "ctypes": "c_call",
}
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_TORCH_MODULES = ("torch",)


def function(*fns: Any) -> Callable:
    def add(handler: Callable) -> Callable:
        for fn in fns:
            FUNCTIONS[fn] = handler
        return handler
    return add


def cls(*classes: type) -> Callable:
    def add(handler: Callable) -> Callable:
        for c in classes:
            CLASSES[c] = handler
        return handler
    return add


def python_function(*names: tuple[str, str]) -> Callable:
    def add(handler: Callable) -> Callable:
        for name in names:
            PYTHON_FUNCTIONS[name] = handler
        return handler
    return add


def made_by_native(m: Machine, value: Any) -> Any:
    """Remember where a native iterator was made: a break that would have to carry it goes there."""
    m.origins[id(value)] = m.root_index
    m.world.keep.append(value)
    return value


# --- pure native functions, called on plain values
PURE = frozenset((
    divmod, ord, chr, hex, bin, oct, hash, ascii, math.sqrt, *(f for f in vars(math).values() if callable(f)),
    operator.index, operator.length_hint, sys.intern, sys.getrecursionlimit, re.escape, sys.getdefaultencoding,
    torch._C._get_tracing_state,
))


def _is_pure(fn: Any) -> bool:
    """Whether `fn` is in PURE; foreign callables (a ctypes function) may not even be hashable."""
    try:
        return fn in PURE
    except TypeError:
        return False


def _is_torch(fn: Any, owner: Any) -> bool:
    module = getattr(fn, "__module__", None) or ""
    if module.partition(".")[0] == "torch":
        return True
    name = owner.__module__ if isinstance(owner, type) else owner.__name__ if isinstance(owner, types.ModuleType) else ""
    return (name or "").partition(".")[0] == "torch"


_QUERY_PREFIXES = ("_get_", "get_", "is_", "_is_", "_has", "has_", "_len_", "are_", "_are_", "__set_forward", "promote_types", "can_cast",
                   "result_type", "_jit_", "_cuda_is", "_cuda_getDevice", "_log_api_usage_once", "_dispatch", "_show_config", "_mps_is")


def call_native(m: Machine, fn: Any, owner: Any, args: list, kwargs: dict) -> Any:
    """A builtin function, or a builtin method bound to `owner`."""
    try:
        handler = FUNCTIONS.get(fn)
    except TypeError:
        handler = None
    if handler is not None:
        return handler(m, *args, **kwargs)
    if isinstance(owner, (types.ModuleType, type(None))) or isinstance(owner, type):
        if isinstance(owner, type) and not _is_torch(fn, owner):
            return _class_function(m, fn, owner, args, kwargs)
        if _is_torch(fn, owner):
            return _torch_function(m, fn, args, kwargs)
        if _is_pure(fn):
            return _pure(m, fn, args, kwargs)
        if type(fn) in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
            return _getter(m, fn, args)
        module = getattr(fn, "__module__", None) or getattr(owner, "__name__", "") or ""
        kind = {"time": "time", "random": "random_python", "_random": "random_python", "io": "io", "_io": "io", "posix": "io",
                "numpy": "numpy", "ctypes": "c_call", "_ctypes": "c_call"}.get(module.partition(".")[0], "c_call")
        name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__name__
        where = f"the native function {module + '.' if module else ''}{name} is called"
        raise Break(kind, where + ", which capture knows nothing about" if kind == "c_call" else where if kind == "numpy" else "")
    return call_native_method(m, fn, owner, args, kwargs)


def _pure(m: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    from .operators import native_operation, python_method
    if tensor_calls.holds_tensor(args):
        raise Break("item", f"{fn.__name__}() needs the value of a tensor", f"use torch.{fn.__name__}" if hasattr(torch, fn.__name__) else "")
    if len(args) == 1 and type(args[0]) not in ATOMS:
        method = python_method(type(args[0]), f"__{fn.__name__}__")
        if method is not None:
            return m.call(method, [args[0]])
    args = [m.deep_plain(a) for a in args]
    return native_operation(m, functools.partial(fn, **kwargs) if kwargs else fn, *args)


def _getter(m: Machine, fn: Any, args: list) -> Any:
    from .operators import get_item
    _, parts = fn.__reduce__()[:2]
    if type(fn) is operator.itemgetter:
        items = [get_item(m, args[0], p) for p in parts]
    elif type(fn) is operator.attrgetter:
        items = []
        for p in parts:
            value = args[0]
            for name in p.split("."):
                value = m.getattr(value, name)
            items.append(value)
    else:
        raise Break("c_call", "operator.methodcaller is called")
    return items[0] if len(items) == 1 else tuple(items)


def _class_function(m: Machine, fn: Any, owner: type, args: list, kwargs: dict) -> Any:
    """Static and class methods of native classes: dict.fromkeys, str.maketrans, chain.from_iterable, object.__new__, ..."""
    name = fn.__name__
    if name == "__new__":
        from .classes import new_object
        if not args or not isinstance(args[0], type):
            raise Raised(TypeError(f"{owner.__name__}.__new__(X): X is not a type object"))
        if owner is object or args[0].__new__ is object.__new__:
            return new_object(m, *args)
        if issubclass(owner, (tuple, str, int, float, frozenset, list, dict, set)):
            obj = m.native(owner.__new__, args[0], *[m.plain(a) if not isinstance(a, InlineGenerator) else a for a in args[1:]], **kwargs)
            return m.world.create(obj)
        raise Break("c_call", f"{owner.__name__}.__new__ is called")
    if name == "fromkeys" and issubclass(owner, dict):
        return m.native(owner.fromkeys, list(m.iterate(args[0])), *args[1:])
    if owner is itertools.chain and name == "from_iterable":
        return made_by_native(m, itertools.chain.from_iterable(map(m.iterate, m.iterate(args[0]))))
    if owner in (str, int, float, bytes):
        return m.native(fn, *[m.deep_plain(a) for a in args], **kwargs)
    if name in ("__subclasses__", "mro", "__subclasshook__", "__subclasscheck__", "__instancecheck__"):
        return m.native(fn, *args)
    if name == "__init_subclass__":
        return None
    return call_native_method(m, fn, owner, args, kwargs)


# --- torch
def _torch_function(m: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    try:
        if fn in tensor_calls.FACTORIES:
            return tensor_calls.call_factory(m, fn, args, kwargs)
    except TypeError as exc:
        raise Break("unknown_object") from exc
    name = getattr(fn, "__name__", "")
    if tensor_calls.holds_tensor(args) or tensor_calls.holds_tensor(kwargs):
        return tensor_calls.call_function(m, fn, args, kwargs)
    if name.startswith(_QUERY_PREFIXES):
        return m.native(fn, *[m.deep_plain(a) for a in args], **kwargs)
    if name in ("manual_seed", "seed", "set_rng_state", "get_rng_state", "initial_seed"):
        raise Break("rng_state")
    args = [m.deep_plain(a) for a in args]
    if any(tensor_calls.holds_tensor(a) for a in args):
        return tensor_calls.call_function(m, fn, args, kwargs)
    raise Break("c_call", f"the function torch.{name} is called, which changes or reads state that capture does not follow")


def _initial(m: Machine, field: str, present: Any) -> Any:
    m.world.state(field, m.initial_state.get(field, present))
    return present


for _fn, _field in ((torch.is_grad_enabled, "grad_mode"), (torch.is_inference_mode_enabled, "inference_mode"),
                    (torch.get_default_dtype, "default_dtype"), (torch.get_num_threads, "num_threads")):
    FUNCTIONS[_fn] = lambda m, fn=_fn, field=_field: _initial(m, field, fn())
for _name in ("is_autocast_enabled", "get_autocast_dtype", "is_autocast_cache_enabled", "get_autocast_gpu_dtype", "get_autocast_cpu_dtype",
              "is_autocast_cpu_enabled", "is_any_autocast_enabled"):
    for _home in (torch, torch._C):
        if (_fn := getattr(_home, _name, None)) is not None and isinstance(_fn, types.BuiltinFunctionType):
            FUNCTIONS[_fn] = lambda m, *a, fn=_fn: (m.world.state("autocast", m.initial_state["autocast"]), fn(*a))[1]

_STATE_CHANGES = [getattr(home, name) for home, name in (
    (torch._C, "_set_grad_enabled"), (torch, "set_autocast_enabled"), (torch, "set_autocast_dtype"), (torch, "set_autocast_cache_enabled"),
    (torch, "autocast_increment_nesting"), (torch, "autocast_decrement_nesting"), (torch, "clear_autocast_cache"),
    (torch, "set_autocast_cpu_enabled"), (torch, "set_autocast_cpu_dtype"), (torch, "set_autocast_gpu_dtype")) if hasattr(home, name)]


def _state_change(m: Machine, fn: Callable, *args: Any, **kwargs: Any) -> Any:
    """grad mode and autocast: changed for real while capture goes on, and in the graph for the nodes that follow."""
    if kwargs:
        raise Break("unsupported", f"{fn.__name__} with keywords")
    m.state_changed = True
    result = m.native(fn, *args)
    if fn is torch._C._set_grad_enabled:
        m.world.state("grad_mode", m.initial_state["grad_mode"])
    else:
        m.world.state("autocast", m.initial_state["autocast"])
    m.graph.record_state(fn, args)
    return result


for _fn in _STATE_CHANGES:
    FUNCTIONS[_fn] = functools.partial(lambda m, *a, fn, **k: _state_change(m, fn, *a, **k), fn=_fn)


@function(torch._C._log_api_usage_once)
def _log_api_usage(m: Machine, *args: Any) -> None:
    return None


# --- native methods
_OBJECT_METHODS = {"__init__", "__setattr__", "__getattribute__", "__delattr__", "__eq__", "__ne__", "__hash__", "__repr__", "__str__", "__format__",
                   "__reduce_ex__", "__dir__", "__sizeof__", "__init_subclass__", "__lt__", "__le__", "__gt__", "__ge__"}
_INSIDE_TYPES = (list, dict, tuple, set, frozenset, str, bytes, bytearray, int, float, complex, range, slice, collections.deque,
                 type({}.keys()), type({}.values()), type({}.items()), types.MappingProxyType, re.Pattern, re.Match, torch.dtype, torch.device,
                 *_SYMBOLIC, types.GenericAlias, collections.OrderedDict, torch.finfo, torch.iinfo)
_ITERATORS = (type(iter([])), type(iter(())), type(iter({})), type(iter(range(0))), type(iter("")), zip, map, filter, enumerate, reversed,
              itertools.chain, itertools.count, itertools.repeat, itertools.islice, type(iter(set())))


def call_native_method(m: Machine, fn: Any, owner: Any, args: list, kwargs: dict) -> Any:
    """A method that a C class defines, on `owner`."""
    from . import attributes
    name = fn.__name__
    world = m.world
    t = type(owner)
    if world.is_outside(fn) and not world.is_outside(owner) and t not in ATOMS:
        raise Break("unknown_object", f"a bound method {t.__name__}.{name} that came from outside is called", f"pass the {t.__name__} itself")
    if world.is_outside(owner) and containers.base_of(owner) is not None and not isinstance(owner, torch.Size) and name not in (
            "__setattr__", "__getattribute__", "__init__"):
        return containers.call_method(m, owner, name, args, kwargs)
    if name == "__call__" and isinstance(owner, type):
        from .classes import construct
        return construct(m, owner, args, kwargs)
    if name == "__setattr__":
        attributes.generic_set(m, owner, *args)
        return None
    if name == "__getattribute__":
        return attributes.generic_attribute(m, owner, *args)
    if name == "__delattr__":
        if world.is_outside(owner):
            raise Break("mutation", "an attribute is deleted")
        return m.native(object.__delattr__, owner, *args)
    if name == "__init__" and getattr(fn, "__objclass__", None) is object:
        return None
    if name in ("__instancecheck__", "__subclasscheck__") and isinstance(owner, type):
        return world.is_instance(args[0], owner) if name == "__instancecheck__" else issubclass(args[0], owner)
    if isinstance(owner, _SYMBOLIC):
        from .operators import native_operation
        return native_operation(m, functools.partial(_bound(fn, owner), **kwargs), *args)
    if isinstance(owner, logging.Logger) or name in ("warn",) and t.__module__ == "warnings":
        return log_effect(m, fn, args, kwargs)
    if isinstance(owner, InlineGenerator):
        return m.native(getattr(owner, name), *args, **kwargs)
    if isinstance(owner, _INSIDE_TYPES) and not world.is_outside(owner) or isinstance(owner, (str, int, float, torch.Size, re.Pattern)):
        return _inside_method(m, fn, owner, name, args, kwargs)
    if isinstance(owner, _ITERATORS) and not world.is_outside(owner) and name in ("__next__", "__iter__", "__length_hint__"):
        return owner if name == "__iter__" else m.native(getattr(owner, name))
    if name in ("__eq__", "__ne__") and getattr(t, name) is getattr(object, name):
        same = owner is args[0]
        return (same if name == "__eq__" else not same) if same else NotImplemented
    if name == "__hash__" and t.__hash__ is object.__hash__:
        raise Break("unsupported", "an object's identity is used as a hash")
    if isinstance(owner, BaseException) and not world.is_outside(owner):
        return m.native(_bound(fn, owner), *args, **kwargs)
    if isinstance(owner, types.FunctionType) and name == "__get__":
        return types.MethodType(owner, args[0]) if args[0] is not None else owner
    if isinstance(owner, type) and name in ("__subclasses__", "mro", "__prepare__"):
        return m.native(getattr(owner, name), *args)
    if isinstance(owner, type) and name == "__or__":
        return m.native(operator.or_, owner, args[0])
    import random
    if isinstance(owner, random.Random):
        raise Break("random_python")
    if isinstance(owner, torch.Generator):
        raise Break("rng_state")
    if t.__module__ in ("_io", "io") or name in ("write", "flush", "read"):
        raise Break("io")
    if t.__module__.partition(".")[0] == "numpy":
        raise Break("numpy", "a numpy object is used")
    raise Break("c_call", f"the native method {t.__name__}.{name} is called, which capture knows nothing about")


_TAKES_ITERABLE = frozenset(("extend", "join", "union", "intersection", "difference", "issubset", "issuperset", "isdisjoint", "symmetric_difference",
                             "difference_update", "intersection_update", "extendleft"))


def _inside_method(m: Machine, fn: Any, owner: Any, name: str, args: list, kwargs: dict) -> Any:
    """A method of a container made inside, or of an immutable value."""
    if isinstance(owner, dict):
        if name == "get" and len(args) >= 1:
            return owner[args[0]] if m.native(lambda: args[0] in owner) else (args[1] if len(args) > 1 else None)
        if name in ("update", "__init__", "__ior__"):
            from .handlers_data import as_mapping
            source = args[0] if args else {}
            value = m.plain(source)
            if not isinstance(value, dict):
                if hasattr(type(value), "keys"):
                    value = as_mapping(m, value)
                else:
                    value = [tuple(m.iterate(pair)) for pair in m.iterate(value)]
            args = [value]
    elif name in _TAKES_ITERABLE or name == "update":
        args = [list(m.iterate(a)) if not isinstance(a, (set, frozenset)) else m.plain(a) for a in args]
    elif name == "__init__":
        args = [list(m.iterate(a)) for a in args]
    elif name == "sort" and isinstance(owner, list):
        owner[:] = sorted_(m, owner, **kwargs)
        return None
    elif name in ("index", "count", "remove", "__contains__", "__eq__", "__ne__", "__add__", "__lt__"):
        if name in ("index", "remove", "__contains__") and isinstance(owner, (list, tuple)):
            from .operators import compare
            start = args[1] if len(args) > 1 else 0
            for i, v in enumerate(owner):
                if i >= start and (v is args[0] or m.truth(compare(m, "==", v, args[0]))):
                    if name == "remove":
                        del owner[i]  # type: ignore[attr-defined]
                        return None
                    return True if name == "__contains__" else i
            if name == "__contains__":
                return False
        args = [m.deep_plain(a) for a in args]
    elif isinstance(owner, (str, bytes, re.Pattern)):
        if name == "format" and isinstance(owner, str):
            for a in (*args, *kwargs.values()):
                if isinstance(a, TraceTensor):
                    raise Break("print", "a tensor is formatted into text")
        args = [m.deep_plain(a) for a in args]
    if any(isinstance(a, torch.SymInt) for a in args) and not isinstance(owner, (list, dict, set, collections.deque)):
        args = [int(a) if isinstance(a, torch.SymInt) else a for a in args]
    return m.native(_bound(fn, owner), *args, **kwargs)


def _bound(fn: Any, owner: Any) -> Any:
    """A native method bound to its owner, past what a subclass overrides."""
    return fn if isinstance(fn, (types.BuiltinFunctionType, types.MethodWrapperType)) else fn.__get__(owner)


# --- effects
_EFFECT_VALUES = (type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device)


def _effect_value(m: Machine, value: Any) -> Any:
    value = m.deep_plain(value)
    if isinstance(value, TraceTensor):
        raise Break("print", "a tensor is printed or logged")
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple, torch.Size):
        return type(value)(_effect_value(m, v) for v in value) if type(value) is not torch.Size else value
    if type(value) is dict:
        return {k: _effect_value(m, v) for k, v in value.items()}
    if isinstance(value, _EFFECT_VALUES) or isinstance(value, Warning):
        return value
    raise Break("print", f"an object of type {type(value).__name__} is printed or logged")


def log_effect(m: Machine, fn: Any, args: list, kwargs: dict) -> None:
    """A call whose purpose is its effect (logging, warnings): done after the graph has run."""
    args = [a if i == 0 and isinstance(a, logging.Logger) else _effect_value(m, a) for i, a in enumerate(args)]
    kwargs = {k: _effect_value(m, v) for k, v in kwargs.items()}
    m.effects.call(fn, args, kwargs)


FUNCTIONS[warnings.warn] = lambda m, *a, **k: log_effect(m, warnings.warn, list(a), k)
PYTHON_FUNCTIONS[("warnings", "warn")] = lambda m, *a, **k: log_effect(m, warnings.warn, list(a), k)
PYTHON_FUNCTIONS[("_py_warnings", "warn")] = PYTHON_FUNCTIONS[("warnings", "warn")]


@function(print)
def print_(m: Machine, *args: Any, sep: Any = " ", end: Any = "\n", file: Any = None, flush: Any = False) -> None:
    from .operators import to_text
    if file is not None:
        raise Break("io", "print to a file")
    texts = [to_text(m, a, "str") for a in args]
    m.effects.call(print, [(" " if sep is None else sep).join(texts)], {"end": end} if end not in ("\n", None) else {})


# --- builtins
@function(len)
def len_(m: Machine, value: Any) -> Any:
    from .operators import python_method
    t = type(value)
    if t is TraceTensor:
        if value.dim() == 0:
            raise Raised(TypeError("len() of a 0-d tensor"))
        return value.shape[0]
    method = python_method(t, "__len__")
    if method is not None:
        return m.call(method, [value])
    if m.world.is_outside(value) and containers.base_of(value) is not None:
        return containers.length(m, value)
    return m.native(len, value)


@function(isinstance)
def isinstance_(m: Machine, value: Any, classes: Any) -> bool:
    classes = m.deep_plain(classes)
    return m.native(m.world.is_instance, value, classes)


@function(issubclass)
def issubclass_(m: Machine, value: Any, classes: Any) -> bool:
    return m.native(issubclass, value, m.deep_plain(classes))


@function(callable)
def callable_(m: Machine, value: Any) -> bool:
    return callable(value) and not isinstance(value, InlineGenerator)


@function(getattr)
def getattr_(m: Machine, obj: Any, name: str, default: Any = MISSING) -> Any:
    if not isinstance(name, str):
        raise Raised(TypeError("attribute name must be string"))
    if default is MISSING:
        return m.getattr(obj, name)
    try:
        return m.getattr(obj, name)
    except Raised as raised:
        if isinstance(raised.exc, AttributeError):
            return default
        raise


@function(hasattr)
def hasattr_(m: Machine, obj: Any, name: str) -> bool:
    from .attributes import has_attribute
    return has_attribute(m, obj, name)


@function(setattr)
def setattr_(m: Machine, obj: Any, name: str, value: Any) -> None:
    m.setattr(obj, name, value)


@function(delattr)
def delattr_(m: Machine, obj: Any, name: str) -> None:
    from .attributes import delete_attribute
    delete_attribute(m, obj, name)


@function(iter)
def iter_(m: Machine, value: Any, sentinel: Any = MISSING) -> Any:
    if sentinel is not MISSING:
        raise Break("unsupported", "iter() with a sentinel")
    return m.iterate(value)


@function(next)
def next_(m: Machine, iterator: Any, default: Any = MISSING) -> Any:
    from .operators import python_method
    try:
        if m.world.is_outside(iterator) and type(iterator).__module__ == "builtins":
            raise Break("unknown_object", "an iterator from outside is advanced", "make it a list first")
        if python_method(type(iterator), "__next__") is not None:
            return m.call(m.getattr(iterator, "__next__"), [])
        return next(iterator)
    except StopIteration as stop:
        if default is not MISSING:
            return default
        raise Raised(stop) from None
    except Raised as raised:
        if default is not MISSING and isinstance(raised.exc, StopIteration):
            return default
        raise
    except Exception as exc:
        m.translate(exc)
        raise Raised(exc) from None


@function(abs)
def abs_(m: Machine, value: Any) -> Any:
    from .operators import native_operation, python_method
    if type(value) is TraceTensor:
        return tensor_calls.call_operator(m, operator.abs, [value])
    method = python_method(type(value), "__abs__")
    return m.call(method, [value]) if method is not None else native_operation(m, abs, value)


@function(pow)
def pow_(m: Machine, base: Any, exponent: Any, modulus: Any = None) -> Any:
    from .operators import binary
    return binary(m, "**", base, exponent) if modulus is None else m.native(pow, base, exponent, modulus)


@function(round)
def round_(m: Machine, value: Any, digits: Any = None) -> Any:
    from .operators import specialize
    if type(value) is TraceTensor:
        return tensor_calls.call_method(m, value, "round", [], {} if digits is None else {"decimals": digits})
    return m.native(round, specialize(value), digits)


@function(sum)
def sum_(m: Machine, iterable: Any, start: Any = 0) -> Any:
    from .operators import binary
    total = start
    for v in _native_iter(m, iterable):
        total = binary(m, "+", total, v)
    return total


@function(any)
def any_(m: Machine, iterable: Any) -> bool:
    return any(m.truth(v) for v in _native_iter(m, iterable))


@function(all)
def all_(m: Machine, iterable: Any) -> bool:
    return all(m.truth(v) for v in _native_iter(m, iterable))


def _native_iter(m: Machine, iterable: Any) -> Any:
    """Iterate in the interpreter's own code; errors of the iterator are the program's."""
    iterator = m.iterate(iterable)
    while True:
        try:
            value = next(iterator)
        except StopIteration:
            return
        except Exception as exc:
            m.translate(exc)
            raise Raised(exc) from None
        yield value


@function(sorted)
def sorted_(m: Machine, iterable: Any, *, key: Any = None, reverse: Any = False) -> list:
    items = list(_native_iter(m, iterable))
    keys = items if key is None else [m.call(key, [v]) for v in items]
    keys = [m.deep_plain(k) for k in keys]
    order = m.native(sorted, range(len(items)), key=keys.__getitem__, reverse=m.truth(reverse))
    return [items[i] for i in order]


def _extreme(m: Machine, fn: Callable, args: tuple, key: Any, default: Any) -> Any:
    from .operators import compare
    values = list(_native_iter(m, args[0])) if len(args) == 1 else list(args)
    if not values:
        if default is not MISSING:
            return default
        raise Raised(ValueError(f"{fn.__name__}() arg is an empty sequence"))
    best, best_key = values[0], values[0] if key is None else m.call(key, [values[0]])
    for v in values[1:]:
        k = v if key is None else m.call(key, [v])
        if m.truth(compare(m, "<" if fn is min else ">", k, best_key)):
            best, best_key = v, k
    return best


@function(min)
def min_(m: Machine, *args: Any, key: Any = None, default: Any = MISSING) -> Any:
    return _extreme(m, min, args, key, default)


@function(max)
def max_(m: Machine, *args: Any, key: Any = None, default: Any = MISSING) -> Any:
    return _extreme(m, max, args, key, default)


@function(repr)
def repr_(m: Machine, value: Any) -> str:
    from .operators import to_text
    return to_text(m, value, "repr")


@function(format)
def format_(m: Machine, value: Any, spec: str = "") -> str:
    from .operators import format_text
    return format_text(m, value, spec)


@function(vars)
def vars_(m: Machine, *args: Any) -> Any:
    if not args:
        raise Break("unsupported", "vars() reads the local variables")
    return m.getattr(args[0], "__dict__")


@function(id)
def id_(m: Machine, value: Any) -> int:
    raise Break("unsupported", "the address of an object is read by id()")


@function(globals, locals, dir, exec, eval, compile, input, open, breakpoint, __import__)
def refused(m: Machine, *args: Any, **kwargs: Any) -> Any:
    raise Break("unsupported", "a builtin that reads or changes the frame, or does input and output, is called")


@function(sys.exc_info)
def exc_info(m: Machine) -> tuple:
    exc = m.handled
    return (None, None, None) if exc is None else (type(exc), exc, None)


@function(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(m: Machine, mapping: Any, iterable: Any) -> None:
    if m.world.is_outside(mapping):
        raise Break("mutation", "a Counter from outside is updated")
    m.native(collections._count_elements, mapping, list(_native_iter(m, iterable)))  # type: ignore[attr-defined]


@function(functools.reduce)
def reduce_(m: Machine, fn: Any, iterable: Any, initial: Any = MISSING) -> Any:
    values = _native_iter(m, iterable)
    total = next(values, MISSING) if initial is MISSING else initial
    if total is MISSING:
        raise Raised(TypeError("reduce() of empty iterable with no initial value"))
    for v in values:
        total = m.call(fn, [total, v])
    return total


# --- classes
@cls(type)
def type_(m: Machine, *args: Any, **kwargs: Any) -> Any:
    if len(args) == 1:
        return m.world.type_of(args[0])
    raise Break("class_definition", "a class is made by type()")


@cls(super)
def super_(m: Machine, *args: Any) -> Any:
    if args:
        return m.native(super, *args)
    frame = m.frames[-1]
    slots = frame.bytecode.slots
    cell = next((frame.slots[i] for i, s in enumerate(slots) if s.name == "__class__" and (s.free or s.cell)), None)
    if cell is None:
        raise Raised(RuntimeError("super(): no arguments"))
    from .handlers_data import read_cell
    from .machine import Unread
    first = frame.slots[0]
    if isinstance(first, types.CellType) and slots[0].cell:
        first = read_cell(m, first)
    if isinstance(first, Unread):
        first = first.load(m)
    return m.native(super, read_cell(m, cell), first)


@cls(int)
def int_(m: Machine, *args: Any, **kwargs: Any) -> Any:
    from .operators import python_method
    if args and type(args[0]) is TraceTensor:
        raise Break("item", "int() reads the value of a tensor into Python")
    if args and type(args[0]) is torch.SymInt and len(args) == 1:
        return args[0]
    if len(args) == 1 and type(args[0]) not in ATOMS:
        method = python_method(type(args[0]), "__int__") or python_method(type(args[0]), "__index__")
        if method is not None:
            return m.call(method, [args[0]])
    return m.native(int, *[m.plain(a) for a in args], **kwargs)


@cls(float)
def float_(m: Machine, *args: Any) -> Any:
    from .operators import python_method, specialize
    if args and type(args[0]) is TraceTensor:
        raise Break("item", "float() reads the value of a tensor into Python")
    if args and type(args[0]) not in ATOMS:
        method = python_method(type(args[0]), "__float__")
        if method is not None:
            return m.call(method, [args[0]])
    return m.native(float, *[specialize(a) for a in args])


@cls(complex)
def complex_(m: Machine, *args: Any, **kwargs: Any) -> Any:
    if tensor_calls.holds_tensor(args):
        raise Break("item", "complex() reads the value of a tensor into Python")
    return m.native(complex, *args, **kwargs)


@cls(bool)
def bool_(m: Machine, value: Any = False) -> bool:
    return m.truth(value)


@cls(str)
def str_(m: Machine, *args: Any, **kwargs: Any) -> str:
    from .operators import to_text
    if len(args) == 1 and not kwargs:
        return to_text(m, args[0], "str")
    return m.native(str, *args, **kwargs)


@cls(list)
def list_(m: Machine, *args: Any) -> list:
    return list(_native_iter(m, args[0])) if args else []


@cls(tuple)
def tuple_(m: Machine, *args: Any) -> tuple:
    return tuple(_native_iter(m, args[0])) if args else ()


@cls(set)
def set_(m: Machine, *args: Any) -> set:
    return m.native(set, list(_native_iter(m, args[0]))) if args else set()


@cls(frozenset)
def frozenset_(m: Machine, *args: Any) -> frozenset:
    return m.native(frozenset, list(_native_iter(m, args[0]))) if args else frozenset()


def _pairs(m: Machine, args: tuple) -> Any:
    if not args:
        return {}
    value = m.plain(args[0])
    if isinstance(value, dict) or hasattr(type(value), "keys"):
        from .handlers_data import as_mapping
        return as_mapping(m, value)
    return [tuple(m.iterate(pair)) for pair in _native_iter(m, value)]


@cls(dict)
def dict_(m: Machine, *args: Any, **kwargs: Any) -> dict:
    return m.native(dict, _pairs(m, args), **kwargs)


@cls(collections.OrderedDict)
def ordered_dict(m: Machine, *args: Any, **kwargs: Any) -> Any:
    return m.native(collections.OrderedDict, _pairs(m, args), **kwargs)


@cls(collections.defaultdict)
def default_dict(m: Machine, factory: Any = None, *args: Any, **kwargs: Any) -> Any:
    return m.native(collections.defaultdict, factory, _pairs(m, args), **kwargs)


@cls(collections.deque)
def deque_(m: Machine, iterable: Any = (), maxlen: Any = None) -> Any:
    return m.native(collections.deque, list(_native_iter(m, iterable)), maxlen)


@cls(range)
def range_(m: Machine, *args: Any) -> Any:
    for a in args:
        if type(a) is TraceTensor:
            raise Break("data_dependent_loop")
    return m.native(range, *[int(a) if isinstance(a, torch.SymInt) else a for a in args])


@cls(slice)
def slice_(m: Machine, *args: Any) -> slice:
    return m.native(slice, *args)


@cls(enumerate)
def enumerate_(m: Machine, iterable: Any, start: Any = 0) -> Any:
    return made_by_native(m, m.native(enumerate, m.iterate(iterable), start))


@cls(zip)
def zip_(m: Machine, *iterables: Any, strict: Any = False) -> Any:
    return made_by_native(m, m.native(zip, *[m.iterate(i) for i in iterables], strict=strict))


@cls(map)
def map_(m: Machine, fn: Any, *iterables: Any) -> Any:
    return made_by_native(m, m.native(map, m.callback(fn), *[m.iterate(i) for i in iterables]))


@cls(filter)
def filter_(m: Machine, fn: Any, iterable: Any) -> Any:
    return made_by_native(m, m.native(filter, m.callback(bool if fn is None else fn), m.iterate(iterable)))


@cls(reversed)
def reversed_(m: Machine, value: Any) -> Any:
    from .operators import python_method
    method = python_method(type(value), "__reversed__")
    if method is not None:
        return m.call(method, [value])
    if type(value) is TraceTensor:
        return reversed(list(m.iterate(value)))
    if python_method(type(value), "__getitem__") is not None:
        n = m.call(len, [value])
        from .operators import get_item
        return made_by_native(m, iter([get_item(m, value, i) for i in reversed(range(n))]))
    return m.native(reversed, m.plain(value))


@cls(property)
def property_(m: Machine, *args: Any, **kwargs: Any) -> Any:
    return property(*args, **kwargs)


@cls(staticmethod)
def staticmethod_(m: Machine, fn: Any) -> Any:
    return staticmethod(fn)


@cls(classmethod)
def classmethod_(m: Machine, fn: Any) -> Any:
    return classmethod(fn)


@cls(functools.partial)
def partial_(m: Machine, fn: Any, *args: Any, **kwargs: Any) -> Any:
    return m.native(functools.partial, fn, *args, **kwargs)


@cls(types.MethodType)
def method_type(m: Machine, fn: Any, owner: Any) -> Any:
    return m.native(types.MethodType, fn, owner)


@cls(torch.Size)
def size_(m: Machine, *args: Any) -> Any:
    values = list(_native_iter(m, args[0])) if args else []
    return m.native(torch.Size, values) if all(type(v) is int for v in values) else tuple(values)


@cls(torch.device)
def device_(m: Machine, *args: Any, **kwargs: Any) -> Any:
    return m.native(torch.device, *args, **kwargs)


for _plain_class in (bytes, bytearray, torch.finfo, torch.iinfo, object, types.SimpleNamespace, types.MappingProxyType, operator.itemgetter,
                     operator.attrgetter, types.GenericAlias):
    CLASSES[_plain_class] = functools.partial(lambda m, *a, c, **k: m.native(c, *[m.plain(x) for x in a], **k), c=_plain_class)


def _itertool(m: Machine, *args: Any, tool: Any, **kwargs: Any) -> Any:
    def native(value: Any) -> Any:
        if value is None or type(value) in ATOMS and not isinstance(value, (str, bytes, range)):
            return value
        if callable(value) and not hasattr(type(value), "__iter__"):
            return m.callback(value)
        return m.iterate(value)
    if tool is itertools.repeat:
        return made_by_native(m, m.native(tool, *args, **kwargs))
    kwargs = {k: native(v) if k != "fillvalue" else v for k, v in kwargs.items()}
    return made_by_native(m, m.native(tool, *[native(a) for a in args], **kwargs))


for _tool in vars(itertools).values():
    if isinstance(_tool, type) and _tool.__module__ == "itertools" and not _tool.__name__.startswith("_"):
        CLASSES[_tool] = functools.partial(_itertool, tool=_tool)


@cls(torch.autograd.profiler.record_function)
def record_function_(m: Machine, *args: Any, **kwargs: Any) -> Any:
    return m.world.create(contextlib.nullcontext())


# --- Python functions computed instead of interpreted
@python_function(("torch._higher_order_ops.cond", "cond"), ("torch", "cond"))
def cond_(m: Machine, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """torch.cond: both branches are captured, and each result chosen by torch.where. Branches with effects break."""
    args = list(m.iterate(operands))
    if not isinstance(pred, TraceTensor):
        return m.call(true_fn if m.truth(pred) else false_fn, args)
    before = (len(m.effects.entries), len(m.graph.written))
    results = [m.call(fn, args) for fn in (true_fn, false_fn)]
    if (len(m.effects.entries), len(m.graph.written)) != before:
        raise Break("higher_order", "a branch of torch.cond has side effects", "let the branches only return values")
    return _choose(m, tensor_calls.call_method(m, pred, "reshape", [()], {}), *results)


def _choose(m: Machine, pred: Any, a: Any, b: Any) -> Any:
    if isinstance(a, TraceTensor) and isinstance(b, TraceTensor) and a.shape == b.shape and a.dtype == b.dtype:
        if a.requires_grad or b.requires_grad:
            raise Break("higher_order", "torch.cond is applied to tensors that need a gradient", "use torch.where")
        return tensor_calls.call_function(m, torch.where, [pred, a, b], {})
    if type(a) is type(b) and isinstance(a, (tuple, list)) and len(a) == len(b):
        return type(a)(_choose(m, pred, x, y) for x, y in zip(a, b))
    if isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
        return {k: _choose(m, pred, a[k], b[k]) for k in a}
    raise Break("higher_order", "the branches of torch.cond return different things", "return tensors of one shape and dtype from both")


@python_function(("inspect", "signature"))
def signature_(m: Machine, fn: Any, **kwargs: Any) -> Any:
    return m.native(inspect.signature, fn, **kwargs)


@python_function(("dataclasses", "fields"))
def fields_(m: Machine, obj: Any) -> Any:
    fields = m.native(dataclasses.fields, m.world.type_of(obj) if not isinstance(obj, type) else obj)
    for f in fields:
        m.world.anchor(f)
    return fields


@python_function(("logging", "getLogger"), ("transformers.utils.logging", "get_logger"))
def get_logger(m: Machine, *args: Any) -> Any:
    logger = logging.getLogger(*args)
    m.world.anchor(logger)
    return logger


@python_function(("copy", "deepcopy"))
def deepcopy_(m: Machine, value: Any, *args: Any) -> Any:
    value = m.deep_plain(value)
    if not _only_atoms(value):
        raise Break("unsupported", "copy.deepcopy of objects or tensors")
    return m.native(copy.deepcopy, value)


def _only_atoms(value: Any) -> bool:
    if type(value) in ATOMS:
        return True
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_only_atoms, value))
    return type(value) is dict and all(_only_atoms(k) and _only_atoms(v) for k, v in value.items())


@python_function(("copy", "copy"))
def copy_(m: Machine, value: Any) -> Any:
    if isinstance(value, TraceTensor):
        raise Break("unsupported", "copy.copy of a tensor")
    plain = m.plain(value)
    if type(plain) in (list, dict, set):
        return plain.copy()
    if type(plain) in ATOMS or type(plain) in (tuple, frozenset):
        return plain
    if type(value).__reduce_ex__ is not object.__reduce_ex__ or hasattr(type(value), "__copy__") or hasattr(type(value), "__getstate__") and \
            type(value).__getstate__ is not object.__getstate__ or isinstance(value, torch.nn.Module):
        raise Break("unsupported", f"copy.copy of a {type(value).__name__}")
    cls_ = type(value)
    if not cls_.__flags__ & (1 << 9) or not hasattr(value, "__dict__"):
        raise Break("unsupported", f"copy.copy of a {cls_.__name__}")
    made = m.world.create(m.native(object.__new__, cls_))
    for name in list(m.iterate(m.getattr(value, "__dict__"))):
        object.__setattr__(made, name, m.getattr(value, name))
    return made


def _native_constant(fn: Any) -> Callable:
    return lambda m, *a, **k: m.native(fn, *a, **k)


for _module, _name in ((torch.cuda, "is_available"), (torch.distributed, "is_available"), (torch.cuda, "is_initialized"),
                       (torch.backends.mps, "is_available"), (torch.xpu, "is_available"), (torch.mps, "is_available")):
    _fn = getattr(_module, _name, None)
    if isinstance(_fn, types.FunctionType):
        PYTHON_FUNCTIONS[(_fn.__module__, _fn.__qualname__)] = _native_constant(_fn)
FUNCTIONS[sys.exception] = lambda m: m.handled
if hasattr(torch.distributed, "is_initialized"):
    PYTHON_FUNCTIONS[("torch.distributed.distributed_c10d", "is_initialized")] = _native_constant(torch.distributed.is_initialized)

for _fn in (typing.cast, typing.get_args, typing.get_origin, typing.get_type_hints):
    PYTHON_FUNCTIONS[(_fn.__module__, _fn.__qualname__)] = (lambda m, t, v: v) if _fn is typing.cast else _native_constant(_fn)

_ = (builtins, PythonIterator, is_trusted_module)
