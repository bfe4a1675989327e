"""Hooks on tensors: `t.register_hook(hook)`, `t.retain_grad()`, full backward hooks of modules.

A hook is called when a backward pass has the gradient of its tensor. There are three ways to capture one; the first
that holds is taken, and capture begins again with the next one where it turns out not to hold (`Otherwise`):

FIXED    it only computes, from the gradient and from what it was made with. It is part of the graph (HookCall), and of
         every backward pass through it, whoever starts that.
READING  as before, but it reads the world. The passes through it must be inside of this capture.
LATE     it does something else, and returns nothing. The passes through it are inside of this capture: each one gives
         the gradient of the tensor as a result of its own, and the hook is interpreted after it.
NATIVE   none of them: the graph ends there.

Hooks that leaves have when the function is called are read where the pass accumulates gradients (training.py).
"""

from __future__ import annotations

import dis
import os
import types
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Sequence

import torch
import torch.fx
from torch.fx.node import map_arg
from torch.utils.hooks import RemovableHandle

from ...base.fx_nodes import is_input
from ...graph.higher_order import HookCall
from ...graph.history import history, node_of
from ...graph.tensor import TraceTensor
from ...graph.torch_modes import autocast_off
from ...guards import source as S
from ...guards.wrapper_check import accumulation_hooks, tensor_hooks
from ..kinds.callables import python_function
from ..kinds.modules import NthHook
from ..kinds.parameters import interpret
from ..machine.signals import Break, Otherwise, Raised
from . import tensor_calls
from .gradients import set_grad
from .tensor_subclasses import PLAIN_TENSORS
from ..library.backward_reads import A_HOOK
from ..library.bodies import (
    Purity,
    add_parameter,
    close_body,
    grad_mode,
    held_by,
    no_grad,
    open_body,
    record_call,
    stand_in,
)

if TYPE_CHECKING:
    from ..machine.frame import Frame
    from ..machine.machine import Machine

__all__ = ["NATIVE", "Hook", "Hooks", "call_after_accumulation", "changed_by_hooks", "hooks_of_leaf", "shows_nodes"]

FIXED, READING, LATE, NATIVE = range(4)
_REMEDY = "register it outside of the compiled region, or let the function call backward() itself"


@dataclass
class Hook:
    """One that was put on a tensor of the graph.

    key    where in the program it was put there
    run    called with the gradient, after the pass; None of one that is part of the graph
    form   of the latter: what it computes, as it was captured when it was put there
    held   what it can reach held then
    """

    function: Any
    tensor: TraceTensor
    way: int
    key: tuple
    run: Callable[[TraceTensor], None] | None = None
    form: Any = None
    held: Any = None

    def reads(self) -> set[int]:
        """The memory that it reads when it is called, whatever was written there by then."""
        values = [node.meta["val"] for node in self.form[1]] if self.form is not None else []
        return {id(value.tt_storage) for value in values if isinstance(value, TraceTensor)}


class CapturedHandle(RemovableHandle):
    """What register_hook gives, while it is captured. One that leaves the captured part ends the graph."""

    def __init__(self, hook: Hook):
        self.hook = hook


class Hooks:
    """The hooks that the program put on tensors of the graph, in order."""

    def __init__(self) -> None:
        self.found: list[Hook] = []
        self.count = 0

    def of_pass(self, machine: Machine, roots: Sequence[TraceTensor]) -> list[Hook]:
        """Those that are interpreted after a pass from `roots`."""
        if not self.found:
            return []
        nodes = history(*[root for root in roots if root.requires_grad])
        self.verify(machine)
        return [hook for hook in self.found if hook.way == LATE and node_of(hook.tensor) in nodes]

    def verify(self, machine: Machine) -> None:
        """Those that are part of the graph must still compute what they did when they were put there: asked before and
        after each pass, as hooks that are interpreted may change what others read."""
        for hook in [hook for hook in self.found if hook.way != LATE]:
            if _body(machine, hook, "").form != hook.form:
                raise _next(hook)

    def check(self, machine: Machine, outputs: Sequence[Any]) -> None:
        """What leaves the captured part has no hook in its history that relies on passes inside, on what the program
        changed since, or on memory that others may write before the pass. Nor has it one itself: others that are put
        there later come after that."""
        if not self.found:
            return
        left = [
            output
            for output in outputs
            if isinstance(output, TraceTensor) and output.requires_grad and not machine.passes.has_freed(output)
        ]
        nodes, given = history(*left) if left else (), {node_of(t) for t in left}
        seen = {id(t.tt_storage) for t in (*outputs, *machine.world.tensors.values()) if isinstance(t, TraceTensor)}
        for hook in self.found:
            if node_of(hook.tensor) in nodes and (
                hook.way != FIXED
                or node_of(hook.tensor) in given
                or held_by(hook.function) != hook.held
                or seen & hook.reads()
            ):
                raise Otherwise(hook.key, NATIVE)

    def give_up(self, value: Any) -> None:
        """`value` can't leave the captured part: a hook's handle, or a tensor whose gradient is kept."""
        hook = (
            value.hook
            if type(value) is CapturedHandle
            else next((hook for hook in self.found if hook.tensor is value), None)
        )
        if hook is not None:
            raise Otherwise(hook.key, NATIVE)


def shows_nodes(frames: Sequence[Frame], outputs: Sequence[Any], hooked: bool) -> bool:
    """Whether the program may see, behind a break, which autograd nodes computed the results so far. It looks at nodes,
    or puts a hook on a result from which another one was computed: there it hears the gradients of both. hooked: the
    break is where a hook is put."""
    results = [
        output
        for output in outputs
        if isinstance(output, TraceTensor) and output.requires_grad and node_of(output) is not None
    ]
    used = {n for result in results for n in history(result) if n is not node_of(result)}
    methods = [v.__self__ for v in frames[-1].stack if type(v) in (types.MethodType, types.BuiltinMethodType)]
    if hooked and any(type(method) is TraceTensor and node_of(method) in used for method in methods):
        # `t.register_hook` comes next
        return True
    own = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
    named = [frame.code for frame in frames if not frame.file.startswith(own)]
    if any("grad_fn" in code.co_names for code in named):
        return True
    entangled = any(node_of(result) in used for result in results)
    places = [
        i for code in named if entangled and not _PUTS.isdisjoint(code.co_names) for i in dis.get_instructions(code)
    ]
    return sum(place.argval in _PUTS for place in places if type(place.argval) is str) > hooked


_PUTS = frozenset(("register_hook", "retain_grad"))


# --- register_hook
def _register_hook(machine: Machine, tensor: TraceTensor, function: Any) -> Any:
    """t.register_hook(function)"""
    key, way = _begin(machine, tensor)
    hook = Hook(function, tensor, way, key, held=held_by(function))
    if way == LATE:
        return _handle(machine, _late(machine, hook))
    body = _body(machine, hook, A_HOOK if way == FIXED else "")
    hook.form = body.form
    if body.graph is not None:
        if any(hook.tensor is tensor and hook.way == LATE for hook in machine.hooks.found):
            raise Otherwise(key, NATIVE)  # (a late one is given the gradient after all others)
        record_call(machine, HookCall("tensor_hook", body.graph), [tensor], body.lifted)
    machine.hooks.found.append(hook)
    machine.graph.keep.append(tensor)
    return _handle(machine, hook)


def _begin(machine: Machine, tensor: TraceTensor) -> tuple[tuple, int]:
    """Where in the program the hook is put on `tensor`, and the way to take."""
    if not tensor.requires_grad:
        raise Raised(RuntimeError("cannot register a hook on a tensor that doesn't require gradient"))
    machine.hooks.count += 1
    key = ("hook", machine.hooks.count, *((frame.code, frame.pc) for frame in machine.frames))
    way = machine.ways.get(key, FIXED)
    if (
        way == NATIVE
        or tensor.is_leaf
        or id(tensor) in machine.world.reals
        or len(machine.graph.scopes) > 1
        or not machine.opts.training
    ):
        raise Break("tensor_hook", "a hook is put on a tensor", _REMEDY)
    if torch._C._are_functorch_transforms_active():
        raise Break("tensor_hook", "a hook is put on a tensor inside a transform of torch.func")
    return key, way


@dataclass
class _Body:
    """What a hook computes: its graph, what that uses of the graph around it, and both to compare; None of a hook that
    returns None."""

    graph: Any = None
    lifted: Sequence[torch.fx.Node] = ()
    form: Any = None


def _body(machine: Machine, hook: Hook, fixed: str) -> _Body:
    """Interpret a hook that only computes. fixed: what it is called where it may not read the world."""
    tensor, function = hook.tensor, hook.function
    try:
        pure = Purity(machine, "a hook of a tensor", function)
        with open_body(machine) as scope, grad_mode(False), autocast_off():
            g = stand_in(machine, tensor, requires_grad=False)
            add_parameter(machine, scope, g, "grad")
            outer, machine.backward_of = machine.backward_of, fixed
            try:
                result = machine.call(function, [g])
            finally:
                machine.backward_of = outer
            pure.check(owned=True)
            if id(g.tt_storage) in machine.graph.written:
                raise Break("tensor_hook", "a hook writes to the gradient that it is given")
            if result is None:
                return _Body()
            if not isinstance(result, TraceTensor) or result.shape != tensor.shape:
                raise Break("tensor_hook", "a hook returns no gradient of the tensor's shape")
            graph, lifted = close_body(machine, scope, [result], "tensor_hook"), list(scope.lifted)
    except (Break, Raised):
        raise _next(hook, hook not in machine.hooks.found) from None
    return _Body(graph, lifted, (_form(graph.graph), lifted))


def _next(hook: Hook, first: bool = False) -> Otherwise:
    """The next way for a hook that does not only compute; first: when it is put there."""
    return Otherwise(hook.key, hook.way + 1 if first else LATE if hook.form is None else NATIVE)


def _form(graph: torch.fx.Graph) -> list:
    """A graph, to compare: without the names of its nodes."""
    places = {node: i for i, node in enumerate(graph.nodes)}
    return [
        (node.op, not is_input(node) and node.target, map_arg((node.args, node.kwargs), lambda a: ("node", places[a])))
        for node in graph.nodes
    ]


def _late(machine: Machine, hook: Hook) -> Hook:
    def run(tensor: TraceTensor) -> None:
        result = machine.call(hook.function, [tensor])
        if result is not None or id(tensor.tt_storage) in machine.graph.written:
            raise Otherwise(hook.key, NATIVE)  # it changes the gradient, and does more than that

    hook.run = run
    machine.hooks.found.append(hook)
    machine.graph.keep.append(hook.tensor)
    return hook


def _handle(machine: Machine, hook: Hook) -> CapturedHandle:
    handle = machine.world.create(CapturedHandle(hook))
    machine.origins[id(handle)] = machine.root_index
    return handle


def _retain_grad(machine: Machine, tensor: TraceTensor) -> None:
    """t.retain_grad(): a hook that sets t.grad."""
    if not tensor.requires_grad:
        raise Raised(RuntimeError("can't retain_grad on Tensor that has requires_grad=False"))
    if tensor.is_leaf and id(tensor) not in machine.world.reals:
        return
    key, way = _begin(machine, tensor)
    if way < LATE:
        raise Otherwise(key, LATE)
    machine.origins.setdefault(id(tensor), machine.root_index)

    def run(g: TraceTensor) -> None:
        before = machine.world.pending.get(id(tensor), {}).get("grad")
        g = tensor_calls.call_method(machine, g, "clone", [], {})
        set_grad(machine, tensor, g if before is None else tensor_calls.call_method(machine, before, "add", [g], {}))

    machine.hooks.found.append(Hook(None, tensor, LATE, key, run))
    machine.graph.keep.append(tensor)


tensor_calls.METHODS["register_hook"] = _register_hook
tensor_calls.METHODS["retain_grad"] = _retain_grad


@python_function(("torch.utils.hooks", "RemovableHandle.remove"))
def _remove(machine: Machine, handle: Any) -> None:
    if type(handle) is not CapturedHandle:
        raise Break("tensor_hook", "a hook is removed")
    hook = handle.hook
    if hook.way != LATE:
        raise Otherwise(hook.key, LATE)
    if hook in machine.hooks.found:
        machine.hooks.found.remove(hook)


# --- hooks of leaves from outside
_OF_WRAPPERS = {"_backward_hooks": tensor_hooks, "_post_accumulate_grad_hooks": accumulation_hooks}


def hooks_of_leaf(machine: Machine, real: torch.Tensor, table: str) -> list[Any]:
    """The hooks that a leaf has when the function is called, guarded: `_backward_hooks`, called with its gradient, or
    `_post_accumulate_grad_hooks`, called with the leaf."""
    hooks, source = getattr(real, table), machine.world.sources[id(real)]
    where = S.asked(source, _OF_WRAPPERS[table]) if type(real) not in PLAIN_TENSORS else S.attr(source, table)
    if hooks is None:
        machine.world.guard(where, "ID", None, "no hooks")
        return []
    machine.world.guard(where, "LEN", len(hooks), "hooks of a leaf")
    return [machine.world.load(hook, S.asked(where, NthHook(n)), "a hook") for n, hook in enumerate(hooks.values())]


def changed_by_hooks(machine: Machine, hooks: Sequence[Any], g: TraceTensor) -> TraceTensor:
    """The gradient of a leaf, after its hooks."""
    with no_grad(machine):
        for hook in hooks:
            changed = machine.call(hook, [g])
            if changed is None:
                continue
            if not isinstance(changed, TraceTensor) or changed.shape != g.shape or changed.dtype is not g.dtype:
                raise Break("backward", "a hook returns no gradient of the leaf's shape and dtype")
            g = changed
    return g


def call_after_accumulation(machine: Machine, hooks: Sequence[Any], leaf: TraceTensor) -> None:
    with no_grad(machine):
        for hook in hooks:
            if machine.call(hook, [leaf]) is not None:
                raise Raised(RuntimeError("Tensor post accumulate grad hooks should return None."))


# --- full backward hooks of modules: of one tensor each way
def _watched(args: tuple) -> int | None:
    """Which of the values is the one tensor that requires grad; None where there is no such tensor, -1 for several."""
    found = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor) and arg.requires_grad]
    return (found[0] if len(found) == 1 else -1) if found and torch.is_grad_enabled() else None


def _alone(grad: Any, index: int, size: int) -> tuple:
    """The gradients of `size` values, of which the one at `index` has one."""
    return (None,) * index + (grad,) + (None,) * (size - index - 1)


def _changed(hooks: Any, module: Any, grads: tuple, rest: tuple, what: str) -> tuple:
    """The gradients after a module's hooks, each of which may return others."""
    for user_hook in hooks:
        changed = user_hook(module, grads, *rest)
        if changed is not None:
            if len(changed) != len(grads):
                raise RuntimeError(f"{what}, got {len(changed)}, but expected {len(grads)}")
            grads = changed
    return grads


def _input_hook(hook: Any, args: tuple, index: int) -> tuple:
    """What BackwardHook.setup_input_hook does where args[index] alone requires grad."""
    size = len(args)

    def of_input(grad: Any) -> Any:
        if hook.grad_outputs is None:
            return None
        what = "Backward hook returned an invalid number of grad_input"
        changed = _changed(hook.user_hooks, hook.module, _alone(grad, index, size), (hook.grad_outputs,), what)[index]
        hook.grad_outputs = None
        return None if changed is grad else changed

    own = args[index].view_as(args[index])
    if hook.user_hooks:
        own.register_hook(of_input)
    hook.n_inputs = size
    hook.input_tensors_index = [index]
    return args[:index] + (own,) + args[index + 1 :]


def _output_hook(hook: Any, result: Any, is_tuple: bool, index: int) -> Any:
    """What BackwardHook.setup_output_hook does where one tensor of the result requires grad."""
    results = result if is_tuple else (result,)
    size = len(results)
    own = results[index].view_as(results[index])
    hook.n_outputs = size
    hook.output_tensors_index = [index]

    def before(grad: Any) -> Any:
        what = "Backward pre hook returned an invalid number of grad_output"
        changed = _changed(hook.user_pre_hooks, hook.module, _alone(grad, index, size), (), what)[index]
        return None if changed is grad else changed

    def of_output(grad: Any) -> None:
        if hook.input_tensors_index is not None:
            hook.grad_outputs = _alone(grad, index, size)
            return
        warnings.warn(
            "Full backward hook is firing when gradients are computed with respect to module outputs since no "
            "inputs require gradients. See https://docs.pytorch.org/docs/main/generated/torch.nn.Module.html"
            "#torch.nn.Module.register_full_backward_hook for more details.",
            stacklevel=5,
        )
        for user_hook in hook.user_hooks:
            returned = user_hook(hook.module, (None,) * hook.n_inputs, _alone(grad, index, size))
            if returned is not None and not (isinstance(returned, tuple) and all(e is None for e in returned)):
                raise RuntimeError(
                    "Backward hook for Modules where no input requires gradient should always return None or None "
                    "for all gradients."
                )

    if hook.user_pre_hooks:
        own.register_hook(before)
    if hook.user_hooks:
        own.register_hook(of_output)
    return results[:index] + (own,) + results[index + 1 :] if is_tuple else own


@python_function(("torch.utils.hooks", "BackwardHook.setup_input_hook"), wants_function=True)
def _setup_input(machine: Machine, fn: Any, hook: Any, args: Any) -> Any:
    index = _watched(args) if type(args) is tuple else -1
    if index is None:
        machine.setattr(hook, "n_inputs", len(args))
        return args
    if index == -1:
        return interpret(machine, fn, [hook, args], {})
    return interpret(machine, _input_hook, [hook, args, index], {})


@python_function(("torch.utils.hooks", "BackwardHook.setup_output_hook"), wants_function=True)
def _setup_output(machine: Machine, fn: Any, hook: Any, result: Any) -> Any:
    is_tuple = type(result) is tuple
    index = _watched(result if is_tuple else (result,))
    if index is None:
        return result
    if index == -1:
        return interpret(machine, fn, [hook, result], {})
    return interpret(machine, _output_hook, [hook, result, is_tuple, index], {})
