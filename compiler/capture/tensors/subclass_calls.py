"""Calls, operators and attributes of tensors of the program's own classes.

Which function `__torch_function__` is told of, with which arguments and types, torch itself says: the call is made
natively on probes, tensors without content of classes that mirror the program's, and what their `__torch_function__`
hears is handed to the program's, which is interpreted. Where functions of subclasses are off (in
torch.Tensor.__torch_function__, which most classes end in), the operator runs on plain tensors.
"""

from __future__ import annotations

import functools
import math
import types
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch.overrides import get_default_nowrap_functions

from ..kinds import attributes
from ..kinds.callables import FUNCTIONS, PYTHON_FUNCTIONS, python_function
from ..machine.generators import natively
from ..kinds.inline_policy import is_leaf_function, is_of_torch, is_trusted_module
from ..kinds.lookups import MISSING, class_attribute
from ..machine.signals import Break, Plainly, Raised
from ..library.bodies import inside_transforms
from .jagged_values import holds_nested, jagged_attribute, operate_jagged
from .tensor_calls import METADATA_METHODS, METHODS, call_method
from .tensor_subclasses import Subclassed, holds_subclassed, is_like_tensor, refusal
from .wrapper_values import (
    as_program_sees,
    finish,
    gradient_of_wrapper,
    is_leaf_of_wrapper,
    inner_attribute,
    slot_of_wrapper,
    is_of_wrapper,
    is_wrapper_class,
    make_wrapper,
)
from ...graph.tensor import TraceTensor
from ...graph.wrappers import written_inside

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["call", "operate", "get_attribute", "set_attribute", "store_attribute", "construct", "functions_off"]

_OFF = torch._C._disabled_torch_function_impl
_TENSOR_CLASSES = (torch.Tensor, torch._C.TensorBase, object)
_HAS = frozenset(
    (torch._C._has_torch_function, torch._C._has_torch_function_unary, torch._C._has_torch_function_variadic)
)
_NUMBERS = frozenset((float, int, complex))
# they call special methods
_ASK = _NUMBERS | {abs, round, divmod, pow, *(f for f in vars(math).values() if callable(f))}
_PYTHON_METHODS = {value: name for name, value in vars(torch.Tensor).items() if isinstance(value, types.FunctionType)}
_METHODS_OF_C = (types.MethodDescriptorType, types.WrapperDescriptorType)
_LIFE = frozenset(
    """__new__ __init__ __del__ __init_subclass__ __class_getitem__ __torch_function__ __torch_dispatch__
    __getattribute__ __getattr__ __setattr__ __delattr__ __set_name__""".split()
)
_EMPTY = torch.empty(0)
# What depends on which object it is, or on its history: the stand-in's plain tensor cannot tell.
_VIEWS = frozenset(("_base", "_is_view"))
_OF_THE_OBJECT = _VIEWS | frozenset(
    """grad _grad is_leaf grad_fn retains_grad _version _backward_hooks _cdata output_nr data_ptr requires_grad_
    register_hook retain_grad backward __deepcopy__ __reduce_ex__ __repr__ __format__""".split()
)

_REFLECTED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_WITHOUT_HISTORY = {"is_leaf": True, "grad_fn": None, "retains_grad": False}  # of what requires no gradient


# --- making them
def as_subclass(machine: Machine, plain: TraceTensor, cls: type) -> Subclassed:
    """`plain.as_subclass(cls)`."""
    reason = refusal(cls)
    if reason:
        raise Break("unsupported", f"a tensor of class {cls.__name__} is made, {reason}")
    machine.subclassed = True
    return machine.world.create(Subclassed(cls, plain))


def _as_subclass_method(machine: Machine, obj: TraceTensor, cls: Any) -> Any:
    if not (isinstance(cls, type) and issubclass(cls, torch.Tensor)):
        raise Raised(RuntimeError("cls must be a type (got " + machine.world.type_of(cls).__name__ + ")"))
    return call_method(machine, obj, "view_as", [obj], {}) if cls is torch.Tensor else as_subclass(machine, obj, cls)


METHODS["as_subclass"] = _as_subclass_method


def _new(machine: Machine, cls: type, *args: Any, **kwargs: Any) -> Any:
    """torch.Tensor.__new__(cls, tensor)."""
    if cls is torch.Tensor or len(args) != 1 or kwargs or type(args[0]) not in (TraceTensor, Subclassed):
        raise Break(
            "unsupported", f"a tensor of class {cls.__name__} is constructed from something that is not a tensor"
        )
    plain = args[0] if type(args[0]) is TraceTensor else args[0].plain
    if plain.tt_wrapper is not None:
        raise Break("unsupported", f"a tensor of class {cls.__name__} is made of one of a wrapper subclass")
    return as_subclass(machine, plain, cls)


def _make_subclass(machine: Machine, cls: type, data: Any, require_grad: Any = False, **kwargs: Any) -> Any:
    if type(data) is Subclassed and not is_of_wrapper(data):
        data = data.plain
    if kwargs or type(data) is not TraceTensor or machine.truth(require_grad):
        raise Break(
            "unsupported",
            f"a leaf of class {cls.__name__} that requires grad is made",
            "make parameters outside of the compiled region",
        )
    return as_subclass(machine, call_method(machine, data, "detach", [], {}), cls)


FUNCTIONS[torch.Tensor.__new__] = _new
FUNCTIONS[torch.Tensor._make_subclass] = _make_subclass
FUNCTIONS[torch.Tensor._make_wrapper_subclass] = make_wrapper


def construct(machine: Machine, cls: type, args: list, kwargs: dict) -> Any:
    """cls(*args): __new__, then __init__."""
    reason = "" if is_wrapper_class(cls) else refusal(cls)
    if reason or isinstance(class_attribute(type(cls), "__call__"), types.FunctionType):
        raise Break(
            "unsupported",
            f"a tensor of class {cls.__name__} is constructed{', ' + reason if reason else ''}",
            "use torch.tensor, torch.zeros or the like",
        )
    new = class_attribute(cls, "__new__")
    new = new.__func__ if isinstance(new, staticmethod) else new
    obj = (
        machine.call(new, [cls, *args], kwargs)
        if isinstance(new, types.FunctionType)
        else _new(machine, cls, *args, **kwargs)
    )
    init = class_attribute(cls, "__init__")
    if isinstance(init, types.FunctionType) and issubclass(machine.world.type_of(obj), cls):
        machine.call(machine.getattr(cls, "__init__"), [obj, *args], kwargs)
    return obj


# --- functions
class functions_off:
    """Functions of subclasses are off: in a with statement of capture's own."""

    def __init__(self, machine: Machine):
        self.machine = machine

    def __enter__(self) -> None:
        self.before, self.machine.functions_off = self.machine.functions_off, True

    def __exit__(self, *exc: Any) -> None:
        self.machine.functions_off = self.before


def _overrides(value: Any) -> bool:
    if type(value) is Subclassed:
        return value.nested is None and class_attribute(value.tensor_class, "__torch_function__") is not _OFF
    return is_like_tensor(value)


def _any(value: Any, test: Callable[[Any], bool], depth: int = 0) -> bool:
    if isinstance(value, (list, tuple)) and depth < 4:
        return any(_any(item, test, depth + 1) for item in value)
    return (
        any(_any(item, test, depth + 1) for item in value.values())
        if isinstance(value, dict) and depth < 4
        else test(value)
    )


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_map(item, change) for item in value)
    return {key: _map(item, change) for key, item in value.items()} if type(value) is dict else change(value)


def call(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    """fn(*args, **kwargs) with a Subclassed among the arguments. NotImplemented: a call like any other."""
    if not (holds_subclassed(args) or holds_subclassed(kwargs)):
        return NotImplemented
    t = type(fn)
    if t is types.FunctionType:
        if (
            not (is_trusted_module(fn.__module__ or "") and is_leaf_function(fn))
            or (fn.__module__, fn.__qualname__) in PYTHON_FUNCTIONS
        ):
            return NotImplemented
    elif t in _METHODS_OF_C:
        if fn.__objclass__ not in _TENSOR_CLASSES[:2]:
            return NotImplemented
        if fn.__name__ == "__init__":
            return None
        if fn.__name__ == "as_subclass":
            s, cls = args
            if is_of_wrapper(s):
                raise Break(
                    "unsupported", f"a tensor of class {s.tensor_class.__name__} is taken for one of another class"
                )
            return s.plain if cls is torch.Tensor else as_subclass(machine, s.plain, cls)
    elif t is types.BuiltinFunctionType or t is types.MethodWrapperType or fn in _NUMBERS:
        if fn in _ASK:
            return (
                operate(machine, fn, args, kwargs) if any(type(arg) is Subclassed for arg in args) else NotImplemented
            )
        if fn in _HAS:
            return not machine.functions_off and _any(args, _overrides)
        if not _is_torchs(fn):
            return NotImplemented
    elif not isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return NotImplemented
    return operate(machine, fn, args, kwargs)


def _is_torchs(fn: Any) -> bool:
    """Whether a native function is one of torch's that takes tensors, or reads or sets an attribute of a tensor."""
    if fn in (torch.Tensor._make_subclass, torch.Tensor._make_wrapper_subclass, torch.Tensor.__new__):
        return False
    owner = getattr(fn, "__self__", None)
    accessor = (
        type(fn) is types.MethodWrapperType
        and type(owner) is types.GetSetDescriptorType
        and owner.__objclass__ in _TENSOR_CLASSES
    )
    return accessor or is_of_torch(fn, owner)


def operate(machine: Machine, fn: Callable, args: list, kwargs: dict | None = None) -> Any:
    """An operator of Python or a function of torch, one of whose arguments is a Subclassed."""
    kwargs = kwargs or {}
    args, kwargs = (
        [machine.deep_plain(arg) for arg in args],
        {name: machine.deep_plain(value) for name, value in kwargs.items()},
    )
    if holds_nested(args) or holds_nested(kwargs):
        return operate_jagged(machine, fn, args, kwargs)
    own = functools.partial(_defines_operator, names=_special_names(fn))
    if machine.functions_off or not (_any(args, _overrides) or _any(kwargs, _overrides) or _any(args, own)):
        return _plainly(machine, fn, args, kwargs)
    probes: dict[int, Any] = {}
    # operators ask a subclass of the left operand's class first: a plain operand is to be of the class that all derive
    # from
    operator = getattr(fn, "__module__", "") == "_operator"

    def probe(value: Any) -> Any:
        other = is_like_tensor(value)
        if type(value) is not Subclassed and not other and not (operator and type(value) is TraceTensor):
            return value
        made = probes.get(id(value))
        if made is None:
            made = (
                _probe_class(machine, type(value))()
                if other
                else (
                    _EMPTY.clone()
                    if type(value) is TraceTensor
                    else torch.Tensor._make_subclass(_probe_class(machine, value.tensor_class), _EMPTY)
                )
            )
            made.stand_in = value
            probes[id(value)] = made
        return made

    result = machine.native(
        fn, *[_map(arg, probe) for arg in args], **{name: _map(value, probe) for name, value in kwargs.items()}
    )
    if isinstance(result, torch.Tensor) and type(result) is not TraceTensor:
        raise Break("unsupported", f"{getattr(fn, '__name__', fn)} of a tensor class asks none of the class's methods")
    return result


def _special_names(fn: Any) -> frozenset[str]:
    """The special methods by which an operator of Python, or a function of its, asks its operands."""
    name = getattr(fn, "__name__", "").strip("_")
    names = {name, f"r{name}", name.removeprefix("i"), "r" + name.removeprefix("i"), _REFLECTED.get(name, name)}
    return frozenset(f"__{n}__" for n in names)


def _defines_operator(value: Any, names: frozenset[str]) -> bool:
    return type(value) is Subclassed and any(
        isinstance(vars(base).get(name), types.FunctionType)
        for base in value.tensor_class.__mro__
        if base not in _TENSOR_CLASSES and not is_trusted_module(base.__module__ or "")
        for name in names
    )


def _stand_in(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and type(value) is not TraceTensor or type(value).__name__ == _PROBE:
        return value.__dict__.get("stand_in", value)
    return value


_PROBE = "tcompile probe"


def _probe_class(machine: Machine, cls: type) -> type:
    """A class of torch's that hands on what it hears to the interpreter of the program's class."""
    known = machine.probe_classes.get(cls)
    if known is not None:
        return known

    def heard(probe_class: type, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        mine = tuple(machine.probe_classes.stands_for.get(t, t) for t in types_)
        return natively(
            machine,
            _hand_on,
            machine,
            cls,
            func,
            mine,
            _map(tuple(args), _stand_in),
            _map(dict(kwargs or {}), _stand_in),
        )

    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base in _TENSOR_CLASSES or is_trusted_module(base.__module__ or ""):
            continue
        for name, member in vars(base).items():  # operators that the class defines by methods of its own
            if (
                name.startswith("__")
                and name.endswith("__")
                and name not in _LIFE
                and isinstance(member, types.FunctionType)
            ):
                members[name] = _operator(machine, name)
    raw = class_attribute(cls, "__torch_function__")
    members["__torch_function__"] = _OFF if raw is _OFF else classmethod(heard)
    bases = tuple(
        _probe_class(machine, b) for b in cls.__bases__ if hasattr(b, "__torch_function__") and b not in _TENSOR_CLASSES
    )
    made = machine.probe_classes[cls] = type(
        _PROBE, bases or ((torch.Tensor,) if issubclass(cls, torch.Tensor) else ()), members
    )
    machine.probe_classes.stands_for[made] = cls
    return made


def _operator(machine: Machine, name: str) -> Callable:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        stand_in = self.stand_in
        return natively(
            machine,
            machine.call,
            machine.getattr(stand_in, name),
            [_map(arg, _stand_in) for arg in args],
            _map(kwargs, _stand_in),
        )

    return method


def _hand_on(machine: Machine, cls: type, func: Any, types_: tuple, args: tuple, kwargs: dict) -> Any:
    return machine.call(machine.getattr(cls, "__torch_function__"), [func, types_, args, kwargs])


@python_function(("torch._tensor", "Tensor.__torch_function__"))
def _default(machine: Machine, cls: type, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
    """torch.Tensor.__torch_function__."""
    if not all(issubclass(cls, t) for t in machine.iterate(types_)):
        return NotImplemented
    with functions_off(machine):
        result = machine.call(
            func, list(machine.iterate(args)), dict(machine.plain(kwargs)) if kwargs is not None else {}
        )
    return result if func in get_default_nowrap_functions() else _convert(machine, result, cls)


def _convert(machine: Machine, value: Any, cls: type) -> Any:
    """What the default makes of results: tensors of its own class."""
    if cls is torch.Tensor:
        return value
    if type(value) in (TraceTensor, Subclassed):
        if issubclass(machine.world.type_of(value), cls):
            return value
        return as_subclass(machine, value if type(value) is TraceTensor else value.plain, cls)
    return type(value)(_convert(machine, item, cls) for item in value) if isinstance(value, (list, tuple)) else value


def _of_the_object(machine: Machine, name: str, asks: bool, args: list, kwargs: dict) -> Any:
    """What depends on which object it is, or on its history."""
    if name in _WITHOUT_HISTORY and type(args[0]) is Subclassed and not args[0].plain.requires_grad:
        return _WITHOUT_HISTORY[name]
    if name == "grad" and asks and (found := gradient_of_wrapper(machine, args[0])) is not NotImplemented:
        return found
    if name == "is_leaf" and asks and (found := is_leaf_of_wrapper(machine, args[0])) is not NotImplemented:
        return found
    if name == "backward" and not asks and is_of_wrapper(args[0], finished=True):
        return machine.call(torch.autograd.backward, args, kwargs)
    said = f"{name} of a tensor of class {machine.world.type_of(args[0]).__name__} is used"
    if name in _VIEWS and is_of_wrapper(args[0]):  # what a graph gives is put together of its inner tensors
        raise Plainly("tensor_attribute", said)
    raise Break("tensor_attribute", said)


def _plainly(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    """The call on plain tensors; what gives back an argument gives back the program's own object."""
    given: dict[int, Subclassed] = {}

    def plain(value: Any) -> Any:
        if type(value) is not Subclassed:
            return value
        if value.unfinished is not None and not (asks or name in METADATA_METHODS):
            finish(machine, value)
        given[id(value.plain)] = value
        return value.plain

    name = (
        fn.__self__.__name__
        if type(fn) is types.MethodWrapperType
        else args[1]
        if fn is getattr
        else getattr(fn, "__name__", "")
    )
    asks = fn is getattr or type(fn) is types.MethodWrapperType
    if name in _OF_THE_OBJECT:
        return _of_the_object(machine, name, asks, args, kwargs)
    args, kwargs = [_map(arg, plain) for arg in args], {key: _map(value, plain) for key, value in kwargs.items()}
    args, kwargs = inside_transforms(machine, (args, kwargs))
    if type(fn) is types.MethodWrapperType:  # torch.Tensor.shape.__get__
        if fn.__name__ == "__get__":
            result = machine.getattr(args[0], name)
        else:
            raise Break("tensor_attribute", f"the attribute {name} of a tensor is set")
    elif type(fn) is types.FunctionType and fn in _PYTHON_METHODS and type(args[0]) is TraceTensor:
        result = call_method(machine, args[0], _PYTHON_METHODS[fn], args[1:], kwargs)
    else:
        result = machine.call(fn, args, kwargs)
    machine.graph.writes_to(written_inside())
    return given.get(id(result)) or as_program_sees(machine, result, given)


# --- attributes
def get_attribute(machine: Machine, subclassed: Subclassed, name: str) -> Any:
    cls = subclassed.tensor_class
    if name == "__class__" and class_attribute(cls, name) is class_attribute(torch.Tensor, name):
        return cls
    if name == "__dict__":
        if machine.world.is_outside(subclassed) or is_of_wrapper(subclassed):
            raise Break("tensor_attribute", "the __dict__ of a tensor from outside is read")
        return subclassed.__dict__
    if isinstance(class_attribute(cls, "__getattribute__"), types.FunctionType):
        raise Break("unknown_object", f"the tensor class {cls.__name__} looks up attributes in its own way")
    if subclassed.nested is not None and (value := jagged_attribute(machine, subclassed, name)) is not NotImplemented:
        return value
    owner = next((base for base in cls.__mro__ if name in base.__dict__), None)
    raw = class_attribute(cls, name)
    if owner in _TENSOR_CLASSES:
        if isinstance(raw, (types.FunctionType, *_METHODS_OF_C)):
            return types.MethodType(raw, subclassed)
        if isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType, property)):
            return operate(machine, getattr, [subclassed, name])
        return machine.getattr(cls, name)
    if isinstance(raw, types.FunctionType) and is_trusted_module(owner.__module__ or ""):  # type: ignore[union-attr]
        return types.MethodType(raw, subclassed)
    if (
        subclassed.nested is None
        and is_of_wrapper(subclassed)
        and not machine.world.is_outside(subclassed)
        and not isinstance(raw, property)
    ):
        if (value := inner_attribute(machine, subclassed, name)) is not NotImplemented:
            return value
    if isinstance(raw, types.MemberDescriptorType):
        if (value := slot_of_wrapper(machine, subclassed, name)) is not NotImplemented:
            return value
    return attributes._instance_attribute(machine, subclassed, cls, name)


def set_attribute(machine: Machine, subclassed: Subclassed, name: str, value: Any) -> None:
    if isinstance(class_attribute(subclassed.tensor_class, "__setattr__"), types.FunctionType):
        machine.call(machine.getattr(subclassed.tensor_class, "__setattr__"), [subclassed, name, value])
    else:
        store_attribute(machine, subclassed, name, value)


def store_attribute(machine: Machine, subclassed: Subclassed, name: str, value: Any) -> None:
    """object.__setattr__(s, name, value)."""
    raw, world = class_attribute(subclassed.tensor_class, name), machine.world
    if type(raw) is property and raw.fset is not None:
        machine.call(raw.fset, [subclassed, value])
    elif raw is not MISSING and hasattr(type(raw), "__set__") or is_of_wrapper(subclassed, finished=True):
        raise Break("tensor_attribute", f"the attribute {name} of a tensor is set")
    elif world.is_outside(subclassed):
        world.pending.setdefault(id(subclassed), {})[name] = value
        machine.effects.set_attribute(subclassed, name, value)
    else:
        subclassed.__dict__[name] = value


attributes.TENSORS[Subclassed] = attributes.Access(get_attribute, set_attribute, store_attribute)
