"""Gradients of custom operators whose registered backward can't be traced: it reads values, or calls what has no rule.

Such a backward becomes an operator of its own, opaque as the forward is. Only it runs by itself; the graph around it is
compiled. It is made anew from what the forward took and gave, so that these are kept for it.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator
from unittest import mock

import torch
from torch._library.custom_ops import OPDEFS
from torch.utils import _pytree as pytree

from ..graph.tensor import DataDependentError, TraceTensor

__all__ = ["opaque_where_needed"]

_LIBRARY = torch.library.Library("tcompile_gradients", "FRAGMENT")
_numbers = itertools.count()
_made: dict[tuple, tuple[Any, Any]] = {}  # what a gradient is made of -> (the operator's definition, the gradient's)


@contextmanager
def opaque_where_needed(graph: torch.fx.Graph) -> Iterator[None]:
    """While gradients are traced: the backward of a custom operator in the graph that can't be traced is opaque."""
    operators: Any = OPDEFS
    names = {
        (
            node.target._name if isinstance(node.target, torch._ops.OpOverload) else node.target._qualified_op_name
        ).partition(".")[0]
        for node in graph.nodes
        if isinstance(node.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
    }
    with ExitStack() as stack:
        for name in names:
            made = operators.get(name)
            if made is not None and made._backward_fn is not None:
                traced = _Traced(name, made)
                stack.enter_context(mock.patch.object(made, "_backward_fn", traced.backward))
                stack.enter_context(mock.patch.object(made, "_setup_context_fn", traced.setup_context))
        yield


class _Traced:
    """The two functions of a custom operator's gradient while it is traced."""

    def __init__(self, name: str, made: Any):
        self.name, self.made = name, made
        self.own_backward: Callable = made._backward_fn
        self.own_setup: Callable | None = made._setup_context_fn

    def setup_context(self, ctx: Any, inputs: tuple, output: Any, **named: Any) -> None:
        if self.own_setup is not None:
            self.own_setup(ctx=ctx, inputs=inputs, output=output, **named)
        if not named and any(type(x) is TraceTensor for x in inputs):
            ctx.traced_call = inputs, output

    def backward(self, ctx: Any, *gradients: Any) -> Any:
        try:
            return self.own_backward(ctx, *gradients)
        except (DataDependentError, NotImplementedError):
            if not hasattr(ctx, "traced_call"):
                raise
            inputs, output = ctx.traced_call
            wanted = [i for i, needed in enumerate(ctx.needs_input_grad) if needed]
            if not all(type(inputs[i]) is TraceTensor for i in wanted):
                raise
            found = self.opaque((inputs, output, gradients), wanted, len(ctx.needs_input_grad))
            return tuple(found[wanted.index(i)] if i in wanted else None for i in range(len(inputs)))

    def opaque(self, given: tuple, wanted: list[int], passed: int) -> tuple:
        flat, spec = pytree.tree_flatten(given)
        places = tuple(i for i, x in enumerate(flat) if isinstance(x, torch.Tensor))
        rest = tuple(None if i in places else x for i, x in enumerate(flat))
        key = id(self.made), places, repr(rest), tuple(wanted), passed
        if key not in _made:
            _made[key] = self.made, self.define(spec, places, rest, wanted, passed)
        found = _made[key][1](*(flat[place] for place in places))
        return found if isinstance(found, tuple) else (found,)

    def define(self, spec: Any, places: tuple[int, ...], rest: tuple, wanted: list[int], passed: int) -> Any:
        """The operator (tensors of inputs, outputs and gradients) -> gradients of the inputs that are wanted, of the
        `passed` ones that are no defaults.
        """
        setup, backward = self.own_setup, self.own_backward
        name = f"{self.name.replace('::', '_').replace('.', '_')}_{next(_numbers)}"
        tensors = ", ".join(f"Tensor t{i}" for i in range(len(places)))
        results = ", ".join("Tensor" for _ in wanted)

        def call(*given: torch.Tensor) -> Any:
            flat = list(rest)
            for place, t in zip(places, given):
                flat[place] = t
            inputs, output, gradients = pytree.tree_unflatten(flat, spec)
            ctx = _Context(tuple(i in wanted for i in range(passed)))
            if setup is not None:
                setup(ctx=ctx, inputs=inputs, output=output)
            found = backward(ctx, *gradients)
            found = found if isinstance(found, tuple) else (found,)
            fresh = tuple(
                torch.zeros_like(inputs[i]) if found[i] is None else _of_its_own(found[i], given) for i in wanted
            )
            return fresh if len(fresh) > 1 else fresh[0]

        def shapes(*given: torch.Tensor) -> Any:
            flat = list(rest)
            for place, t in zip(places, given):
                flat[place] = t
            inputs = pytree.tree_unflatten(flat, spec)[0]
            fresh = tuple(torch.empty_like(inputs[i]) for i in wanted)
            return fresh if len(fresh) > 1 else fresh[0]

        _LIBRARY.define(f"{name}({tensors}) -> ({results})")
        _LIBRARY.impl(name, call, "CompositeExplicitAutograd")
        torch.library.register_fake(f"tcompile_gradients::{name}", shapes, lib=_LIBRARY)
        return getattr(torch.ops.tcompile_gradients, name).default


class _Context:
    """What the functions of a gradient see as `ctx`."""

    def __init__(self, needs_input_grad: tuple[bool, ...]):
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Nothing is asked of these."""

    def set_materialize_grads(self, value: bool) -> None:
        """All gradients are there."""


def _of_its_own(tensor: torch.Tensor, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """No memory of what the operator was given."""
    memory = tensor.untyped_storage().data_ptr()
    return tensor.clone() if any(x.untyped_storage().data_ptr() == memory for x in given) else tensor
