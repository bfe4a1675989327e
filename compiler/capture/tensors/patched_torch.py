"""What the program has patched of torch's own: attributes of tensors' classes, functions of torch's modules.

torch.Tensor.abs = ... means another thing from then on. A frame relies on what it looked up (lookups.py); what is not
torch's own is interpreted like any code of the program's. TraceTensors have torch's own (graph/tensor.py), so that
capture and tracing never call the program's in passing. Special methods are asked by operators and builtins in too many
places to be followed: a frame runs plainly while one of them is patched.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.node import _get_qualified_name

from ...graph.tensor import TraceTensor, is_torchs_own
from ...guards import source as S
from ...guards.guard import Guard
from ...guards.guard_program import GuardProgram, compile_guards
from ...guards.source_values import found_in_class
from ..kinds.lookups import MISSING, class_attribute, found_in
from ..machine.signals import Break

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = [
    "patched_attribute",
    "bound_attribute",
    "patched_special_method",
    "special_guards",
    "relies_on_parts",
    "method_target",
    "function_target",
]

_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_ORIGINAL: dict[type, dict[str, Any]] = {
    cls: {name: value for name, value in vars(cls).items() if is_torchs_own(value)}
    for c in _CLASSES
    for cls in c.__mro__
}
_UNHEARD = frozenset(
    """__new__ __init__ __del__ __dict__ __doc__ __module__ __weakref__ __annotations__ __slots__ __class__
    __init_subclass__ __subclasshook__ __dir__ __sizeof__ __reduce__ __getstate__ __qualname__ __firstlineno__
    __static_attributes__ __repr__ __orig_bases__ __parameters__ __abstractmethods__""".split()
)
_ABSENT = tuple(
    """__getattr__ __missing__ __divmod__ __trunc__ __floor__ __ceil__ __round__ __rdivmod__ __imatmul__ __ilshift__
    __irshift__ __rlshift__ __rrshift__ __ror__ __rand__ __rxor__ __rmatmul__ __enter__ __exit__ __call__ __next__
    __fspath__ __bytes__ __instancecheck__ __length_hint__""".split()
)
# What capture and guards themselves ask of tensors from outside.
_METADATA = tuple(
    """shape size dim stride storage_offset numel dtype device layout requires_grad is_leaf grad_fn data_ptr
    untyped_storage is_conj is_neg is_nested is_quantized is_inference _is_zerotensor _version itemsize nbytes
    element_size is_floating_point is_complex is_contiguous grad detach clone copy_""".split()
)
SPECIAL = (
    *_METADATA,
    *dict.fromkeys(
        name for name in (*dir(torch.Tensor), *_ABSENT) if name[:2] == name[-2:] == "__" and name not in _UNHEARD
    ),
)


def _original(cls: type, name: str) -> Any:
    """What the name gave in the class before anybody patched it."""
    for base in cls.__mro__:
        found = _ORIGINAL.get(base, {}).get(name, MISSING)
        if found is not MISSING:
            return found
    return MISSING


def patched_attribute(cls: type, name: str) -> Any:
    """What the program put into a class of tensors under the name, which is relied on; MISSING where torch's own is
    there, or nothing.
    """
    found = class_attribute(cls, name)
    return MISSING if found is _original(cls, name) else found


def bound_attribute(machine: Machine, tensor: TraceTensor, cls: type, name: str, raw: Any) -> Any:
    """`t.name` where the class has `raw`, which the program put there."""
    kind = type(raw)
    if isinstance(raw, property):
        return machine.call(raw.fget, [tensor])
    if kind is types.FunctionType:
        return types.MethodType(raw, tensor)
    if kind is staticmethod:
        return raw.__func__
    if kind is classmethod:
        return types.MethodType(raw.__func__, cls)
    if kind is types.MethodDescriptorType or kind is types.WrapperDescriptorType:
        return raw.__get__(tensor)
    if kind is types.GetSetDescriptorType and _original(cls, raw.__name__) is raw:
        return machine.getattr(tensor, raw.__name__)
    getter = class_attribute(kind, "__get__")
    if isinstance(getter, types.FunctionType):
        return machine.call(getter, [raw, tensor, cls])
    if getter is not MISSING and not isinstance(raw, (type, types.BuiltinFunctionType)):
        raise Break("unknown_object", f"torch.Tensor.{name} was replaced by a {kind.__name__}")
    return machine.world.load(raw, S.attr(machine.world.anchor(cls), name), "class attribute")


def patched_special_method() -> str:
    """The name of a special method of tensors that the program has patched; empty where there is none."""
    if _all_special().check(None, ()) < 0:
        return ""
    for cls, expected in _expectations().items():
        for name, value in expected.items():
            if found_in(cls, name) is not value:
                return f"{cls.__name__}.{name}"
    return ""


def special_guards(classes: Iterable[type]) -> list[Guard]:
    """Rely on the special methods of the tensors' classes being torch's own."""
    return [Guard(S.const(cls), "CLASS", _guarded(cls), None, None, "special methods of tensors") for cls in classes]


@functools.cache
def _all_special() -> GuardProgram:
    """The guards of all classes, which ask a class again only after it changed."""
    return compile_guards(special_guards(_CLASSES), 0)


@functools.cache
def _expectations() -> dict[type, dict[str, Any]]:
    return {cls: {name: _original(cls, name) for name in SPECIAL} for cls in _CLASSES}


@functools.cache
def _guarded(cls: type) -> tuple:
    return tuple(
        (name, ... if value is MISSING else found_in_class(value)) for name, value in _expectations()[cls].items()
    )


# --- nodes: a backend runs their functions by the names that they have in torch
def method_target(name: str) -> Any:
    """What a node that calls the method `name` is to call: the name, or torch's own method where the program has
    patched it.
    """
    if patched_attribute(torch.Tensor, name) is MISSING:
        return name
    original = _original(torch.Tensor, name)
    return name if original is MISSING else original


def function_target(machine: Machine, fn: Any) -> Any:
    """What a node that calls `fn` is to call: the function, while its name in torch gives it, which is relied on; else
    one that has it at hand.
    """
    if type(fn) not in (*_FUNCTIONS, *_METHODS):
        return fn
    place = _places.get(fn)
    if place is None:
        place = _places[fn] = _place_of(fn)
    owner, name = place
    if owner is None:
        return fn
    if isinstance(owner, type):
        return fn if class_attribute(owner, name) is fn else _at_hand(fn)
    if vars(owner).get(name) is not fn:
        return _at_hand(fn)
    machine.world.guard(S.attr(machine.world.anchor(owner), name), "ID", fn, "function of torch")
    return fn


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_places: dict[Any, tuple[Any, str]] = {}


def _place_of(fn: Any) -> tuple[Any, str]:
    """The module of torch's, or torch.Tensor, and the name under which torch.fx finds the function; (None, "") for what
    it holds itself.
    """
    if type(fn) in _METHODS or fn.__module__ == "torch._tensor" and fn.__qualname__ == f"Tensor.{fn.__name__}":
        return torch.Tensor, fn.__name__
    if not is_torchs_own(fn) or type(fn) is types.FunctionType and fn.__name__ == "<lambda>":
        return None, ""
    try:
        module, _, name = _get_qualified_name(fn).rpartition(".")
    except RuntimeError:  # it has no such name
        return None, ""
    return (sys.modules.get(module), name) if module.partition(".")[0] == "torch" else (None, "")


@functools.cache
def _at_hand(fn: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    call.__name__ = call.__qualname__ = fn.__name__
    return call


# --- functions of torch that are recorded as one call
_parts: dict[types.CodeType, tuple[tuple[tuple[types.ModuleType, str], ...], tuple[str, ...]]] = {}


def _parts_of(fn: types.FunctionType) -> tuple:
    """What the function calls of torch's modules, and by which names it may ask a tensor: (module, name) pairs, names.
    Read off its code, and that of the functions of torch that it calls."""
    found = _parts.get(fn.__code__)
    if found is None:
        calls: dict[tuple[types.ModuleType, str], None] = {}
        names: dict[str, None] = {}
        _collect(fn, calls, names, set())
        found = _parts[fn.__code__] = tuple(calls), tuple(names)
    return found


def _collect(fn: types.FunctionType, calls: dict, names: dict, seen: set) -> None:
    if fn.__code__ in seen or len(seen) > 32:
        return
    seen.add(fn.__code__)
    home = _module_of(fn)
    within = [
        fn.__globals__[name] for name in fn.__code__.co_names if type(fn.__globals__.get(name)) is types.ModuleType
    ]
    for name in fn.__code__.co_names:
        value = fn.__globals__.get(name)
        for module in ([home] if home is not None and isinstance(value, _FUNCTIONS) else []) + [
            mod for mod in within if isinstance(vars(mod).get(name), _FUNCTIONS)
        ]:
            if (module.__name__ or "").partition(".")[0] == "torch":
                calls[module, name] = None
                part = vars(module)[name]
                if type(part) is types.FunctionType and is_torchs_own(part):
                    _collect(part, calls, names, seen)
        if _original(torch.Tensor, name) is not MISSING:
            names[name] = None


def _module_of(fn: types.FunctionType) -> types.ModuleType | None:
    module = sys.modules.get(fn.__globals__.get("__name__", ""))
    return module if module is not None and vars(module) is fn.__globals__ else None


def relies_on_parts(machine: Machine, fn: types.FunctionType) -> bool:
    """Whether what a function of torch calls is torch's own, which is then relied on; else it is to be interpreted."""
    calls, names = _parts_of(fn)
    if any(patched_attribute(torch.Tensor, name) is not MISSING for name in names):
        return False
    for module, name in calls:
        value = vars(module).get(name)
        if not is_torchs_own(value):
            return False
        machine.world.guard(S.attr(machine.world.anchor(module), name), "ID", value, "function of torch")
    return True
