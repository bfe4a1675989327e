"""Custom torch.autograd.Functions: forward and backward are both captured.

Where no gradient is asked for, forward is captured as any code, with grad mode off as eager has it. Else it becomes one
AutogradFunctionCall: forward's body runs in the graph, and backward's, captured now on gradients of the results'
shapes, when gradients come.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import TYPE_CHECKING, Any, Iterable

import torch
from torch.autograd.function import Function, FunctionCtx, once_differentiable

from ...graph.higher_order import AutogradFunctionCall
from ...graph.torch_modes import autocast_off
from ..tensors import tensor_calls
from ..tensors.tensor_subclasses import Subclassed
from .distributed.placed_tensors import apply_of_library, runs_as_it_is
from .bodies import Purity, add_parameter, as_module, close_body, grad_mode, no_grad, open_body, record_call, stand_in
from ..kinds.callables import class_method, python_function
from ..kinds.inline_policy import is_trusted_module
from ..machine.signals import Break, Raised
from .torch_marks import is_allowed_in_graph
from ...graph.tensor import TraceTensor
from ..kinds.parameters import bind

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["apply_function", "own_results"]


class CapturedContext(FunctionCtx):
    """The `ctx` that forward and backward get while they are captured: what they put on it are plain attributes."""

    def __init__(self) -> None:
        self.needs_input_grad: tuple = ()
        self.materialize_grads = True
        self.to_save: tuple = ()
        self.saved_tensors: tuple = ()
        self.output_grad_dtypes: tuple | None = None  # torch 2.14's set_output_grad_dtype


_is_default_setup = Function.setup_context


@class_method(Function, "apply")  # from torch 2.14 on `apply` is native
@python_function(("torch.autograd.function", "Function.apply"))
def apply_function(machine: Machine, cls: type, *args: Any, **kwargs: Any) -> Any:
    """cls.apply(*args)."""
    if not (isinstance(cls, type) and issubclass(cls, Function)):
        raise Raised(TypeError("apply() is called on a subclass of torch.autograd.Function"))
    if kwargs and not _takes_keywords():
        raise Break(
            "autograd_function", "a custom autograd function is applied with keywords", "pass its arguments by position"
        )
    if _has_setup(cls):
        args = _with_defaults(machine, machine.getattr(cls, "forward"), args, kwargs)
    elif kwargs:
        forward = machine.getattr(cls, "forward")
        code = forward.__code__
        names = code.co_varnames[: code.co_argcount][len(args) + 1 :]
        if set(names[: len(kwargs)]) != set(kwargs):
            raise Break(
                "autograd_function",
                "a custom autograd function is applied with keywords",
                "pass its arguments by position",
            )
        args = (*args, *(kwargs[name] for name in names[: len(kwargs)]))
    args = tuple(machine.deep_plain(arg) for arg in args)
    if runs_as_it_is(cls):
        return apply_of_library(machine, cls, args)
    if is_allowed_in_graph(cls):
        code = cls.forward.__code__
        if code in machine.opaque:
            machine.world.guard(
                machine.world.source_of(cls) or machine.world.anchor(cls), "ID", cls, "Function allowed in graphs"
            )
            return tensor_calls.call_function(machine, _applied(cls), list(args), {})
        machine.allowed.add(code)
    if torch._C._are_functorch_transforms_active():
        raise Break("autograd_function", "a custom autograd function is applied inside a transform of torch.func")
    if machine.dual_level is not None and tensor_calls.holds_tensor(args):
        raise Break(
            "autograd_function", "a custom autograd function, which may have a jvp(), is given forward gradients"
        )
    needs = tuple(isinstance(arg, TraceTensor) and arg.requires_grad for arg in args)
    if torch._C.is_grad_enabled():
        _refuse_classes(arg for arg in args if isinstance(arg, Subclassed) and _inside(arg).requires_grad)
    if not (torch._C.is_grad_enabled() and any(needs)):
        return _without_gradient(machine, cls, args, needs)
    return _with_gradient(machine, cls, args, needs)


def _inside(subclassed: Subclassed) -> TraceTensor:
    return subclassed.plain if subclassed.nested is None else subclassed.nested._values


def _refuse_classes(found: Iterable[Any]) -> None:
    """Tensors of the program's classes that a gradient goes through: a body's graph has plain tensors."""
    for value in found:
        kind = value.tensor_class.__name__
        raise Break("autograd_function", f"a custom autograd function is differentiated at a tensor of class {kind}")


def _applied(cls: type) -> Any:
    """cls.apply as a function of the class's module, by which a graph prints it."""

    def apply(*args: Any) -> Any:
        return cls.apply(*args)  # type: ignore[attr-defined]

    apply.__name__, apply.__module__ = f"{cls.__name__}_apply", cls.__module__
    return apply


@functools.cache
def _takes_keywords() -> bool:
    """Whether this torch passes keywords on to forward; older ones refuse them."""
    try:
        _Kept.apply(value=None)
    except TypeError:
        return False
    return True


class _Kept(Function):
    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        return value


def _with_defaults(machine: Machine, forward: Any, args: tuple, kwargs: dict) -> tuple:
    """The arguments in forward's order, its defaults among them: a setup_context is given all of them."""
    code = forward.__code__ if isinstance(forward, types.FunctionType) else None
    if code is None or code.co_kwonlyargcount or code.co_flags & inspect.CO_VARKEYWORDS:
        raise Break(
            "autograd_function", "a custom autograd function's forward takes keywords", "take its arguments by position"
        )
    slots = bind(machine, forward, list(args), kwargs)
    return (*(slots[i] for i in range(code.co_argcount)), *slots.get(code.co_argcount, ()))


def _has_setup(cls: type) -> bool:
    return cls.setup_context is not _is_default_setup


def _run_forward(machine: Machine, cls: type, ctx: CapturedContext, args: tuple) -> Any:
    forward = machine.getattr(cls, "forward")
    if not _has_setup(cls):
        return machine.call(forward, [ctx, *args])
    result = machine.call(forward, list(args))
    machine.call(machine.getattr(cls, "setup_context"), [ctx, tuple(args), result])
    return result


def _context(machine: Machine, needs: tuple) -> CapturedContext:
    ctx = machine.world.create(CapturedContext())
    ctx.needs_input_grad = needs
    return ctx


def _without_gradient(machine: Machine, cls: type, args: tuple, needs: tuple) -> Any:
    with no_grad(machine):
        result = _run_forward(machine, cls, ctx := _context(machine, needs), args)
        _count_marks(machine, getattr(ctx, "dirty_tensors", ()), result)
    return own_results(machine, result, args, getattr(ctx, "dirty_tensors", ()))


def _count_marks(machine: Machine, dirty: tuple, result: Any) -> None:
    """Each mark of mark_dirty counts as a change of that tensor."""
    for i, tensor in enumerate(dirty):
        if not isinstance(tensor, TraceTensor):
            kind = type(tensor).__name__
            message = f"mark_dirty can only accept variables, but argument {i} is of type {kind}"
            raise Raised(RuntimeError(message))
        if not tensor.is_inference():
            tensor_calls.call_method(machine, tensor, "copy_", [tensor], {})
    if not {id(t) for t in dirty} <= set(map(id, result if type(result) is tuple else (result,))):
        raise Raised(
            RuntimeError(
                "Some elements marked as dirty during the forward method were not returned as output. The inputs that"
                " are modified inplace must all be outputs of the Function."
            )
        )


def own_results(machine: Machine, result: Any, args: tuple, dirty: Iterable[TraceTensor] = ()) -> Any:
    """What apply gives for what forward gave: an argument that comes back is a tensor of its own."""
    dirty = {id(t) for t in dirty}
    given = {id(arg) for arg in args}

    def fresh(value: Any) -> Any:
        if (
            not isinstance(value, TraceTensor)
            or id(value) not in given
            or id(value) in dirty
            and not value.requires_grad
        ):
            return value
        alone = tensor_calls.call_method(machine, value, "detach", [], {})
        return alone if id(value) in dirty else tensor_calls.call_method(machine, alone, "view_as", [value], {})

    return tuple(fresh(v) for v in result) if type(result) is tuple else fresh(result)


def _with_gradient(machine: Machine, cls: type, args: tuple, needs: tuple) -> Any:
    graph = machine.graph
    ctx = _context(machine, needs)
    tensors = [arg for arg in args if isinstance(arg, TraceTensor)]
    outer = [graph.arg(tensor) for tensor in tensors]
    counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
    versions = tuple(tensor._version for tensor in counted)
    with open_body(machine) as forward:
        for i, tensor in enumerate(tensors):
            add_parameter(machine, forward, tensor, f"arg{i}")
        with grad_mode(False):
            result = _run_forward(machine, cls, ctx, args)
            results = list(result) if isinstance(result, tuple) else [result]
            made = [result for result in results if isinstance(result, TraceTensor)]
            _refuse_classes(result for result in results if isinstance(result, Subclassed))
            if not made:
                raise Break("autograd_function", "a custom autograd function returns no tensor")
            if len({id(r) for r in made}) != len(made):
                raise Break("autograd_function", "a custom autograd function returns the same tensor twice")
            produced = [graph.arg(r) for r in made]
            backward, has_grad, once = _backward(machine, cls, ctx, args, results, made)
        kept = list(backward.lifted)
        forward.graph.output((*produced, *kept))
    inputs = list(forward.lifted)
    position = {id(t): i for i, t in reversed(list(enumerate(made)))}
    dirty = [next(i for i, tensor in enumerate(tensors) if tensor is d) for d in getattr(ctx, "dirty_tensors", ())]
    call = AutogradFunctionCall(
        name=f"autograd_function_{cls.__name__}",
        forward=as_module(forward, f"{cls.__name__}_forward"),
        backward=backward.graph_module,
        n_results=len(made),
        has_grad=[*has_grad, *[False] * len(inputs)],
        non_differentiable=[position[id(t)] for t in getattr(ctx, "non_differentiable", ()) if id(t) in position],
        dirty=dirty,
        once=once,
        refusal=backward.refusal,
    )
    del outer
    for i in dirty:
        graph.writes_to(tensors[i])
    torch._C._autograd._unsafe_set_version_counter(counted, versions)  # (the body is run once more, on these tensors)
    out = iter(record_call(machine, call, tensors, inputs))
    final = [next(out) if isinstance(result, TraceTensor) else result for result in results]
    for old, new in zip(results, final):
        _redirect(ctx, old, new)
    return tuple(final) if isinstance(result, tuple) else final[0]


def _redirect(ctx: Any, old: Any, new: Any) -> None:
    """What user code kept on ctx is the result as the caller has it."""
    for name, value in list(ctx.__dict__.items()):
        if value is old and old is not new:
            ctx.__dict__[name] = new


class _Backward:
    """The captured backward: its graph, the nodes of forward's body that it needs, and what autograd says of its result
    where that is wrong.
    """

    def __init__(self, graph_module: torch.fx.GraphModule, lifted: list[torch.fx.Node], refusal: str):
        self.graph_module, self.lifted, self.refusal = graph_module, lifted, refusal


def _gradient_dtypes(ctx: CapturedContext, results: list, made: list[TraceTensor]) -> list[torch.dtype]:
    """In which dtype backward is given the gradient of each result."""
    asked = ctx.output_grad_dtypes
    if asked is None:
        return [r.dtype for r in made]
    plain = {id(t) for t in getattr(ctx, "non_differentiable", ())}
    if len(asked) != len(results) or any(
        (d is None) is (isinstance(result, TraceTensor) and id(result) not in plain)
        for d, result in zip(asked, results)
    ):
        raise Break(
            "autograd_function",
            "a custom autograd function does not name the dtype of a gradient",
            "name the dtype in set_output_grad_dtype",
        )
    return [d or result.dtype for d, result in zip(asked, results) if isinstance(result, TraceTensor)]


def _backward(
    machine: Machine, cls: type, ctx: CapturedContext, args: tuple, results: list, made: list[TraceTensor]
) -> tuple[_Backward, list[bool], bool]:
    """Interpret backward on gradients of the results; forward's body is still open, so that what it kept is found
    there.
    """
    for name in ("to_save", "saved_for_forward"):
        if any(not isinstance(t, TraceTensor) and t is not None for t in getattr(ctx, name, ())):
            raise Raised(TypeError("save_for_backward can only save variables"))
    if not ctx.materialize_grads and len(made) > 1:
        raise Break(
            "autograd_function",
            "a custom autograd function with several results asks for gradients that may be None",
            "leave set_materialize_grads at True",
        )
    ctx.saved_tensors = tuple(ctx.to_save)
    fn = (
        machine.getattr(cls, "backward")
        if "backward" in _names(cls)
        else machine.getattr(cls, "vjp")
        if "vjp" in _names(cls)
        else None
    )
    if fn is None:
        raise Break("autograd_function", f"{cls.__name__} has no backward")
    once = isinstance(fn, types.FunctionType) and fn.__code__ in once_differentiable.__code__.co_consts
    pure = Purity(machine, f"the backward of {cls.__name__}", *ctx.__dict__.values(), *args)
    dtypes = _gradient_dtypes(ctx, results, made)
    with open_body(machine) as scope:
        grads, given = [], []
        for i, r in enumerate(made):
            g = stand_in(machine, r, requires_grad=False)
            add_parameter(machine, scope, g, f"grad{i}")
            given.append(g)
            grads.append(g if dtypes[i] is g.dtype else tensor_calls.call_method(machine, g, "to", [dtypes[i]], {}))
        outer, machine.backward_of = (
            machine.backward_of,
            "" if is_trusted_module(cls.__module__ or "") else cls.__name__,
        )
        with autocast_off():  # (backward is called outside of the region that forward was called in)
            got = machine.call(fn, [ctx, *grads])
        machine.backward_of = outer
        got = list(machine.deep_plain(got)) if isinstance(got, (tuple, list)) else [got]
        if any(id(g.tt_storage) in machine.graph.written for g in given):
            raise Break(
                "autograd_function",
                f"the backward of {cls.__name__} writes to the gradient that it is given",
                "let it write to a copy (g = g.clone()): torch may give the same tensor to others",
            )
        pure.check(owned=True)
        if len(got) > len(args) and all(g is None for g in got[len(args) :]):
            del got[len(args) :]
        refusal = ""
        if len(got) != len(args):
            refusal = (
                f"function {cls.__name__}Backward returned an incorrect number of gradients (expected {len(args)}, got"
                f" {len(got)})"
            )
            got = [None] * len(args)
        for arg, g in zip(args, got):
            if g is not None and not isinstance(g, TraceTensor) or g is not None and not isinstance(arg, TraceTensor):
                raise Break(
                    "autograd_function", f"the backward of {cls.__name__} returns a {type(g).__name__} as gradient"
                )
        wanted = [g for arg, g in zip(args, got) if isinstance(arg, TraceTensor)]
        module = close_body(machine, scope, [g for g in wanted if g is not None], f"{cls.__name__}_backward")
    return _Backward(module, list(scope.lifted), refusal), [g is not None for g in wanted], once


def _names(cls: type) -> set[str]:
    return {name for base in cls.__mro__ if base.__module__ != "torch.autograd.function" for name in base.__dict__}
