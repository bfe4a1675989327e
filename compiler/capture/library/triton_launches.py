"""Launches of the program's Triton kernels, `kernel[grid](...)`: one node of the graph each.

The grid is computed while capture goes on, by the program's own function where it is one: of each configuration of an
autotuned kernel, since Triton chooses among them when the graph runs.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ...ops.triton_kernels import KernelCall, flat_grid, is_constant, jit_function, operator_for
from ..kinds.callables import python_function
from ..kinds.parameters import interpret
from ..machine.signals import Break, Raised
from ...graph.tensor import TraceTensor

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__: list[str] = []


@python_function(
    ("triton.runtime.jit", "JITFunction.run"),
    ("triton.runtime.interpreter", "InterpretedFunction.run"),
    ("triton.runtime.autotuner", "Autotuner.run"),
)
def launch(machine: Machine, kernel: Any, *args: Any, grid: Any = None, warmup: Any = False, **kwargs: Any) -> None:
    """What `kernel[grid](*args, **kwargs)` comes to."""
    if warmup:
        raise Break("triton_kernel", "a Triton kernel is compiled ahead of its launch")
    source = machine.world.source_of(kernel)
    if source is not None:
        machine.world.guard(source, "WEAK_ID", weakref.ref(kernel), "the Triton kernel that is launched")
    fn = jit_function(kernel)
    names = list(fn.arg_names)
    if len(args) > len(names):
        raise Break("triton_kernel", "a Triton kernel is launched with more arguments than it has parameters")
    given = {**dict(zip(names, args)), **{key: item for key, item in kwargs.items() if key in names}}
    options = tuple((key, machine.deep_plain(item)) for key, item in kwargs.items() if key not in names)
    parameters: list[tuple[str, str, Any]] = []
    values: list[Any] = []
    for name, value in given.items():
        kind = _kind(machine, fn, name, value)
        if kind == "fixed":
            value = given[name] = _fixed(machine, value)
            parameters.append((name, kind, value))
        else:
            parameters.append((name, kind, None))
            values.append(value)
    configs = [
        {key: item for key, item in c.all_kwargs().items() if key in names} for c in getattr(kernel, "configs", ())
    ]
    grids = [_grid(machine, grid, given, config) for config in configs or [{}]]
    flat, rank = flat_grid(grids)
    if not callable(grid):
        flat, configs = flat[:rank], []
    call = KernelCall(
        tuple(parameters),
        tuple(item.dtype for item in values if isinstance(item, TraceTensor)),
        len(args),
        options,
        tuple(tuple(config.items()) for config in configs),
        rank,
    )
    try:
        operator = operator_for(kernel, call)
    except TypeError:  # a value that can't be looked up
        raise Break("triton_kernel", "a Triton kernel gets what is not a number, text, dtype or tensor") from None
    machine.call(operator, [*values, flat])


def _kind(machine: Machine, fn: Any, name: str, value: Any) -> str:
    cls = type(value)
    if cls is TraceTensor:
        return "tensor"
    if isinstance(value, torch.Tensor):
        raise Break("triton_kernel", "a Triton kernel gets a tensor of a class of its own")
    if is_constant(fn, name) or cls is bool:
        return "fixed"
    if cls in (int, torch.SymInt):
        return "int"
    return "float" if cls in (float, torch.SymFloat) else "fixed"


def _fixed(machine: Machine, value: Any) -> Any:
    if type(value) in (torch.SymInt, torch.SymFloat, torch.SymBool):
        return machine.deep_plain(int(value) if type(value) is torch.SymInt else value)
    return machine.deep_plain(value)


def _grid(machine: Machine, grid: Any, given: dict, config: dict) -> list[Any]:
    if callable(grid):
        try:
            grid = machine.call(grid, [{**given, **config}])
        except Raised:
            raise Break(
                "triton_kernel", "the grid of a Triton kernel looks at more than the call's arguments"
            ) from None
    sizes = list(machine.iterate(grid)) if isinstance(grid, (tuple, list)) else [grid]
    if not 1 <= len(sizes) <= 3 or not all(type(size) in (int, torch.SymInt) for size in sizes):
        raise Break("triton_kernel", "the grid of a Triton kernel is not one to three numbers")
    return sizes


# ---- torch's own wrappers of kernels
@python_function(("torch.library", "wrap_triton"), ("torch._library.triton", "capture_triton"))
def unwrapped(machine: Machine, kernel: Any) -> Any:
    """torch.library.wrap_triton marks a kernel for tracers that would not see it. Capture sees it as it is."""
    return kernel


@python_function(("torch._library.custom_ops", "CustomOpDef.__call__"), wants_function=True)
def call_operator(machine: Machine, fn: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator of torch.library.triton_op is the function that it was made of, with the gradients that were
    registered for it; any other is one node.
    """
    decomposed = any(c.__name__ == "FunctionalTensorMode" for c in machine.getattr(operator, "_torch_dispatch_fns"))
    if not decomposed:
        return interpret(machine, fn, [operator, *args], kwargs)
    made_of, backward = machine.getattr(operator, "_abstract_fn"), machine.getattr(operator, "_backward_fn")
    if backward is None:
        return machine.call(made_of, list(args), kwargs)
    function = _function_of(made_of, backward, machine.getattr(operator, "_setup_context_fn"))
    machine.world.anchor(function)
    return machine.call(machine.getattr(function, "apply"), list(args), kwargs)


@functools.cache
def _function_of(made_of: Any, formula: Any, setup: Any) -> type:
    """The autograd.Function that torch makes of an operator and of what was registered for its gradients."""

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        if setup is not None:
            setup(ctx=ctx, inputs=inputs, output=output)

    def backward(ctx: Any, *gradients: Any) -> Any:
        return formula(ctx, *gradients)

    methods = {"forward": made_of, "setup_context": setup_context, "backward": backward}
    names = {name: staticmethod(fn) for name, fn in methods.items()} | {"__module__": made_of.__module__}
    return type(f"{made_of.__name__}_registered", (torch.autograd.Function,), names)
