"""Backward passes inside of a captured function: `loss.backward()`, `torch.autograd.backward`, `torch.autograd.grad`.

A backward pass is one node of the graph, whose target (graph/higher_order.py: BackwardCall) gives the gradients of the
tensors that it was asked for. The graph and autograd stages trace it, so that forward, gradients and what is done with
them are one functional graph. What backward() does with the gradients is written out as AccumulateGrad does it: `.grad`
is a pending attribute of the leaf, changed in place where there is one already.

In eager a backward pass frees what the nodes on its way saved: a result that has such a node in its history can't be
differentiated once more. The entry hands it out as a tensor that says so (`freed_result`), and the graph keeps nothing
for it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Sequence

import torch
from torch.autograd.graph import GradientEdge, Node

from ...graph.higher_order import BackwardCall, in_this_thread
from ...graph.history import BACKWARD, gradients, history, node_of, saves_tensors
from ...graph.tensor import TraceTensor
from ...guards import source as S
from ...guards.state import read_field
from ...guards.tensors import is_hooked, tells_hooks
from ...guards.wrapper_check import gradient
from ..tensors import tensor_attributes, tensor_calls
from ..tensors.gradient_hooks import NATIVE, Hook, call_after_accumulation, changed_by_hooks, hooks_of_leaf
from ..tensors.gradients import set_grad
from ..tensors.jagged_values import like_nested
from ..tensors.tensor_subclasses import Subclassed
from ..tensors.wrapper_values import accumulate_in_wrapper, as_program_sees, inside, is_of_wrapper, wrapped_leaves
from .bodies import no_grad, record_call
from ..kinds.callables import python_function
from ..machine.native_loops import in_a_loop
from ..machine.signals import Break, Otherwise, Raised

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["BackwardPasses", "backward", "freed_result", "name_of_node", "one_step_at_a_time", "without_history"]

_OUTSIDE = "let the training step call backward() outside of the compiled function"
_EXCHANGED = "no change is needed: backward() is compiled by itself, and gradients are exchanged as they come"


class BackwardPasses:
    """What the backward passes of one capture have freed."""

    def __init__(self) -> None:
        self.stepped = False  # an optimizer's step has changed parameters
        self.freed: dict[Any, None] = {}  # autograd nodes of the stand-ins that kept tensors, and were run

    def ran(self, roots: Sequence[torch.Tensor], towards: Sequence[torch.Tensor]) -> None:
        """A pass without retain_graph: only the nodes on the way to `towards` were run."""
        ends = {(toward.grad_fn, toward.output_nr) if toward.grad_fn is not None else id(toward) for toward in towards}
        self.freed.update(dict.fromkeys(n for n in _on_the_way(roots, ends) if saves_tensors(n)))

    def has_freed(self, tensor: TraceTensor) -> bool:
        """Whether a pass freed something in the history of `tensor`."""
        return bool(self.freed) and tensor.requires_grad and any(n in self.freed for n in history(tensor))

    def error_of(self, tensor: TraceTensor) -> str | None:
        """What eager says to a backward pass from `tensor`, where it is too late for one: its history was freed, or
        a tensor in it was changed in place by an optimizer since. None where `tensor` can be differentiated."""
        if not tensor.requires_grad or node_of(tensor) is None:
            return None
        if self.has_freed(tensor):
            return _SECOND_TIME
        if not self.stepped:
            return None
        leaves = [v for n in history(tensor) if (v := getattr(n, "variable", None)) is not None]
        try:
            with in_this_thread():
                gradients([tensor], leaves, [torch.ones_like(tensor)], retain_graph=True)
        except RuntimeError as e:
            if "modified by an inplace operation" in str(e):
                return str(e)
        return None


def _on_the_way(roots: Sequence[torch.Tensor], ends: set) -> list[Any]:
    """The autograd nodes that a backward pass from `roots` to `ends` runs."""
    order: list[Any] = []
    seen: set[Any] = set()
    todo = [(root.grad_fn, False) for root in roots if root.grad_fn is not None]
    while todo:
        node, done = todo.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            todo.append((node, True))
            todo += [(n, False) for n, _ in node.next_functions if n is not None]
    needed: set[Any] = set()
    for node in order:  # inputs first
        for n, nr in node.next_functions:
            if n is not None and (n in needed or (n, nr) in ends or id(getattr(n, "variable", None)) in ends):
                needed.add(node)
    return [node for node in order if node in needed]


def one_step_at_a_time(machine: Machine, kind: str) -> None:
    """A training step in a loop is not unrolled: the loop runs natively, and each iteration is one graph."""
    if in_a_loop(machine.frames):
        raise Break(kind, "a training step is inside a loop: one iteration at a time is compiled, as a whole")


def _refuse(machine: Machine) -> None:
    if not machine.opts.training:
        raise Break("backward")
    one_step_at_a_time(machine, "backward")
    if len(machine.graph.scopes) > 1:
        raise Break("backward", "backward() is called inside the body of a higher-order operator", _OUTSIDE)
    if machine.world.state("saved_tensor_hooks", read_field("saved_tensor_hooks")):
        raise Break("backward", "backward() is called where hooks for saved tensors are active", _OUTSIDE)
    if machine.world.state("anomaly", read_field("anomaly"))[0]:
        raise Break("backward", "backward() is called where autograd looks for anomalies", "turn anomaly detection off")
    if machine.unsharding is not None:
        raise Break("backward", "FSDP2 exchanges gradients while backward() runs", _EXCHANGED)
    if _are_processes() and not tells_hooks():
        raise Break("backward", "processes may exchange gradients while backward() runs", _EXCHANGED)


def _are_processes() -> bool:
    """Whether there are others that gradients may be exchanged with."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized()


def _run(
    machine: Machine,
    roots: list,
    gradients: list,
    inputs: list,
    retain: bool,
    create: bool,
    allow_unused: bool,
    late: Sequence[Hook] = (),
    ordered: bool = False,
) -> tuple[tuple, list[int]]:
    """Record a backward pass: the gradients of `inputs` and those that `late` are given, None where there is none, and
    in which order the pass comes to them, where that is asked for.
    """
    for t in (*roots, *inputs, *gradients):
        if isinstance(t, (GradientEdge, Node)):
            raise Break("backward", "gradients are asked for at an edge of autograd's graph, not of a tensor", _OUTSIDE)
        if t is not None and not isinstance(t, TraceTensor):
            raise Raised(TypeError(f"gradients are computed of tensors by tensors, not of a {type(t).__name__}"))
    machine.first_training = machine.root_index if machine.first_training is None else machine.first_training
    call = BackwardCall(len(roots), [g is not None for g in gradients], retain, create, allow_unused, len(late))
    for t in roots:
        machine.graph.arg(t)
    if machine.passes.freed and any(machine.passes.has_freed(root) for root in roots):
        raise Raised(RuntimeError(_SECOND_TIME))
    if any(
        getattr(n, "_saved_sparse", False) or getattr(n, "_saved_sparse_grad", False)
        for root in roots
        if root.requires_grad
        for n in history(root)
    ):
        raise Break("backward", "a gradient is a sparse tensor", _OUTSIDE)
    values = [*roots, *(g for g in gradients if g is not None), *inputs, *(hook.tensor for hook in late)]
    outer, machine.module_path = machine.module_path, BACKWARD
    try:
        order = machine.native(call.order, *values) if ordered or late else list(range(len(inputs)))
        result = record_call(machine, call, values)
    finally:
        machine.module_path = outer
    if not retain:
        machine.passes.ran(roots, inputs)
    return tuple(result), order


def _items(machine: Machine, value: Any) -> list:
    return [value] if value is None or isinstance(value, (TraceTensor, Subclassed)) else list(machine.iterate(value))


def _as_list(machine: Machine, value: Any, nested: bool = False) -> list:
    """The tensors of an argument; for one that goes down to tensors inside, the tensor that stands for it. nested: for
    nested tensors, too, their values."""
    return [_plain(v, nested) for v in _items(machine, value)]


def _plain(value: Any, nested: bool = False) -> Any:
    if type(value) is not Subclassed:
        return value
    if nested and value.nested is not None:
        return value.nested._values
    if value.nested is not None or not is_of_wrapper(value, finished=True):
        raise Break("backward", f"gradients are asked for of a tensor of class {value.tensor_class.__name__}", _OUTSIDE)
    return value.plain


# --- backward()
def backward(
    machine: Machine,
    roots: list,
    gradients: list,
    retain_graph: Any = None,
    create_graph: Any = False,
    inputs: Any = None,
) -> None:
    """roots[i].backward(gradients[i]) at once: gradients are accumulated into the `.grad` of leaves."""
    _refuse(machine)
    if create_graph:
        raise Break(
            "backward", "backward(create_graph=True) is called", "use torch.autograd.grad(..., create_graph=True)"
        )
    leaves = _leaves(machine, roots, None if inputs is None else _as_list(machine, inputs))
    if not leaves:
        if not any(isinstance(root, TraceTensor) and root.requires_grad for root in roots):
            raise Raised(RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn"))
        raise Break("backward", "backward() reaches no tensor that keeps a gradient")
    known = {id(t.tt_storage) for t in machine.graph.keep if isinstance(t, TraceTensor)}
    late, hooks = machine.hooks.of_pass(machine, roots), [_hooks(machine, leaf) for leaf in leaves]
    ends = [_plain(leaf, nested=True) for leaf in leaves]
    grads, order = _run(machine, roots, gradients, ends, bool(retain_graph), False, True, late, any(map(any, hooks)))
    # (a hook may keep what it is given)
    known |= {id(grad.tt_storage) for grad in grads[len(leaves) :] if grad is not None}
    outer, machine.module_path = machine.module_path, BACKWARD
    try:
        for place in order:
            if (g := grads[place]) is None:
                continue
            if place >= len(leaves):
                with no_grad(machine):
                    late[place - len(leaves)].run(g)
                continue
            before, after = hooks[place]
            if type(leaves[place]) is Subclassed:
                if before or after:
                    raise Break(
                        "backward", "a hook is called with the gradient of a tensor of a wrapper class", _OUTSIDE
                    )
                (accumulate_in_wrapper if leaves[place].nested is None else _accumulate_in_nested)(
                    machine, leaves[place], g
                )
                continue
            if before:
                g = changed_by_hooks(machine, before, g)
                known.add(id(g.tt_storage))
            _accumulate(machine, leaves[place], g, known)
            call_after_accumulation(machine, after, leaves[place])
        machine.hooks.verify(machine)
    finally:
        machine.module_path = outer


def _leaves(machine: Machine, roots: list, asked: list | None) -> list[Any]:
    """The inputs of the graph that backward() accumulates gradients into, and leaves that were made inside."""
    world = machine.world
    if asked is not None:
        if not asked or any(
            not isinstance(t, TraceTensor) or id(t) not in world.reals or not world.reals[id(t)].is_leaf for t in asked
        ):
            raise Break("backward", "backward(inputs=...) names a tensor that is not a leaf", "use torch.autograd.grad")
        _stay_inside(machine, roots, asked)
        found: list[Any] = list(asked)
        made: list[Any] = []
    else:
        ends = _ends([root for root in roots if isinstance(root, TraceTensor) and root.requires_grad])
        found = [
            w
            for w in wrapped_leaves(machine)
            # (all of them are taken out)
            if any([ends.pop(id(_origin(t)), None) is not None for t in inside(machine, w)])
        ]
        found += [
            subclassed
            for subclassed in world.subclassed.values()
            if subclassed.nested is not None
            and id(subclassed) in world.reals
            and world.reals[id(subclassed)].is_leaf
            and ends.pop(id(_origin(subclassed.nested._values)), None) is not None
        ]
        found += [
            tensor
            for tensor in world.tensors.values()
            if tensor.requires_grad and ends.pop(id(_origin(tensor)), None) is not None
        ]
        if any(type(end) is not TraceTensor for end in ends.values()):
            raise Break(
                "backward",
                "backward() reaches a leaf that was made inside",
                "make the tensor that requires grad outside, or use torch.autograd.grad",
            )
        made = list(ends.values())
    for t in found:
        real = world.reals[id(t)]
        if not real.is_leaf:
            raise Break(
                "backward",
                f"backward() goes on into what computed `{world.sources[id(real)].name()}`, outside of the graph",
                _EXCHANGED if _are_processes() else _OUTSIDE,
            )
    return found + made


def _stay_inside(machine: Machine, roots: list, asked: list) -> None:
    """A pass to what is asked for must not go on into what computed an input: others of those may lie there."""
    world = machine.world
    ends = _ends([root for root in roots if isinstance(root, TraceTensor) and root.requires_grad])
    owners: dict[int, Any] = {id(tensor): tensor for tensor in world.tensors.values()}
    for subclassed in world.subclassed.values():
        if id(subclassed) in world.reals and (
            subclassed.nested is not None or is_of_wrapper(subclassed, finished=True)
        ):
            owners |= {
                id(t): subclassed
                for t in ([subclassed.nested._values] if subclassed.nested is not None else inside(machine, subclassed))
            }
    outside = {id(_plain(owner, nested=True)) for owner in owners.values()}
    for tensor in world.tensors.values():
        owner = owners[id(tensor)]
        real, own = world.reals[id(owner)], _plain(owner, nested=True)
        if id(_origin(tensor)) in ends and not real.is_leaf and any(a is not own and id(a) in outside for a in asked):
            name = world.sources[id(real)].name()
            raise Break("backward", f"gradients are asked for behind what computed `{name}`, outside of the graph")


def _ends(roots: list) -> dict[int, Any]:
    """The leaves that a pass from `roots` comes to, by their ids."""
    ends = {id(v): v for root in roots for n in history(root) if (v := getattr(n, "variable", None)) is not None}
    return ends | {id(root): root for root in roots if root.grad_fn is None}


def _origin(trace: TraceTensor) -> torch.Tensor:
    """The leaf of autograd's graph that stands for an input: one that is a result outside has a step between
    (world._as_result).
    """
    return getattr(trace, "tt_origin", trace)


def _hooks(machine: Machine, leaf: TraceTensor, accumulates: bool = True) -> tuple[list, list]:
    """The hooks that are called with a leaf's gradient, and those that are called once it is accumulated."""
    real = machine.world.reals.get(id(leaf))
    if real is None:
        return [], []
    if accumulates and is_hooked(real):
        source = machine.world.sources[id(real)].name()
        remedy = _EXCHANGED if _are_processes() else _OUTSIDE
        raise Break("backward", f"a hook runs where the gradient of `{source}` is accumulated", remedy)
    if accumulates:
        machine.world.guard(
            S.asked(machine.world.sources[id(real)], is_hooked), "ID", False, "no hooks where it is accumulated"
        )
    after = hooks_of_leaf(machine, real, "_post_accumulate_grad_hooks") if accumulates else []
    return hooks_of_leaf(machine, real, "_backward_hooks"), after


def _accumulate(machine: Machine, leaf: TraceTensor, g: TraceTensor, known: set[int]) -> None:
    """What AccumulateGrad does: `.grad` is added to in place, or set to a tensor of its own, laid out as the leaf where
    that is dense.
    """
    before = tensor_attributes.get_attribute(machine, leaf, "grad")
    if before is not None:
        if before.requires_grad or before.dtype != g.dtype:
            raise Break("backward", "the gradient that is there has a history or another dtype", _OUTSIDE)
        with no_grad(machine):
            tensor_calls.call_method(machine, before, "add_", [g], {})
        return
    dense = _dense(leaf)
    if not (g.stride() == leaf.stride() if dense else g.is_contiguous()) or id(g.tt_storage) in known:
        with no_grad(machine):
            memory_format = torch.preserve_format if dense else torch.contiguous_format
            fresh = tensor_calls.call_function(
                machine, torch.empty_like, [leaf], {"memory_format": memory_format, "requires_grad": False}
            )
            g = tensor_calls.call_method(machine, fresh, "copy_", [g], {})
    known.add(id(g.tt_storage))
    set_grad(machine, leaf, g)


def _accumulate_in_nested(machine: Machine, subclassed: Subclassed, tensor: TraceTensor) -> None:
    real, source = machine.world.reals[id(subclassed)], machine.world.sources[id(subclassed)]
    known = machine.world.pending.get(id(subclassed), {})
    if "grad" in known and known["grad"] is not None or "grad" not in known and real.grad is not None:
        raise Break("backward", "a gradient is added to that of a nested tensor", _OUTSIDE)
    if "grad" not in known:
        machine.world.load(None, S.asked(source, gradient), "no gradient yet")
    with no_grad(machine):
        set_grad(
            machine,
            subclassed,
            like_nested(machine, subclassed, tensor_calls.call_method(machine, tensor, "clone", [], {})),
        )  # type: ignore[arg-type]


def _dense(tensor: TraceTensor) -> bool:
    """Whether a tensor fills its memory, in any order of dimensions."""
    if any(isinstance(s, torch.SymInt) for s in (*tensor.shape, *tensor.stride())):
        return tensor.is_contiguous()
    full = 1
    for stride, size in sorted((st, n) for st, n in zip(tensor.stride(), tensor.shape) if n != 1):
        if stride != full:
            return False
        full *= size
    return True


@python_function(("torch.autograd", "backward"))
def autograd_backward(
    machine: Machine,
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    roots = _as_list(machine, tensors)
    gradients = [None] * len(roots) if grad_tensors is None else _as_list(machine, grad_tensors)
    if grad_variables is not None or len(gradients) != len(roots):
        raise Break("backward", "torch.autograd.backward is called with arguments that do not fit", _OUTSIDE)
    backward(machine, roots, gradients, retain_graph, create_graph, inputs)


def _hooks_of_end(machine: Machine, asked: Any, tensor: TraceTensor) -> list:
    """The hooks that are called with the gradient of a tensor that it is asked for."""
    if type(asked) is Subclassed and asked.nested is not None:
        if (real := machine.world.reals.get(id(asked))) is not None and hooks_of_leaf(machine, real, "_backward_hooks"):
            raise Break("backward", "a hook is registered on a nested tensor that gradients are asked for", _OUTSIDE)
    elif isinstance(tensor, TraceTensor) and id(tensor) in machine.world.reals:
        if machine.world.reals[id(tensor)].is_leaf:
            return _hooks(machine, tensor, accumulates=False)[0]
        if machine.world.reals[id(tensor)]._backward_hooks:
            raise Break("backward", "a hook is registered on a tensor that gradients are asked for", _OUTSIDE)
    return []


def _call_hooks(
    machine: Machine, order: list, grads: list, hooks: list, late: Sequence[Hook], seen: Sequence[Any]
) -> None:
    """Call hooks in the order in which the pass came to their tensors; `seen` is what the late ones are given."""
    for place in order:
        if place >= len(grads):
            with no_grad(machine):
                late[place - len(grads)].run(seen[place - len(grads)])
        elif hooks[place] and grads[place] is not None:
            grads[place] = changed_by_hooks(machine, hooks[place], grads[place])
    machine.hooks.verify(machine)


@python_function(("torch.autograd", "grad"))
def autograd_grad(
    machine: Machine,
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    only_inputs: Any = True,
    allow_unused: Any = None,
    is_grads_batched: Any = False,
    materialize_grads: Any = False,
) -> tuple:
    _refuse(machine)
    roots, asked = _as_list(machine, outputs, nested=True), _items(machine, inputs)
    ends = [_plain(v, nested=True) for v in asked]
    gradients = [None] * len(roots) if grad_outputs is None else _as_list(machine, grad_outputs, nested=True)
    if is_grads_batched or not only_inputs or len(gradients) != len(roots):
        raise Break("backward", "torch.autograd.grad is called with batched gradients", "use torch.func.vmap")
    hooks = [_hooks_of_end(machine, a, end) for a, end in zip(asked, ends)]
    if create_graph and any(hooks):
        raise Break("backward", "a hook is called with a gradient that has a history", _OUTSIDE)
    if create_graph and torch.is_inference_mode_enabled():
        raise Break("backward", "gradients of gradients are asked for under inference mode")
    if materialize_grads and allow_unused is None:
        allow_unused = True
    _stay_inside(machine, roots, ends)
    late = machine.hooks.of_pass(machine, roots)
    if late and create_graph:
        raise Otherwise(late[0].key, NATIVE)
    results, order = _run(
        machine,
        roots,
        gradients,
        ends,
        bool(create_graph if retain_graph is None else retain_graph),
        bool(create_graph),
        bool(allow_unused),
        late,
        any(hooks),
    )
    grads = list(results[: len(ends)])
    _call_hooks(machine, order, grads, hooks, late, results[len(ends) :])
    if materialize_grads:
        grads = list(
            (
                tensor_calls.call_function(machine, torch.zeros_like, [end], {"requires_grad": bool(create_graph)})
                if grad is None
                else grad
            )
            for grad, end in zip(grads, ends)
        )
    found = [
        like_nested(machine, t, grad) if type(t) is Subclassed and t.nested is not None and grad is not None else grad
        for t, grad in zip(asked, grads)
    ]
    return as_program_sees(machine, tuple(found))


def _method(
    machine: Machine,
    tensor: TraceTensor,
    gradient: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    inputs: Any = None,
) -> None:
    """t.backward(...)"""
    backward(machine, [tensor], [gradient], retain_graph, create_graph, inputs)


tensor_calls.METHODS["backward"] = _method


# --- results whose history is gone
_SECOND_TIME = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been"
    " freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify"
    " retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors"
    " after calling backward."
)


class _Freed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, result: list, error: str) -> torch.Tensor:
        ctx.error = error
        return result[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(ctx.error)


def without_history(machine: Machine, tensor: TraceTensor) -> TraceTensor:
    """What the graph gives for such a result."""
    return tensor_calls.call_method(machine, tensor, "detach", [], {})


def freed_result(result: torch.Tensor, error: str, name: str) -> torch.Tensor:
    """`result` as eager returns it when its history is gone: it requires grad, and differentiating it raises
    `error`. Whoever prints it reads the `name` of eager's node.
    """
    with torch.enable_grad():
        return _freed(name).apply(torch.empty(0, device=result.device, requires_grad=True), [result], error)


@functools.lru_cache(maxsize=1024)
def _freed(name: str) -> type[_Freed]:
    function: Any = type("_Freed", (_Freed,), {})
    function._backward_cls.__name__ = function._backward_cls.__qualname__ = name
    return function


def name_of_node(tensor: TraceTensor) -> str:
    """What eager calls the node that made a tensor."""
    node = node_of(tensor)
    return "TCompiledBackward" if node is None else type(node).__name__
