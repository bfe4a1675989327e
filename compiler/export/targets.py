"""What the nodes of an exported graph may call, by name. A file can name nothing else: not torch.load, not os.system."""
from __future__ import annotations

import operator
import types
from typing import Any, Callable

import torch
import torch.nn.functional as F

from ..errors import ExportError

__all__ = ["name_of", "function_of", "check_method"]

_OPERATORS = frozenset(("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift", "neg", "pos",
                        "invert", "abs", "eq", "ne", "lt", "le", "gt", "ge", "getitem", "setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv",
                        "imod", "ipow", "imatmul", "iand", "ior", "ixor", "ilshift", "irshift", "not_", "index", "contains"))
_PROPERTIES = frozenset(("T", "mT", "H", "mH", "real", "imag", "shape", "data"))
_STATE = frozenset(("_set_grad_enabled", "set_autocast_enabled", "set_autocast_dtype", "set_autocast_cache_enabled", "autocast_increment_nesting",
                    "autocast_decrement_nesting", "clear_autocast_cache"))
# Where functions on tensors live. Python functions of these modules are torch's composites; nothing there reads files or code.
_C: Any = torch._C
_HOMES: dict[str, Any] = {
    "torch._C._VariableFunctions": _C._VariableFunctions, "torch._C._nn": _C._nn, "torch._C._special": _C._special,
    "torch._C._linalg": _C._linalg, "torch._C._fft": _C._fft, "torch.nn.functional": F, "torch.functional": torch.functional,
    "torch.special": torch.special, "torch.linalg": torch.linalg, "torch.fft": torch.fft,
}
_OF_TORCH = ("sym_min", "sym_max", "sym_int", "sym_not", "sym_float", "sym_sqrt", "tensor", "as_tensor", "scalar_tensor", "arange", "full", "zeros",
             "ones", "empty", "rand", "randn", "randint", "randperm", "linspace", "logspace", "eye", "stack", "cat")
_NO_METHODS = frozenset(("apply_", "map_", "map2_", "numpy", "tolist", "item", "register_hook", "backward", "share_memory_", "storage", "untyped_storage",
                         "data_ptr", "module_load", "set_", "__reduce__", "__reduce_ex__", "__setstate__", "__class__", "__init__", "__new__",
                         "__getattribute__", "__setattr__", "__delattr__", "__torch_function__", "__torch_dispatch__", "__init_subclass__",
                         "__deepcopy__", "__dir__", "__repr__", "__format__", "__subclasshook__"))


_REACHES_OUT = ("file", "save", "load", "record_stream", "print", "manual_seed", "set_", "pickle")      # files, process state


def _harmless(name: str) -> bool:
    return not any(word in name for word in _REACHES_OUT) or name.startswith(("index_", "masked_"))


def name_of(target: Callable) -> str:
    """The name under which `function_of` finds it. ExportError where there is none."""
    name = getattr(target, "__name__", "")
    if target is getattr:
        return "getattr"
    if isinstance(target, torch._ops.OpOverload):
        return f"ops:{target.namespace}::{target._schema.name.split('::')[1]}.{target._overloadname}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"ops:{target._qualified_op_name}"
    if name in _OPERATORS and getattr(operator, name, None) is target:
        return f"operator:{name}"
    if name in _STATE and (getattr(torch._C, name, None) is target or getattr(torch, name, None) is target):
        return f"state:{name}"
    for home, module in _HOMES.items():
        if getattr(module, name, None) is target:
            return f"{home}:{name}"
        for alias in (f"_{name}", name.removeprefix("_")):        # torch.nn.functional wraps some under another name
            if alias and getattr(module, alias, None) is target:
                return f"{home}:{alias}"
    if getattr(torch, name, None) is target and isinstance(target, (types.BuiltinFunctionType, types.FunctionType)) and \
            (name in _OF_TORCH or isinstance(target, types.BuiltinFunctionType)):
        return f"torch:{name}"
    for method in (name, f"__{name}__"):
        if getattr(torch.Tensor, method, None) is target:
            return f"method:{method}"
    raise ExportError(f"the call of {getattr(target, '__module__', '')}.{name or target!r} cannot be saved in an exported program")


def function_of(name: str) -> Any:
    """The function of a name out of a file. ExportError where it is none of those that a graph may call."""
    home, _, rest = name.partition(":")
    found: Any = None
    if name == "getattr":
        return getattr
    if home == "operator" and rest in _OPERATORS:
        found = getattr(operator, rest, None)
    elif home == "state" and rest in _STATE:
        found = getattr(torch._C, rest, None) or getattr(torch, rest, None)
    elif home == "ops":
        found = _operator(rest)
    elif home in _HOMES and not rest.startswith("__") and _harmless(rest):
        found = getattr(_HOMES[home], rest, None)
        module = getattr(found, "__module__", None) or ""
        if isinstance(found, types.FunctionType) and not module.startswith(("torch.nn.functional", "torch.functional", "torch._jit_internal")):
            found = None
        if isinstance(found, (type, types.ModuleType)):
            found = None
    elif home == "torch" and _harmless(rest) and (rest in _OF_TORCH or isinstance(getattr(torch._C._VariableFunctions, rest, None), types.BuiltinFunctionType)):
        found = getattr(torch, rest, None)
    elif home == "method":
        check_method(rest)
        found = getattr(torch.Tensor, rest)
    if not callable(found):
        raise ExportError(f"the file calls {name!r}, which an exported program may not call or this torch does not have")
    return found


def _operator(text: str) -> Any:
    namespace, _, rest = text.partition("::")
    name, _, overload = rest.partition(".")
    if not (namespace.isidentifier() and name.isidentifier() and _harmless(name)):
        return None
    if not torch._C._dispatch_has_kernel(f"{namespace}::{name}" + (f".{overload}" if overload not in ("", "default") else "")):
        return None                                    # operators of TorchScript's own: files, strings, process state
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return packet if not overload else getattr(packet, overload, None)


def check_method(name: str) -> None:
    """That a graph may call this method of a tensor: one that tensors themselves define. What every object and class has (`__call__`,
    `__subclasses__`) would reach beyond tensors."""
    allowed = name.isidentifier() and any(name in vars(c) for c in torch.Tensor.__mro__[:-1]) and name not in _NO_METHODS
    if not allowed or name.startswith("_") and not (name.startswith("__") and name.endswith("__")):
        raise ExportError(f"the file calls the tensor method {name!r}, which an exported program may not call")


def check_property(name: Any) -> None:
    """That a graph may read this property of a tensor."""
    if name not in _PROPERTIES:
        raise ExportError(f"the file reads the tensor property {name!r}, which an exported program may not read")
