"""Making instances, and classes."""

from __future__ import annotations

import builtins
import collections
import enum
import types
import typing
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ...guards import source as S
from . import callables
from .builtin_types import python_method
from ..tensors import subclass_calls, tensor_calls, tensor_factories
from ..machine.generators import InlineGenerator
from .inline_policy import is_trusted_module
from .lifetimes import refuse_finalizer, refuse_reference
from .lookups import class_attribute
from ..numbers.late_text import hashed
from ..machine.signals import Break, Raised
from ...graph.tensor import TraceTensor
from ..machine.stack_values import ATOMS, MISSING, is_placement

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["instantiate", "build_class", "make_class", "made_inside"]


_lookup = class_attribute


def instantiate(machine: Machine, cls: type, args: list, kwargs: dict) -> Any:
    """cls(*args, **kwargs)."""
    special = callables.CLASSES.get(cls)
    if special is not None:
        return callables.run_handler(special, machine, args, kwargs)
    if isinstance(cls, enum.EnumMeta):
        return _member_of(machine, cls, args, kwargs)
    if not kwargs and (
        cls is torch.nn.Sequential
        and all(isinstance(arg, torch.nn.Module) for arg in args)
        or cls is torch.nn.ModuleList
        and not any(arg is None or tensor_calls.holds_tensor(arg) for arg in args)
    ):
        # grouping modules that exist changes none of them; slices of a ModuleList do this (a dict of modules may have
        # been changed inside, so that the class's own code has to read it)
        return machine.world.create(
            machine.native(
                cls,
                *[machine.native(list, machine.iterate(arg)) if cls is torch.nn.ModuleList else arg for arg in args],
            )
        )
    if cls.__module__ in ("numpy", "numpy._core.getlimits", "numpy.core.getlimits") and cls.__name__ in (
        "finfo",
        "iinfo",
        "dtype",
    ):
        return machine.world.create(machine.native(cls, *[machine.deep_plain(arg) for arg in args]))
    if is_placement(cls):
        return machine.native(
            cls,
            *[machine.deep_plain(arg) for arg in args],
            **{name: machine.deep_plain(value) for name, value in kwargs.items()},
        )
    if cls.__module__ == "torch.return_types" and len(args) == 1 and not kwargs:
        return machine.native(cls, list(machine.iterate(args[0])))
    if issubclass(cls, weakref.ref):
        refuse_reference(f"a {cls.__name__}")
    if issubclass(cls, torch.nn.Module):
        return _make_module(machine, cls, args, kwargs)
    if cls is torch.Tensor:
        return tensor_factories.call_legacy_constructor(machine, None, args, kwargs)
    if cls is torch.autograd.Variable:
        return tensor_factories.call_variable(machine, *args, **kwargs)
    if issubclass(cls, torch.Tensor):
        if cls is torch.nn.Parameter or cls is torch.nn.Buffer:
            raise Break("parameter", f"a {cls.__name__} is made")
        return subclass_calls.construct(machine, cls, args, kwargs)
    if issubclass(cls, torch.autograd.Function):  # Function().apply(x): an instance that only names its class
        obj = machine.world.create(machine.native(cls.__new__, cls))
        machine.call(_lookup(cls, "__init__"), [obj, *args], kwargs)
        return obj
    if issubclass(cls, BaseException):
        return _make_exception(machine, cls, args, kwargs)
    meta_call = _lookup(type(cls), "__call__")
    if isinstance(meta_call, types.FunctionType):
        return machine.call(meta_call, [cls, *args], kwargs)
    return construct(machine, cls, args, kwargs)


def _member_of(machine: Machine, cls: enum.EnumMeta, args: list, kwargs: dict) -> Any:
    """Enum(value): the member that has the value, or a combination of flags."""
    if len(args) != 1 or kwargs:
        raise Break("unsupported", "an enum is made")
    value = hashed(args[0])
    member = machine.native(cls, value)
    if not isinstance(member, enum.Enum):  # a flag that lets go of what it does not know gives a number
        return member
    by_value = cls._value2member_map_ if type(value) in ATOMS else {}
    if by_value.get(value) is member and id(cls) not in machine.world.made:  # (an enum may be told other values)
        return machine.world.load(
            member, S.dict_value(S.attr(machine.world.anchor(cls), "_value2member_map_"), value), "member of an enum"
        )
    known = member.name in cls.__members__ if isinstance(member.name, str) else False  # else a combination of flags
    return machine.world.register(member, S.attr(machine.world.anchor(cls), member.name) if known else S.const(member))


def _make_module(machine: Machine, cls: type, args: list, kwargs: dict) -> Any:
    """A module without parameters (an activation, a loss): nothing but Python, so its __init__ is interpreted. What
    makes a Parameter breaks there."""
    new = cls.__new__
    if (
        new is not object.__new__
        and not isinstance(new, types.FunctionType)
        or type(cls) is not type
        or issubclass(cls, _NATIVE_MODULES)
    ):
        raise Break("module_construction", f"a {cls.__name__} is constructed")
    return construct(machine, cls, args, kwargs)


_NATIVE_MODULES = (torch.jit.ScriptModule, torch.fx.GraphModule)


def construct(machine: Machine, cls: type, args: list, kwargs: dict) -> Any:
    """type.__call__: __new__, then __init__."""
    new, init = _lookup(cls, "__new__"), _lookup(cls, "__init__")
    new = new.__func__ if isinstance(new, staticmethod) else new
    if isinstance(new, types.FunctionType):
        if (
            hasattr(cls, "_fields")
            and issubclass(cls, tuple)
            and "__new__" in cls.__dict__
            and new.__module__.startswith("namedtuple")
        ):
            return machine.native(cls, *args, **kwargs)
        obj = machine.call(new, [cls, *args], kwargs)
        made = machine.world.type_of(obj)
        if not issubclass(made, cls):
            return obj
        if made is not cls:  # an instance of a subclass, which has its own __init__
            cls, init = made, _lookup(made, "__init__")
    else:
        obj = _native_new(machine, cls, args, kwargs, init)
    if init is None or python_method(cls, "__init__") is not None:
        if isinstance(init, types.FunctionType):
            given = machine.call(init, [obj, *args], kwargs)
        else:  # a partialmethod, a property, an object that is called
            given = machine.call(machine.getattr(obj, "__init__"), args, kwargs)
        if given is not None:
            raise Raised(TypeError(f"__init__() should return None, not '{machine.world.type_of(given).__name__}'"))
    elif init is not MISSING and init is not object.__init__ and isinstance(obj, (list, dict, set)):
        machine.native(
            init, obj, *[machine.plain(arg) if not isinstance(arg, InlineGenerator) else arg for arg in args], **kwargs
        )
    return obj


def _native_new(machine: Machine, cls: type, args: list, kwargs: dict, init: Any) -> Any:
    """An instance by the C __new__ of a base class."""
    heap = bool(cls.__flags__ & (1 << 9))
    if not heap and cls not in _PLAIN_CLASSES:
        raise Break("c_call", f"an instance of the native class {cls.__module__}.{cls.__name__} is made")
    if heap and isinstance(_lookup(cls, "__del__"), types.FunctionType):
        if not is_trusted_module(cls.__module__ or ""):
            refuse_finalizer(cls)
        raise Break(
            "rebuild",
            f"an instance of {cls.__name__} is made, and its __del__ runs when the last reference goes",
            "release what it holds in a with statement, or make it outside of the compiled region",
        )
    if cls.__new__ is object.__new__:
        if (args or kwargs) and init is object.__init__:
            raise Raised(TypeError(f"{cls.__name__}() takes no arguments"))
        obj = machine.native(object.__new__, cls)
    elif issubclass(cls, (dict, list, set)) and heap or cls in _PLAIN_CLASSES:
        obj = machine.native(cls.__new__, cls)
    elif issubclass(cls, (tuple, str, int, float, frozenset)):
        obj = machine.native(cls.__new__, cls, *[machine.plain(arg) for arg in args], **kwargs)
    elif issubclass(cls, torch.utils._python_dispatch.TorchDispatchMode) or issubclass(
        cls, torch.overrides.TorchFunctionMode
    ):
        raise Break("unsupported", "a dispatch or function mode is made")
    else:
        raise Break("c_call", f"an instance of {cls.__module__}.{cls.__name__} is made by native code")
    return machine.world.create(obj)


_PLAIN_CLASSES = frozenset((object, collections.OrderedDict, types.SimpleNamespace))


def _make_exception(machine: Machine, cls: type, args: list, kwargs: dict) -> Any:
    new, init = _lookup(cls, "__new__"), _lookup(cls, "__init__")
    if isinstance(new, (types.FunctionType, staticmethod)):
        raise Break("unsupported", "an exception class with its own __new__ is instantiated")
    if not isinstance(init, types.FunctionType):
        return machine.native(cls, *args, **kwargs)
    exc = machine.native(cls.__new__, cls, *args)
    machine.call(init, [exc, *args], kwargs)
    return exc


def new_object(machine: Machine, cls: type, *args: Any, **kwargs: Any) -> Any:
    """object.__new__(cls), or a builtin base's, called explicitly."""
    if not isinstance(cls, type):
        raise Raised(TypeError("object.__new__(X): X is not a type object"))
    if issubclass(cls, (torch.Tensor, *_NATIVE_MODULES)):
        raise Break("module_construction")
    if args or kwargs:
        if cls.__new__ is not object.__new__:
            raise Raised(TypeError("object.__new__() takes exactly one argument (the type to instantiate)"))
        if cls.__init__ is object.__init__:
            raise Raised(TypeError(f"{cls.__name__}() takes no arguments"))
    obj = machine.native(object.__new__, cls)
    return machine.world.create(obj)


def build_class(machine: Machine, body: Any, name: str, /, *given: Any, metaclass: Any = None, **kwargs: Any) -> Any:
    """`class name(*bases): ...` inside a captured function."""
    bases = machine.native(types.resolve_bases, given) if _all_known(given) else given
    meta = metaclass if metaclass is not None else type
    if isinstance(meta, type) and _all_classes(bases):
        meta = _most_derived(meta, bases)
    check_class(meta, bases)
    namespace = machine.native(meta.__prepare__, name, bases, **kwargs)
    _run_body(machine, body, namespace)
    if bases is not given and bases != given:
        namespace["__orig_bases__"] = given
    return make_class(machine, meta, name, bases, namespace, kwargs)


def _most_derived(meta: type, bases: tuple) -> type:
    """The metaclass of a class with these bases."""
    for t in map(type, bases):
        if issubclass(t, meta):
            meta = t
        elif not issubclass(meta, t):
            raise Raised(
                TypeError(
                    "metaclass conflict: the metaclass of a derived class must be a (non-strict) subclass of the"
                    " metaclasses of all its bases"
                )
            )
    return meta


def _all_known(values: tuple) -> bool:
    """Whether no code of the user's runs where these are resolved to classes: classes, and typing's own aliases of
    them.
    """
    return all(
        isinstance(value, type)
        or type(value).__module__ in ("typing", "types")
        or isinstance(value, types.FunctionType)
        and value.__module__ == "typing"
        for value in values
    )


def _all_classes(bases: tuple) -> bool:
    return all(isinstance(base, type) for base in bases)


def check_class(meta: Any, bases: tuple) -> None:
    """Break where making the class runs code of the user's, or makes something that capture does not follow."""
    if not isinstance(meta, type) or not is_trusted_module(meta.__module__ or "") or not _all_classes(bases):
        raise Break("class_definition", "a class with a metaclass of its own is defined")
    for base in bases:
        if issubclass(base, (torch.nn.Module, torch.Tensor, torch.autograd.Function)):
            raise Break("class_definition", f"a subclass of {base.__name__} is defined")
        hook = _lookup(base, "__init_subclass__")
        if isinstance(hook, classmethod) and not is_trusted_module(getattr(hook.__func__, "__module__", None) or ""):
            raise Break("class_definition", "a class whose base has __init_subclass__ is defined")


def make_class(machine: Machine, meta: type, name: str, bases: tuple, namespace: dict, kwargs: dict) -> Any:
    """The class itself, made natively; what descriptors do with their names is interpreted."""
    named: dict[str, Any] = {}
    for key, value in list(namespace.items()):
        if isinstance(value, TraceTensor):
            raise Break("class_definition", "a class that holds a tensor is defined")
        hook = _lookup(type(value), "__set_name__")
        if isinstance(hook, types.FunctionType) and not is_trusted_module(hook.__module__ or ""):
            if meta is not type:
                raise Break(
                    "class_definition", "a class with a metaclass and a descriptor that has __set_name__ is defined"
                )
            named[key] = value
            namespace[key] = None  # keeps its place; type.__new__ would run the hook natively
    cls = machine.native(meta, name, bases, namespace, **kwargs)
    made_inside(machine, cls)
    for key, value in named.items():
        type.__setattr__(cls, key, value)
    for key, value in named.items():
        machine.call(machine.getattr(value, "__set_name__"), [cls, key])
    return cls


def made_inside(machine: Machine, cls: type) -> type:
    """A class that native code made for the program (namedtuple, dataclass with slots)."""
    machine.world.made[id(cls)] = cls
    machine.origins[id(cls)] = machine.root_index
    machine.world.keep.append(cls)
    return cls


def _run_body(machine: Machine, body: Any, namespace: dict) -> Any:
    return machine.call_code(body.__code__, machine.scope_of(body.__globals__), body, {}, namespace)


def _build_class_entry(machine: Machine, /, *args: Any, **kwargs: Any) -> Any:
    return build_class(machine, *args, **kwargs)


callables.FUNCTIONS[builtins.__build_class__] = _build_class_entry
callables.FUNCTIONS[object.__new__] = new_object
_ = (ATOMS, tensor_calls, typing)
