"""Operators whose operands are graphs: custom autograd functions, checkpoints, torch.cond, loops, function transforms.

In a captured graph such an operator is one `call_function` node. Its target is an object of this module that holds the
bodies as torch-level GraphModules and gets as arguments the tensors that these take. Called with real tensors it does
what eager does. Called with TraceTensors, in the graph and autograd stages, it is traced through: what it computes
becomes part of the functional graph. What has no trace raises NotImplementedError, and the graph runs with torch's own
kernels.
"""

from __future__ import annotations

import operator
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence

import torch
import torch.utils._pytree as pytree
from torch.autograd.function import once_differentiable
from torch.fx.node import map_arg

from ..base.fx_nodes import called, is_constant, is_input, is_output
from .traced_calls import trace_call
from .tensor import TraceTensor, marked

__all__ = [
    "HigherOrderCall",
    "AutogradFunctionCall",
    "CheckpointCall",
    "BackwardCall",
    "HookCall",
    "CondCall",
    "WhileLoopCall",
    "ScanCall",
    "TransformCall",
    "has_backward",
    "in_this_thread",
    "noting",
]

_LONGEST = 64  # iterations of a scan that are traced one by one


def traced(values: Sequence[Any]) -> bool:
    return any(isinstance(value, TraceTensor) for value in values)


def run_body(body: torch.fx.GraphModule, inputs: Sequence[Any], trace: bool | None = None) -> tuple:
    """What a body gives. Traced, it is run node by node: what makes tensors from nothing (sizes that vary, random
    numbers) is traced, too. `trace`: said where a transform stands between, whose tensors hide what they hold."""
    if not (traced(inputs) if trace is None else trace):
        return tuple(body.forward(*inputs))  # (called, a GraphModule reports errors by printing them)
    given, values = iter(inputs), {}
    for node in body.graph.nodes:
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        if is_input(node):
            values[node] = next(given)
        elif is_constant(node):
            values[node] = operator.attrgetter(node.target)(body)
        elif is_output(node):
            return tuple(args[0])
        else:
            values[node] = trace_call(called(node), args, kwargs)
    raise AssertionError("a body without results")


class HigherOrderCall:
    """A callable that fx prints by name. `bodies` are its graphs, by the name they have in messages and dumps."""

    kind = "higher_order"

    def __init__(self, name: str, bodies: dict[str, torch.fx.GraphModule]):
        self.bodies = bodies
        self.__name__ = self.__qualname__ = name
        self.__module__ = __name__

    def __repr__(self) -> str:
        return f"<{self.kind} {self.__name__}: {', '.join(self.bodies)}>"

    def __deepcopy__(self, memo: dict) -> "HigherOrderCall":
        return self  # holds no parameters and is never changed


# --- torch.autograd.Function
class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: "AutogradFunctionCall", *inputs: Any) -> Any:
        out = run_body(call.bodies["forward"], inputs)
        results, kept = [_in_graph(inputs, result) for result in out[: call.n_results]], out[call.n_results :]
        ctx.call = call
        ctx.kinds = [isinstance(k, torch.Tensor) for k in kept]
        ctx.plain = [k for k in kept if not isinstance(k, torch.Tensor)]
        ctx.results = [(result.shape, result.dtype, result.device) for result in results]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*[k for k in kept if isinstance(k, torch.Tensor)])
        ctx.mark_non_differentiable(*[results[i] for i in call.non_differentiable])
        if call.dirty:
            ctx.mark_dirty(*[inputs[i] for i in call.dirty])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        call, tensors, plain = ctx.call, iter(ctx.saved_tensors), iter(ctx.plain)
        if call.refusal:
            raise NotImplementedError(call.refusal) if traced(grads) else RuntimeError(call.refusal)
        kept = [next(tensors) if is_tensor else next(plain) for is_tensor in ctx.kinds]
        # (of a traced one, zeros are part of the graph)
        like: Any = next((grad for grad in grads if grad is not None), torch.empty(()))
        grads = tuple(
            [
                like.new_zeros(shape, dtype=dtype, device=device) if grad is None else grad
                for grad, (shape, dtype, device) in zip(grads, ctx.results)
            ]
        )
        # What a custom backward computes of what its forward kept it computes itself, as in eager: the program's author
        # chose what is kept. It is not merged with what forward computes alike, and the partition computes it again.
        with marked(checkpoint=call.__name__, apart=call.__name__):
            out = iter(run_body(call.bodies["backward"], (*grads, *kept)))
        return (None, *[next(out) if has else None for has in call.has_grad])


def _in_graph(inputs: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """A result that is a constant, as a tensor of the graph where that is traced: else nothing tells that it hangs on
    the inputs.
    """
    like = next((v for v in inputs if isinstance(v, TraceTensor)), None)
    if like is None or isinstance(result, TraceTensor):
        return result
    own = like.new_empty_strided(result.shape, result.stride(), dtype=result.dtype, device=result.device)
    return own.copy_(result)


class _ApplyOnce(_Apply):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        return _Apply.backward(ctx, *grads)


class AutogradFunctionCall(HigherOrderCall):
    """A custom autograd function applied to tensors that need a gradient.

    forward    (*inputs) -> n_results results, then what backward needs
    backward   (*gradients of all results, *what forward kept) -> the gradients of the inputs for which `has_grad` is
               True
    refusal    what autograd says of the number of gradients, where that is wrong
    """

    kind = "autograd_function"

    def __init__(
        self,
        name: str,
        forward: Any,
        backward: Any,
        n_results: int,
        has_grad: Sequence[bool],
        non_differentiable: Sequence[int],
        dirty: Sequence[int],
        once: bool,
        refusal: str = "",
    ):
        super().__init__(name, {"forward": forward, "backward": backward})
        self.refusal = refusal
        self.n_results, self.has_grad, self.non_differentiable, self.dirty = (
            n_results,
            tuple(has_grad),
            tuple(non_differentiable),
            tuple(dirty),
        )
        self.once = once

    def __call__(self, *inputs: Any) -> tuple:
        return (_ApplyOnce if self.once else _Apply).apply(self, *inputs)


# --- torch.utils.checkpoint
class CheckpointCall(HigherOrderCall):
    """torch.utils.checkpoint.checkpoint(body, *inputs). Traced, it is its body: the partition of the joint graph
    decides what is computed again."""

    kind = "checkpoint"

    def __init__(self, body: Any, reentrant: bool, preserve_rng_state: bool):
        super().__init__("checkpoint", {"body": body})
        self.reentrant, self.preserve_rng_state = reentrant, preserve_rng_state

    def __call__(self, *inputs: Any) -> tuple:
        if traced(inputs) or not torch._C.is_grad_enabled():
            return run_body(self.bodies["body"], inputs)
        from torch.utils.checkpoint import checkpoint

        return tuple(
            checkpoint(
                self.bodies["body"].forward,
                *inputs,
                use_reentrant=self.reentrant,
                preserve_rng_state=self.preserve_rng_state,
            )
        )


# --- backward passes
@contextmanager
def in_this_thread() -> Iterator[None]:
    """Backward formulas of tensors on a GPU would run in a thread of autograd's, where nothing is recorded."""
    with torch.autograd.set_multithreading_enabled(False):
        yield


class BackwardCall(HigherOrderCall):
    """torch.autograd.grad(roots, inputs, gradients). Arguments: the roots, the gradients that there are of them, the
    inputs.

    has_gradient   per root, whether its gradient is among the arguments
    retain, create, allow_unused   as torch.autograd.grad has them
    n_watched      as many tensors follow the inputs, and their gradients those of the inputs: what a hook on each is
                   given, None where the pass does not come to it
    """

    kind = "backward"

    def __init__(
        self,
        n_roots: int,
        has_gradient: Sequence[bool],
        retain: bool,
        create: bool,
        allow_unused: bool,
        n_watched: int = 0,
    ):
        super().__init__("backward", {})
        self.n_roots, self.has_gradient, self.n_watched = n_roots, tuple(has_gradient), n_watched
        self.retain, self.create, self.allow_unused = retain, create, allow_unused

    def __call__(self, *values: Any) -> tuple:
        n_roots, k = self.n_roots, sum(self.has_gradient)
        end = len(values) - self.n_watched
        roots, given, inputs, watched = (
            values[:n_roots],
            iter(values[n_roots : n_roots + k]),
            values[n_roots + k : end],
            values[end:],
        )
        gradients = [next(given) if has else None for has in self.has_gradient]
        seen: dict[int, torch.Tensor] = {}
        with in_this_thread(), noting(watched, seen):
            found = torch.autograd.grad(
                roots,
                inputs,
                gradients,
                retain_graph=self.retain,
                create_graph=self.create,
                allow_unused=self.allow_unused,
            )
        return (*found, *map(seen.get, range(self.n_watched)))

    def order(self, *values: Any) -> list[int]:
        """In which order a pass with these arguments comes to the inputs, and then the watched tensors. (The graph
        stays as it is.)"""
        n_roots, k = self.n_roots, sum(self.has_gradient)
        seen: dict[int, torch.Tensor] = {}
        again = BackwardCall(n_roots, self.has_gradient, True, self.create, True)
        with noting(values[n_roots + k :], seen):
            again(*values[: len(values) - self.n_watched])
        return list(seen)


@contextmanager
def noting(tensors: Sequence[torch.Tensor], seen: dict[int, torch.Tensor]) -> Iterator[None]:
    """Note the gradients that hooks on these tensors are given, in order."""
    handles = [
        tensor.register_hook(lambda g, i=i: seen.__setitem__(i, g))
        for i, tensor in enumerate(tensors)
        if tensor.requires_grad
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class HookCall(HigherOrderCall):
    """t.register_hook(hook): from now on, a backward pass that comes to t goes on with what `hook` computes.

    hook   (gradient, *what it uses of the graph around it) -> the gradient in its place
    """

    kind = "hook"

    def __init__(self, name: str, hook: Any):
        super().__init__(name, {"hook": hook})

    def __call__(self, tensor: torch.Tensor, *used: Any) -> tuple:
        body, trace = self.bodies["hook"], traced((tensor,))
        tensor.register_hook(lambda g: run_body(body, (g, *used), trace)[0])
        return ()


def has_backward(graph: torch.fx.Graph) -> bool:
    """Whether a captured graph computes gradients itself."""
    return any(isinstance(node.target, BackwardCall) for node in graph.nodes)


# --- control flow
class CondCall(HigherOrderCall):
    """torch.cond(pred, true, false, inputs): one of the branches runs."""

    kind = "cond"

    def __init__(self, true: Any, false: Any):
        super().__init__("cond", {"true": true, "false": false})

    def __call__(self, pred: torch.Tensor, *inputs: Any) -> tuple:
        if isinstance(pred, TraceTensor):
            return self._select(pred, inputs)
        return tuple(self.bodies["true" if pred.item() else "false"].forward(*inputs))

    def _select(self, pred: torch.Tensor, inputs: tuple) -> tuple:
        """Both branches are computed and each result chosen: only where that can't be told from running one of them."""
        if torch._C.is_grad_enabled() and any(
            isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in inputs
        ):
            raise NotImplementedError(
                "torch.cond on tensors that need a gradient: the branch that is not taken must give none, not NaN"
            )
        for body in self.bodies.values():
            for node in body.graph.nodes:
                if not _selectable(node):
                    raise NotImplementedError(
                        f"a branch of torch.cond calls {node.target}, which may fail or draw random numbers"
                    )
        results = [run_body(body, inputs) for body in self.bodies.values()]
        flag = (pred if pred.dtype is torch.bool else pred != 0).reshape(())
        return tuple(torch.where(flag, a, b) for a, b in zip(*results))


_MAY_FAIL = frozenset(
    """embedding index_select gather take take_along_dim index_add index_copy scatter scatter_add cholesky inv inverse
    solve one_hot embedding_bag nll_loss cross_entropy multinomial bernoulli dropout rrelu alpha_dropout feature_dropout
    lstsq eigh eig svd qr lu bincount getitem index_put floor_divide remainder fmod mod floordiv""".split()
)
_RANDOM = ("rand", "normal", "poisson", "exponential", "uniform", "random", "log_normal", "cauchy", "geometric")


def _selectable(node: torch.fx.Node) -> bool:
    """Whether the node of a branch may run although the branch is not taken."""
    if not node.op.startswith("call"):
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if isinstance(node.target, HigherOrderCall):
        return isinstance(node.target, CondCall)
    if name == "getitem":  # indices that are constants are checked by their shapes
        return not _holds_tensor_node(node.args[1])
    return name.rstrip("_") not in _MAY_FAIL and not name.startswith(_RANDOM)


def _holds_tensor_node(index: Any) -> bool:
    return any(
        isinstance(leaf, torch.fx.Node) and isinstance(leaf.meta.get("val"), torch.Tensor)
        for leaf in pytree.tree_leaves(index)
    )


class WhileLoopCall(HigherOrderCall):
    """while condition(*carried, *inputs): carried = step(*carried, *inputs)"""

    kind = "while_loop"

    def __init__(self, condition: Any, step: Any, n_carried: int):
        super().__init__("while_loop", {"condition": condition, "step": step})
        self.n_carried = n_carried

    def __call__(self, *values: Any) -> tuple:
        carried, inputs = tuple(values[: self.n_carried]), values[self.n_carried :]
        if traced(values):
            raise NotImplementedError("torch.while_loop: the number of iterations depends on values")
        while bool(self.bodies["condition"].forward(*carried, *inputs)[0]):
            carried = tuple(self.bodies["step"].forward(*carried, *inputs))
        return tuple(c.clone() if any(c is value for value in values) else c for c in carried)


class ScanCall(HigherOrderCall):
    """A body applied along dimension 0 of the sequences: (*carried, *slices, *inputs) -> (*carried, *results of this
    step).
    """

    kind = "scan"

    def __init__(self, name: str, step: Any, n_carried: int, n_sequences: int, reverse: bool = False):
        super().__init__(name, {"step": step})
        self.n_carried, self.n_sequences, self.reverse = n_carried, n_sequences, reverse

    def __call__(self, *values: Any) -> tuple:
        n_carried, k = self.n_carried, self.n_sequences
        carried, sequences, inputs = (
            tuple(values[:n_carried]),
            values[n_carried : n_carried + k],
            values[n_carried + k :],
        )
        length = int(sequences[0].shape[0])
        if traced(values) and length > _LONGEST:
            raise NotImplementedError(f"a scan of {length} steps (more than {_LONGEST})")
        steps = []
        for i in reversed(range(length)) if self.reverse else range(length):
            out = run_body(self.bodies["step"], (*carried, *[sequence[i] for sequence in sequences], *inputs))
            carried = tuple(out[:n_carried])
            steps.append(out[n_carried:])
        if self.reverse:
            steps.reverse()
        carried = tuple(c.clone() if any(c is value for value in values) else c for c in carried)
        return (*carried, *[torch.stack(parts) for parts in zip(*steps)])


# --- torch.func
class TransformCall(HigherOrderCall):
    """A transform of torch.func applied to a captured function.

    transform   function -> transformed function (torch.func.grad with its options, and so on)
    arguments   pytree spec and constants of the transformed function's arguments; its tensors are this call's first
                inputs
    """

    kind = "transform"

    def __init__(
        self,
        name: str,
        body: Any,
        transform: Callable[[Callable], Callable],
        arguments: "Template",
        results: "Template",
        parameters: "Template",
    ):
        super().__init__(name, {"body": body})
        self.transform, self.arguments, self.results, self.parameters = transform, arguments, results, parameters
        self.out: Template | None = None

    def call(self, *inputs: Any) -> Any:
        """The structured result."""
        n_tensors = self.arguments.n_tensors
        closed_over = inputs[n_tensors:]

        def function(*args: Any, **kwargs: Any) -> Any:
            return self.results.fill(
                run_body(self.bodies["body"], (*self.parameters.tensors((args, kwargs)), *closed_over), traced(inputs))
            )

        args, kwargs = self.arguments.fill(inputs[:n_tensors])
        return self.transform(function)(*args, **kwargs)

    def __call__(self, *inputs: Any) -> tuple:
        self.out, tensors = Template.of(self.call(*inputs))
        return tuple(tensors)


class Template:
    """A nested value with its tensors taken out: `fill(tensors)` puts others in."""

    def __init__(self, leaves: list[Any], spec: Any, n_tensors: int):
        self.leaves, self.spec, self.n_tensors = leaves, spec, n_tensors

    @classmethod
    def of(cls, value: Any) -> tuple["Template", list[torch.Tensor]]:
        leaves, spec = pytree.tree_flatten(value)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return cls([_HOLE if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec, len(tensors)), tensors

    def fill(self, tensors: Sequence[Any]) -> Any:
        given = iter(tensors)
        return pytree.tree_unflatten([next(given) if leaf is _HOLE else leaf for leaf in self.leaves], self.spec)

    def tensors(self, value: Any) -> list[Any]:
        """The tensors of a value of the same structure."""
        leaves = pytree.tree_leaves(value)
        return [leaf for leaf, mine in zip(leaves, self.leaves) if mine is _HOLE]


_HOLE = object()
