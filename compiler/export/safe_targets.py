"""What the nodes of an exported graph may call, by name: the operators that `safe_operators.py` lists, where torch has
them. A file can name nothing else: not torch.load, not os.system, no private operator."""

from __future__ import annotations

import operator
import types
from typing import Any, Callable, Collection

import torch
import torch.nn.functional as F

from ..base.quoting import is_plain_name
from ..errors import ExportError
from .checked import ORIGINALS
from .safe_operators import is_listed

__all__ = [
    "name_of",
    "function_of",
    "check_method",
    "check_property",
    "check_keywords",
    "check_enumerations",
    "check_mode",
    "is_mode",
    "is_custom",
    "AUTOCAST_DEVICES",
]

_OPERATORS = frozenset(
    """add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift neg pos invert abs eq ne lt le gt ge
    getitem setitem iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift not_ index
    contains""".split()
)
_PROPERTIES = frozenset(("T", "mT", "H", "mH", "real", "imag", "shape", "data"))
_STATE = frozenset(
    """_set_grad_enabled set_autocast_enabled set_autocast_dtype set_autocast_cache_enabled autocast_increment_nesting
    autocast_decrement_nesting clear_autocast_cache""".split()
)
# Where functions on tensors live. Python functions of these modules are torch's composites; nothing there reads files
# or code.
_C: Any = torch._C
_HOMES: dict[str, Any] = {
    "torch._C._VariableFunctions": _C._VariableFunctions,
    "torch._C._nn": _C._nn,
    "torch._C._special": _C._special,
    "torch._C._linalg": _C._linalg,
    "torch._C._fft": _C._fft,
    "torch.nn.functional": F,
    "torch.functional": torch.functional,
    "torch.special": torch.special,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
}
_POINTERS = frozenset(("cdata",))  # Tensor.new takes an address by this keyword
AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")


def name_of(target: Callable) -> str:
    """The name under which `function_of` finds it. ExportError where there is none."""
    if target is getattr:
        return "getattr"
    if isinstance(target, types.FunctionType):
        target = ORIGINALS.get(target, target)
    name = getattr(target, "__name__", "")
    custom = is_custom(target)
    if isinstance(target, torch._ops.OpOverload) and (custom or is_listed(target._schema.name.split("::")[1])):
        return f"ops:{target._schema.name}.{target._overloadname}"
    if isinstance(target, torch._ops.OpOverloadPacket) and (
        custom or is_listed(target._qualified_op_name.split("::")[1])
    ):
        return f"ops:{target._qualified_op_name}"
    if name in _OPERATORS and getattr(operator, name, None) is target:
        return f"operator:{name}"
    if name in _STATE and (getattr(torch._C, name, None) is target or getattr(torch, name, None) is target):
        return f"state:{name}"
    for home, module in _HOMES.items():
        for alias in (name, f"_{name}", name.removeprefix("_")):  # torch.nn.functional wraps some under another name
            if is_listed(alias) and getattr(module, alias, None) is target:
                return f"{home}:{alias}"
    if is_listed(name) and getattr(torch, name, None) is target:
        return f"torch:{name}"
    for method in (name, f"__{name}__"):
        if is_listed(method) and getattr(torch.Tensor, method, None) is target:
            return f"method:{method}"
    raise ExportError(
        f"the call of {getattr(target, '__module__', '')}.{name or target!r} cannot be saved in an exported program"
    )


def is_custom(target: Any) -> str:
    """The name of an operator that torch itself does not define, by which a loading program allows it; "" of others."""
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        name = target._schema.name if isinstance(target, torch._ops.OpOverload) else target._qualified_op_name
        return "" if name.startswith("aten::") else name
    return ""


def function_of(name: Any, allowed: Collection[str] = ()) -> Any:
    """The function of a name out of a file. ExportError where it is none of those that a graph may call. `allowed`: the
    custom operators that the loading program names."""
    found: Any = None
    home, _, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
    if name == "getattr":
        return getattr
    if home == "operator" and rest in _OPERATORS:
        found = getattr(operator, rest, None)
    elif home == "state" and rest in _STATE:
        found = getattr(torch._C, rest, None) or getattr(torch, rest, None)
    elif home == "ops":
        found = _operator(rest, allowed)
    elif home in _HOMES and is_listed(rest):
        found = _of_torch(getattr(_HOMES[home], rest, None))
    elif home == "torch" and is_listed(rest):
        found = _of_torch(getattr(torch, rest, None))
    elif home == "method":
        check_method(rest)
        found = getattr(torch.Tensor, rest)
    if not callable(found):
        raise ExportError(
            f"the file calls {str(name)[:80]!a}, which an exported program may not call or this torch does not have"
        )
    return found


def _of_torch(found: Any) -> Any:
    """A function of torch's own, native or a composite of them; None for anything else."""
    if isinstance(found, types.BuiltinFunctionType):
        return found
    module = getattr(found, "__module__", None) or ""
    return found if isinstance(found, types.FunctionType) and module in _COMPOSITES else None


_COMPOSITES = frozenset(("torch", "torch.functional", "torch.nn.functional", "torch._jit_internal", "torch._tensor"))


def _operator(text: str, allowed: Collection[str]) -> Any:
    """`namespace::name` or `namespace::name.overload`: aten's by the list, others where they are allowed."""
    namespace, _, rest = text.partition("::")
    name, _, overload = rest.partition(".")
    if not (is_listed(name) if namespace == "aten" else f"{namespace}::{name}" in allowed):
        return None
    if not (namespace.isidentifier() and name.isidentifier() and (not overload or overload.isidentifier())):
        return None
    if not torch._C._dispatch_has_kernel(
        f"{namespace}::{name}" + (f".{overload}" if overload not in ("", "default") else "")
    ):
        return None  # operators of TorchScript's own: strings, lists
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return packet if not overload else getattr(packet, overload, None)


def check_method(name: Any) -> None:
    """That a graph may call this method of a tensor: a listed operator that tensors themselves define. What every
    object and class has (`__call__`, `__subclasses__`) would reach beyond tensors."""
    if not (
        isinstance(name, str)
        and name.isidentifier()
        and is_listed(name)
        and any(name in vars(c) for c in torch.Tensor.__mro__[:-1])
        and callable(getattr(torch.Tensor, name))
    ):
        raise ExportError(
            f"the file calls the tensor method {str(name)[:80]!a}, which an exported program may not call"
        )


def check_keywords(names: Collection[Any]) -> None:
    """That keywords of a call are names: fx writes them into Python text, where a letter of another alphabet may stand
    for one of ASCII (`\uff43data`)."""
    for name in names:
        if not (isinstance(name, str) and is_plain_name(name)) or name in _POINTERS:
            raise ExportError("the file's graph has a keyword that is not a name, or that names memory")


_ENUMERATIONS: dict[str, Any] = {"ScalarType": torch.dtype, "Layout": torch.layout, "MemoryFormat": torch.memory_format}


def check_enumerations(target: Any, args: tuple, kwargs: dict) -> None:
    """That an operator's dtype, layout and memory format are given as such: it takes a number for them unchecked."""
    overloads = (
        [target]
        if isinstance(target, torch._ops.OpOverload)
        else [getattr(target, o) for o in target.overloads()]
        if isinstance(target, torch._ops.OpOverloadPacket)
        else []
    )
    for op in overloads:
        for k, arg in enumerate(op._schema.arguments):
            wanted = _ENUMERATIONS.get(str(arg.real_type).removeprefix("Optional[").removesuffix("]"))
            given = args[k] if k < len(args) and not arg.kwarg_only else kwargs.get(arg.name)
            if wanted is not None and given is not None and not isinstance(given, wanted):
                raise ExportError(f"the file calls {op} with {str(given)[:40]} as {arg.name}")


# What the functions of `_STATE` take: a device's type, a dtype, a flag.
_MODES: dict[str, tuple[Callable[[Any], bool], ...]] = {
    "_set_grad_enabled": (lambda v: isinstance(v, bool),),
    "set_autocast_enabled": (lambda v: isinstance(v, str) and v in AUTOCAST_DEVICES, lambda v: isinstance(v, bool)),
    "set_autocast_dtype": (
        lambda v: isinstance(v, str) and v in AUTOCAST_DEVICES,
        lambda v: v in (torch.float16, torch.bfloat16, torch.float32),
    ),
    "set_autocast_cache_enabled": (lambda v: isinstance(v, bool),),
    "autocast_increment_nesting": (),
    "autocast_decrement_nesting": (),
    "clear_autocast_cache": (),
}


def is_mode(function: Any) -> bool:
    """Whether it sets a mode of the process: gradients or autocast."""
    name = getattr(function, "__name__", "")
    return (
        name in _STATE
        and getattr(torch._C, name, None) is function
        or getattr(torch, name, None) is function
        and name in _STATE
    )


def check_mode(function: Any, args: tuple, kwargs: dict) -> None:
    """That a mode is set to a constant that it can have."""
    rules = _MODES[function.__name__]
    if kwargs or len(args) != len(rules) or not all(rule(arg) for rule, arg in zip(rules, args)):
        raise ExportError(f"the file calls {function.__name__} with {str(args)[:80]}")


def check_property(name: Any) -> None:
    """That a graph may read this property of a tensor."""
    if not isinstance(name, str) or name not in _PROPERTIES:
        raise ExportError(
            f"the file reads the tensor property {str(name)[:80]!a}, which an exported program may not read"
        )
