"""Attributes of classes, of what super() gives, and how what a class holds is bound: what is found is relied on."""

from __future__ import annotations

import enum
import functools
import sys
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import FunctionCtx

from ....guards import source as S
from ..inline_policy import is_trusted_module
from ..lookups import class_attribute
from ...machine.signals import Break, Raised
from ...machine.stack_values import ATOMS, BOUND_NATIVE, MISSING
from ...tensors.tensor_subclasses import Subclassed

if TYPE_CHECKING:
    from ...machine.machine import Machine

__all__ = [
    "NATIVE_DATA",
    "CALLABLE_NATIVE",
    "read_class",
    "super_attribute",
    "in_class_dict",
    "guarded_function",
    "defining_class",
    "interpreted_descriptor",
    "refuse_odd_descriptor",
    "refuse_saved",
    "is_programs_native",
]

NATIVE_DATA = (types.GetSetDescriptorType, types.MemberDescriptorType)
CALLABLE_NATIVE = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
)
_HEAP_TYPE = 1 << 9
_PROPERTIES = (property, functools.cached_property)
_OF_EVERY_CLASS = frozenset(
    """__dict__ __mro__ __name__ __qualname__ __module__ __bases__ __class__ __doc__ __subclasses__ __basicsize__
    __flags__ __base__ mro __members__ __annotations__""".split()
)
_OWN_WORDS = frozenset(("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"))  # what may be set anew

_lookup = class_attribute


def defining_class(cls: type, name: str) -> type:
    """The class in the MRO that defines `name`."""
    return next(base for base in cls.__mro__ if name in base.__dict__)


# --- classes
def read_class(machine: Machine, cls: type, name: str) -> Any:
    """cls.name: the metaclass's properties first, then what every class has, the class's own, the metaclass's."""
    meta = type(cls)
    if meta is not type and isinstance(_lookup(meta, "__getattribute__"), types.FunctionType):
        raise Break(
            "unknown_object",
            f"the metaclass {meta.__name__} looks up attributes of classes by a __getattribute__ of its own",
        )
    of_meta = _lookup(meta, name)
    if meta is not type and type(of_meta) is property:
        return machine.call(of_meta.fget, [cls])
    if name in ("__bases__", "__mro__", "mro", "__base__"):
        machine.world.rely_on_bases(cls)
    if name in _OF_EVERY_CLASS:
        return _of_every_class(machine, cls, name)
    raw = _lookup(cls, name)
    if raw is MISSING:
        return _from_metaclass(machine, cls, name, of_meta)
    for kinds, read in _IN_CLASS:
        if isinstance(raw, kinds):
            return read(machine, cls, name, raw)
    return _object_in_class(machine, cls, name, raw)


def _of_every_class(machine: Machine, cls: type, name: str) -> Any:
    """What the type has for each class, as its name and its bases; what may be set anew is guarded."""
    world = machine.world
    made = id(cls) in world.made
    if name == "__dict__" and not made and not is_trusted_module(getattr(cls, "__module__", None) or ""):
        own = cls.__dict__  # what is taken from it, or looked for in it, is relied on there
        world.class_dicts[id(own)] = cls
        world.keep.append(own)
        return own
    value = machine.native(getattr, cls, name)
    if (
        name in _OWN_WORDS
        and cls.__flags__ & _HEAP_TYPE
        and not made
        and not is_trusted_module(cls.__dict__.get("__module__") or "")
    ):
        return world.load(value, S.attr(world.anchor(cls), name), "class attribute")
    return value


def _from_metaclass(machine: Machine, cls: type, name: str, of_meta: Any) -> Any:
    """What the class lacks, and its metaclass has or gives."""
    world, meta = machine.world, type(cls)
    if of_meta is not MISSING:
        if isinstance(of_meta, types.FunctionType):
            return types.MethodType(of_meta, cls)
        if hasattr(type(of_meta), "__get__") or not meta.__flags__ & _HEAP_TYPE or id(meta) in world.made:
            return machine.native(getattr, cls, name)
        return world.load(of_meta, S.attr(world.anchor(meta), name), "attribute of a metaclass")
    getter = _lookup(meta, "__getattr__")
    if isinstance(getter, types.FunctionType):
        return machine.call(getter, [cls, name])
    if cls.__flags__ & _HEAP_TYPE:  # classes of C stay as they are
        world.guard(world.anchor(cls), "HASATTR", (name, False), "missing class attribute")
    raise Raised(AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'"))


def _function_in_class(machine: Machine, cls: type, name: str, raw: types.FunctionType) -> Any:
    return guarded_function(machine, cls, name, raw)


def _static_method(machine: Machine, cls: type, name: str, raw: staticmethod) -> Any:
    fn = raw.__func__
    return guarded_function(machine, cls, name, fn) if isinstance(fn, types.FunctionType) else fn


def _class_method(machine: Machine, cls: type, name: str, raw: classmethod) -> Any:
    fn: Any = raw.__func__
    if isinstance(fn, property):  # up to Python 3.12 a classmethod of a property is a property of the class
        return _property_of_class(machine, cls, fn)
    if isinstance(fn, types.FunctionType) and id(cls) not in machine.world.made:
        guarded_function(machine, cls, name, fn, S.attr(S.attr(machine.world.anchor(cls), name), "__func__"))
    return types.MethodType(fn, cls)


def _property_of_class(machine: Machine, cls: type, raw: property) -> Any:
    if sys.version_info >= (3, 13) or not isinstance(raw.fget, types.FunctionType):
        raise Break("unsupported", "a classmethod is used that does not wrap a function")
    if not is_trusted_module(raw.fget.__module__ or ""):
        machine.world.anchor(raw.fget)
    return machine.call(raw.fget, [cls])


# These come first, as their classes have a __get__, too.
_IN_CLASS: tuple[tuple[type, Any], ...] = (
    (types.FunctionType, _function_in_class),
    (staticmethod, _static_method),
    (classmethod, _class_method),
)


def _object_in_class(machine: Machine, cls: type, name: str, raw: Any) -> Any:
    """Any other object that a class holds: of C, a member of an enum, a descriptor, or a plain value."""
    world = machine.world
    if is_programs_native(machine, cls, name, raw):
        return world.load(raw, S.attr(world.anchor(cls), name), "class attribute")
    if type(raw) in CALLABLE_NATIVE or type(raw) in NATIVE_DATA or type(raw) in _PROPERTIES:
        return machine.native(getattr, cls, name)
    if isinstance(cls, enum.EnumMeta) and (isinstance(raw, enum.Enum) or name in cls.__members__):
        member = raw if isinstance(raw, enum.Enum) else cls.__members__[name]
        return world.register(member, S.attr(world.anchor(cls), name))
    getter = _lookup(type(raw), "__get__")
    if isinstance(getter, types.FunctionType) and not isinstance(raw, type):
        return machine.call(getter, [interpreted_descriptor(machine, cls, raw), None, cls])
    refuse_odd_descriptor(raw, "__get__", getter)
    if id(cls) in world.made or _is_fixed(cls, name, raw):
        return raw
    if type(cls).__name__ == "pybind11_type" and type(raw) is cls:
        world.anchor(raw)  # members of a native enum are fixed
        return raw
    if getter is not MISSING and not isinstance(raw, type):
        world.anchor(raw)  # (an lru_cache, a compiled function: the lookup in the class is relied on)
        return raw
    return world.load(raw, S.attr(world.anchor(cls), name), "class attribute")


def _is_fixed(cls: type, name: str, raw: Any) -> bool:
    """Whether it is a constant of a class of torch's or Python's own."""
    return is_trusted_module(defining_class(cls, name).__module__ or "") and type(raw) in ATOMS


def in_class_dict(machine: Machine, own: Any, name: Any) -> Any:
    """What the dict of a class, which the program has, holds under a name; MISSING. It is relied on."""
    cls = machine.world.class_dicts[id(own)]
    if type(name) is not str:
        return MISSING
    _lookup(cls, name)  # methods, descriptors and what is not there are relied on by that
    value = own.get(name, MISSING)
    if value is MISSING or name.startswith("__") or hasattr(type(value), "__get__"):
        return value
    return machine.world.load(value, S.attr(machine.world.anchor(cls), name), "class attribute")


def interpreted_descriptor(machine: Machine, cls: type, raw: Any) -> Any:
    """An object in a class whose `__get__` is interpreted: what that reads of it is guarded."""
    if id(cls) not in machine.world.made and id(raw) not in machine.world.created:
        machine.world.anchor(raw)
    return raw


def refuse_odd_descriptor(raw: Any, name: str, method: Any) -> None:
    """Break for a descriptor whose method is neither a plain function nor of C: a mock, a partial."""
    if method is not MISSING and not isinstance(raw, type) and not isinstance(method, types.WrapperDescriptorType):
        raise Break(
            "unknown_object",
            f"a descriptor of class {type(raw).__name__} is used, whose {name} is not a plain function",
        )


def refuse_saved(obj: Any, name: str) -> None:
    """Break for what a node of autograd saved. A read unpacks it, by hooks that the program may have set, and gives new
    tensors: it happens once, where the program reads it.
    """
    if name.startswith(_SAVED) and isinstance(obj, (FunctionCtx, torch.autograd.graph.Node)):
        raise Break(
            "unknown_object",
            f"`{name}` of a {type(obj).__name__} is read, which unpacks what was saved",
            "no change is needed: what follows is compiled",
        )


_SAVED = ("saved_", "_saved_", "_raw_saved_")


def guarded_function(
    machine: Machine, cls: type, name: str, fn: types.FunctionType, source: Any = None
) -> types.FunctionType:
    """A method found on a class: relied on by its code. One guard per class, not per instance."""
    world = machine.world
    if id(cls) in world.made:
        return fn
    owner = defining_class(cls, name)
    if not is_trusted_module(fn.__module__ or ""):
        if source is None:
            source = S.attr(world.anchor(owner), name)
        world.guard_function(source, fn, "method")
        if world.source_of(fn) is None:
            world.register(fn, source)
    else:
        world.anchor(fn)
    return fn


def is_programs_native(machine: Machine, cls: type, name: str, raw: Any) -> bool:
    """Whether this is a native function that a class of the program's has as an attribute: nothing binds it, and it may
    be exchanged.
    """
    return (
        type(raw) in BOUND_NATIVE
        and id(cls) not in machine.world.made
        and not is_trusted_module(defining_class(cls, name).__module__ or "")
    )


# --- super()
def super_attribute(machine: Machine, proxy: Any, name: str) -> Any:
    this, obj, start = proxy.__thisclass__, proxy.__self__, proxy.__self_class__
    if name in ("__thisclass__", "__self__", "__self_class__", "__class__"):
        return getattr(proxy, name)
    mro = start.__mro__
    machine.world.rely_on_bases(start)
    for base in mro[mro.index(this) + 1 :]:
        _lookup(base, name)  # none of the classes in between may get it later
        raw = base.__dict__.get(name, MISSING)
        if raw is MISSING:
            continue
        if isinstance(raw, types.FunctionType):
            guarded_function(machine, base, name, raw)
            return raw if obj is start else types.MethodType(raw, obj)
        if isinstance(raw, classmethod):
            return types.MethodType(raw.__func__, start)
        if isinstance(raw, staticmethod):
            return raw.__func__
        if isinstance(raw, property) and obj is not start:
            return machine.call(raw.fget, [obj])
        if is_programs_native(machine, base, name, raw):
            return machine.world.load(raw, S.attr(machine.world.anchor(base), name), "class attribute")
        if type(raw) in CALLABLE_NATIVE:
            if type(obj) is Subclassed and not isinstance(raw, types.BuiltinFunctionType):
                return types.MethodType(raw, obj)
            return (
                raw
                if isinstance(raw, types.BuiltinFunctionType)
                else machine.native(raw.__get__, None if obj is start else obj, start)
            )
        if type(raw) in NATIVE_DATA:
            if type(obj) is Subclassed:
                return machine.call(raw.__get__, [obj])
            return machine.native(raw.__get__, obj, start)
        getter = _lookup(type(raw), "__get__")
        if isinstance(getter, types.FunctionType):
            return machine.call(getter, [raw, None if obj is start else obj, start])
        if getter is not MISSING and not isinstance(raw, (type, types.BuiltinFunctionType, property)):
            machine.world.anchor(raw)
            return machine.native(raw.__get__, None if obj is start else obj, start)
        return (
            machine.world.load(raw, S.attr(machine.world.anchor(base), name), "class attribute")
            if id(base) not in machine.world.made
            else raw
        )
    raise Raised(AttributeError(f"'super' object has no attribute '{name}'"))
