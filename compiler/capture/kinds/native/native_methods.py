"""Methods that C classes define: which are computed during capture, and which break."""

from __future__ import annotations

import collections
import contextvars
import functools
import inspect
import itertools
import operator
import random
import re
import types
from typing import TYPE_CHECKING, Any

import torch

from .. import attributes, containers
from ..builtin_types import base_of
from ..classes import construct
from ..context_variables import context_value
from ..identity import subclasses
from ..objects.class_attributes import in_class_dict
from ..operators import native_operation
from ...machine.generators import InlineGenerator
from ...machine.signals import Break, Raised
from ...machine.stack_values import MISSING, NATIVE_CONSTANTS
from ...numbers.late_text import settled
from .inside_methods import inside_method
from .method_cases import Case, Cases, NativeCall, bound

if TYPE_CHECKING:
    from ...machine.machine import Machine

__all__ = ["call_native_method", "settled_arguments"]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_INSIDE_TYPES = (
    list,
    dict,
    tuple,
    set,
    frozenset,
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    range,
    slice,
    collections.deque,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
    types.MappingProxyType,
    re.Pattern,
    re.Match,
    torch.dtype,
    torch.device,
    *_SYMBOLIC,
    types.GenericAlias,
    collections.OrderedDict,
    torch.finfo,
    torch.iinfo,
    *NATIVE_CONSTANTS,
)
_IMMUTABLE_WITHIN = (str, int, float, torch.Size, re.Pattern)  # wherever they come from
_ITERATORS = (
    type(iter([])),
    type(iter(())),
    type(iter({})),
    type(iter(range(0))),
    type(iter("")),
    zip,
    map,
    filter,
    enumerate,
    reversed,
    itertools.chain,
    itertools.count,
    itertools.repeat,
    itertools.islice,
    type(iter(set())),
)
_NATIVE_DATA = (types.GetSetDescriptorType, types.MemberDescriptorType)
_HOLDING = frozenset(
    ("append", "appendleft", "extend", "insert", "setdefault", "__setitem__", "update", "format", "join")
)


def call_native_method(machine: Machine, fn: Any, owner: Any, args: list, kwargs: dict) -> Any:
    """A method that a C class defines, on `owner`."""
    if machine.late_texts:
        owner = settled(owner)
        args, kwargs = settled_arguments(fn, owner, args, kwargs)
    call = NativeCall(fn, owner, fn.__name__, args, kwargs)
    case = _CASES.find(machine, call)
    if case is None:
        method = f"{type(owner).__name__}.{call.name}"
        raise Break("c_call", f"the native method {method} is called, which capture knows nothing about")
    return case.do(machine, call)


def settled_arguments(fn: Any, owner: Any, args: list, kwargs: dict) -> tuple[list, dict]:
    """Arguments of native code, which would look into a text that holds numbers which vary: the text itself, unless it
    is only to be held.
    """
    if isinstance(owner, (list, dict, collections.deque, str)) and getattr(fn, "__name__", "") in _HOLDING:
        return args, kwargs
    return [settled(arg) for arg in args], {name: settled(value) for name, value in kwargs.items()}


# --- containers from outside
def _is_outside_container(machine: Machine, call: NativeCall) -> bool:
    """Whether it is a builtin container from outside, whose methods go by way of its guards and its shadow."""
    owner = call.owner
    return (
        machine.world.is_outside(owner)
        and base_of(owner) is not None
        and not isinstance(owner, torch.Size)
        and call.name not in ("__setattr__", "__getattribute__", "__init__")
    )


def _on_outside_container(machine: Machine, call: NativeCall) -> Any:
    return containers.call_method(machine, call.owner, call.name, call.args, call.kwargs)


def _is_class_dict(machine: Machine, call: NativeCall) -> bool:
    """Whether it is the `__dict__` of a class, as objects/class_attributes.py gave it."""
    return id(call.owner) in machine.world.class_dicts


def _on_class_dict(machine: Machine, call: NativeCall) -> Any:
    """Looking for one name, which is relied on."""
    _, owner, name, args, kwargs = call
    if name not in ("get", "__getitem__", "__contains__") or kwargs or not 1 <= len(args) <= 2:
        containers.refuse_class_dict(machine, owner)
    found = in_class_dict(machine, owner, args[0])
    if name == "__contains__":
        return found is not MISSING
    if found is MISSING and name == "__getitem__":
        raise Raised(KeyError(args[0]))
    return found if found is not MISSING else args[1] if len(args) > 1 else None


# --- what every object has
def _set_attribute(machine: Machine, call: NativeCall) -> None:
    attributes.generic_set(machine, call.owner, *call.args)


def _get_attribute(machine: Machine, call: NativeCall) -> Any:
    return attributes.generic_attribute(machine, call.owner, *call.args)


def _delete_attribute(machine: Machine, call: NativeCall) -> None:
    attributes.generic_delete(machine, call.owner, *call.args)


def _is_init_of_object(machine: Machine, call: NativeCall) -> bool:
    return getattr(call.fn, "__objclass__", None) is object


def _nothing(machine: Machine, call: NativeCall) -> None:
    """object.__init__ does nothing, for those that give it nothing."""
    cls = machine.world.type_of(call.owner)
    own = cls.__init__ is not object.__init__  # type: ignore[misc]
    if (call.args or call.kwargs) and (own or cls.__new__ is object.__new__):
        name = "object" if own else cls.__name__
        raise Raised(TypeError(f"{name}.__init__() takes exactly one argument (the instance to initialize)"))


def _compares_identity(machine: Machine, call: NativeCall) -> bool:
    """Whether the class compares as object does."""
    return getattr(type(call.owner), call.name) is getattr(object, call.name)


def _compare_identity(machine: Machine, call: NativeCall) -> Any:
    if call.owner is not call.args[0]:
        return NotImplemented
    return call.name == "__eq__"


def _hashes_identity(machine: Machine, call: NativeCall) -> bool:
    return type(call.owner).__hash__ is object.__hash__


# --- classes
def _construct(machine: Machine, call: NativeCall) -> Any:
    return construct(machine, call.owner, call.args, call.kwargs)


def _is_instance(machine: Machine, call: NativeCall) -> bool:
    return machine.world.is_instance(call.args[0], call.owner)


def _is_subclass(machine: Machine, call: NativeCall) -> bool:
    return issubclass(call.args[0], call.owner)


def _subclasses(machine: Machine, call: NativeCall) -> Any:
    return subclasses(machine, call.owner)


def _or_of_types(machine: Machine, call: NativeCall) -> Any:
    return machine.native(operator.or_, call.owner, call.args[0])


# --- computed now
def _by_name(machine: Machine, call: NativeCall) -> Any:
    """The owner's method of that name, with positional arguments."""
    return machine.native(getattr(call.owner, call.name), *call.args)


def _on_number(machine: Machine, call: NativeCall) -> Any:
    """A method of a number that varies."""
    return native_operation(machine, functools.partial(bound(call.fn, call.owner), **call.kwargs), *call.args)


def _on_generator(machine: Machine, call: NativeCall) -> Any:
    return machine.native(getattr(call.owner, call.name), *call.args, **call.kwargs)


def _is_plain_property(machine: Machine, call: NativeCall) -> bool:
    return type(call.owner) is property


def _change_property(machine: Machine, call: NativeCall) -> Any:
    """property.setter(fn) and the like, which make a new property."""
    return machine.native(bound(call.fn, call.owner), *call.args)


def _enter_device(machine: Machine, call: NativeCall) -> Any:
    return machine.devices.enter(call.owner)


def _leave_device(machine: Machine, call: NativeCall) -> Any:
    return machine.devices.leave()


def _is_inside(machine: Machine, call: NativeCall) -> bool:
    return not machine.world.is_outside(call.owner)


def _is_inside_iterator(machine: Machine, call: NativeCall) -> bool:
    """Whether it is a native iterator that was made inside."""
    owner, cls = call.owner, type(call.owner)
    native = isinstance(owner, _ITERATORS) or cls.__module__ == "builtins" and cls.__name__.endswith("iterator")
    return native and not machine.world.is_outside(owner)


def _itself(machine: Machine, call: NativeCall) -> Any:
    return call.owner


def _on_exception(machine: Machine, call: NativeCall) -> Any:
    return machine.native(bound(call.fn, call.owner), *call.args, **call.kwargs)


def _is_get_of_variable(machine: Machine, call: NativeCall) -> bool:
    return type(call.owner) is contextvars.ContextVar and len(call.args) <= 1 and not call.kwargs


def _context_value(machine: Machine, call: NativeCall) -> Any:
    return context_value(machine, call.owner, call.args)


# --- interpreted
def _interpret(machine: Machine, call: NativeCall) -> Any:
    return machine.call(call.owner, call.args, call.kwargs)


def _bind(machine: Machine, call: NativeCall) -> Any:
    """function.__get__(obj)"""
    obj = call.args[0]
    return types.MethodType(call.owner, obj) if obj is not None else call.owner


def _is_descriptor_of(machine: Machine, call: NativeCall) -> bool:
    """Whether the descriptor is the one by which the object's class has the attribute."""
    args, owner = call.args, call.owner
    return (
        bool(args)
        and args[0] is not None
        and inspect.getattr_static(machine.world.type_of(args[0]), owner.__name__, None) is owner
    )


def _read_descriptor(machine: Machine, call: NativeCall) -> Any:
    return machine.getattr(call.args[0], call.owner.__name__)


# --- breaks
def _break(kind: str, reason: str = "") -> Any:
    def do(machine: Machine, call: NativeCall) -> Any:
        raise Break(kind, reason)

    return do


def _is_of_io(machine: Machine, call: NativeCall) -> bool:
    return type(call.owner).__module__ in ("_io", "io") or call.name in ("write", "flush", "read")


def _is_of_numpy(machine: Machine, call: NativeCall) -> bool:
    return type(call.owner).__module__.partition(".")[0] == "numpy"


# What guards and writes need comes first: containers from outside, then attributes. A case for all methods of a kind
# stands before those for any kind, as far as it knows more.
_CASES = Cases(
    Case(_on_outside_container, when=_is_outside_container),
    Case(_on_class_dict, when=_is_class_dict),
    Case(_construct, ("__call__",), type),
    Case(_set_attribute, ("__setattr__",)),
    Case(_get_attribute, ("__getattribute__",)),
    Case(_delete_attribute, ("__delattr__",)),
    Case(_nothing, ("__init__",), when=_is_init_of_object),
    Case(_is_instance, ("__instancecheck__",), type),
    Case(_is_subclass, ("__subclasscheck__",), type),
    Case(_on_number, (), _SYMBOLIC),
    Case(_on_generator, (), InlineGenerator),
    Case(_change_property, ("setter", "getter", "deleter"), property, _is_plain_property),
    Case(_enter_device, ("__enter__",), torch.device),
    Case(_leave_device, ("__exit__",), torch.device),
    Case(inside_method, (), _INSIDE_TYPES, _is_inside),
    Case(inside_method, (), _IMMUTABLE_WITHIN),
    Case(_itself, ("__iter__",), when=_is_inside_iterator),
    Case(_by_name, ("__next__", "__length_hint__"), when=_is_inside_iterator),
    Case(_compare_identity, ("__eq__", "__ne__"), when=_compares_identity),
    Case(_break("unsupported", "an object's identity is used as a hash"), ("__hash__",), when=_hashes_identity),
    Case(_on_exception, (), BaseException, _is_inside),
    Case(_interpret, ("__call__",), (types.FunctionType, types.MethodType)),
    Case(_bind, ("__get__",), types.FunctionType),
    Case(_read_descriptor, ("__get__",), _NATIVE_DATA, _is_descriptor_of),
    Case(_subclasses, ("__subclasses__",), type),
    Case(_by_name, ("mro", "__prepare__"), type),
    Case(_or_of_types, ("__or__",), type),
    Case(_context_value, ("get",), contextvars.ContextVar, _is_get_of_variable),
    Case(_break("random_python"), (), random.Random),
    Case(_break("rng_state"), (), torch.Generator),
    Case(_break("storage"), (), (torch.UntypedStorage, torch.TypedStorage)),
    Case(_break("io"), when=_is_of_io),
    Case(_break("numpy", "a numpy object is used"), when=_is_of_numpy),
)
