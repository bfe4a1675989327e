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
        values = [n.meta["val"] for n in self.form[1]] if self.form is not None else []
        return {id(v.tt_storage) for v in values if isinstance(v, TraceTensor)}


class CapturedHandle(RemovableHandle):
    """What register_hook gives, while it is captured. One that leaves the captured part ends the graph."""

    def __init__(self, hook: Hook):
        self.hook = hook


class Hooks:
    """The hooks that the program put on tensors of the graph, in order."""

    def __init__(self) -> None:
        self.found: list[Hook] = []
        self.count = 0

    def of_pass(self, m: Machine, roots: Sequence[TraceTensor]) -> list[Hook]:
        """Those that are interpreted after a pass from `roots`."""
        if not self.found:
            return []
        nodes = history(*[t for t in roots if t.requires_grad])
        self.verify(m)
        return [h for h in self.found if h.way == LATE and node_of(h.tensor) in nodes]

    def verify(self, m: Machine) -> None:
        """Those that are part of the graph must still compute what they did when they were put there: asked before and
        after each pass, as hooks that are interpreted may change what others read."""
        for hook in [h for h in self.found if h.way != LATE]:
            if _body(m, hook, "").form != hook.form:
                raise _next(hook)

    def check(self, m: Machine, outputs: Sequence[Any]) -> None:
        """What leaves the captured part has no hook in its history that relies on passes inside, on what the program
        changed since, or on memory that others may write before the pass. Nor has it one itself: others that are put
        there later come after that."""
        if not self.found:
            return
        left = [t for t in outputs if isinstance(t, TraceTensor) and t.requires_grad and not m.passes.has_freed(t)]
        nodes, given = history(*left) if left else (), {node_of(t) for t in left}
        seen = {id(t.tt_storage) for t in (*outputs, *m.world.tensors.values()) if isinstance(t, TraceTensor)}
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
        hook = value.hook if type(value) is CapturedHandle else next((h for h in self.found if h.tensor is value), None)
        if hook is not None:
            raise Otherwise(hook.key, NATIVE)


def shows_nodes(frames: Sequence[Frame], outputs: Sequence[Any], hooked: bool) -> bool:
    """Whether the program may see, behind a break, which autograd nodes computed the results so far. It looks at nodes,
    or puts a hook on a result from which another one was computed: there it hears the gradients of both. hooked: the
    break is where a hook is put."""
    results = [t for t in outputs if isinstance(t, TraceTensor) and t.requires_grad and node_of(t) is not None]
    used = {n for t in results for n in history(t) if n is not node_of(t)}
    methods = [v.__self__ for v in frames[-1].stack if type(v) in (types.MethodType, types.BuiltinMethodType)]
    if hooked and any(type(t) is TraceTensor and node_of(t) in used for t in methods):  # `t.register_hook` comes next
        return True
    own = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
    named = [f.code for f in frames if not f.file.startswith(own)]
    if any("grad_fn" in code.co_names for code in named):
        return True
    entangled = any(node_of(t) in used for t in results)
    places = [i for c in named if entangled and not _PUTS.isdisjoint(c.co_names) for i in dis.get_instructions(c)]
    return sum(i.argval in _PUTS for i in places if type(i.argval) is str) > hooked


_PUTS = frozenset(("register_hook", "retain_grad"))


# --- register_hook
def _register_hook(m: Machine, t: TraceTensor, function: Any) -> Any:
    """t.register_hook(function)"""
    key, way = _begin(m, t)
    hook = Hook(function, t, way, key, held=held_by(function))
    if way == LATE:
        return _handle(m, _late(m, hook))
    body = _body(m, hook, A_HOOK if way == FIXED else "")
    hook.form = body.form
    if body.graph is not None:
        if any(h.tensor is t and h.way == LATE for h in m.hooks.found):
            raise Otherwise(key, NATIVE)  # (a late one is given the gradient after all others)
        record_call(m, HookCall("tensor_hook", body.graph), [t], body.lifted)
    m.hooks.found.append(hook)
    m.graph.keep.append(t)
    return _handle(m, hook)


def _begin(m: Machine, t: TraceTensor) -> tuple[tuple, int]:
    """Where in the program the hook is put on `t`, and the way to take."""
    if not t.requires_grad:
        raise Raised(RuntimeError("cannot register a hook on a tensor that doesn't require gradient"))
    m.hooks.count += 1
    key = ("hook", m.hooks.count, *((f.code, f.pc) for f in m.frames))
    way = m.ways.get(key, FIXED)
    if way == NATIVE or t.is_leaf or id(t) in m.world.reals or len(m.graph.scopes) > 1 or not m.opts.training:
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


def _body(m: Machine, hook: Hook, fixed: str) -> _Body:
    """Interpret a hook that only computes. fixed: what it is called where it may not read the world."""
    t, function = hook.tensor, hook.function
    try:
        pure = Purity(m, "a hook of a tensor", function)
        with open_body(m) as scope, grad_mode(False), autocast_off():
            g = stand_in(m, t, requires_grad=False)
            add_parameter(m, scope, g, "grad")
            outer, m.backward_of = m.backward_of, fixed
            try:
                result = m.call(function, [g])
            finally:
                m.backward_of = outer
            pure.check(owned=True)
            if id(g.tt_storage) in m.graph.written:
                raise Break("tensor_hook", "a hook writes to the gradient that it is given")
            if result is None:
                return _Body()
            if not isinstance(result, TraceTensor) or result.shape != t.shape:
                raise Break("tensor_hook", "a hook returns no gradient of the tensor's shape")
            graph, lifted = close_body(m, scope, [result], "tensor_hook"), list(scope.lifted)
    except (Break, Raised):
        raise _next(hook, hook not in m.hooks.found) from None
    return _Body(graph, lifted, (_form(graph.graph), lifted))


def _next(hook: Hook, first: bool = False) -> Otherwise:
    """The next way for a hook that does not only compute; first: when it is put there."""
    return Otherwise(hook.key, hook.way + 1 if first else LATE if hook.form is None else NATIVE)


def _form(graph: torch.fx.Graph) -> list:
    """A graph, to compare: without the names of its nodes."""
    places = {n: i for i, n in enumerate(graph.nodes)}
    return [
        (n.op, not is_input(n) and n.target, map_arg((n.args, n.kwargs), lambda a: ("node", places[a])))
        for n in graph.nodes
    ]


def _late(m: Machine, hook: Hook) -> Hook:
    def run(g: TraceTensor) -> None:
        result = m.call(hook.function, [g])
        if result is not None or id(g.tt_storage) in m.graph.written:
            raise Otherwise(hook.key, NATIVE)  # it changes the gradient, and does more than that

    hook.run = run
    m.hooks.found.append(hook)
    m.graph.keep.append(hook.tensor)
    return hook


def _handle(m: Machine, hook: Hook) -> CapturedHandle:
    handle = m.world.create(CapturedHandle(hook))
    m.origins[id(handle)] = m.root_index
    return handle


def _retain_grad(m: Machine, t: TraceTensor) -> None:
    """t.retain_grad(): a hook that sets t.grad."""
    if not t.requires_grad:
        raise Raised(RuntimeError("can't retain_grad on Tensor that has requires_grad=False"))
    if t.is_leaf and id(t) not in m.world.reals:
        return
    key, way = _begin(m, t)
    if way < LATE:
        raise Otherwise(key, LATE)
    m.origins.setdefault(id(t), m.root_index)

    def run(g: TraceTensor) -> None:
        before = m.world.pending.get(id(t), {}).get("grad")
        g = tensor_calls.call_method(m, g, "clone", [], {})
        set_grad(m, t, g if before is None else tensor_calls.call_method(m, before, "add", [g], {}))

    m.hooks.found.append(Hook(None, t, LATE, key, run))
    m.graph.keep.append(t)


tensor_calls.METHODS["register_hook"] = _register_hook
tensor_calls.METHODS["retain_grad"] = _retain_grad


@python_function(("torch.utils.hooks", "RemovableHandle.remove"))
def _remove(m: Machine, handle: Any) -> None:
    if type(handle) is not CapturedHandle:
        raise Break("tensor_hook", "a hook is removed")
    hook = handle.hook
    if hook.way != LATE:
        raise Otherwise(hook.key, LATE)
    if hook in m.hooks.found:
        m.hooks.found.remove(hook)


# --- hooks of leaves from outside
_OF_WRAPPERS = {"_backward_hooks": tensor_hooks, "_post_accumulate_grad_hooks": accumulation_hooks}


def hooks_of_leaf(m: Machine, real: torch.Tensor, table: str) -> list[Any]:
    """The hooks that a leaf has when the function is called, guarded: `_backward_hooks`, called with its gradient, or
    `_post_accumulate_grad_hooks`, called with the leaf."""
    hooks, source = getattr(real, table), m.world.sources[id(real)]
    where = S.asked(source, _OF_WRAPPERS[table]) if type(real) not in PLAIN_TENSORS else S.attr(source, table)
    if hooks is None:
        m.world.guard(where, "ID", None, "no hooks")
        return []
    m.world.guard(where, "LEN", len(hooks), "hooks of a leaf")
    return [m.world.load(h, S.asked(where, NthHook(n)), "a hook") for n, h in enumerate(hooks.values())]


def changed_by_hooks(m: Machine, hooks: Sequence[Any], g: TraceTensor) -> TraceTensor:
    """The gradient of a leaf, after its hooks."""
    with no_grad(m):
        for hook in hooks:
            changed = m.call(hook, [g])
            if changed is None:
                continue
            if not isinstance(changed, TraceTensor) or changed.shape != g.shape or changed.dtype is not g.dtype:
                raise Break("backward", "a hook returns no gradient of the leaf's shape and dtype")
            g = changed
    return g


def call_after_accumulation(m: Machine, hooks: Sequence[Any], leaf: TraceTensor) -> None:
    with no_grad(m):
        for hook in hooks:
            if m.call(hook, [leaf]) is not None:
                raise Raised(RuntimeError("Tensor post accumulate grad hooks should return None."))


# --- full backward hooks of modules: of one tensor each way
def _watched(args: tuple) -> int | None:
    """Which of the values is the one tensor that requires grad; None where there is no such tensor, -1 for several."""
    found = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.requires_grad]
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
def _setup_input(m: Machine, fn: Any, hook: Any, args: Any) -> Any:
    index = _watched(args) if type(args) is tuple else -1
    if index is None:
        m.setattr(hook, "n_inputs", len(args))
        return args
    if index == -1:
        return interpret(m, fn, [hook, args], {})
    return interpret(m, _input_hook, [hook, args, index], {})


@python_function(("torch.utils.hooks", "BackwardHook.setup_output_hook"), wants_function=True)
def _setup_output(m: Machine, fn: Any, hook: Any, result: Any) -> Any:
    is_tuple = type(result) is tuple
    index = _watched(result if is_tuple else (result,))
    if index is None:
        return result
    if index == -1:
        return interpret(m, fn, [hook, result], {})
    return interpret(m, _output_hook, [hook, result, is_tuple, index], {})
