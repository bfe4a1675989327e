"""Which frames the hook takes up.

The hook sees every Python frame that a cell reaches. Worth capturing are those that work on tensors or modules: user
functions and library code with a tensor or a module among their arguments, and the forward of any nn.Module. torch's
own Python is inlined where captured code calls it, and passed over where it runs by itself.
"""

from __future__ import annotations

import itertools
import os
import types
from contextlib import contextmanager
from typing import Any, Callable, Iterator, NamedTuple

import torch
import torch.nn as nn
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from ..guards.state import read_field
from ..runtime.dispatch import forced_backend, stance

__all__ = [
    "RULES",
    "Rule",
    "wanted",
    "never",
    "types_to_look_for",
    "every_frame",
    "takes_every_frame",
    "stays_eager",
    "first_stays_eager",
]

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_MODULES = os.path.join(_TORCH, "nn", "modules") + os.sep
_OWN = ("<tcompile", "<eval_with_key>")  # entries, host plans and captured graphs: the compiler's own output
_SET_UP = frozenset(
    """__init__ __new__ __init_subclass__ __setattr__ __delattr__ __getattr__ __repr__ __str__ __del__""".split()
)
_LOOK = 16  # elements of a container that are looked at

_forced = 0


@contextmanager
def every_frame() -> Iterator[None]:
    """For tests of capture: frames without any tensor are captured too, and their entries used."""
    global _forced
    _forced += 1
    try:
        yield
    finally:
        _forced -= 1


def takes_every_frame() -> bool:
    return _forced > 0


class Rule(NamedTuple):
    """A kind of code that the hook passes over for good."""

    what: str
    applies: Callable[[types.CodeType, types.FunctionType], bool]


# Before these, C has passed over: generators, coroutines, class and module bodies; the standard library and this
# package (by folder, `default_skip_prefixes` in runtime/frame_hook.py); frames in a thread with a debugger; frames
# without anything of types_to_look_for().
RULES = (
    Rule(
        "entries, host plans and captured graphs: the compiler's own output",
        lambda code, func: code.co_filename.startswith(_OWN),
    ),
    Rule(
        "what stock's compiler has written",
        lambda code, func: str(func.__globals__.get("__name__")).startswith("torch._inductor."),
    ),
    Rule(
        "methods that were made for the compiler's classes and have no file (a dataclass's __init__)",
        lambda code, func: str(func.__globals__.get("__name__")).startswith("tcompile."),
    ),
    Rule(
        "methods that make, change, show and end an object: what they call is compiled by itself",
        lambda code, func: func.__name__ in _SET_UP,
    ),
    Rule(
        "what a class of tensors does with one operator, below autograd",
        lambda code, func: func.__name__ == "__torch_dispatch__",
    ),
    Rule(
        "torch's Python, but for the forward of its modules",
        lambda code, func: (
            code.co_filename.startswith(_TORCH)
            and not (code.co_filename.startswith(_MODULES) and code.co_name == "forward")
        ),
    ),
)


def never(code: types.CodeType, func: types.FunctionType) -> bool:
    """Code that is not worth asking about again: a rule of RULES applies."""
    return any(rule.applies(code, func) for rule in RULES)


def types_to_look_for() -> tuple[type, ...] | None:
    """The hook asks about frames that have one of these among their parameters; None: about all."""
    return None if _forced else (torch.Tensor, nn.Module, torch.optim.Optimizer)


def wanted(code: types.CodeType, args: tuple) -> bool:
    """Whether a frame of `code`, to which no rule applies, should be captured with these arguments."""
    if _forced:
        return not code.co_filename.startswith(_TORCH)
    if code.co_filename.startswith(_TORCH):
        return bool(args) and nn.Module in type(args[0]).__mro__
    return any(_tensor_work(arg) for arg in args)


def _tensor_work(a: Any) -> bool:
    if _is_work(a):
        return True
    if type(a) in (list, tuple):
        return any(_is_work(x) for x in a[:_LOOK])
    if type(a) is dict:
        return any(_is_work(x) for x in itertools.islice(a.values(), _LOOK))
    return False


def _is_work(a: Any) -> bool:
    mro = type(a).__mro__  # isinstance would ask the object, which may be the user's own code
    return torch.Tensor in mro or nn.Module in mro


def stays_eager(name: str) -> bool:
    """Whether no frame is compiled now, whatever its code: a mode or a tracer of the user's is to see every call, or
    torch.compiler.set_stance says so."""
    return _watched_by_modes() or _is_traced() or _kept_by_stance(name)


def first_stays_eager() -> bool:
    """Whether torch.compiler.set_stance says that a function's first call runs eager, and the next ones compile."""
    return stance() in ("eager_then_compile", "aot_eager_then_compile")


def _watched_by_modes() -> bool:
    """Whether a TorchFunctionMode or TorchDispatchMode of the user's is to see every operator, as eager calls them."""
    _, function_modes, dispatch_modes = read_field("torch_function")
    return bool(function_modes or dispatch_modes)


def _is_traced() -> bool:
    """Whether torch.fx.symbolic_trace or torch.jit.trace is to see every call, as eager does them."""
    return is_fx_symbolic_tracing() or torch._C._get_tracing_state() is not None


def _kept_by_stance(name: str) -> bool:
    """What torch.compiler.set_stance says of a call that would be compiled. Raises RuntimeError for
    "fail_on_recompile".
    """
    said, backend = stance(), forced_backend()
    if backend not in (None, "eager", "tcompile"):
        raise RuntimeError(
            f"torch.compiler.set_stance(force_backend={backend!r}) can't be followed: tcompile knows 'eager' and"
            " 'tcompile' there.\nWhat to do: give another backend to tcompile.compile(fn, backend=...)"
        )
    if said == "fail_on_recompile":
        raise RuntimeError(
            f"{name} would be compiled for this call, which torch.compiler.set_stance('fail_on_recompile') forbids"
        )
    return backend == "eager" or said in ("force_eager", "eager_on_recompile")
