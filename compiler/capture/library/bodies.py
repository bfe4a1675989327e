"""Bodies of higher-order operators: a function captured into a graph of its own, inside the graph of the frame."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence

import torch
import torch.fx
import torch.utils._pytree as pytree

from ...graph.tensor import from_meta, tensor_meta, TraceTensor
from ...ops.conjugates import copy_bits, has_bits
from ...base.fx_modules import graph_module
from ..entry.graph_builder import Scope, as_trace
from ..machine.signals import Break, Raised
from ..tensors.tensor_subclasses import Subclassed
from ..tensors.wrapper_values import finish, is_of_wrapper

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = [
    "Body",
    "open_body",
    "close_body",
    "capture_body",
    "record_call",
    "stand_in",
    "without_wrappers",
    "inside_transforms",
    "leaves_of",
    "plain_leaves_of",
    "Purity",
    "held_by",
    "as_module",
    "grad_mode",
    "no_grad",
]


@dataclass
class Body:
    """A captured function.

    graph      GraphModule: parameters, then what it uses of the graphs around it
    lifted     nodes of the surrounding graph for the latter
    result     the value that the function returned, with the body's own TraceTensors in it
    """

    graph: torch.fx.GraphModule
    lifted: list[torch.fx.Node]
    result: Any


@contextmanager
def open_body(machine: Machine, transform: str = "") -> Iterator[Scope]:
    """What is recorded in the with-block goes to a graph of its own; transform: as of Scope."""
    scope = Scope(transform)
    machine.graph.scopes.append(scope)
    try:
        yield scope
    finally:
        machine.graph.scopes.remove(scope)


def add_parameter(machine: Machine, scope: Scope, value: TraceTensor, name: str) -> torch.fx.Node:
    """A parameter of the body. The first one for a tensor is the one that its uses in the body mean."""
    node = scope.placeholder(name, {"val": value, "stack": [], "module": ""})
    scope.nodes.setdefault(id(value), node)
    machine.graph.keep.append(value)
    return node


def close_body(machine: Machine, scope: Scope, outputs: Sequence[Any], name: str) -> torch.fx.GraphModule:
    """End a body, which is the one that grows now, with the values that it gives."""
    scope.graph.output(tuple(machine.graph.arg(output) for output in outputs))
    return as_module(scope, name)


def as_module(scope: Scope, name: str) -> torch.fx.GraphModule:
    return graph_module(scope.graph, name)


def capture_body(
    machine: Machine, name: str, parameters: Sequence[TraceTensor], run: Callable[[], Any], transform: str = ""
) -> Body:
    """`run()` interprets the function; `parameters` are the tensors that it was given. What it returns may be any
    nested value; the body's graph gives the tensors in it, in the order of `leaves_of`."""
    with open_body(machine, transform) as scope:
        for i, param in enumerate(parameters):
            add_parameter(machine, scope, param, f"arg{i}")
        result = without_wrappers(machine, machine.deep_plain(run()))
        graph = close_body(machine, scope, leaves_of(result), name)
    return Body(graph, list(scope.lifted), result)


def without_wrappers(machine: Machine, value: Any) -> Any:
    """A nested value, with the graph's own tensors in the place of wrapper subclasses."""

    def plain(leaf: Any) -> Any:
        if type(leaf) is not Subclassed or leaf.nested is not None or not is_of_wrapper(leaf):
            return leaf
        if leaf.unfinished is not None:
            finish(machine, leaf)
        return leaf.plain

    return pytree.tree_map(plain, value)


def leaves_of(value: Any) -> list[TraceTensor]:
    """The tensors of a nested value, in the order of torch's pytrees. Symbolic numbers cannot leave a body."""
    leaves = pytree.tree_leaves(value)
    for leaf in leaves:
        if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise Break("higher_order", "a size that changes is returned from the body of a higher-order operator")
    return [v for v in leaves if isinstance(v, TraceTensor)]


def plain_leaves_of(value: Any) -> list[TraceTensor]:
    """The same, of a body whose results have no memory in common with what it is given."""
    leaves = leaves_of(value)
    if any(map(has_bits, leaves)):
        raise Break(
            "higher_order",
            "a conjugate or negative view is returned from the body of a higher-order operator",
            "call .resolve_conj() or .resolve_neg() on it",
        )
    return leaves


def stand_in(
    machine: Machine,
    like: TraceTensor,
    *,
    requires_grad: bool | None = None,
    drop_dim: int | None = None,
    bits: bool = False,
) -> TraceTensor:
    """A fresh tensor with the metadata of another: contiguous, or without one dimension. bits: where that is a
    conjugate or negative view, this is one, too; else it stands for the values."""
    meta = tensor_meta(like)
    grad = like.requires_grad if requires_grad is None else requires_grad
    if drop_dim is not None:
        d = drop_dim % len(meta.shape)
        meta = meta.replace(shape=meta.shape[:d] + meta.shape[d + 1 :], stride=meta.stride[:d] + meta.stride[d + 1 :])
    made = from_meta(meta.replace(requires_grad=grad, storage_offset=0), machine.env)
    if bits:
        copy_bits(like, made)
    return made


def inside_transforms(machine: Machine, values: Sequence[Any]) -> Sequence[Any]:
    """The arguments of an operator in a function that torch.func transforms. There a wrapper subclass from outside is
    wrapped once more, by functorch, in a tensor of torch's own class: vmap does so where another operand is one."""
    around = [scope.transform for scope in machine.graph.scopes if scope.transform]
    leaves, spec = pytree.tree_flatten(values)
    of_class = [isinstance(leaf, TraceTensor) and leaf.tt_wrapper is not None for leaf in leaves]
    mixed = any(isinstance(leaf, TraceTensor) and not own for leaf, own in zip(leaves, of_class))
    if not around or not (mixed or any(name != "vmap" for name in around)):
        return values
    return pytree.tree_unflatten([_wrapped(machine, v) if own else v for v, own in zip(leaves, of_class)], spec)


def _wrapped(machine: Machine, outer: TraceTensor) -> TraceTensor:
    """A tensor without a class that stands for the wrapper `outer` in the body that grows now."""
    made = stand_in(machine, outer)
    node = machine.graph.find(id(outer))
    if node is None:
        raise Break("unsupported", "a tensor was made in a way that capture did not see")
    machine.graph.nodes[id(made)] = node
    machine.graph.keep.append(made)
    return made


def record_call(machine: Machine, call: Callable, inputs: Sequence[Any], lifted: Sequence[torch.fx.Node] = ()) -> tuple:
    """Add the operator's node: its results as TraceTensors. `lifted` are nodes of the graph that grows now; their
    values are known by it.
    """
    graph = machine.graph
    nodes = [graph.arg(v) for v in inputs] + list(lifted)
    values = [*inputs, *(n.meta["val"] for n in lifted)]
    result = as_trace(machine.native(call, *values))
    return graph.made(graph.graph.call_function(call, tuple(nodes)), result)


@contextmanager
def grad_mode(enabled: bool) -> Iterator[None]:
    """Grad mode while a body is interpreted; its graph says nothing of it: the operator that runs it sets it."""
    before = torch._C.is_grad_enabled()
    torch._C._set_grad_enabled(enabled)
    try:
        yield
    finally:
        torch._C._set_grad_enabled(before)


@contextmanager
def no_grad(machine: Machine) -> Iterator[None]:
    """Grad mode is off, in the graph too, for what is interpreted in between; also where the program's code raises."""
    if not torch._C.is_grad_enabled():
        yield
        return
    machine.call(torch._C._set_grad_enabled, [False])
    try:
        yield
    except (Raised, Exception):
        machine.call(torch._C._set_grad_enabled, [True])
        raise
    machine.call(torch._C._set_grad_enabled, [True])


class Purity:
    """Holds a body to having no side effects: it may run any number of times, or not at all, when the graph runs."""

    def __init__(self, machine: Machine, what: str, *reached: Any):
        self.m, self.what, self.reached = machine, what, reached
        self.writes, self.kept = len(machine.graph.writes), len(machine.graph.keep)
        self.before = self._state()

    def _state(self) -> tuple:
        return len(self.m.effects.entries), held_by(*self.reached)

    def check(self, owned: bool = False) -> None:
        """`owned`: what the body has made itself it may write to."""
        if self._state() != self.before or self._writes(owned):
            raise Break("higher_order", f"{self.what} has side effects", "only compute and return values in it")

    def _writes(self, owned: bool) -> bool:
        new = set(self.m.graph.writes[self.writes :])
        if not new or not owned:
            return bool(new)
        earlier = (*self.m.graph.keep[: self.kept], *self.m.world.tensors.values())
        return any(isinstance(t, TraceTensor) and id(t.tt_storage) in new or id(t) in new for t in earlier)


def held_by(*values: Any) -> dict[int, Any]:
    """What can be reached from these, to compare with what it is later."""
    seen: dict[int, Any] = {}
    for value in values:
        _fingerprint(value, seen, 0)
    return seen


def _fingerprint(value: Any, seen: dict[int, Any], depth: int) -> None:
    """What containers, objects and closures reachable from a value hold, by identity."""
    if (
        depth > 5
        or id(value) in seen
        or isinstance(value, (torch.Tensor, torch.nn.Module, type, torch.SymInt, torch.SymFloat, torch.SymBool))
    ):
        return
    if isinstance(value, dict):
        parts = [x for item in value.items() for x in item]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = list(value)
    elif hasattr(value, "__closure__") and value.__closure__:
        parts = []
        for cell in value.__closure__:
            try:
                parts.append(cell.cell_contents)
            except ValueError:
                parts.append(None)
    elif hasattr(value, "__self__") and hasattr(value, "__func__"):
        parts = [value.__self__, value.__func__]
    elif type(value).__flags__ & (1 << 9) and isinstance(getattr(value, "__dict__", None), dict):
        parts = list(value.__dict__.values())
    else:
        return
    seen[id(value)] = [id(p) for p in parts]
    for part in parts:
        _fingerprint(part, seen, depth + 1)
