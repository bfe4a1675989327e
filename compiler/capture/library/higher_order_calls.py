"""Checkpoints, torch.cond, torch.while_loop, scan, map: operators whose bodies are captured into graphs of their
own.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.utils._pytree as pytree
from torch.utils.checkpoint import noop_context_fn

from ...guards import source as S
from ...graph.higher_order import CheckpointCall, CondCall, ScanCall, Template, WhileLoopCall
from ..kinds import operators
from .autograd_functions import own_results
from .bodies import Body, Purity, capture_body, leaves_of, no_grad, plain_leaves_of, record_call, stand_in
from ..kinds.callables import python_function
from .context_managers import NoContext
from .functional_transforms import vmap_
from .operator_warnings import warn_of_checkpoint
from ..machine.signals import Break
from ..tensors.wrapper_values import as_program_sees
from ...graph.tensor import TraceTensor

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__: list[str] = []


@python_function(("torch.utils.checkpoint", "create_selective_checkpoint_contexts"))
def selective_contexts_(machine: Machine, policy: Any, *args: Any, **kwargs: Any) -> tuple:
    """What they save and compute again is for the partition to say: they change no values."""
    return machine.world.create(NoContext()), machine.world.create(NoContext())


def _refuse_contexts(machine: Machine, context_fn: Any, use_reentrant: Any) -> None:
    """A checkpoint's contexts may change what is computed inside of them, unless they are known to do nothing."""
    if context_fn is None or context_fn is noop_context_fn:
        return
    contexts = None if use_reentrant else machine.deep_plain(machine.call(context_fn, []))
    if (
        type(contexts) not in (tuple, list)
        or len(contexts) != 2
        or any(type(context) not in _IDLE for context in contexts)
    ):
        raise Break("higher_order", "a checkpoint's context_fn gives contexts that may change what is computed")


_IDLE = (NoContext, contextlib.nullcontext)


def _needs_grad(values: Any) -> bool:
    return torch._C.is_grad_enabled() and any(tensor.requires_grad for tensor in leaves_of(values))


# --- torch.utils.checkpoint
@python_function(("torch.utils.checkpoint", "checkpoint"))
def checkpoint_(
    machine: Machine,
    fn: Any,
    *args: Any,
    use_reentrant: Any = None,
    context_fn: Any = None,
    determinism_check: Any = "default",
    debug: Any = False,
    early_stop: Any = True,
    **kwargs: Any,
) -> Any:
    """fn(*args), as one node whose body is computed again in backward (where the graph runs with eager autograd)."""
    preserve = kwargs.pop("preserve_rng_state", True)
    if debug is True:
        raise Break("higher_order", "torch.utils.checkpoint is called with debug=True", "leave debug out")
    if use_reentrant is None:
        warn_of_checkpoint(machine)
        use_reentrant = True
    _refuse_contexts(machine, context_fn, use_reentrant)
    if use_reentrant and kwargs:
        raise Break("higher_order", "a reentrant checkpoint is given keywords", "pass use_reentrant=False")
    if use_reentrant and not any(isinstance(arg, TraceTensor) and arg.requires_grad for arg in args):
        from torch.utils.checkpoint import check_backward_validity

        machine.call(check_backward_validity, [args])
        with no_grad(machine):
            result = machine.call(fn, list(args))
        return own_results(machine, result, args)
    if not torch._C.is_grad_enabled():
        return machine.call(fn, list(args), kwargs)
    before, machine.graph.written = machine.graph.written, set()
    body = capture_body(machine, "checkpoint", [], lambda: machine.call(fn, list(args), kwargs))
    changed, machine.graph.written = machine.graph.written, before | machine.graph.written
    if any(id(getattr(node.meta.get("val"), "tt_storage", None)) in changed for node in body.lifted):
        raise Break(
            "higher_order",
            "a checkpointed function changes a tensor from outside in place, which eager does a second time in"
            " backward",
        )
    if not leaves_of(body.result):
        raise Break("higher_order", "a checkpointed function returns no tensor")
    return _give(machine, CheckpointCall(body.graph, bool(use_reentrant), machine.truth(preserve)), [], body)


def _may_recompute(autograd: Any) -> bool:
    return autograd._is_checkpoint_valid()


@python_function(("torch.autograd", "_is_checkpoint_valid"))
def is_checkpoint_valid_(machine: Machine) -> bool:
    """Whether a reentrant checkpoint may compute again: not in a backward pass that is given its inputs."""
    valid = _may_recompute(torch.autograd)
    machine.world.guard(
        S.asked(machine.world.anchor(torch.autograd), _may_recompute), "ID", valid, "kind of the backward pass"
    )
    return valid


def _give(machine: Machine, call: Any, inputs: list, body: Body) -> Any:
    """Record the call; its results in the structure that the body returned them in."""
    template, _ = Template.of(body.result)
    return as_program_sees(machine, template.fill(record_call(machine, call, inputs, body.lifted)))


# --- operators that call their function and do nothing else that capture needs to know
@python_function(
    ("torch.ops.higher_order", "wrap"),
    ("torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder"),  # (of nested_compile_region)
)
def wrap_(machine: Machine, fn: Any, *args: Any, **kwargs: Any) -> Any:
    return machine.call(fn, list(args), kwargs)


# --- torch.cond
@python_function(("torch._higher_order_ops.cond", "cond"), ("torch", "cond"), ("torch.ops.higher_order", "cond"))
def cond_(machine: Machine, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    args = list(machine.iterate(operands))
    if not isinstance(pred, TraceTensor):
        return machine.call(true_fn if machine.truth(pred) else false_fn, args)
    pure = Purity(machine, "a branch of torch.cond", true_fn, false_fn, args)
    bodies = []
    for fn in (true_fn, false_fn):
        bodies.append(capture_body(machine, "branch", [], lambda fn=fn: machine.call(fn, list(args))))
        pure.check()
    _check_alike(*[body.result for body in bodies])
    lifted = list({node: None for body in bodies for node in body.lifted})
    call = CondCall(*[_with_inputs(body, lifted) for body in bodies])
    if not leaves_of(bodies[0].result):
        return bodies[0].result
    template, _ = Template.of(bodies[0].result)
    return template.fill(_record_cond(machine, call, pred, lifted, bodies))


def _record_cond(machine: Machine, call: CondCall, pred: TraceTensor, lifted: list, bodies: list[Body]) -> tuple:
    """The node; its results have the metadata of the branches', and need a gradient where either does."""
    results = []
    for one, other in zip(*[plain_leaves_of(body.result) for body in bodies]):
        results.append(stand_in_result(machine, one, one.requires_grad or other.requires_grad))
    node = machine.graph.graph.call_function(call, (machine.graph.arg(pred), *lifted))
    return machine.graph.made(node, tuple(results))


def stand_in_result(machine: Machine, like: TraceTensor, requires_grad: bool) -> TraceTensor:
    if like.tt_wrapper is not None:
        kind = type(like.tt_wrapper).__name__
        raise Break("higher_order", f"what a higher-order operator chooses or loops over is a tensor of class {kind}")
    made = stand_in(machine, like, requires_grad=requires_grad and torch._C.is_grad_enabled())
    if made.requires_grad:
        with torch.enable_grad():
            made = torch.ops.aten.alias.default(made)  # the result of an operator, no leaf
    return made


def _with_inputs(body: Body, lifted: list) -> torch.fx.GraphModule:
    """The body's graph with one parameter for each of `lifted`, in that order."""
    graph = body.graph.graph
    mine = dict(zip(body.lifted, graph.find_nodes(op="placeholder")[-len(body.lifted) :] if body.lifted else []))
    first = next(iter(graph.nodes))
    placed = []
    for outer in lifted:
        node = mine.get(outer)
        if node is None:
            with graph.inserting_before(first):
                node = graph.placeholder(outer.name)
            node.meta.update(outer.meta)
        placed.append(node)
    anchor = None
    for node in placed:
        if anchor is None:
            if node is not next(iter(graph.nodes)):
                next(iter(graph.nodes)).prepend(node)
        else:
            anchor.append(node)
        anchor = node
    body.graph.recompile()
    return body.graph


def _check_alike(a: Any, b: Any) -> None:
    one, other = Template.of(a), Template.of(b)
    alike = (
        one[0].spec == other[0].spec
        and len(one[1]) == len(other[1])
        and all(
            one_leaf.shape == other_leaf.shape
            and one_leaf.dtype == other_leaf.dtype
            and one_leaf.stride() == other_leaf.stride()
            for one_leaf, other_leaf in zip(one[1], other[1])
        )
    )
    constants = alike and all(
        isinstance(leaf, type(there)) and (leaf is there or leaf == there)
        for leaf, there in zip(one[0].leaves, other[0].leaves)
    )
    if not alike or not constants:
        raise Break(
            "higher_order",
            "the branches of torch.cond return different things",
            "return tensors of one shape, layout and dtype from both",
        )


# --- loops
@python_function(("torch.ops.higher_order", "while_loop"))
def while_loop_operator(machine: Machine, cond_fn: Any, body_fn: Any, carried: Any, more: Any = ()) -> Any:
    """The operator itself, whose functions also get what they use of their surroundings."""
    more = list(machine.iterate(more))
    if not more:
        return while_loop_(machine, cond_fn, body_fn, carried)
    raise Break("higher_order", "torch.ops.higher_order.while_loop is given further inputs", "call torch.while_loop")


@python_function(("torch._higher_order_ops.while_loop", "while_loop"))
def while_loop_(machine: Machine, cond_fn: Any, body_fn: Any, carried_inputs: Any, **kwargs: Any) -> Any:
    carried = machine.deep_plain(carried_inputs)
    template, tensors = Template.of(carried)
    if len(tensors) != len(template.leaves):
        raise Break("higher_order", "torch.while_loop carries values that are not tensors", "carry 0-dim tensors")
    if _needs_grad(tensors):
        raise Break("higher_order", "torch.while_loop is applied to tensors that need a gradient")
    pure = Purity(machine, "the body of torch.while_loop", cond_fn, body_fn)
    bodies, lifted_of = [], []
    for fn in (cond_fn, body_fn):
        fresh = [stand_in(machine, tensor, requires_grad=False) for tensor in tensors]
        body = capture_body(
            machine, "loop", fresh, lambda fn=fn, fresh=fresh: machine.call(fn, list(template.fill(fresh)))
        )
        pure.check()
        bodies.append(body)
        lifted_of.append(body.lifted)
    flag = leaves_of(bodies[0].result)
    if len(flag) != 1 or flag[0].numel() != 1:
        raise Break("higher_order", "the condition of torch.while_loop is not a tensor of one element")
    out = plain_leaves_of(bodies[1].result)
    if len(out) != len(tensors) or any(
        result.shape != tensor.shape or result.dtype != tensor.dtype for result, tensor in zip(out, tensors)
    ):
        raise Break("higher_order", "the body of torch.while_loop changes the shape or dtype of what it carries")
    lifted = list({node: None for nodes in lifted_of for node in nodes})
    if (
        any(isinstance(node.meta.get("val"), TraceTensor) and node.meta["val"].requires_grad for node in lifted)
        and torch._C.is_grad_enabled()
    ):
        raise Break("higher_order", "torch.while_loop uses tensors that need a gradient")
    condition, step = (_with_more_inputs(body, len(tensors), lifted) for body in bodies)
    results = tuple(stand_in(machine, tensor, requires_grad=False) for tensor in out)
    graph = machine.graph
    node = graph.graph.call_function(
        WhileLoopCall(condition, step, len(tensors)), (*[graph.arg(tensor) for tensor in tensors], *lifted)
    )
    return template.fill(graph.made(node, results))


def _with_more_inputs(body: Body, count: int, lifted: list) -> torch.fx.GraphModule:
    """As `_with_inputs`, for a body with `count` parameters of its own before what it lifted."""
    graph = body.graph.graph
    own = graph.find_nodes(op="placeholder")
    mine = dict(zip(body.lifted, own[count:]))
    anchor = own[count - 1]
    for outer in lifted:
        node = mine.get(outer)
        if node is None:
            with graph.inserting_after(anchor):
                node = graph.placeholder(outer.name)
            node.meta.update(outer.meta)
        elif node is not anchor.next:
            anchor.append(node)
        anchor = node
    body.graph.recompile()
    return body.graph


def _scan(
    machine: Machine,
    name: str,
    fn: Callable[[list, list], Any],
    carried: list,
    sequences: list,
    reverse: bool,
    n_results_of: Callable,
) -> tuple:
    """Record a ScanCall for a step function on lists of tensors; the results' structure is the caller's."""
    if not sequences or any(sequence.dim() == 0 for sequence in sequences) or sequences[0].shape[0] == 0:
        raise Break("higher_order", f"{name} is given no elements to go over")
    inside = [stand_in(machine, tensor) for tensor in carried] + [
        stand_in(machine, sequence, drop_dim=0) for sequence in sequences
    ]
    body = capture_body(machine, name, inside, lambda: fn(inside[: len(carried)], inside[len(carried) :]))
    out = plain_leaves_of(body.result)
    n_results_of(body.result)
    for result, given in zip(out, carried):
        if result.shape != given.shape or result.dtype != given.dtype:
            raise Break("higher_order", f"the body of {name} changes the shape or dtype of what it carries")
    call = ScanCall(name, body.graph, len(carried), len(sequences), reverse)
    return body.result, record_call(machine, call, [*carried, *sequences], body.lifted)


def _tensors_only(value: Any, what: str) -> tuple[Template, list]:
    template, tensors = Template.of(value)
    if len(tensors) != len(template.leaves):
        raise Break("higher_order", f"{what} gets values that are not tensors")
    return template, tensors


@python_function(("torch._higher_order_ops.scan", "scan"))
def scan_(machine: Machine, combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    init_t, carried = _tensors_only(machine.deep_plain(init), "scan")
    xs_t, sequences = _tensors_only(machine.deep_plain(xs), "scan")
    if dim:
        sequences = [machine.call(torch.movedim, [sequence, dim, 0]) for sequence in sequences]
    pure = Purity(machine, "the body of scan", combine_fn)
    result, out = _scan(
        machine,
        "scan",
        lambda carry, row: machine.call(combine_fn, [init_t.fill(carry), xs_t.fill(row)]),
        carried,
        sequences,
        machine.truth(reverse),
        _is_pair,
    )
    pure.check()
    ys, _ = _tensors_only(result[1], "scan")
    stacked = list(out[len(carried) :])
    if dim:
        stacked = [machine.call(torch.movedim, [row, 0, dim]) for row in stacked]
    return init_t.fill(out[: len(carried)]), ys.fill(stacked)


def _is_pair(result: Any) -> None:
    if not isinstance(result, tuple) or len(result) != 2:
        raise Break("higher_order", "the body of scan returns no pair (carry, result)")


@python_function(("torch._higher_order_ops.map", "map"))
def map_(machine: Machine, f: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
    xs_t, sequences = _tensors_only(machine.deep_plain(xs), "map")
    return _map(machine, f, args, sequences, lambda row: machine.call(f, [xs_t.fill(row), *args], kwargs))


def _map(machine: Machine, function: Any, args: Any, sequences: list, step: Callable[[list], Any]) -> Any:
    pure = Purity(machine, "the body of map", function, args)
    result, out = _scan(machine, "map", lambda carry, row: step(row), [], sequences, False, lambda rows: None)
    pure.check()
    return _tensors_only(result, "map")[0].fill(out)


@python_function(("torch.ops.higher_order", "map_impl"))
def map_operator(machine: Machine, f: Any, xs: Any, more: Any) -> Any:
    """The operator itself: its function gets a slice of each tensor one by one, then what every step gets."""
    args = list(machine.iterate(more))
    return _map(
        machine, f, args, _tensors_only(list(machine.iterate(xs)), "map")[1], lambda row: machine.call(f, [*row, *args])
    )


@python_function(("torch._higher_order_ops.associative_scan", "associative_scan"))
def associative_scan_(
    machine: Machine, combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """The scan as a tree: each level combines whole slabs, and the depth is the logarithm of the length."""
    xs_t, sequences = _tensors_only(machine.deep_plain(xs), "associative_scan")
    if (
        not sequences
        or any(sequence.dim() == 0 for sequence in sequences)
        or sequences[0].shape[0 if not dim else dim] == 0
    ):
        raise Break("higher_order", "associative_scan is given no elements to go over")
    if dim:
        sequences = [machine.call(torch.movedim, [sequence, dim, 0]) for sequence in sequences]
    if machine.truth(reverse):
        sequences = [machine.call(torch.flip, [sequence, [0]]) for sequence in sequences]
    pure = Purity(machine, "the body of associative_scan", combine_fn)
    combine = _slab_combiner(machine, combine_fn, xs_t, sequences)
    results = _tree_scan(machine, combine, sequences)
    pure.check()
    if machine.truth(reverse):
        results = [machine.call(torch.flip, [result, [0]]) for result in results]
    if dim:
        results = [machine.call(torch.movedim, [result, 0, dim]) for result in results]
    return xs_t.fill(results)


_ELEMENTWISE = frozenset(
    """add sub mul div truediv true_divide neg abs exp log sin cos tanh sigmoid sqrt maximum minimum logaddexp where pow
    reciprocal relu and_ or_ xor logical_and logical_or clone square rsqrt clamp""".split()
)


def _slab_combiner(
    machine: Machine, combine_fn: Any, template: Template, sequences: list
) -> Callable[[list, list], list]:
    """The combining function on slabs of slices. One that works element by element is applied as it is, any other under
    vmap.
    """
    inside = [stand_in(machine, sequence, drop_dim=0) for sequence in (*sequences, *sequences)]
    count = len(sequences)
    body = capture_body(
        machine,
        "combine",
        inside,
        lambda: machine.call(combine_fn, [template.fill(inside[:count]), template.fill(inside[count:])]),
    )
    out = plain_leaves_of(body.result)
    if len(out) != count or any(
        one.shape != other.shape or one.dtype != other.dtype for one, other in zip(out, inside)
    ):
        raise Break("higher_order", "the body of associative_scan changes the shape or dtype of what it combines")
    names = [
        node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        for node in body.graph.graph.nodes
        if node.op.startswith("call")
    ]
    # what is combined with something from around it is aligned by vmap alone
    elementwise = not body.lifted and all(name in _ELEMENTWISE for name in names)
    fn = combine_fn if elementwise else vmap_(machine, combine_fn)

    def combine(a: list, b: list) -> list:
        return pytree.tree_leaves(machine.deep_plain(machine.call(fn, [template.fill(a), template.fill(b)])))

    return combine


def _tree_scan(machine: Machine, combine: Callable[[list, list], list], elements: list) -> list:
    size = int(elements[0].shape[0])
    if size < 2:
        return elements

    def part(tensor: TraceTensor, start: int, stop: int | None, step: int) -> TraceTensor:
        return operators.get_item(machine, tensor, slice(start, stop, step))

    odd = _tree_scan(
        machine,
        combine,
        combine([part(element, 0, -1, 2) for element in elements], [part(element, 1, None, 2) for element in elements]),
    )
    if size == 2:
        return [machine.call(torch.cat, [[part(element, 0, 1, 1), later]]) for element, later in zip(elements, odd)]
    heads = odd if size % 2 else [part(later, 0, -1, 1) for later in odd]
    even = combine(heads, [part(element, 2, None, 2) for element in elements])
    even = [machine.call(torch.cat, [[part(element, 0, 1, 1), earlier]]) for element, earlier in zip(elements, even)]
    return [_interleave(machine, left, right) for left, right in zip(even, odd)]


def _interleave(machine: Machine, even: TraceTensor, odd: TraceTensor) -> TraceTensor:
    """even[0], odd[0], even[1], ...; there may be one more of the even ones."""
    size = int(odd.shape[0])
    more = int(even.shape[0]) > size
    pairs = machine.call(torch.stack, [[operators.get_item(machine, even, slice(0, size)) if more else even, odd], 1])
    flat = machine.call(torch.flatten, [pairs, 0, 1])
    return machine.call(torch.cat, [[flat, operators.get_item(machine, even, slice(size, None))]]) if more else flat
