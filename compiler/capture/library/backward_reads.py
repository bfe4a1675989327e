"""What the program's own backward reads of the world: eager reads it when backward runs, a captured backward when
forward was captured.

Functions, classes and modules stay what they are; numbers, tensors and objects may be others by then. Where a backward
reads such, the function or the operator is applied as it is.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._library.custom_ops import OPDEFS

from ...guards.source import Source
from ..kinds.inline_policy import is_trusted_module
from ...graph.opinfo import op_info
from ..machine.signals import Break
from ..numbers.scalars import pinned

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["A_HOOK", "refuse_read", "refuse_operator"]

A_HOOK = "a hook"  # in the place of a function's name: nothing is said by fullgraph of what a hook reads

_FIXED = (
    types.FunctionType,
    types.BuiltinFunctionType,
    type,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    torch._ops.HigherOrderOperator,
    torch.dtype,
)
_REMEDY = "let forward put it on ctx, or pass it as an argument"
_ATOMS = (type(None), bool, int, float, complex, str, torch.dtype, torch.device)
_BUILTIN = frozenset(
    "aten prims prim inductor tcompile tcompile_kernels quantized _quantized mkldnn onednn c10d _c10d_functional "
    "_c10d_functional_autograd tcompile_exchange".split()
)


def _is_fixed(value: Any) -> bool:
    """Whether the value is what it does, not what it holds: a function, or an object of torch's or the standard
    library's that is called.
    """
    cls = type(value)
    return (
        isinstance(value, _FIXED)
        or cls.__module__.startswith("triton.runtime.")  # a kernel, as it is decorated
        or callable(value)
        and is_trusted_module(cls.__module__ or "")
        and not isinstance(value, (torch.nn.Module, torch.Tensor))
    )


def refuse_read(machine: Machine, value: Any, source: Source) -> None:
    """Break where a captured backward reads something from outside that may be another when it runs. Under fullgraph it
    is relied on as forward finds it.
    """
    if (
        machine.opts.fullgraph
        and machine.backward_of != A_HOOK
        or _is_fixed(value)
        or source.kind in ("default", "kwdefault")
    ):
        return
    base = source.base
    while base is not None:
        owner = base.key if base.kind == "const" else machine.world.loaded.get(base)
        if _is_fixed(owner) and is_trusted_module(
            owner.__name__ if isinstance(owner, types.ModuleType) else getattr(owner, "__module__", None) or ""
        ):
            return
        base = base.base
    raise Break(
        "autograd_function",
        f"the backward of {machine.backward_of} reads `{source.name()}`, which may be another when it runs",
        _REMEDY,
    )


def refuse_operator(machine: Machine, op: Any, requires_grad: bool) -> None:
    """Break where an operator of the program's is called that gives a view; or, with gradients, one that has no formula
    of them, or whose formula reads something that may be another when it runs.
    """
    name = op._name if isinstance(op, torch._ops.OpOverload) else op._qualified_op_name
    if name.partition("::")[0] in _BUILTIN:
        return
    overloads = [op] if isinstance(op, torch._ops.OpOverload) else [getattr(op, o) for o in op.overloads()]
    if any(op_info(overload).kind == "view" for overload in overloads):
        raise Break(
            "unsupported",
            f"{name} gives a view of what it is given, and of which part is not known",
            "return a copy from it, or make the view with torch's own functions",
        )
    if not requires_grad:
        return
    if not all(_has_formula(overload.name()) for overload in overloads):
        raise Break(
            "unsupported",
            f"{name} has no registered gradients: eager records what its kernel calls",
            "register them (torch.library.register_autograd), or call it under torch.no_grad()",
        )
    operators: Any = OPDEFS
    made = operators.get(name.partition(".")[0])
    for fn in (made._backward_fn, made._setup_context_fn) if made is not None else ():
        for reader, read in _reads(fn, set()) if fn is not None else ():
            if (
                machine.opts.fullgraph
                and isinstance(reader, types.FunctionType)
                and type(reader.__globals__.get(read, reader)) in _ATOMS
            ):
                pinned(machine.load_global(machine.scope_of(reader.__globals__), read))
            else:
                raise Break(
                    "autograd_function",
                    f"the backward registered for {name} reads `{read}`, which may be another when it runs",
                    _REMEDY,
                )


def _has_formula(name: str) -> bool:
    """Whether autograd has a kernel for an operator, which is not passed over."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(name, "CompositeImplicitAutograd"):
        return True
    passes = torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough
    return any(has(name, key) and not passes(name, key) for key in _AUTOGRAD)


_AUTOGRAD = ("Autograd", "AutogradCPU", "AutogradCUDA", "AutogradOther")


def _reads(fn: Any, seen: set) -> Iterator[tuple[Any, str]]:
    """The names under which a function, and those of the program's that it calls, read values from outside, with the
    function that reads.
    """
    fn = getattr(fn, "__func__", fn)
    if not isinstance(fn, types.FunctionType):
        if not _is_fixed(fn):
            yield type(fn).__call__, type(fn).__name__
        return
    if fn.__code__ in seen or is_trusted_module(fn.__module__ or ""):
        return
    seen.add(fn.__code__)
    names = _names(fn.__code__)
    held = {name: fn.__globals__[name] for name in names if name in fn.__globals__}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
        try:
            held[name] = cell.cell_contents
        except ValueError:
            continue
    for name, value in list(held.items()):
        if isinstance(value, types.ModuleType) and not is_trusted_module(value.__name__):
            held.update({f"{name}.{n}": vars(value)[n] for n in names if n in vars(value)})
    for name, value in held.items():
        if isinstance(value, types.FunctionType):
            yield from _reads(value, seen)
        elif not _is_fixed(value):
            yield fn, name


def _names(code: types.CodeType) -> dict[str, None]:
    """The names in a function and in those that are defined in it."""
    found = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found.update(_names(inner))
    return found
