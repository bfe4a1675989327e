"""Attributes: the lookup that `object.__getattribute__` does, step by step, so that user code in it is interpreted and
what was read from outside objects is guarded."""

from __future__ import annotations

import collections
import enum
import functools
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch

from ...errors import InternalError
from ...guards import source as S
from ...guards.source_values import Unreachable, load_attr
from . import containers
from ..tensors import tensor_attributes
from ..machine.exceptions import traceback_at
from ..machine.generators import InlineGenerator, PythonIterator
from .inline_policy import is_trusted_module
from ..numbers.late_text import LateText, settled
from .lookups import class_attribute
from .objects.class_attributes import (
    CALLABLE_NATIVE,
    NATIVE_DATA,
    defining_class,
    guarded_function,
    interpreted_descriptor,
    is_programs_native,
    read_class,
    refuse_odd_descriptor,
    refuse_saved,
    super_attribute,
)
from ..machine.signals import Break, Raised
from ..tensors.tensor_subclasses import Subclassed, SuperOf
from ...graph.tensor import TraceTensor
from ..machine.stack_values import ATOMS, IMMUTABLE, MISSING, is_placement, specialize

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = [
    "get_attribute",
    "set_attribute",
    "delete_attribute",
    "has_attribute",
    "guard_own_lacks",
    "Access",
    "TENSORS",
]

_GETATTRIBUTES = (
    object.__getattribute__,
    types.ModuleType.__getattribute__,
    types.MethodType.__getattribute__,
    types.FunctionType.__getattribute__,
    torch.Tensor.__getattribute__,
    functools.partial.__getattribute__,
    collections.defaultdict.__getattribute__,
    collections.deque.__getattribute__,
)
_module_getattr = torch.nn.Module.__getattr__
_module_setattr = torch.nn.Module.__setattr__
_REGISTRATION_HOOKS = {
    "_parameters": "_global_parameter_registration_hooks",
    "_buffers": "_global_buffer_registration_hooks",
    "_modules": "_global_module_registration_hooks",
}
_NATIVE_MADE = (BaseException, tuple, type, types.FunctionType, str, int, float)
_MADE_TYPES = (types.FunctionType, BaseException, types.SimpleNamespace, functools.partial)


class Access(NamedTuple):
    """How attributes of a kind of tensor are read and set."""

    get: Callable  # (machine, object, name)
    set: Callable  # (machine, object, name, value)
    store: Callable | None = None  # the same, past what its class says; None: as for any object


# Type of a stack value -> its row. tensors/subclass_calls.py, which needs this module, adds its own.
TENSORS: dict[type, Access] = {TraceTensor: Access(tensor_attributes.get_attribute, tensor_attributes.set_attribute)}


_lookup = class_attribute


def has_attribute(machine: Machine, obj: Any, name: str) -> bool:
    try:
        get_attribute(machine, obj, name)
    except Raised as raised:
        if isinstance(raised.exc, AttributeError):
            return False
        raise
    return True


def get_attribute(machine: Machine, obj: Any, name: str) -> Any:
    """`obj.name`. Raises Raised(AttributeError)."""
    cls = type(obj)
    if (access := TENSORS.get(cls)) is not None:
        return access.get(machine, obj, name)
    if isinstance(obj, (torch.SymInt, torch.SymFloat, torch.SymBool)) and name != "node":
        obj = specialize(obj)  # methods of numbers ask for the number itself
    if cls is LateText:
        obj = settled(obj)
    if cls is InlineGenerator:
        return _of_generator(machine, obj, name)
    if cls is PythonIterator:
        return get_attribute(machine, obj.target, name)
    if cls in ATOMS or type(obj) in ATOMS:
        return machine.native(getattr, obj, name)
    if isinstance(obj, types.ModuleType):
        return _module_attribute(machine, obj, name)
    if isinstance(obj, type):
        return read_class(machine, obj, name)
    if cls is super or cls is SuperOf:
        return super_attribute(machine, obj, name)
    if (
        name == "__class__"
        and _lookup(cls, name) is object.__dict__[name]
        and not isinstance(_lookup(cls, "__getattribute__"), types.FunctionType)
    ):
        return cls
    return _instance_attribute(machine, obj, cls, name)


_METHODS_OF_GENERATORS = frozenset(("send", "throw", "close", "__next__", "__iter__"))


def _of_generator(machine: Machine, generator: InlineGenerator, name: str) -> Any:
    """What the stand-in has of its own (its frame, the machine) is no attribute of a generator."""
    if name in _METHODS_OF_GENERATORS:
        return machine.native(getattr, generator, name)
    if name == "__class__":
        return types.GeneratorType
    if not hasattr(types.GeneratorType, name):
        raise Raised(AttributeError(f"'generator' object has no attribute {name!r}", name=name, obj=generator))
    raise Break("unsupported", f"`{name}` of a generator is read")


# --- Python modules
def _module_attribute(machine: Machine, module: types.ModuleType, name: str) -> Any:
    world = machine.world
    written = world.pending.get(id(module.__dict__))
    if written is not None and name in written:
        return written[name]
    source = world.anchor(module)
    value = module.__dict__.get(name, MISSING)
    if value is MISSING and type(module) is not types.ModuleType:
        raw = _lookup(type(module), name)  # torch.backends.cudnn.enabled: a descriptor of the module's own class
        getter = _lookup(type(raw), "__get__")
        if type(raw) is property and raw.fget is not None:
            return machine.call(raw.fget, [module])
        if raw is not MISSING and isinstance(getter, types.FunctionType):
            world.anchor(raw)
            return machine.call(getter, [raw, module, type(module)])
        custom = _lookup(type(module), "__getattr__")
        if raw is MISSING and isinstance(custom, types.FunctionType):
            world.guard(S.attr(source, "__dict__"), "LACKS", name, "missing attribute")
            world.anchor(custom)
            return machine.call(custom, [module, name])
    if value is MISSING:
        custom = module.__dict__.get("__getattr__")
        try:
            value = machine.native(getattr, module, name)  # a module's own __getattr__ (lazy imports) and __dict__
        except Raised:
            if isinstance(custom, types.FunctionType) and not is_trusted_module(module.__name__):
                return _ask_module(machine, module, source, name)
            if not is_trusted_module(module.__name__):
                world.guard(source, "HASATTR", (name, False), "missing attribute")
            raise
        if isinstance(value, (types.ModuleType, types.FunctionType, type)):
            world.anchor(value)
            return value
        if isinstance(custom, types.FunctionType) and name not in module.__dict__ and not name.startswith("__"):
            return _ask_module(machine, module, source, name)
    if (
        is_trusted_module(module.__name__)
        and isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType))
        or isinstance(value, types.ModuleType)
    ):
        world.anchor(value)
        if name in module.__dict__ and not isinstance(value, types.ModuleType):
            world.guard(S.attr(source, name), "ID", value, "module attribute")  # people patch torch.nn.functional
        return value
    return world.load(value, S.attr(source, name), "module attribute")


def _ask_module(machine: Machine, module: types.ModuleType, source: Any, name: str) -> Any:
    """What a module's own __getattr__ says: interpreted, so that what it reads is guarded; a guard cannot run it."""
    machine.world.guard(S.attr(source, "__dict__"), "LACKS", name, "missing attribute")
    return machine.call(machine.getattr(module, "__getattr__"), [name])


# --- instances
def _instance_dict(obj: Any) -> dict | None:
    try:
        d = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return d if isinstance(d, dict) else None


def _known_as_own(machine: Machine, obj: Any) -> dict | None:
    """The dict of an object whose attributes change: a name that leads to the dict itself must not read it as it
    was.
    """
    own = _instance_dict(obj)
    if own is not None:
        machine.world.dict_owners[id(own)] = obj
    return own


def _refuse_own_lookup(cls: type) -> None:
    """Break for objects of C that keep their attributes somewhere else: per thread, or in the object that they stand
    for.
    """
    if issubclass(cls, (threading.local, weakref.ProxyType, weakref.CallableProxyType)) and cls is not threading.local:
        raise Break(
            "unknown_object",
            f"a {cls.__name__} keeps its attributes in its own way",
            "read it outside of the compiled region",
        )


def _instance_attribute(machine: Machine, obj: Any, cls: type, name: str) -> Any:
    _refuse_own_lookup(cls)
    if cls is threading.local:
        return _thread_attribute(machine, obj, name)
    if is_placement(cls) and isinstance(_lookup(cls, name), property):
        return machine.native(getattr, obj, name)
    if name in ("forward", "_orig_mod") and (original := cls.__dict__.get("__tcompile_original__")) is not None:
        # of a compiled module: modules.py
        module = original_of(machine, obj, original)
        return module if name == "_orig_mod" else get_attribute(machine, module, name)
    custom = _lookup(cls, "__getattribute__")
    if isinstance(custom, types.FunctionType):
        try:
            return machine.call(custom, [obj, name])
        except Raised as raised:
            if not isinstance(raised.exc, AttributeError):
                raise
            return _fallback(machine, obj, cls, name)
    return _generic(machine, obj, cls, name, True)


def _thread_attribute(machine: Machine, obj: threading.local, name: str) -> Any:
    """An attribute of a threading.local from outside: the one that this thread has, or that it has none, relied on as
    it is asked again at each call.
    """
    source, written = machine.world.source_of(obj), machine.world.pending.get(id(obj), {})
    value = written[name] if name in written else getattr(obj, name, MISSING)
    if name in written and value is not MISSING:
        return value
    if source is None or name.startswith("__"):
        raise Break(
            "unknown_object",
            f"this thread may lack the attribute {name!r} of a threading.local",
            "read it outside of the compiled region",
        )
    if value is MISSING:
        if name not in written:
            machine.world.guard(source, "HASATTR", (name, False), "an attribute that this thread lacks")
        raise Raised(_no_attribute(threading.local, name))
    return machine.world.load(value, S.attr(source, name), "attribute of a threading.local")


def original_of(machine: Machine, compiled: Any, original: Any) -> Any:
    """The module behind one that this compiler compiled, reached by the same path; `original` is the class's
    __tcompile_original__.
    """
    module = machine.world.register(original.__func__(compiled), machine.world.anchor(compiled))
    machine.world.originals.add(id(module))
    return module


def generic_attribute(machine: Machine, obj: Any, name: str) -> Any:
    """object.__getattribute__(obj, name), without the class's own __getattribute__ and __getattr__."""
    return _generic(machine, obj, type(obj), name, False)


def _refusal(access: Callable, *args: Any) -> Raised:
    """What a property says that lacks the function for an access. It knows under which name its class has it."""
    try:
        access(*args)
    except AttributeError as e:
        return Raised(AttributeError(*e.args))
    raise InternalError("a property without a function was accessed")


def _generic(machine: Machine, obj: Any, cls: type, name: str, fallback: bool) -> Any:
    world = machine.world
    source = _source_of(machine, obj, cls)
    raw = _lookup(cls, name)
    if raw is not MISSING:
        kind = type(raw)
        if issubclass(kind, property) and kind.__get__ is property.__get__:
            if raw.fget is None:
                raise _refusal(raw.__get__, obj, cls)
            return _or_fallback(machine, obj, cls, name, fallback, lambda: _call_property(machine, obj, cls, name, raw))
        if kind in NATIVE_DATA:
            return _or_fallback(machine, obj, cls, name, fallback, lambda: _native_data(machine, obj, source, name))
        if (
            isinstance(obj, enum.Enum)
            and name in ("name", "value")
            and raw is enum.Enum.__dict__[name]
            and f"_{name}_" in obj.__dict__
        ):
            return _generic(machine, obj, cls, f"_{name}_", fallback)
        if _lookup(kind, "__set__") is not MISSING and kind is not functools.cached_property:
            getter = _lookup(kind, "__get__")
            if isinstance(getter, types.FunctionType):
                return _or_fallback(
                    machine,
                    obj,
                    cls,
                    name,
                    fallback,
                    lambda: machine.call(getter, [interpreted_descriptor(machine, cls, raw), obj, cls]),
                )
            refuse_odd_descriptor(raw, "__get__", getter)
            return _native_data(machine, obj, source, name)
    written = world.pending.get(id(obj))
    if written is not None and name in written:
        value = written[name]
        if value is not MISSING:
            return value
        d: dict | None = None
    else:
        d = _instance_dict(obj)
    if d is not None:
        containers.refuse_late_items(machine, d)
        value = d.get(name, MISSING)
        if value is not MISSING:
            if source is None:
                return value
            return world.load(value, _member_source(source, cls, name), "attribute")
    if raw is not MISSING:
        return _or_fallback(machine, obj, cls, name, fallback, lambda: _bind(machine, obj, cls, name, raw, source))
    if cls is types.MethodType:
        return machine.getattr(obj.__func__, name)
    if fallback:
        return _fallback(machine, obj, cls, name)
    raise Raised(_missing(machine, obj, cls, name))


def _source_of(machine: Machine, obj: Any, cls: type) -> Any:
    """By which Source the object is reached; what native code gave gets one, so that what is read of it is guarded."""
    source = machine.world.source_of(obj)
    if (
        source is None
        and cls.__flags__ & (1 << 9)  # a class made by Python
        and id(obj) not in machine.world.created
        and not isinstance(obj, _NATIVE_MADE)
        and _instance_dict(obj) is not None
    ):
        return machine.world.anchor(obj)
    return source


def _or_fallback(machine: Machine, obj: Any, cls: type, name: str, fallback: bool, read: Callable[[], Any]) -> Any:
    """What a descriptor gives; the class's __getattr__ is asked where that raises AttributeError."""
    try:
        return read()
    except Raised as raised:
        if fallback and isinstance(raised.exc, AttributeError) and _lookup(cls, "__getattr__") is not MISSING:
            return _fallback(machine, obj, cls, name)
        raise


def _reads_own_code(cls: type) -> bool:
    """Whether a guard cannot read attributes of such objects by getattr without running the class's own code."""
    return _lookup(cls, "__getattribute__") not in _GETATTRIBUTES


def _member_source(source: Any, cls: type, name: str) -> Any:
    """The Source of an attribute that lies in the instance's __dict__."""
    if _reads_own_code(cls):
        return S.dict_value(S.attr(source, "__dict__"), name)
    return S.attr(source, name)


def _guard_absent(machine: Machine, obj: Any, cls: type, source: Any, name: str) -> None:
    """Rely on an attribute's absence: from the instance only, where the class has it."""
    if name == "__dict__":
        return  # the type decides whether there is one
    d = _instance_dict(obj)
    custom = _lookup(cls, "__getattr__")
    if _reads_own_code(cls) or (isinstance(custom, types.FunctionType) and custom is not _module_getattr):
        if d is not None:
            machine.world.guard(S.attr(source, "__dict__"), "LACKS", name, "missing attribute")
    else:
        machine.world.guard(source, "HASATTR", (name, False), "missing attribute")


def _missing(machine: Machine, obj: Any, cls: type, name: str) -> AttributeError:
    source = machine.world.source_of(obj)
    if source is not None and (machine.world.pending.get(id(obj)) or {}).get(name) is not MISSING:
        _guard_absent(machine, obj, cls, source, name)
    return _no_attribute(cls, name, obj)


def _no_attribute(cls: type, name: str, obj: Any = None) -> AttributeError:
    return AttributeError(f"'{cls.__name__}' object has no attribute '{name}'", name=name, obj=obj)


_DEVICE_PROPERTIES = getattr(torch._C, "_CudaDeviceProperties", None)  # of a device: they never change


def _call_property(machine: Machine, obj: Any, cls: type, name: str, raw: property) -> Any:
    if cls is _DEVICE_PROPERTIES:
        return machine.native(getattr, obj, name)
    if isinstance(raw.fget, types.FunctionType):
        if not is_trusted_module(raw.fget.__module__ or "") and id(cls) not in machine.world.made:
            # (what is found in other classes a CLASS guard relies on)
            if is_trusted_module(getattr(cls, "__module__", None) or ""):
                place = S.attr(machine.world.anchor(defining_class(cls, name)), name)
                machine.world.guard(place, "ID", raw, "property")
            machine.world.anchor(raw.fget)
    return machine.call(raw.fget, [obj])


def _native_data(machine: Machine, obj: Any, source: Any, name: str) -> Any:
    """A slot, or an attribute that C code computes."""
    if name == "__traceback__" and source is None and isinstance(obj, BaseException):
        return obj.__traceback__ or traceback_at(machine.trails.get(id(obj), ()))
    if name == "__context__" and source is None and id(obj) in machine.trails and obj.__context__ is None:
        machine.rely_on_nothing_handled_outside()
    written = machine.world.pending.get(id(obj))
    if written is not None and name in written:
        return written[name]
    if source is None and isinstance(obj, types.FunctionType) and id(obj) not in machine.world.created:
        source = machine.world.anchor(obj)
    refuse_saved(obj, name)
    value = _read_native(machine, obj, source, name)
    if source is None or (isinstance(obj, IMMUTABLE) and type(value) in ATOMS):
        return value
    if isinstance(obj, types.FunctionType) and name == "__code__":
        machine.world.identity(obj)
    if _is_part_of_function(obj, source, name):
        if type(value) in ATOMS or isinstance(value, (types.CodeType, types.ModuleType)):
            return value
    if name == "__dict__":
        machine.world.dict_owners[id(value)] = obj
    elif not _guards_read(obj, name):
        raise Break(
            "unknown_object",
            f"the class of a {type(obj).__name__} looks up attributes such as {name} in its own way",
            "read it outside of the compiled region",
        )
    return machine.world.load(value, S.attr(source, name), "attribute")


def _read_native(machine: Machine, obj: Any, source: Any, name: str) -> Any:
    """What C code gives; an empty slot is relied on as empty."""
    own = _object_reads(type(obj))
    try:
        return machine.native(object.__getattribute__ if own else getattr, obj, name)
    except Raised as raised:
        if source is not None and isinstance(raised.exc, AttributeError):
            if own:
                raise Break(
                    "unknown_object",
                    f"a {type(obj).__name__} has an empty slot, and its class looks up attributes in its own way",
                ) from None
            machine.world.guard(source, "HASATTR", (name, False), "missing attribute")
        raise


def _is_part_of_function(obj: Any, source: Any, name: str) -> bool:
    """Whether it belongs to a function that is relied on already: its code, or anything of a function of C or torch."""
    if not isinstance(obj, (types.FunctionType, types.BuiltinFunctionType)):
        return False
    if name == "__code__":
        return True
    fixed = isinstance(obj, types.BuiltinFunctionType) or is_trusted_module(obj.__module__ or "")
    return source.root.kind == "const" and fixed


def _guards_read(obj: Any, name: str) -> bool:
    """Whether guards can read the attribute, which is there."""
    try:
        load_attr(obj, name)
    except Unreachable:
        return False
    return True


def _object_reads(cls: type) -> bool:
    """Whether getattr would run Python code of the class's."""
    return isinstance(_lookup(cls, "__getattr__"), types.FunctionType) or isinstance(
        _lookup(cls, "__getattribute__"), types.FunctionType
    )


def _bind(machine: Machine, obj: Any, cls: type, name: str, raw: Any, source: Any) -> Any:
    """A class attribute read through an instance."""
    if isinstance(raw, types.FunctionType):
        return _bind_function(machine, obj, cls, name, raw, source)
    if (
        source is not None
        and _instance_dict(obj) is not None
        and (hasattr(type(raw), "__get__") or _reads_own_code(cls))
    ):
        guard_own_lacks(machine, source, name)
    if isinstance(raw, staticmethod):
        fn = raw.__func__
        return guarded_function(machine, cls, name, fn) if isinstance(fn, types.FunctionType) else fn
    if isinstance(raw, classmethod):
        return _bind_to_class(machine, cls, name, raw)
    if type(raw) in CALLABLE_NATIVE and not is_programs_native(machine, cls, name, raw):
        return machine.native(lambda: raw.__get__(obj, cls)) if not isinstance(raw, types.BuiltinFunctionType) else raw
    if type(raw) is functools.cached_property:
        value = machine.call(raw.func, [obj])
        _store(machine, obj, name, value)
        return value
    getter = _lookup(type(raw), "__get__")
    if isinstance(getter, types.FunctionType) and not isinstance(raw, type):
        return machine.call(getter, [interpreted_descriptor(machine, cls, raw), obj, cls])
    refuse_odd_descriptor(raw, "__get__", getter)
    if getter is not MISSING and not isinstance(raw, (type, types.BuiltinFunctionType)):
        return machine.native(lambda: raw.__get__(obj, cls))
    return _value_of_class(machine, obj, cls, name, raw, source)


def guard_own_lacks(machine: Machine, source: Any, name: str) -> None:
    """Rely on the instance's own dict not to hide what its class has."""
    machine.world.guard(S.attr(source, "__dict__"), "LACKS", name, "an attribute of the class")


def _bind_function(
    machine: Machine, obj: Any, cls: type, name: str, raw: types.FunctionType, source: Any
) -> types.MethodType:
    """A method. The guards also see a function that is put into the instance's own __dict__ later."""
    has_dict = source is not None and _instance_dict(obj) is not None
    of_program = has_dict and not is_trusted_module(raw.__module__ or "")
    if of_program or source is not None and name == "forward":
        guarded_function(machine, cls, name, raw)
        if _reads_own_code(cls):
            _guard_absent(machine, obj, cls, source, name)
        elif name == "forward" and id(obj) in machine.world.originals:  # the compiled module has one of its own
            guard_own_lacks(machine, source, name)
        elif not name.startswith("__"):
            machine.world.guard(S.attr(S.attr(source, name), "__func__"), "WEAK_ID", weakref.ref(raw), "method")
    else:
        if has_dict and not is_trusted_module(defining_class(cls, name).__module__ or ""):
            guard_own_lacks(machine, source, name)  # a function of torch's that the class holds
        guarded_function(machine, cls, name, raw)
    return types.MethodType(raw, obj)


def _bind_to_class(machine: Machine, cls: type, name: str, raw: classmethod) -> types.MethodType:
    fn: Any = raw.__func__
    if isinstance(fn, types.FunctionType):
        guarded_function(machine, cls, name, fn, S.attr(S.attr(machine.world.anchor(cls), name), "__func__"))
    return types.MethodType(fn, cls)


def _value_of_class(machine: Machine, obj: Any, cls: type, name: str, raw: Any, source: Any) -> Any:
    """A plain value that the class holds: read through the instance where guards can do that, else from the class."""
    if source is not None:
        if not _reads_own_code(cls):
            return machine.world.load(raw, S.attr(source, name), "class attribute")
        _guard_absent(machine, obj, cls, source, name)
    if id(cls) in machine.world.made or type(raw) in ATOMS and is_trusted_module(cls.__module__ or ""):
        return raw
    return machine.world.load(raw, S.attr(machine.world.anchor(cls), name), "class attribute")


def _fallback(machine: Machine, obj: Any, cls: type, name: str) -> Any:
    """The class's __getattr__."""
    custom = _lookup(cls, "__getattr__")
    if custom is _module_getattr:
        return _module_member(machine, obj, cls, name)
    if isinstance(custom, types.FunctionType):
        guarded_function(machine, cls, "__getattr__", custom)
        source = machine.world.source_of(obj)
        if source is not None and name not in (machine.world.pending.get(id(obj)) or {}):
            _guard_absent(machine, obj, cls, source, name)
        return machine.call(custom, [obj, name])
    if custom is not MISSING:
        raise Break("unsupported", f"`{name}` is looked up by a __getattr__ of {cls.__name__} that is not a function")
    raise Raised(_missing(machine, obj, cls, name))


def _module_member(machine: Machine, module: torch.nn.Module, cls: type, name: str) -> Any:
    """A parameter, buffer or submodule of an nn.Module."""
    own, source = module.__dict__, machine.world.source_of(module)
    for at, table in enumerate(containers.MODULE_TABLES):
        members = _module_table(machine, module, table)
        if members is None:
            continue
        if members is own.get(table) and id(members) not in machine.world.shadows:
            if name in members:
                if source is None:
                    return members[name]
                place = S.attr(source, name)
                if _reads_own_code(cls):  # a guard looks where Module.__getattr__ looks, in the same order
                    tables = [_member_source(source, cls, other) for other in containers.MODULE_TABLES]
                    for lacking in (S.attr(source, "__dict__"), *tables[:at]):
                        machine.world.guard(lacking, "LACKS", name, "missing attribute")
                    place = S.dict_value(tables[at], name)
                return machine.world.load(members[name], place, table[1:-1])
        elif machine.world.is_outside(members):  # exchanged, read or written in this frame: as it is by now
            if containers.contains(machine, members, name):
                return containers.get_item(machine, members, name)
        elif name in members:
            return members[name]
    raise Raised(_missing(machine, module, cls, name))


def _module_table(machine: Machine, module: torch.nn.Module, table: str) -> Any:
    """The module's `_parameters`, `_buffers` or `_modules` as the program sees it; None where there is none yet."""
    written = machine.world.pending.get(id(module))
    return written[table] if written is not None and table in written else module.__dict__.get(table)


# --- writing
def _store(machine: Machine, obj: Any, name: str, value: Any) -> None:
    """Into the instance itself: at once where it was made inside, else into the effect log."""
    if not machine.world.is_outside(obj):
        if not isinstance(obj, _MADE_TYPES) and id(obj) not in machine.world.created:
            raise Break("mutation", f"an attribute of a {type(obj).__name__} of unknown origin is set")
        machine.native(object.__setattr__, obj, name, value)
        return
    _known_as_own(machine, obj)
    machine.world.pending.setdefault(id(obj), {})[name] = value
    machine.effects.set_attribute(obj, name, value)


def set_attribute(machine: Machine, obj: Any, name: str, value: Any) -> None:
    """`obj.name = value`."""
    cls = type(obj)
    world = machine.world
    if (access := TENSORS.get(cls)) is not None:
        access.set(machine, obj, name, value)
        return
    if isinstance(obj, types.ModuleType):
        world.anchor(obj)
        world.pending.setdefault(id(obj.__dict__), {})[name] = value
        machine.effects.set_attribute(obj, name, value)
        return
    if isinstance(obj, type):
        if id(obj) in world.made:
            machine.native(setattr, obj, name, value)
            return
        raise Break("mutation", f"an attribute of the class {obj.__name__} is set")
    _refuse_own_lookup(cls)
    if cls is threading.local:
        if machine.world.source_of(obj) is None or name.startswith("__"):
            raise Break("unknown_object", "an attribute of a threading.local made inside is set")
        machine.world.pending.setdefault(id(obj), {})[name] = value
        machine.effects.set_attribute(obj, name, value)
        return
    custom = _lookup(cls, "__setattr__")
    if custom is _module_setattr:
        _set_module_attribute(machine, obj, name, value)
    elif isinstance(custom, types.FunctionType):
        machine.call(custom, [obj, name, value])
    elif _is_own(custom, "__setattr__"):
        machine.call(machine.getattr(obj, "__setattr__"), [name, value])
    else:
        generic_set(machine, obj, name, value)


def _is_own(method: Any, name: str) -> bool:
    """Whether a special method is the program's, though no function: a staticmethod, a partialmethod, or
    dict.__setitem__ by another name."""
    return method is not MISSING and (type(method) is not types.WrapperDescriptorType or method.__name__ != name)


def generic_set(machine: Machine, obj: Any, name: str, value: Any) -> None:
    """object.__setattr__(obj, name, value)."""
    cls = type(obj)
    if (access := TENSORS.get(cls)) is not None and access.store is not None:
        access.store(machine, obj, name, value)
        return
    raw = _lookup(cls, name)
    if raw is not MISSING:
        if isinstance(raw, property) and type(raw).__set__ is property.__set__:
            if raw.fset is None:
                raise _refusal(raw.__set__, obj, None)
            machine.call(raw.fset, [obj, value])
            return
        setter = _lookup(type(raw), "__set__")
        if isinstance(setter, types.FunctionType):
            machine.call(setter, [raw, obj, value])
            return
        refuse_odd_descriptor(raw, "__set__", setter)
    if name in ("__class__", "__dict__") and machine.world.is_outside(obj):
        raise Break("mutation", f"{name} of an object from outside is set")
    if (
        isinstance(obj, torch.nn.Module)
        and machine.world.is_outside(obj)
        and "_parameters" in obj.__dict__
        and any(_is_member(machine, obj, name, table) for table in containers.MODULE_TABLES)
    ):
        raise Break("mutation", f"`{name}` of a module is set past its __setattr__")
    if machine.world.is_outside(obj) and _is_of_c(raw):
        raise Break("mutation", f"`{name}` of a {cls.__name__} is set, which may refuse the value")
    if machine.world.is_outside(obj) and raw is MISSING and _instance_dict(obj) is None:
        raise Raised(AttributeError(f"'{cls.__name__}' object has no attribute '{name}'"))
    _store(machine, obj, name, value)


def _is_of_c(raw: Any) -> bool:
    """Whether a class attribute is what C code sets values by. (So are slots of a class in Python, which take any.)"""
    return isinstance(raw, types.GetSetDescriptorType) or (
        isinstance(raw, types.MemberDescriptorType) and "__slots__" not in vars(raw.__objclass__)
    )


def _set_module_attribute(machine: Machine, module: torch.nn.Module, name: str, value: Any) -> None:
    real = machine.world.reals.get(id(value)) if type(value) is TraceTensor else value
    if not machine.world.is_outside(module):
        if isinstance(value, torch.nn.Parameter) or isinstance(real, (torch.nn.Parameter, torch.nn.Buffer)):
            raise Break("module_construction", "a module is made that holds a parameter or a Buffer")
        machine.native(torch.nn.Module.__setattr__, module, name, value)
        return
    if "_parameters" not in module.__dict__:
        raise Break("module_construction", f"{type(module).__name__} is being constructed")
    wanted = (
        "_parameters"
        if isinstance(real, torch.nn.Parameter)
        else "_modules"
        if isinstance(value, torch.nn.Module)
        else None
    )
    table = next((table for table in containers.MODULE_TABLES if _is_member(machine, module, name, table)), None)
    if wanted is None and table is None and not isinstance(real, torch.nn.Buffer):
        generic_set(machine, module, name, value)
        return
    if table is None and wanted is not None and not has_attribute(machine, module, name):
        machine.world.guard(S.attr(machine.world.sources[id(module)], "__dict__"), "LACKS", name, "missing attribute")
        table = wanted
    fits = value is None or (wanted is not None if table != "_buffers" else type(value) is TraceTensor)
    if (
        table is None
        or not fits
        or isinstance(real, torch.nn.Buffer)  # says whether it is persistent, which the module notes
        or table != (wanted or table)
        or machine.truth(machine.getattr(torch.nn.modules.module, _REGISTRATION_HOOKS[table]))
    ):
        raise Break("mutation", f"`{name}` of a module is replaced")
    containers.mutate(machine, machine.getattr(module, table), "__setitem__", [name, value], {})


def _is_member(machine: Machine, module: torch.nn.Module, name: str, table: str) -> bool:
    members = _module_table(machine, module, table)
    return name in (containers.plain(machine, members) if id(members) in machine.world.shadows else members)


def delete_attribute(machine: Machine, obj: Any, name: str) -> None:
    """`del obj.name`."""
    custom = _lookup(type(obj), "__delattr__")
    if isinstance(obj, torch.nn.Module):
        generic_delete(machine, obj, name)
    elif isinstance(custom, types.FunctionType):
        machine.call(custom, [obj, name])
    elif _is_own(custom, "__delattr__"):
        machine.call(machine.getattr(obj, "__delattr__"), [name])
    else:
        generic_delete(machine, obj, name)


def generic_delete(machine: Machine, obj: Any, name: str) -> None:
    """object.__delattr__(obj, name)."""
    cls = type(obj)
    if isinstance(obj, (type, types.ModuleType, torch.nn.Module, TraceTensor, Subclassed)):
        raise Break("mutation", "an attribute is deleted")
    raw = _lookup(cls, name)
    if isinstance(raw, property) and type(raw).__delete__ is property.__delete__:
        if raw.fdel is None:
            raise _refusal(raw.__delete__, obj)
        machine.call(raw.fdel, [obj])
        return
    if raw is not MISSING:
        deleter = _lookup(type(raw), "__delete__")
        if isinstance(deleter, types.FunctionType):
            machine.call(deleter, [interpreted_descriptor(machine, cls, raw), obj])
            return
        refuse_odd_descriptor(raw, "__delete__", deleter)
    if not machine.world.is_outside(obj):
        machine.native(object.__delattr__, obj, name)
        return
    own = _known_as_own(machine, obj)
    if (
        not isinstance(raw, types.MemberDescriptorType)
        and name not in machine.world.pending.get(id(obj), ())
        and name not in (own or ())
    ):
        raise Break("mutation", f"`{name}` is deleted, but the object itself does not have it")
    generic_attribute(machine, obj, name)
    machine.world.pending.setdefault(id(obj), {})[name] = MISSING
    machine.effects.delete_attribute(obj, name)
