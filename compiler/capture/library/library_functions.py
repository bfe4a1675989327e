"""Python functions of torch and the standard library that are computed during capture instead of interpreted."""

from __future__ import annotations

import collections
import copy
import copyreg
import dataclasses
import functools
import importlib.util
import inspect
import logging
import types
import typing
import weakref
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.utils._pytree as pytree

from ...guards import source as S
from ...guards.state import FOUND
from . import polyfills
from ..kinds.callables import PYTHON_FUNCTIONS, cls, function, python_function
from ..kinds.parameters import interpret
from ..kinds.classes import made_inside
from ..kinds.lifetimes import refuse_reference
from ..machine.signals import Break
from ...graph.tensor import TraceTensor
from ..machine.stack_values import ATOMS, constant_only, specialize

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__: list[str] = []

_HEAP_TYPE = 1 << 9
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)  # numbers, to the program


@python_function(
    ("torch._ops", "_OpNamespace.__getattr__"),
    ("torch._ops", "_Ops.__getattr__"),
    ("torch._ops", "OpOverloadPacket.__getattr__"),
)
def operator_of(machine: Machine, owner: Any, name: str) -> Any:
    """torch.ops.aten.add.Tensor: looked up and kept by torch, and fixed from then on."""
    value = machine.native(getattr, owner, name)
    source = machine.world.source_of(owner)
    if source is not None:  # it was not there when the lookup began
        machine.world.guards.pop((S.attr(source, "__dict__"), "LACKS", name), None)
    machine.world.anchor(value)
    return value


@python_function(("inspect", "signature"))
def signature_(machine: Machine, fn: Any, **kwargs: Any) -> Any:
    function = fn.__func__ if isinstance(fn, types.MethodType) else fn
    if isinstance(function, types.FunctionType) and (source := machine.world.source_of(function)) is not None:
        machine.world.guard_function(source, function, "signature")
        for name in ("__defaults__", "__kwdefaults__"):
            machine.deep_plain(machine.getattr(function, name))
    return machine.native(inspect.signature, fn, **kwargs)


@python_function(("torch.distributions.utils", "lazy_property.__get__"), wants_function=True)
def lazy_property_(machine: Machine, fn: Any, descriptor: Any, instance: Any, owner: Any = None) -> Any:
    """Asked of a class, it makes an object that is only looked at: a property that lazy_property's users know."""
    if instance is not None:
        return interpret(machine, fn, [descriptor, instance, owner], {})
    value = machine.native(fn, descriptor, None, owner)
    machine.world.anchor(value)
    return value


@python_function(("torch.distributions.distribution", "_all_true_or_runtime_assert"))
def all_true_(machine: Machine, valid: Any, error_message: str) -> Any:
    """torch 2.15's question before a distribution refuses its arguments: the tensor, on which its caller branches."""
    return machine.call(torch.all, [valid])


@python_function(("importlib.util", "find_spec"))
def find_spec_(machine: Machine, name: Any, package: Any = None) -> Any:
    """Whether a package is there is asked again by a guard; what is found is a fixed object."""
    if type(name) is not str or not name.isidentifier():
        raise Break("unsupported", "importlib.util.find_spec looks for a module inside a package")
    spec = machine.native(importlib.util.find_spec, name)
    machine.world.state(FOUND + name, spec is not None)
    if spec is not None:
        machine.world.anchor(spec)
    return spec


@python_function(("dataclasses", "fields"))
def fields_(machine: Machine, obj: Any) -> Any:
    fields = machine.native(dataclasses.fields, machine.world.type_of(obj) if not isinstance(obj, type) else obj)
    for field in fields:
        machine.world.anchor(field)
    return fields


@python_function(("logging", "getLogger"), ("transformers.utils.logging", "get_logger"))
def get_logger(machine: Machine, *args: Any) -> Any:
    logger = logging.getLogger(*args)
    machine.world.anchor(logger)
    return logger


@python_function(("logging", "Logger.isEnabledFor"))
def is_enabled_for(machine: Machine, logger: Any, level: Any) -> Any:
    return interpret(machine, polyfills.is_enabled_for, [logger, level], {})


@python_function(("torch.functional", "broadcast_shapes"))
def broadcast_shapes(machine: Machine, *shapes: Any) -> Any:
    result = interpret(machine, polyfills.broadcast_shapes, list(shapes), {})
    if result is None:
        machine.native(torch.broadcast_shapes, *pytree.tree_map(specialize, [machine.deep_plain(s) for s in shapes]))
    return result


@cls(weakref.ref)
def weak_reference(machine: Machine, target: Any, callback: Any = None) -> Any:
    """To an object from outside, which whoever gave it keeps alive: one made inside would end with its last name, which
    capture does not follow.
    """
    if callback is not None or machine.world.source_of(target) is None and id(target) not in machine.world.reals:
        refuse_reference("a weak reference with a callback, or to an object made inside,")
    return machine.native(weakref.ref, target)


@function(weakref.proxy)
def weak_proxy(machine: Machine, *args: Any) -> Any:
    refuse_reference("a weak proxy")


@python_function(("copy", "deepcopy"))
def deepcopy_(machine: Machine, value: Any, memo: Any = None) -> Any:
    if memo is not None:
        raise Break("unsupported", "copy.deepcopy is given a memo by the program")
    done: dict[int, tuple[Any, Any]] = {}
    made = _deep_copy(machine, value, done)
    copied = (machine.world.source_of(original) for original, copy_ in done.values() if copy_ is not original)
    sources = [
        source for source in copied if source is not None and not (source.root.kind == "const" and source.base is None)
    ]
    if len(sources) > 1:
        machine.world.differ(*sources)  # where two of them are one object, their copies are
    return made


def _deep_copy(machine: Machine, value: Any, memo: dict[int, tuple[Any, Any]]) -> Any:
    """As copy.deepcopy does it: what stands twice in a value stands twice in its copy, and a tuple in which nothing is
    copied is its own copy."""
    t = type(value)
    if t in ATOMS or isinstance(value, (*_SYMBOLS, types.FunctionType, types.BuiltinFunctionType, type)):
        return value
    if id(value) in memo:
        return memo[id(value)][1]
    copied: Any
    if t is list:
        memo[id(value)] = value, (copied := [])
        copied.extend(_deep_copy(machine, v, memo) for v in machine.plain(value))
    elif t is dict:
        memo[id(value)] = value, (copied := {})
        for key, v in machine.plain(value).items():
            copied[_deep_copy(machine, key, memo)] = _deep_copy(machine, v, memo)
    elif t is tuple:
        before = tuple(machine.plain(value))
        parts = tuple(_deep_copy(machine, v, memo) for v in before)
        if id(value) in memo:  # it holds itself, by a list
            return memo[id(value)][1]
        memo[id(value)] = value, (copied := parts if any(part is not b for part, b in zip(parts, before)) else value)
    elif _copied_by_attributes(t) and not hasattr(t, "__deepcopy__"):
        memo[id(value)] = value, (copied := machine.world.create(machine.native(object.__new__, t)))
        for name, v in _attributes(machine, value):
            object.__setattr__(copied, name, _deep_copy(machine, v, memo))
    else:
        plain = machine.deep_plain(value)
        if not constant_only(plain) or not _same_types(machine, value):
            raise Break("unsupported", "copy.deepcopy copies objects or tensors")
        memo[id(value)] = value, (copied := machine.native(copy.deepcopy, plain))
    return copied


def _same_types(machine: Machine, value: Any) -> bool:
    """Whether the inside copies of the containers in a value are of its classes."""
    if type(value) in ATOMS:
        return True
    plain = machine.plain(value)
    within = (
        plain.values() if isinstance(plain, dict) else plain if isinstance(plain, (list, tuple, set, frozenset)) else ()
    )
    return type(plain) is type(value) and all(_same_types(machine, v) for v in within)


@python_function(("copy", "copy"))
def copy_(machine: Machine, value: Any) -> Any:
    if isinstance(value, TraceTensor):
        raise Break("unsupported", "copy.copy copies a tensor")
    plain = machine.plain(value)
    if type(plain) is not type(value):
        raise Break("unsupported", f"copy.copy copies a {type(value).__name__}")
    if type(plain) in (list, dict, set):
        return plain.copy()
    if type(plain) in ATOMS or type(plain) in (tuple, frozenset):
        return value  # its own copy
    cls_ = type(value)
    if not _copied_by_attributes(cls_) or hasattr(cls_, "__copy__"):
        raise Break("unsupported", f"copy.copy copies a {cls_.__name__}")
    made = machine.world.create(machine.native(object.__new__, cls_))
    for name, v in _attributes(machine, value):
        object.__setattr__(made, name, v)
    return made


def _copied_by_attributes(cls_: type) -> bool:
    """Whether a copy of an object is a new object with the same `__dict__`: a class of Python's that has no say."""
    return (
        cls_.__flags__ & _HEAP_TYPE != 0
        and cls_.__reduce_ex__ is object.__reduce_ex__
        and cls_.__reduce__ is object.__reduce__
        and getattr(cls_, "__getstate__", None) is getattr(object, "__getstate__", None)
        and not hasattr(cls_, "__setstate__")
        and cls_.__new__ is object.__new__
        and not hasattr(cls_, "__getnewargs__")
        and not hasattr(cls_, "__getnewargs_ex__")
        and cls_ not in copyreg.dispatch_table
        and cls_.__dictoffset__ != 0
        and not issubclass(cls_, torch.nn.Module)
        and not any("__slots__" in vars(c) and vars(c)["__slots__"] for c in cls_.__mro__)
    )


def _attributes(machine: Machine, value: Any) -> list[tuple[Any, Any]]:
    """Names and values of an object's own `__dict__`, which properties do not stand before."""
    return list(machine.plain(machine.getattr(value, "__dict__")).items())


@python_function(("dataclasses", "dataclass"))
def dataclass_(machine: Machine, cls: Any = None, /, **options: Any) -> Any:
    """The decorator writes and compiles methods: done natively, for classes that the program itself made."""
    if cls is None:
        return machine.world.create(functools.partial(dataclasses.dataclass, **options))
    if id(cls) not in machine.world.made:
        raise Break("class_definition", "a class from outside is made a dataclass")
    return made_inside(machine, machine.native(dataclasses.dataclass, cls, **options))


@python_function(("collections", "namedtuple"))
def namedtuple_(machine: Machine, name: Any, fields: Any, **options: Any) -> Any:
    options.setdefault("module", machine.frames[-1].scope.namespace.get("__name__"))
    return made_inside(
        machine,
        machine.native(
            collections.namedtuple,
            name,
            machine.deep_plain(fields),
            **{key: machine.deep_plain(option) for key, option in options.items()},
        ),
    )


@python_function(("functools", "singledispatch.<locals>.dispatch"), wants_function=True)
def dispatch_(machine: Machine, dispatch: Any, cls: Any) -> Any:
    """Which implementation serves a class: found natively; what is registered later is seen by the keys of the
    registry.
    """
    source = machine.world.source_of(dispatch)
    if source is None:
        raise Break("unsupported", "functools.singledispatch is applied inside")
    index = dispatch.__code__.co_freevars.index("registry")
    registry = dispatch.__closure__[index].cell_contents
    where = S.cell(S.item(S.attr(source, "__closure__"), index))
    machine.world.guard(where, "DICT_KEYS", tuple(registry), "registered implementations")
    found = machine.native(dispatch, cls)
    key = next(name for name, value in registry.items() if value is found)
    return machine.world.load(found, S.dict_value(where, key), "registered implementation")


@python_function(("traceback", "clear_frames"))
def clear_frames_(machine: Machine, traceback: Any) -> None:
    """unittest's assertRaises ends with it. The tracebacks of exceptions made inside have no frames to clear."""
    if machine.world.is_outside(traceback):
        raise Break("unknown_object", "the frames of a traceback from outside are cleared")


@python_function(("torch.utils._config_module", "ConfigModule.__getattr__"), wants_function=True)
def config_entry_(machine: Machine, fn: Any, module: Any, name: str) -> Any:
    """An entry of torch._dynamo.config and the like. Those that torch's own code looks at do not change what a program
    means; the user's are interpreted."""
    if machine.frames[-1].library:
        value = machine.native(fn, module, name)
        if constant_only(value):
            return value
    return interpret(machine, fn, [module, name], {})


_TAGGING = "install_generation_tagging_init.<locals>."


@python_function(
    ("torch._dynamo.mutation_guard", _TAGGING + "patched_init"),
    ("torch._dynamo.mutation_guard", _TAGGING + "patched_setstate"),
    wants_function=True,
)
def tagged_(machine: Machine, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """nn.Module.__init__ once torch._dynamo is imported: it also notes when the module was made, which matters to stock
    alone.
    """
    original = next(c.cell_contents for c in fn.__closure__ if isinstance(c.cell_contents, types.FunctionType))
    return machine.call(original, list(args), kwargs)


def _native_constant(fn: Any) -> Callable:
    return lambda machine, *a, **k: machine.native(fn, *a, **k)


for _module, _name in (
    (torch.cuda, "is_available"),
    (torch.cuda, "device_count"),
    (torch.accelerator, "is_available"),
    (torch.accelerator, "device_count"),
    (torch.accelerator, "current_accelerator"),
    (torch.distributed, "is_available"),
    (torch.cuda, "is_initialized"),
    (torch.backends.mps, "is_available"),
    (torch.xpu, "is_available"),
    (torch.mps, "is_available"),
):
    _fn = getattr(_module, _name, None)
    if isinstance(_fn, types.FunctionType):
        PYTHON_FUNCTIONS[(_fn.__module__, _fn.__qualname__)] = _native_constant(_fn)
if hasattr(torch.distributed, "is_initialized"):
    PYTHON_FUNCTIONS[("torch.distributed.distributed_c10d", "is_initialized")] = _native_constant(
        torch.distributed.is_initialized
    )

for _fn in (typing.cast, typing.get_args, typing.get_origin, typing.get_type_hints):
    PYTHON_FUNCTIONS[(_fn.__module__, _fn.__qualname__)] = (
        (lambda machine, t, v: v) if _fn is typing.cast else _native_constant(_fn)
    )


_PACKED = "a packed sequence keeps how many rows each step has in the values of a tensor"


@python_function(("torch.nn.utils.rnn", "pack_padded_sequence"), ("torch.nn.utils.rnn", "pad_packed_sequence"))
def packed_sequence_(machine: Machine, *args: Any, **kwargs: Any) -> Any:
    raise Break("item", _PACKED)


@python_function(*(("torch.nn.modules.rnn", f"{kind}.forward") for kind in ("RNN", "LSTM", "GRU")), wants_function=True)
def recurrent_module_(machine: Machine, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """On a packed sequence the whole call leaves the graph at once, not each line in it that reads a batch size."""
    if any(isinstance(a, torch.nn.utils.rnn.PackedSequence) for a in (*args, *kwargs.values())):
        raise Break("item", _PACKED)
    return interpret(machine, fn, list(args), kwargs)
