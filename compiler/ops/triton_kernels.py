"""The program's own Triton kernels as operators: what a launch gets and writes is in a schema, so that it is a node of
the graph like any other.

One operator stands for a kernel called in one way: which parameters are tensors, numbers or fixed values, how many
programs the grid has dimensions for, which launch options are given. Its schema is made of that, and names what the
kernel writes (`triton_writes.py`). Called, it launches the kernel as Triton does.
"""

from __future__ import annotations

import inspect
import math
import re
import weakref
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from .. import events

__all__ = ["KernelCall", "jit_function", "operator_for"]

_library = torch.library.Library("tcompile_kernels", "DEF")
_READABLE = re.compile(r"\W")
_SCHEMA_TYPES = {"tensor": "Tensor", "int": "SymInt", "float": "float"}

# Triton's names of dtypes.
_DTYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}


@dataclass(frozen=True)
class KernelCall:
    """How a kernel is called, without the values that vary.

    parameters  (name, "tensor" | "int" | "float", None) or (name, "fixed", its value), in the order of the call
    dtypes      of the tensors, in order
    positional  how many of them are given by position
    options     launch options and other keywords, as (name, value)
    configs     of an autotuned kernel: the keywords of each configuration that the grid depends on
    rank        dimensions of the grid
    """

    parameters: tuple[tuple[str, str, Any], ...]
    dtypes: tuple[torch.dtype, ...]
    positional: int
    options: tuple[tuple[str, Any], ...]
    configs: tuple[tuple[tuple[str, Any], ...], ...]
    rank: int


_operators: dict[int, tuple[weakref.ref, dict[KernelCall, torch._ops.OpOverload]]] = {}  # by id of the kernel
_made: dict[str, int] = {}  # name of a kernel -> operators that were made of kernels of that name


def operator_for(kernel: Any, call: KernelCall) -> torch._ops.OpOverload:
    """The operator of a call. Its arguments: the tensors and numbers in order, then the grid, that of each
    configuration of an autotuned kernel behind one another.
    """
    known = _operators.get(id(kernel))
    if known is None or known[0]() is not kernel:
        known = _operators[id(kernel)] = weakref.ref(kernel), {}
    if call not in known[1]:
        known[1][call] = _make(kernel, call)
    return known[1][call]


def _make(kernel: Any, call: KernelCall) -> torch._ops.OpOverload:
    written = _written(kernel, call)
    plain = _READABLE.sub("_", getattr(jit_function(kernel), "__name__", "kernel"))
    _made[plain] = _made.get(plain, -1) + 1
    name = f"{plain}_{_made[plain]}" if _made[plain] else plain
    arguments = []
    for k, (parameter, kind, _) in enumerate(call.parameters):
        if kind != "fixed":
            alias = f"(a{k}!)" if parameter in written else ""
            arguments.append(f"{_SCHEMA_TYPES[kind]}{alias} {_argument(parameter)}")
    _library.define(f"{name}({', '.join([*arguments, 'SymInt[] grid'])}) -> ()")
    held = weakref.ref(kernel)

    def launch(*args: Any, **kwargs: Any) -> None:
        kernel = held()
        if kernel is None:
            raise RuntimeError(f"the Triton kernel {plain} is gone, which this graph launches")
        _launch(kernel, call, args, kwargs)

    _library.impl(name, launch, "CompositeExplicitAutograd")
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # eager's history knows nothing of a launch
    return getattr(torch.ops.tcompile_kernels, name).default


def _argument(parameter: str) -> str:
    """A parameter's name in the schema, where `grid`, and what schemas have words for, can't be one."""
    return f"p_{parameter}"


def _launch(kernel: Any, call: KernelCall, args: tuple, kwargs: dict) -> None:
    given = list(args)
    names = [_argument(p) for p, kind, _ in call.parameters if kind != "fixed"]
    given += [kwargs[k] for k in [*names, "grid"][len(given) :]]
    sizes = given.pop()
    values = iter(given)
    filled = [(p, value if kind == "fixed" else next(values)) for p, kind, value in call.parameters]
    grids = [tuple(sizes[i : i + call.rank]) for i in range(0, len(sizes), call.rank)]
    if math.prod(grids[0]) == 0 and len(grids) == 1:
        return  # (Triton refuses a grid without programs)
    grid: Any = grids[0]
    if call.configs:

        def grid(meta: dict) -> tuple:
            at = next(i for i, config in enumerate(call.configs) if all(meta[k] == v for k, v in config))
            return grids[at]

    positional = [value for _, value in filled[: call.positional]]
    named = dict(filled[call.positional :])
    kernel.run(*positional, grid=grid, warmup=False, **named, **dict(call.options))


# ---- what it writes
def jit_function(kernel: Any) -> Any:
    """The function under @triton.autotune and @triton.heuristics."""
    while not hasattr(kernel, "arg_names") or hasattr(kernel, "configs") or hasattr(kernel, "values"):
        kernel = kernel.fn
    return kernel


def _written(kernel: Any, call: KernelCall) -> set[str]:
    """Names of the parameters that the kernel writes; all of its tensors where that can't be told."""
    tensors = [p for p, kind, _ in call.parameters if kind == "tensor"]
    if any(getattr(c, "pre_hook", None) is not None for c in getattr(kernel, "configs", ())):
        return set(tensors)
    fn = jit_function(kernel)
    if getattr(fn, "pre_run_hooks", None):
        return set(tensors)
    why = "its IR has a form that is not understood"
    try:
        found = _written_by_ir(kernel, fn, call)
    except Exception as error:  # what Triton's compiler says of the kernel, the launch will say in full
        found, why = None, f"Triton does not compile it alone ({type(error).__name__})"
    if found is not None:
        return found & set(tensors)
    if isinstance(fn, _jit_class()):  # (Triton's interpreter has no IR, as who turned it on knows)
        name = f"{getattr(fn, '__name__', 'kernel')} (Triton kernel)"
        reason = f"what it writes can't be told: {why}. All of its tensors count as written, and may be copied"
        events.fallback(name, reason)
    return set(tensors)


def _jit_class() -> Any:
    from triton.runtime.jit import JITFunction

    return JITFunction


def _written_by_ir(kernel: Any, fn: Any, call: KernelCall) -> set[str] | None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend

    from .triton_writes import written_parameters

    if not isinstance(fn, _jit_class()):  # Triton's interpreter is on: its helpers can't be compiled
        return None
    kinds = {p: (kind, value) for p, kind, value in call.parameters}
    dtypes = iter(call.dtypes)
    configs = getattr(kernel, "configs", None)
    tuned = configs[0].all_kwargs() if configs else {}
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    for i, name in enumerate(fn.arg_names):
        kind, value = kinds.get(name, ("fixed", tuned.get(name, _default(fn, name))))
        if kind == "tensor":
            signature[name] = "*" + _DTYPES[next(dtypes)]
        elif kind == "int":
            signature[name] = "i32"
        elif kind == "float":
            signature[name] = "fp32"
        else:
            signature[name] = "constexpr"
            constants[(i,)] = value
    target = _target() or GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options({})
    text = str(_ir_of(ASTSource(fn, signature, constants, {}), target, backend, options))
    positions = written_parameters(text)
    if positions is None:
        return None
    pointers = [name for name in fn.arg_names if signature[name] != "constexpr"]
    return {pointers[position] for position in positions}


def _ir_of(source: Any, target: Any, backend: Any, options: Any) -> Any:
    from triton._C.libtriton import ir

    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    return source.make_ir(target, options, functions, backend.get_module_map(), context)


def _default(fn: Any, name: str) -> Any:
    value = inspect.signature(fn.fn).parameters[name].default
    return None if value is inspect.Parameter.empty else value


def _target() -> Any:
    """The GPU's target as Triton names it, None without one."""
    if not torch.cuda.is_available():
        return None
    from triton.runtime import driver

    return driver.active.get_current_target()


def is_constant(fn: Any, name: str) -> bool:
    """Whether a parameter is declared tl.constexpr."""
    return "constexpr" in str(inspect.signature(fn.fn).parameters[name].annotation)


def flat_grid(grids: Sequence[Sequence[Any]]) -> tuple[list[Any], int]:
    """(the grids behind one another, each filled up with ones to the same rank; that rank)."""
    rank = max(map(len, grids))
    return [n for grid in grids for n in (*grid, *[1] * (rank - len(grid)))], rank
