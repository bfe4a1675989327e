"""x.unsqueeze_(d), x.t_() and others of their kind: the tensor object becomes another view of its memory.

Captured for tensors that the graph makes. A view of another tensor stays one, so a view of it is recorded, and the
object stands for that from here on. Any other tensor is no view afterwards either: the call itself is recorded.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from ...base.fx_nodes import is_input
from ...graph.tensor import TraceTensor, from_meta, tensor_meta
from ..machine.signals import Break
from . import tensor_calls

if TYPE_CHECKING:
    from ..machine.machine import Machine

# what eager lets be changed in place where gradients are asked for: views that are the only result of their operator
_SINGLE_VIEWS = frozenset(
    f"{name}Backward{n}"
    for name in "Alias AsStrided Expand Permute ReshapeAlias Select Slice Squeeze T Transpose UnsafeView Unsqueeze"
    " View".split()
    for n in range(4)
)


def _reshape(machine: Machine, t: TraceTensor, name: str, args: tuple, kwargs: dict) -> Any:
    if not _is_of_graph(machine, t) or not all(type(a) is int for a in (*args, *kwargs.values())):
        raise Break("tensor_attribute")
    before = from_meta(tensor_meta(t), t.tt_env, t.tt_storage)
    try:
        with torch.no_grad():  # whose gradient it has, says the node
            getattr(t, name)(*args, **kwargs)
    except (RuntimeError, IndexError, TypeError, NotImplementedError):
        raise Break("tensor_attribute") from None  # eager says what is wrong
    machine.graph.becomes(t, before, name[:-1] if t._is_view() else name, args, kwargs)
    return t


def _is_of_graph(machine: Machine, t: TraceTensor) -> bool:
    """Whether it is a tensor that the graph makes, has whole, and that eager would let be changed."""
    graph = machine.graph
    node = graph.nodes.get(id(t))
    if node is None or is_input(node) or len(graph.scopes) > 1 or t.tt_wrapper is not None or t.is_inference():
        return False
    if node.target is operator.getitem and not isinstance(node.args[0].meta.get("val"), TraceTensor):
        return False
    if id(t.tt_storage) in graph.chosen or id(t.tt_storage) in graph.fixed:
        return False
    if not t.requires_grad or not torch.is_grad_enabled():
        return True
    return not t.is_leaf and (not t._is_view() or _is_single_view(t))


def _is_single_view(t: TraceTensor) -> bool:
    base = t._base
    if base.grad_fn is None:
        return False
    step = t.grad_fn
    while step is not None and step is not base.grad_fn:
        if step.name() not in _SINGLE_VIEWS:
            return False
        step = step.next_functions[0][0]
    return step is not None


def _method(name: str) -> Any:
    return lambda machine, t, *args, **kwargs: _reshape(machine, t, name, args, kwargs)


for _name in ("squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"):
    tensor_calls.METHODS[_name] = _method(_name)
