"""What a Python function is to capture: interpreted (the default), a leaf of the graph, constant, logged, or a
break.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import torch

__all__ = [
    "is_trusted_function",
    "is_trusted_module",
    "is_leaf_function",
    "runs_code",
    "is_disabled",
    "known_constant_functions",
    "ASKS_FOR_STOCK",
    "CONSTANT_BY_NAME",
]

_STDLIB = frozenset(sys.stdlib_module_names)

# Composite Python functions of torch that run as they are on TraceTensors and make one node each.
_LEAF_MODULES = tuple(
    """torch.nn.functional torch.functional torch._tensor torch.special torch.linalg torch.fft torch._refs
    torch.autograd.functional torch._VF torch.nn.attention.bias torch.signal.windows""".split()
)
# these draw by torch.rand
_NEVER_LEAF = frozenset(
    (
        "handle_torch_function",
        "boolean_dispatch",
        "fn",
        *(
            f"{prefix}fractional_max_pool{n}d{ending}"
            for n in (2, 3)
            for prefix in ("", "_")
            for ending in ("", "_with_indices")
        ),
    )
)


@functools.lru_cache(maxsize=4096)
def is_trusted_module(name: str) -> bool:
    """torch, the standard library and the compiler: what is defined there is taken to stay as it is while the process
    runs.
    """
    return name.partition(".")[0] in _STDLIB or name == "torch" or name.startswith(("torch.", "tcompile.compiler."))


def is_trusted_function(fn: types.FunctionType) -> bool:
    """A function that a trusted module has under its name. One that such a module makes at a call, as a scheduler wraps
    an optimizer's step, is another at each; it is taken for the program's.
    """
    if not is_trusted_module(fn.__module__ or ""):
        return False
    module = found = sys.modules.get(fn.__module__)
    for name in fn.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return fn in (getattr(found, "__func__", found), getattr(module, fn.__name__, None))


def is_leaf_function(fn: types.FunctionType) -> bool:
    """A Python function of torch to record as one call, where a tensor is among its arguments. One that holds a
    function of the program's (hessian's jac_func) is not: what it runs is to be seen."""
    return (fn.__module__ or "") in _LEAF_MODULES and fn.__name__ not in _NEVER_LEAF and not _holds_code(fn)


def runs_code(value: Any) -> bool:
    """Whether what takes this may call it, and it is more than a class or a native function."""
    return callable(value) and not isinstance(value, (type, types.BuiltinFunctionType))


def _holds_code(function: types.FunctionType, seen: set[int] | None = None) -> bool:
    """Whether code of the program's lies in the closure of a function of torch, or of one of torch's that lies there. A
    function may hold itself.
    """
    seen = {id(function)} if seen is None else seen
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if isinstance(value, types.FunctionType) and is_trusted_module(value.__module__ or ""):
            if id(value) not in seen:
                seen.add(id(value))
                if _holds_code(value, seen):
                    return True
        elif runs_code(value):
            return True
    return False


def is_disabled(fn: Any) -> bool:
    """Marked by tcompile.disable, torch.compiler.disable or torch._dynamo.disable."""
    d = getattr(fn, "__dict__", None)
    if not d:
        return False
    return bool(d.get("_torchdynamo_disable") or d.get("__tcompile_disable__") or d.get("_tcompile_disable"))


@functools.cache
def known_constant_functions() -> dict[int, tuple[Any, Any]]:
    """id of a function -> (the function, the value of a call during capture)."""
    table: list[tuple[Any, Any]] = [
        (torch.compiler.is_compiling, True),
        (torch.compiler.is_dynamo_compiling, True),
        (torch._utils.is_compiling, True),
        (torch.compiler.is_exporting, False),
        (torch.jit.is_scripting, False),
        (torch.jit.is_tracing, False),
        (torch._C._get_tracing_state, None),
        (torch._jit_internal.is_scripting, False),
    ]
    return {id(f): (f, v) for f, v in table}


# The same by (module, name), for modules that capture must not import (torch.onnx alone takes 60 ms).
CONSTANT_BY_NAME: dict[tuple[str, str], Any] = {
    ("torch._dynamo.external_utils", "is_compiling"): True,
    ("torch._dynamo", "is_compiling"): True,
    ("torch.jit._trace", "is_tracing"): False,
    ("torch.onnx", "is_in_onnx_export"): False,
    ("torch.onnx.utils", "is_in_onnx_export"): False,
    ("transformers.utils.import_utils", "is_torchdynamo_compiling"): True,
    ("transformers.utils.import_utils", "is_torchdynamo_exporting"): False,
    ("transformers.utils.import_utils", "is_jit_tracing"): False,
    ("transformers.utils.import_utils", "is_cuda_stream_capturing"): False,
    ("transformers.utils.import_utils", "is_fake_tensor"): False,
    ("transformers.utils.import_utils", "is_torch_fx_proxy"): False,
}


# Modules that refuse to be compiled by their own compiler, not by this one: there, nobody compiles.
ASKS_FOR_STOCK = frozenset(("torch.distributed.nn.functional",))


def is_of_torch(fn: Any, owner: Any) -> bool:
    module = getattr(fn, "__module__", None) or ""
    if module.partition(".")[0] == "torch":
        return True
    name = (
        owner.__module__ if isinstance(owner, type) else owner.__name__ if isinstance(owner, types.ModuleType) else ""
    )
    return (name or "").partition(".")[0] == "torch"
