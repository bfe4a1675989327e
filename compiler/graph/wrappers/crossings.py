"""The ways of wrappers into a graph and out of it, and how gradients pass them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...guards.snapshots import snapshot
from ..captured import CapturedGraph
from ..tensor import TraceTensor
from .class_operators import inside, outer_tensor, put_together
from .wrapping import Fixed, Wrapping, is_dtensor, is_wrapper, take_apart

__all__ = ["Call", "Crossing", "Wrap", "Unwrap", "Inner", "form_of_gradient", "gradients_cross"]


@dataclass(eq=False)
class Crossing:
    """A place where a wrapper enters or leaves a graph. `gradient`: how its gradient is made, where that was traced, or
    where its class says so."""

    wrapping: Wrapping
    gradient: Wrapping | None = None


def _sizes_of_gradient(sizes: tuple, wrapping: Wrapping, plain: Sequence[torch.Tensor]) -> tuple:
    """The sizes of a wrapper whose parts may be laid out in another way than those that it is the gradient of."""
    alike = next((t for t in plain if tuple(t.shape) == tuple(sizes[0])), None)
    own = tuple(
        _sizes_of_gradient(s, axis, plain) if isinstance(axis, Wrapping) else s
        for s, axis in zip(sizes[2], wrapping.inner)
    )
    return sizes[0], sizes[1] if alike is None else tuple(alike.stride()), own


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, crossing: Crossing, sizes: tuple, *plain: torch.Tensor) -> torch.Tensor:
        ctx.crossing, ctx.traced = crossing, type(plain[0]) is TraceTensor
        made: Any = put_together(crossing.wrapping, sizes, [tensor.detach() for tensor in plain])
        ctx.placements = made.tt_wrapper.placements if ctx.traced and is_dtensor(crossing.wrapping.cls) else None
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        if not ctx.traced:
            gradient = _as_traced(gradient, ctx.crossing.gradient or ctx.crossing.wrapping)
        elif ctx.placements is not None:
            gradient = _parted_alike(gradient, ctx.placements)
        wrapping, _, plain = take_apart(gradient)
        if ctx.traced:
            ctx.crossing.gradient = wrapping
        elif gradient.requires_grad:  # of a backward pass that is differentiated in its turn
            plain = _Leave.apply(Crossing(wrapping), gradient)
        return (None, None, *plain)


def _as_traced(gradient: Any, wrapping: Wrapping) -> torch.Tensor:
    """A gradient from outside in the form that the graph was made for: that of the result that it belongs to."""
    found = _coerced(gradient, wrapping)
    if found is None:
        other = " of another flatten context" if type(gradient) is wrapping.cls else ""
        raise RuntimeError(
            f"the gradient of a {wrapping.cls.__name__} is a {type(gradient).__name__}{other}. The compiled backward"
            " takes one of the form that the result has: compute the loss inside of the compiled part, or give that."
        )
    return found


def _coerced(t: Any, wanted: Wrapping | Fixed | None) -> Any:
    """A gradient, or a part of one, in a form; None where its class does not make that of it."""
    coerce = getattr(t, "__coerce_same_metadata_as_tangent__", None)
    if isinstance(wanted, Fixed):
        return t
    if wanted is None:  # (a collective that is under way gives what comes of it)
        return t if not is_wrapper(t) else coerce(None, torch.Tensor) if coerce is not None else None
    if type(t) is not wanted.cls:
        return None
    found = take_apart(t)[0]
    if _alike(found, wanted):
        return t
    if found.names != wanted.names or snapshot(found.context) != snapshot(wanted.context):
        return coerce(wanted.context) if coerce is not None else None
    parts = {name: _coerced(getattr(t, name), inner) for name, inner in zip(wanted.names, wanted.inner)}
    if any(part is None and not isinstance(inner, Fixed) for part, inner in zip(parts.values(), wanted.inner)):
        return None
    return wanted.cls.__tensor_unflatten__(parts, found.context, t.shape, t.stride())


def form_of_gradient(result: Any) -> Wrapping | None:
    """How the gradient of a result will be made, where its class wants another form than the result's own."""
    coerce = getattr(result, "__coerce_tangent_metadata__", None)
    if coerce is None:
        return None
    with inside():
        coerced = coerce()
    return None if coerced is result else take_apart(coerced)[0]


def _parted_alike(gradient: Any, placements: tuple) -> Any:
    """A DTensor's gradient, parted as the DTensor is: autograd takes no local gradient of another shape. (torch makes
    all of an embedding's gradient on each process, for instance, where the embedding's rows are parted.)"""
    found = gradient.tt_wrapper
    alike = found is None or not is_dtensor(type(found)) or _parted(found.placements) == _parted(placements)
    if alike or gradient.requires_grad:
        return gradient
    with inside():
        return outer_tensor(found.redistribute(placements=placements), {})


def _parted(placements: tuple) -> tuple:
    return tuple(placement.dim if placement.is_shard() else None for placement in placements)


def _alike(a: Wrapping, b: Wrapping) -> bool:
    if a.cls is not b.cls or a.names != b.names or snapshot(a.context) != snapshot(b.context):
        return False
    for axis, y in zip(a.inner, b.inner):
        if type(axis) is not type(y):
            return False
        if isinstance(axis, Wrapping) and not _alike(axis, y):
            return False
    return True


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, crossing: Crossing, t: torch.Tensor) -> tuple:
        wrapping, ctx.sizes, plain = take_apart(t)
        ctx.crossing = crossing
        return tuple(p.detach() for p in plain)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        wrapping = ctx.crossing.gradient or ctx.crossing.wrapping
        sizes = _sizes_of_gradient(ctx.sizes, wrapping, gradients)
        if torch.is_grad_enabled() and any(gradient.requires_grad for gradient in gradients):
            return None, _Enter.apply(Crossing(wrapping), sizes, *gradients)
        return None, put_together(wrapping, sizes, gradients)


class Call:
    """A callable that is a node of captured graphs, and a function of entries. `whole`: its graph is traced whole, or
    not at all.
    """

    whole = False

    def __init__(self, name: str):
        self.__name__ = self.__qualname__ = name
        self.__module__ = __name__

    def __deepcopy__(self, memo: dict) -> "Call":
        return self


class Wrap(Call):
    """The wrapper over inner tensors that are given in order: (sizes, *plain) -> wrapper."""

    def __init__(self, crossing: Crossing, requires_grad: bool):
        super().__init__(f"wrap_{crossing.wrapping.cls.__name__}")
        self.crossing, self.requires_grad = crossing, requires_grad

    def __call__(self, sizes: tuple, *plain: torch.Tensor) -> torch.Tensor:
        if not self.requires_grad or not any(tensor.requires_grad for tensor in plain):
            return put_together(self.crossing.wrapping, sizes, plain)
        with torch.enable_grad():  # it requires grad in whatever mode it comes
            made = _Enter.apply(self.crossing, sizes, *plain)
        if type(made) is TraceTensor:
            made.tt_differentiable = True
        return made


class Unwrap(Call):
    """The inner tensors of a wrapper: wrapper -> tuple of them. Autograd passes through, unless they are only read."""

    def __init__(self, crossing: Crossing, differentiable: bool = True):
        super().__init__(f"unwrap_{crossing.wrapping.cls.__name__}")
        self.crossing, self.differentiable = crossing, differentiable

    def __call__(self, tensor: torch.Tensor) -> tuple:
        if not tensor.requires_grad or not self.differentiable:
            return tuple(take_apart(tensor)[2])
        with torch.enable_grad():
            return _Leave.apply(self.crossing, tensor)


class Inner(Call):
    """An inner tensor as an attribute of a wrapper: it has no history, as in eager."""

    def __init__(self, name: str):
        super().__init__(f"inner_{name}")
        self.name = name

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        wrapper = tensor.tt_wrapper if type(tensor) is TraceTensor else tensor
        return (
            outer_tensor(getattr(wrapper, self.name), {})
            if type(tensor) is TraceTensor
            else getattr(wrapper, self.name)
        )


def gradients_cross(captured: CapturedGraph) -> bool:
    """Whether gradients of wrappers enter or leave a graph: parts of them are of use only where all of it is traced."""
    return any(
        isinstance(node.target, Call)
        and node.target.whole
        or isinstance(node.target, Wrap)
        and node.target.requires_grad
        or isinstance(node.target, Unwrap)
        and node.target.differentiable
        for node in captured.graph_module.graph.nodes
    )
