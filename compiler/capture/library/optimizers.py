"""torch.optim inside of a captured function: `optimizer.zero_grad()` and `optimizer.step()` become part of the graph.

What is interpreted is torch's own `step`, written for single tensors: its arithmetic is eager's, and fusion is the
compiler's business (foreach and fused ask for nothing else). What differs from any other Python function:

* state that eager makes at the first step is made now, by torch's own `_init_group`: the first step and the others are
  one graph;
* `lr` is a 0-dim input of the graph: a schedule changes a number, not the code. It is float64, as the Python number is;
* a step counter is read as a tensor (float64, as arithmetic on the Python number would be), never as a constant.

What is not torch's own, or has hooks, runs as it is: a break.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import lr_scheduler

from ...graph.tensor import TraceTensor
from ...graph.wrappers import is_dtensor, is_wrapper
from ...guards import source as S
from ..numbers import scalars
from ..tensors import tensor_calls
from ..tensors.tensor_subclasses import Subclassed
from ..tensors.wrapper_values import writes_counted
from ..kinds.callables import python_function
from ..numbers.float_node import FloatNode
from ..machine.signals import Break, Skip, StateMade
from ..tensors.gradients import set_grad
from .bodies import no_grad
from .distributed.shards import OF_THE_WHOLE, local_lists
from .training import one_step_at_a_time

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["OWNERS", "OWN_HOOKS", "call_method", "captured_step", "inner_step"]

OWNERS = (torch.optim.Optimizer, lr_scheduler.LRScheduler)
# Branches on a number of its state, or writes through a mask; its form for CUDA graphs (capturable) does neither.
_BY_CAPTURABLE_FORM = (torch.optim.RAdam, torch.optim.ASGD, torch.optim.Rprop)
# Those whose step neither branches on a value of its state nor calls the closure more than once.
_CAPTURED: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.NAdam,
    *_BY_CAPTURABLE_FORM,
    *OF_THE_WHOLE,
)
OWN_HOOKS: set[Any] = set()  # this compiler's hooks of all optimizers: for steps that nobody captures
_STEPS = {c: inspect.unwrap(c.step) for c in _CAPTURED}
_BASE_CLASS = torch.optim.Optimizer
_BASE = sys.modules[torch.optim.Optimizer.__module__]
_NOTHING = "no change is needed: the code before and after it is compiled"


def captured_step(kind: type) -> Any:
    """The step of a class of optimizers that capture knows; None for other classes."""
    return _STEPS.get(kind)


def _as_it_is(opt: Any, name: str, why: str = "", remedy: str = _NOTHING) -> Break:
    return Break(
        "optimizer",
        f"{type(opt).__name__}.{name}() runs as it is, outside of the graph{': ' + why if why else ''}",
        remedy or _NOTHING,
    )


def call_method(machine: Machine, opt: Any, fn: types.MethodType, args: list, kwargs: dict) -> Any:
    """A method of an optimizer or a schedule, called by the program."""
    name, function = fn.__name__, fn.__func__
    if machine.stepping is opt and isinstance(function, types.FunctionType):  # torch's own step calls it
        if name == "_init_group":
            return _init_group(machine, opt, function, args, kwargs)
        return machine.call(function, [opt, *args], kwargs)
    if function in (
        _BASE_CLASS.__dict__.get("_optimizer_step_code"),
        _BASE_CLASS.__dict__.get("_cuda_graph_capture_health_check"),
    ):
        return None  # a place for breakpoints; a check of streams that capture is not on
    if machine.world.is_outside(opt) and machine.opts.training:
        if function is _ZERO_GRAD:
            return zero_grad(machine, opt, *args, **kwargs)
        if type(opt) in _CAPTURED and name == "step" and _is_own_step(opt, function):
            return step(machine, opt, *args, **kwargs)
    raise _as_it_is(opt, name)


def _is_own_step(opt: Any, function: Any) -> bool:
    """Whether `opt.step` is torch's: what the class has, or that behind the counter which a schedule puts before it."""
    if getattr(function, "_wrapped_by_lr_sched", False) and function.__module__ == lr_scheduler.__name__:
        return True
    return inspect.unwrap(function) is _STEPS[type(opt)]


_ZERO_GRAD = torch.optim.Optimizer.zero_grad  # before the program exchanges it


# --- zero_grad
def zero_grad(machine: Machine, opt: Any, set_to_none: Any = True) -> None:
    one_step_at_a_time(machine, "optimizer")
    with _updating(machine):
        parameters = _parameters(machine, opt)
    for param in parameters:
        _reset(machine, param, set_to_none)


@contextmanager
def _updating(machine: Machine) -> Iterator[None]:
    """What is loaded meanwhile is changed, and not differentiated."""
    machine.world.updating = True
    try:
        yield
    finally:
        machine.world.updating = False


def _parameters(machine: Machine, opt: Any) -> list[TraceTensor | Subclassed]:
    found = []
    try:
        for group in machine.iterate(machine.getattr(opt, "param_groups")):
            found += list(machine.iterate(machine.call(dict.get, [group, "params"])))
    except Skip as why:  # a tensor that capture does not know is no reason to give the frame up
        raise _as_it_is(opt, "zero_grad", why.reason) from None
    if any(not isinstance(p, (TraceTensor, Subclassed)) for p in found):
        raise _as_it_is(opt, "zero_grad")
    for p in found:
        if type(p) is Subclassed and id(p) not in machine.world.reals:  # the graph has a plain tensor in its place
            raise _as_it_is(opt, "zero_grad", f"grad of a tensor of class {p.tensor_class.__name__} is set")
    return found


def _reset(machine: Machine, p: TraceTensor | Subclassed, set_to_none: Any) -> None:
    if set_to_none is True:
        set_grad(machine, p, None)  # whatever it was
        return
    grad = machine.getattr(p, "grad")
    if grad is not None and set_to_none:
        set_grad(machine, p, None)
    elif grad is not None:
        if isinstance(grad, Subclassed) or grad.requires_grad:
            raise Break("optimizer", "a gradient with a history is reset", _NOTHING)
        tensor_calls.call_method(machine, grad, "zero_", [], {})


@python_function(("torch.nn.modules.module", "Module.zero_grad"))
def module_zero_grad(machine: Machine, module: Any, set_to_none: Any = True) -> None:
    one_step_at_a_time(machine, "optimizer")
    for p in machine.iterate(machine.call(machine.getattr(module, "parameters"), [])):
        if isinstance(p, TraceTensor) and id(p) in machine.world.reals:
            _reset(machine, p, set_to_none)
        else:
            raise Break("optimizer", "gradients of a module made inside are reset", _NOTHING)


# --- step
def inner_step(optimizer: torch.optim.Optimizer) -> None:
    """In captured code: the step that torch's own wrapper is about to take, whoever has counted it before. As plain
    Python that very step: what timing compares with."""
    with torch.no_grad():
        _STEPS[type(optimizer)](optimizer)


@python_function((inner_step.__module__, inner_step.__qualname__))
def _inner_step(machine: Machine, opt: Any) -> None:
    step(machine, opt, counted=True)


def step(machine: Machine, opt: Any, closure: Any = None, counted: bool = False) -> Any:
    """opt.step(closure); `counted`: a schedule that counts the steps has done so."""
    one_step_at_a_time(machine, "optimizer")
    kind = type(opt)
    if (
        not machine.opts.training
        or kind not in _CAPTURED
        or not machine.world.is_outside(opt)
        or machine.stepping is not None
    ):
        raise _as_it_is(opt, "step")
    _without_hooks(machine, opt)
    if machine.call(dict.get, [machine.getattr(opt, "defaults"), "differentiable"]):
        raise _as_it_is(opt, "step", "it is differentiable")
    if len(machine.graph.scopes) > 1 or not torch._C.is_grad_enabled() and closure is not None:
        raise _as_it_is(opt, "step")
    own = opt.__dict__.get("step")
    if own is not None and not counted:  # a schedule counts the steps
        machine.getattr(opt, "step")
        machine.setattr(opt, "_opt_called", True)
    loss = None
    if closure is not None:
        loss = machine.call(closure, [])
    machine.first_training = machine.root_index if machine.first_training is None else machine.first_training
    machine.passes.stepped = True
    outer, machine.module_path = machine.module_path, "optimizer"  # where the report shows its nodes
    try:
        _varying_rates(machine, opt)
        machine.stepping = opt
        machine.placed.clear()  # they are stepped by the graph
        with no_grad(machine), _updating(machine):
            machine.call(_STEPS[kind], [opt], {})
            if (versions := writes_counted(machine, machine.world.changed.values())) is not None:
                machine.effects.call(versions.target, versions.args, {})
            machine.world.changed.clear()
    except (Break, Skip) as why:
        raise _as_it_is(opt, "step", why.reason or "item", getattr(why, "remedy", "")) from None
    finally:
        machine.stepping = None
        machine.module_path = outer
    return loss


def _without_hooks(machine: Machine, opt: Any) -> None:
    hooks = [machine.getattr(opt, name) for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")]
    module = machine.world.anchor(_BASE)
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        hooks.append(machine.world.load(getattr(_BASE, name), S.attr(module, name), "hooks of all optimizers"))
    if any(hook not in OWN_HOOKS for h in hooks for hook in machine.plain(h).values()):
        raise _as_it_is(opt, "step", "it has hooks")


@python_function(*((f.__module__, f.__qualname__) for f in _STEPS.values()), wants_function=True)
def _class_step(machine: Machine, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """The class's step by itself, or what torch wraps around it: where a frame starts there, `Adam.step(opt)` is
    called, or a schedule has put a counter into the optimizer itself."""
    if getattr(fn, "_wrapped_by_lr_sched", False):
        args = (_counted(machine, fn), *args)
    return _step_of(machine, fn, *args, **kwargs)


def _counted(machine: Machine, fn: Any) -> Any:
    """The optimizer whose steps a schedule's wrapper counts: the one that the wrapper was read from."""
    names, cells = fn.__code__.co_freevars, fn.__closure__ or ()
    opt = cells[names.index("opt_ref")].cell_contents() if "opt_ref" in names else None
    if opt is None or machine.world.source_of(opt) is None or opt.__dict__.get("step") is not fn:
        raise Break("optimizer", "the step of an optimizer that a schedule counts runs as it is", _NOTHING)
    return opt


def _step_of(machine: Machine, fn: Any, opt: Any = None, closure: Any = None) -> Any:
    if machine.stepping is opt and fn is _STEPS.get(type(opt)):
        return machine.call_python(fn, [opt], {})
    if not isinstance(opt, torch.optim.Optimizer) or inspect.unwrap(fn) is not _STEPS.get(type(opt)):
        raise Break("optimizer")
    return step(machine, opt, closure)


def _init_group(machine: Machine, opt: Any, function: types.FunctionType, args: list, kwargs: dict) -> Any:
    """Interpret it, once torch itself has made the state that the parameters with gradients have at a first step."""
    # stock keeps its own capture out, once it has been used
    function = function.__dict__.get("_torchdynamo_orig_callable", function)
    group = args[0]
    missing = []
    for p in machine.iterate(machine.call(dict.get, [group, "params"])):
        if isinstance(p, (TraceTensor, Subclassed)) and machine.getattr(p, "grad") is not None:
            real = machine.world.reals[id(p)]
            if not opt.state.get(real) and id(opt.state) not in machine.world.shadows:
                missing.append(real)
    if missing:
        _make_state(opt, group, missing, inspect.signature(function))
        if machine.opts.entries_exist and any(opt.state.get(p) for p in missing):
            # (SGD with dampening makes none before its first step)
            raise StateMade  # they may serve this call now
    return machine.call(function, [opt, *args], kwargs)


def _make_state(opt: Any, group: dict, parameters: list, signature: inspect.Signature) -> None:
    """Call the real _init_group for these parameters alone, with gradients that have a shape and no content."""
    before = [p.grad for p in parameters]
    lists: list[list] = [[] for _ in list(signature.parameters)[2:]]
    with torch.no_grad(), torch._C.DisableTorchFunction():
        try:
            for param in parameters:
                zero = torch.zeros((), dtype=param.dtype, device=param.device)
                param.grad = param.detach() if is_wrapper(param) else zero.expand(param.shape)
            opt._init_group({**group, "params": parameters}, *lists)
        finally:
            for param, grad in zip(parameters, before):
                param.grad = grad
        if type(opt) is torch.optim.SGD and group["momentum"] and not group["dampening"]:
            for param in parameters:  # the first step copies the gradient: momentum * 0 + gradient
                opt.state[param]["momentum_buffer"] = torch.zeros_like(param)


@python_function(("torch.optim.optimizer", "_get_value"))
def get_value(machine: Machine, x: Any) -> Any:
    """The Python number in a state tensor: kept a tensor, of the precision that the number would have."""
    if isinstance(x, TraceTensor):
        return tensor_calls.call_method(machine, x, "to", [torch.float64], {}) if x.dtype.is_floating_point else x
    return x


@python_function(("torch.optim.optimizer", "_default_to_fused_or_foreach"))
def one_by_one(machine: Machine, *args: Any, **kwargs: Any) -> tuple[bool, bool]:
    return False, False


# --- what the functions that do the arithmetic are given
def _functional(machine: Machine, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """torch.optim.adam.adam(...) and its like: tensor by tensor, with numbers that change as tensors."""
    if machine.stepping is None:
        raise Break("optimizer", f"{fn.__name__}() runs as it is, outside of the graph", _NOTHING)
    args = local_lists(machine, args)
    params = [_plain(p) for p in args[0]]
    devices = {t.device for ts in args if type(ts) is list for t in map(_plain, ts) if isinstance(t, TraceTensor)}
    if len(devices) > 1:
        remedy = (
            "make the optimizer with capturable=True: its counters are on the GPU then, and its step is in the graph"
        )
        raise Break("optimizer", "its state is on more than one device", remedy)
    if any(param.dtype not in (torch.float32, torch.float64) for param in params):
        raise Break("optimizer", "parameters of half precision or complex ones are updated", _NOTHING)
    wrapped = any(type(p) is Subclassed for p in args[0])  # (its class takes numbers for numbers, and no tensors)
    if wrapped and any(kwargs.get(k) for k in ("foreach", "fused")):
        raise Break("optimizer", "operators on lists of wrappers do what their class says", _NOTHING)
    kwargs.update({k: False for k in ("foreach", "fused") if k in kwargs})
    names = list(inspect.signature(inspect.unwrap(fn)).parameters)
    args = tuple(
        [
            _with_dimensions(machine, ts, params) if type(ts) is list and name not in _NUMBERS else ts
            for name, ts in zip(names, args)
        ]
    )
    if type(machine.stepping) in _BY_CAPTURABLE_FORM or wrapped and "capturable" in names:
        kwargs["capturable"] = True
        at = names.index("state_steps")
        args = (*args[:at], [_counted_up(machine, t) for t in args[at]], *args[at + 1 :])
    for name in ("lr", "beta1", "beta2"):
        value = kwargs.get(name)
        if type(value) is torch.SymFloat and isinstance(value.node, FloatNode) and params:
            kwargs[name] = scalars.scalar_input(machine, value.node, torch.float64, params[0].device)
    return machine.call_python(inspect.unwrap(fn), list(args), kwargs)


# state of each parameter that is one number, whatever the parameter's shape
_NUMBERS = frozenset(("state_steps", "mu_products", "mus", "etas"))


def _plain(t: Any) -> Any:
    return t.plain if type(t) is Subclassed else t


def _with_dimensions(machine: Machine, tensors: list, params: list) -> list:
    """Parameters without dimensions, and what belongs to them, as views of one element: the numbers that are tensors
    here are of float64, and beside tensors without dimensions these would no longer count as numbers."""
    if all(param.dim() for param in params):
        return tensors
    if any(type(tensor) is Subclassed and not param.dim() for tensor, param in zip(tensors, params)):
        raise Break("optimizer", "a tensor of a wrapper class without dimensions is updated", _NOTHING)
    if any(tensor is None for tensor in tensors):
        raise Break("optimizer", "the first step of a parameter without dimensions makes its state", _NOTHING)
    return [
        tensor if param.dim() else tensor_calls.call_method(machine, tensor, "view", [1], {})
        for tensor, param in zip(tensors, params)
    ]


def _counted_up(machine: Machine, step_t: TraceTensor) -> TraceTensor:
    """A step counter that was counted up, and for the function, which does that itself, a copy of before in the
    precision of a Python number.
    """
    tensor_calls.call_method(machine, step_t, "add_", [1], {})
    return tensor_calls.call_method(
        machine, tensor_calls.call_method(machine, step_t, "to", [torch.float64], {}), "sub", [1], {}
    )


def _varying_rates(machine: Machine, opt: Any) -> None:
    """A schedule changes `lr`: it is an input of the graph from the start, unless the program has looked at it
    already.
    """
    for group in machine.iterate(machine.getattr(opt, "param_groups")):
        source = machine.world.source_of(group)
        if any(is_wrapper(p) and not is_dtensor(type(p)) for p in group["params"]):
            continue  # (the class's code takes numbers)
        if source is not None and type(group.get("lr")) is float:
            where = S.dict_value(source, "lr")
            if where not in machine.world.loaded:
                machine.world.float_sources[where] = group["lr"]
                machine.world.loaded[where] = scalars.float_symbol(machine, group["lr"], where)


for _class in _CAPTURED:
    _name = _class.step.__module__.rpartition(".")[2].removeprefix("_")
    python_function((_class.step.__module__, _name), wants_function=True)(_functional)
