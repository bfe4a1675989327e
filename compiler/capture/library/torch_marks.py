"""What user code tells a compiler through torch: torch.compiler.*, torch._dynamo.*, and functions that torch.compile
made.

These marks mean to capture what they mean to stock. Functions are known by their module and name: torch._dynamo is
never imported here.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from ...base import break_errors
from ..kinds.callables import python_function
from ..machine.signals import Break
from ...graph.tensor import TraceTensor
from .context_managers import NoContext

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["is_allowed_in_graph", "is_stock_compiled", "made_by_stock", "marked_call"]

_DECORATORS = "torch._dynamo.decorators"


def is_stock_compiled(fn: Any) -> bool:
    """Whether torch.compile made this function (or a module's forward): it runs as stock compiled it."""
    return made_by_stock(fn) and not fn.__dict__.get("_torchdynamo_disable")


def made_by_stock(fn: Any) -> bool:
    """Whether torch.compile or torch.compiler.disable made this function. All that one of them makes share one code
    object, so that nothing is decided about that code for good."""
    d = getattr(fn, "__dict__", None)
    return bool(d) and "_torchdynamo_orig_callable" in d


def is_allowed_in_graph(fn: Any) -> bool:
    """Whether torch.compiler.allow_in_graph marked this callable. Functions are looked into anyway; one that capture
    cannot follow, and an object that is called, is a call in the graph, as the program asked for."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    return rules is not None and id(fn) in rules._allowed_callable_ids


def marked_call(machine: Machine, fn: types.FunctionType, args: list, kwargs: dict) -> Any:
    """A call of a function that carries a mark of torch's, or NotImplemented where it carries none that matters."""
    marks = fn.__dict__
    if is_stock_compiled(fn):
        raise Break(
            "disabled",
            f"{fn.__qualname__} is compiled by torch.compile already, and runs as that compiled it",
            "call the plain function here, or compile it by one of the two",
        )
    if marks.get("_dynamo_marked_constant"):
        machine.world.guard(
            machine.world.source_of(fn) or machine.world.anchor(fn), "CODE", fn.__code__, "constant result"
        )
        return _constant(
            machine,
            machine.native(
                fn,
                *[_as_given(machine, arg) for arg in args],
                **{name: _as_given(machine, value) for name, value in kwargs.items()},
            ),
        )
    return NotImplemented


def _as_given(machine: Machine, value: Any) -> Any:
    """An argument of a function whose result is taken to be constant: tensors from outside as they are in this call."""
    value = machine.deep_plain(value)
    if isinstance(value, TraceTensor):
        real = machine.world.reals.get(id(value))
        if real is None or id(value.tt_storage) in machine.graph.written:
            raise Break(
                "unsupported",
                "a function marked assume_constant_result is given a tensor that the graph computes",
                "give it what is known before the compiled region",
            )
        return real
    if type(value) in (list, tuple):
        return type(value)(_as_given(machine, item) for item in value)
    return {key: _as_given(machine, item) for key, item in value.items()} if type(value) is dict else value


def _constant(machine: Machine, value: Any) -> Any:
    """The result of a function marked torch.compiler.assume_constant_result: computed once, kept by the entry."""

    if isinstance(value, torch.Tensor):
        return machine.world.load_tensor(value, machine.world.anchor(value))
    if not machine.is_atom(value):
        machine.world.anchor(value)
    return value


@python_function((_DECORATORS, "graph_break"), (_DECORATORS, "skip_frame"), (_DECORATORS, "step_unsupported"))
def graph_break(machine: Machine, msg: str = "", *args: Any, **kwargs: Any) -> Any:
    raise Break(
        "disabled",
        f"torch._dynamo.graph_break() asks for a break{': ' + msg if isinstance(msg, str) and msg else ''}",
        "remove the call of graph_break()",
    )


@python_function((break_errors.__name__, "are_errors"), (break_errors.STOCK, "_get_error_on_graph_break"))
def are_errors_(machine: Machine) -> bool:
    """Whether graph breaks are errors here. error_on_graph_break, this package's and stock's, is Python over this and
    set_errors_: capture follows the switch without touching it. What held where the frame began is put back later, and
    so relied on."""
    machine.world.state("break_errors", break_errors.are_errors())
    return machine.break_errors


@python_function((break_errors.__name__, "set_errors"), (break_errors.STOCK, "_set_error_on_graph_break"))
def set_errors_(machine: Machine, value: Any) -> None:
    """The entry sets the switch where the program leaves it changed: a break may lie inside of such a block."""
    machine.break_errors = machine.truth(value)


@python_function(
    (_DECORATORS, "allow_in_graph"),
    (_DECORATORS, "nonstrict_trace"),
    ("torch.compiler", "allow_in_graph"),
    ("torch.compiler", "nested_compile_region"),
)
def transparent_mark(machine: Machine, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """Marks that let stock look into less, or compile a part once: capture looks into the function anyway."""
    return fn


@python_function(
    (_DECORATORS, "mark_dynamic"),
    (_DECORATORS, "maybe_mark_dynamic"),
    (_DECORATORS, "mark_static"),
    (_DECORATORS, "mark_unbacked"),
    (_DECORATORS, "mark_static_address"),
    ("torch.compiler", "cudagraph_mark_step_begin"),
)
def advice(machine: Machine, value: Any = None, *args: Any, **kwargs: Any) -> None:
    """Advice on sizes and addresses: about a tensor made inside it says nothing that capture does not see."""
    if value is not None and not (isinstance(value, TraceTensor) and id(value) not in machine.world.reals):
        raise Break("tensor_attribute", "a tensor from outside is marked", "mark it before the call")


@python_function(("torch", "compile"))
def compile_(machine: Machine, model: Any = None, **kwargs: Any) -> Any:
    """torch.compile(f) inside: f, which is captured where it is called. Modules and decorators with arguments run as
    they are.
    """
    if not isinstance(model, (types.FunctionType, types.MethodType)):
        raise Break("disabled", "torch.compile is called", "call torch.compile before the compiled region")
    return model


@python_function(("torch.fx.traceback", "annotate"))
def annotate_(machine: Machine, *args: Any, **kwargs: Any) -> Any:
    """with torch.fx.traceback.annotate(...): notes for stock's graphs."""
    return machine.world.create(NoContext())
