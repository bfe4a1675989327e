"""Checkpoints, torch.cond, torch.while_loop, scan, map: operators whose bodies are captured into graphs of their
own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.utils._pytree as pytree

from ...guards import source as S
from ...graph.higher_order import CheckpointCall, CondCall, ScanCall, Template, WhileLoopCall
from ..kinds import operators
from .autograd_functions import own_results
from .bodies import Body, Purity, capture_body, leaves_of, no_grad, record_call, stand_in
from ..kinds.callables import python_function
from .functional_transforms import vmap_
from ..machine.signals import Break
from ...graph.tensor import TraceTensor

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__: list[str] = []


def _needs_grad(values: Any) -> bool:
    return torch._C.is_grad_enabled() and any(t.requires_grad for t in leaves_of(values))


# --- torch.utils.checkpoint
@python_function(("torch.utils.checkpoint", "checkpoint"))
def checkpoint_(
    m: Machine,
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
    if use_reentrant is None or debug is True:
        raise Break(
            "higher_order",
            "torch.utils.checkpoint is called without use_reentrant, or with debug=True",
            "pass use_reentrant=False",
        )
    if use_reentrant and kwargs:
        raise Break("higher_order", "a reentrant checkpoint is given keywords", "pass use_reentrant=False")
    if use_reentrant and not any(isinstance(a, TraceTensor) and a.requires_grad for a in args):
        from torch.utils.checkpoint import check_backward_validity

        m.call(check_backward_validity, [args])
        with no_grad(m):
            result = m.call(fn, list(args))
        return own_results(m, result, args)
    if not torch._C.is_grad_enabled():
        return m.call(fn, list(args), kwargs)
    before, m.graph.written = m.graph.written, set()
    body = capture_body(m, "checkpoint", [], lambda: m.call(fn, list(args), kwargs))
    changed, m.graph.written = m.graph.written, before | m.graph.written
    if any(id(getattr(n.meta.get("val"), "tt_storage", None)) in changed for n in body.lifted):
        raise Break(
            "higher_order",
            "a checkpointed function changes a tensor from outside in place, which eager does a second time in"
            " backward",
        )
    if not leaves_of(body.result):
        raise Break("higher_order", "a checkpointed function returns no tensor")
    return _give(m, CheckpointCall(body.graph, bool(use_reentrant), m.truth(preserve)), [], body)


def _may_recompute(autograd: Any) -> bool:
    return autograd._is_checkpoint_valid()


@python_function(("torch.autograd", "_is_checkpoint_valid"))
def is_checkpoint_valid_(m: Machine) -> bool:
    """Whether a reentrant checkpoint may compute again: not in a backward pass that is given its inputs."""
    valid = _may_recompute(torch.autograd)
    m.world.guard(S.asked(m.world.anchor(torch.autograd), _may_recompute), "ID", valid, "kind of the backward pass")
    return valid


def _give(m: Machine, call: Any, inputs: list, body: Body) -> Any:
    """Record the call; its results in the structure that the body returned them in."""
    template, _ = Template.of(body.result)
    return template.fill(record_call(m, call, inputs, body.lifted))


# --- operators that call their function and do nothing else that capture needs to know
@python_function(
    ("torch.ops.higher_order", "wrap"),
    ("torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder"),  # (of nested_compile_region)
)
def wrap_(m: Machine, fn: Any, *args: Any, **kwargs: Any) -> Any:
    return m.call(fn, list(args), kwargs)


# --- torch.cond
@python_function(("torch._higher_order_ops.cond", "cond"), ("torch", "cond"), ("torch.ops.higher_order", "cond"))
def cond_(m: Machine, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    args = list(m.iterate(operands))
    if not isinstance(pred, TraceTensor):
        return m.call(true_fn if m.truth(pred) else false_fn, args)
    pure = Purity(m, "a branch of torch.cond", true_fn, false_fn, args)
    bodies = []
    for fn in (true_fn, false_fn):
        bodies.append(capture_body(m, "branch", [], lambda fn=fn: m.call(fn, list(args))))
        pure.check()
    _check_alike(*[b.result for b in bodies])
    lifted = list({n: None for b in bodies for n in b.lifted})
    call = CondCall(*[_with_inputs(b, lifted) for b in bodies])
    if not leaves_of(bodies[0].result):
        return bodies[0].result
    template, _ = Template.of(bodies[0].result)
    return template.fill(_record_cond(m, call, pred, lifted, bodies))


def _record_cond(m: Machine, call: CondCall, pred: TraceTensor, lifted: list, bodies: list[Body]) -> tuple:
    """The node; its results have the metadata of the branches', and need a gradient where either does."""
    results = []
    for a, b in zip(*[leaves_of(body.result) for body in bodies]):
        results.append(stand_in_result(m, a, a.requires_grad or b.requires_grad))
    node = m.graph.graph.call_function(call, (m.graph.arg(pred), *lifted))
    return m.graph.made(node, tuple(results))


def stand_in_result(m: Machine, like: TraceTensor, requires_grad: bool) -> TraceTensor:
    made = stand_in(m, like, requires_grad=requires_grad and torch._C.is_grad_enabled())
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
            x.shape == y.shape and x.dtype == y.dtype and x.stride() == y.stride() for x, y in zip(one[1], other[1])
        )
    )
    constants = alike and all(
        isinstance(x, type(y)) and (x is y or x == y) for x, y in zip(one[0].leaves, other[0].leaves)
    )
    if not alike or not constants:
        raise Break(
            "higher_order",
            "the branches of torch.cond return different things",
            "return tensors of one shape, layout and dtype from both",
        )


# --- loops
@python_function(("torch.ops.higher_order", "while_loop"))
def while_loop_operator(m: Machine, cond_fn: Any, body_fn: Any, carried: Any, more: Any = ()) -> Any:
    """The operator itself, whose functions also get what they use of their surroundings."""
    more = list(m.iterate(more))
    if not more:
        return while_loop_(m, cond_fn, body_fn, carried)
    raise Break("higher_order", "torch.ops.higher_order.while_loop with further inputs", "call torch.while_loop")


@python_function(("torch._higher_order_ops.while_loop", "while_loop"))
def while_loop_(m: Machine, cond_fn: Any, body_fn: Any, carried_inputs: Any, **kwargs: Any) -> Any:
    carried = m.deep_plain(carried_inputs)
    template, tensors = Template.of(carried)
    if len(tensors) != len(template.leaves):
        raise Break("higher_order", "torch.while_loop carries values that are not tensors", "carry 0-dim tensors")
    if _needs_grad(tensors):
        raise Break("higher_order", "torch.while_loop is applied to tensors that need a gradient")
    pure = Purity(m, "the body of torch.while_loop", cond_fn, body_fn)
    bodies, lifted_of = [], []
    for fn in (cond_fn, body_fn):
        fresh = [stand_in(m, t, requires_grad=False) for t in tensors]
        body = capture_body(m, "loop", fresh, lambda fn=fn, fresh=fresh: m.call(fn, list(template.fill(fresh))))
        pure.check()
        bodies.append(body)
        lifted_of.append(body.lifted)
    flag = leaves_of(bodies[0].result)
    if len(flag) != 1 or flag[0].numel() != 1:
        raise Break("higher_order", "the condition of torch.while_loop is not a tensor of one element")
    out = leaves_of(bodies[1].result)
    if len(out) != len(tensors) or any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(out, tensors)):
        raise Break("higher_order", "the body of torch.while_loop changes the shape or dtype of what it carries")
    lifted = list({n: None for nodes in lifted_of for n in nodes})
    if (
        any(isinstance(n.meta.get("val"), TraceTensor) and n.meta["val"].requires_grad for n in lifted)
        and torch._C.is_grad_enabled()
    ):
        raise Break("higher_order", "torch.while_loop uses tensors that need a gradient")
    condition, step = (_with_more_inputs(b, len(tensors), lifted) for b in bodies)
    results = tuple(stand_in(m, t, requires_grad=False) for t in out)
    graph = m.graph
    node = graph.graph.call_function(
        WhileLoopCall(condition, step, len(tensors)), (*[graph.arg(t) for t in tensors], *lifted)
    )
    return template.fill(graph.made(node, results))


def _with_more_inputs(body: Body, n: int, lifted: list) -> torch.fx.GraphModule:
    """As `_with_inputs`, for a body with `n` parameters of its own before what it lifted."""
    graph = body.graph.graph
    own = graph.find_nodes(op="placeholder")
    mine = dict(zip(body.lifted, own[n:]))
    anchor = own[n - 1]
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
    m: Machine,
    name: str,
    fn: Callable[[list, list], Any],
    carried: list,
    sequences: list,
    reverse: bool,
    n_results_of: Callable,
) -> tuple:
    """Record a ScanCall for a step function on lists of tensors; the results' structure is the caller's."""
    if not sequences or any(t.dim() == 0 for t in sequences) or sequences[0].shape[0] == 0:
        raise Break("higher_order", f"{name} over nothing")
    inside = [stand_in(m, t) for t in carried] + [stand_in(m, t, drop_dim=0) for t in sequences]
    body = capture_body(m, name, inside, lambda: fn(inside[: len(carried)], inside[len(carried) :]))
    out = leaves_of(body.result)
    n_results_of(body.result)
    for a, b in zip(out, carried):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise Break("higher_order", f"the body of {name} changes the shape or dtype of what it carries")
    call = ScanCall(name, body.graph, len(carried), len(sequences), reverse)
    return body.result, record_call(m, call, [*carried, *sequences], body.lifted)


def _tensors_only(value: Any, what: str) -> tuple[Template, list]:
    template, tensors = Template.of(value)
    if len(tensors) != len(template.leaves):
        raise Break("higher_order", f"{what} gets values that are not tensors")
    return template, tensors


@python_function(("torch._higher_order_ops.scan", "scan"))
def scan_(m: Machine, combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    init_t, carried = _tensors_only(m.deep_plain(init), "scan")
    xs_t, sequences = _tensors_only(m.deep_plain(xs), "scan")
    if dim:
        sequences = [m.call(torch.movedim, [s, dim, 0]) for s in sequences]
    pure = Purity(m, "the body of scan", combine_fn)
    result, out = _scan(
        m,
        "scan",
        lambda c, x: m.call(combine_fn, [init_t.fill(c), xs_t.fill(x)]),
        carried,
        sequences,
        m.truth(reverse),
        _is_pair,
    )
    pure.check()
    ys, _ = _tensors_only(result[1], "scan")
    stacked = list(out[len(carried) :])
    if dim:
        stacked = [m.call(torch.movedim, [s, 0, dim]) for s in stacked]
    return init_t.fill(out[: len(carried)]), ys.fill(stacked)


def _is_pair(result: Any) -> None:
    if not isinstance(result, tuple) or len(result) != 2:
        raise Break("higher_order", "the body of scan returns no pair (carry, result)")


@python_function(("torch._higher_order_ops.map", "map"))
def map_(m: Machine, f: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
    xs_t, sequences = _tensors_only(m.deep_plain(xs), "map")
    return _map(m, f, args, sequences, lambda x: m.call(f, [xs_t.fill(x), *args], kwargs))


def _map(m: Machine, f: Any, args: Any, sequences: list, step: Callable[[list], Any]) -> Any:
    pure = Purity(m, "the body of map", f, args)
    result, out = _scan(m, "map", lambda c, x: step(x), [], sequences, False, lambda r: None)
    pure.check()
    return _tensors_only(result, "map")[0].fill(out)


@python_function(("torch.ops.higher_order", "map_impl"))
def map_operator(m: Machine, f: Any, xs: Any, more: Any) -> Any:
    """The operator itself: its function gets a slice of each tensor one by one, then what every step gets."""
    args = list(m.iterate(more))
    return _map(m, f, args, _tensors_only(list(m.iterate(xs)), "map")[1], lambda x: m.call(f, [*x, *args]))


@python_function(("torch._higher_order_ops.associative_scan", "associative_scan"))
def associative_scan_(
    m: Machine, combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """The scan as a tree: each level combines whole slabs, and the depth is the logarithm of the length."""
    xs_t, sequences = _tensors_only(m.deep_plain(xs), "associative_scan")
    if not sequences or any(s.dim() == 0 for s in sequences) or sequences[0].shape[0 if not dim else dim] == 0:
        raise Break("higher_order", "associative_scan over nothing")
    if dim:
        sequences = [m.call(torch.movedim, [s, dim, 0]) for s in sequences]
    if m.truth(reverse):
        sequences = [m.call(torch.flip, [s, [0]]) for s in sequences]
    pure = Purity(m, "the body of associative_scan", combine_fn)
    combine = _slab_combiner(m, combine_fn, xs_t, sequences)
    results = _tree_scan(m, combine, sequences)
    pure.check()
    if m.truth(reverse):
        results = [m.call(torch.flip, [r, [0]]) for r in results]
    if dim:
        results = [m.call(torch.movedim, [r, 0, dim]) for r in results]
    return xs_t.fill(results)


_ELEMENTWISE = frozenset(
    """add sub mul div truediv true_divide neg abs exp log sin cos tanh sigmoid sqrt maximum minimum logaddexp where pow
    reciprocal relu and_ or_ xor logical_and logical_or clone square rsqrt clamp""".split()
)


def _slab_combiner(m: Machine, combine_fn: Any, template: Template, sequences: list) -> Callable[[list, list], list]:
    """The combining function on slabs of slices. One that works element by element is applied as it is, any other under
    vmap.
    """
    inside = [stand_in(m, s, drop_dim=0) for s in (*sequences, *sequences)]
    k = len(sequences)
    body = capture_body(
        m, "combine", inside, lambda: m.call(combine_fn, [template.fill(inside[:k]), template.fill(inside[k:])])
    )
    out = leaves_of(body.result)
    if len(out) != k or any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(out, inside)):
        raise Break("higher_order", "the body of associative_scan changes the shape or dtype of what it combines")
    names = [
        n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
        for n in body.graph.graph.nodes
        if n.op.startswith("call")
    ]
    # what is combined with something from around it is aligned by vmap alone
    elementwise = not body.lifted and all(n in _ELEMENTWISE for n in names)
    fn = combine_fn if elementwise else vmap_(m, combine_fn)

    def combine(a: list, b: list) -> list:
        return pytree.tree_leaves(m.deep_plain(m.call(fn, [template.fill(a), template.fill(b)])))

    return combine


def _tree_scan(m: Machine, combine: Callable[[list, list], list], elements: list) -> list:
    n = int(elements[0].shape[0])
    if n < 2:
        return elements

    def part(t: TraceTensor, start: int, stop: int | None, step: int) -> TraceTensor:
        return operators.get_item(m, t, slice(start, stop, step))

    odd = _tree_scan(
        m, combine, combine([part(e, 0, -1, 2) for e in elements], [part(e, 1, None, 2) for e in elements])
    )
    if n == 2:
        return [m.call(torch.cat, [[part(e, 0, 1, 1), o]]) for e, o in zip(elements, odd)]
    heads = odd if n % 2 else [part(o, 0, -1, 1) for o in odd]
    even = combine(heads, [part(e, 2, None, 2) for e in elements])
    even = [m.call(torch.cat, [[part(e, 0, 1, 1), r]]) for e, r in zip(elements, even)]
    return [_interleave(m, a, b) for a, b in zip(even, odd)]


def _interleave(m: Machine, even: TraceTensor, odd: TraceTensor) -> TraceTensor:
    """even[0], odd[0], even[1], ...; there may be one more of the even ones."""
    n = int(odd.shape[0])
    more = int(even.shape[0]) > n
    pairs = m.call(torch.stack, [[operators.get_item(m, even, slice(0, n)) if more else even, odd], 1])
    flat = m.call(torch.flatten, [pairs, 0, 1])
    return m.call(torch.cat, [[flat, operators.get_item(m, even, slice(n, None))]]) if more else flat
