"""What changes between forward and backward: eager looks at the versions of the tensors that it keeps, and raises.

in: a graph as recorded; which inputs and outputs of a call to remember. out: what eager keeps; references to it with
versions, and the error.
"""

from __future__ import annotations

import operator
import weakref
from typing import Any, Sequence

import torch
import torch.fx

from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta
from .forward_backward import reached_from
from ..ops.closed_set import gives_views

__all__ = ["kept_by_autograd", "read_by_backward", "remember", "refuse_changed", "taken_from"]

# Of tensors without data, C++ takes a gradient's way that holds for zeros, too. Of svd the singular values are kept,
# whoever reads them.
_KEPT_UNREAD = frozenset(("aten::prod", "aten::_linalg_svd"))
_FIRST_KEPT_UNREAD = frozenset(("aten::gather",))  # whose formula asks what it is given first for nothing but its shape


def read_by_backward(joint: AtenGraph, n_inputs: int) -> set[int]:
    """The inputs that backward reads, themselves or views of them, in a graph as recorded: eager keeps them for that,
    and notices when they are changed."""
    after = reached_from(joint.placeholders[n_inputs:]) | {node for node in joint.graph.nodes if "apart" in node.meta}
    return {i for i, placeholder in enumerate(joint.placeholders[:n_inputs]) if _readers(placeholder, after)}


def kept_by_autograd(
    joint: AtenGraph, n_inputs: int, n_outputs: int, n_tangents: int
) -> tuple[dict[int, set[int]], list[int]]:
    """The inputs and the results that eager's formulas read, in a graph as recorded; of each input the tangents whose
    formulas do. What is changed in place before backward raises there, whatever this compiler keeps. (Not what is
    computed apart, in a checkpoint or a Function's own backward: of that autograd keeps nothing itself.)
    """
    after = {node for node in joint.calls() if node.meta.get("backward") and "apart" not in node.meta}
    met: dict[torch.fx.Node, set[int]] = {
        placeholder: {k} for k, placeholder in enumerate(joint.placeholders[n_inputs : n_inputs + n_tangents])
    }
    for node in joint.graph.nodes:
        if node in after:
            met[node] = set().union(*(met.get(a, ()) for a in node.all_input_nodes))
    for node in reversed(joint.graph.nodes):  # what a formula computes of what it kept alone, the cosine for the sine
        if node in after and not met[node]:
            met[node] = set().union(*(met.get(user, ()) for user in node.users))
    inputs = {
        i: set().union(*(met[reader] for reader in readers))
        for i, placeholder in enumerate(joint.placeholders[:n_inputs])
        if isinstance(placeholder.meta.get("val"), TensorMeta)
        and (readers := _readers(placeholder, after) or _beside(placeholder, after))
    }
    slots = [
        spec.value
        if spec.kind == "buffer"
        else spec.value[1]
        if spec.kind == "view" and spec.value[0] != "input"
        else None
        for spec in joint.plan[:n_outputs]
    ]
    return inputs, [
        k
        for k, slot in enumerate(slots)
        if slot is not None and (_readers(joint.results[slot], after) or _kept_unread(joint.results[slot], after))
    ]


def _kept_unread(n: torch.fx.Node, after: set[torch.fx.Node]) -> bool:
    """Whether autograd keeps an operator's result for a formula that does not read it, where it is traced."""
    n = n.args[0] if n.target is operator.getitem else n
    if not isinstance(n.target, torch._ops.OpOverload) or n.target._schema.name not in _KEPT_UNREAD:
        return False
    if len(n.target._schema.returns) > 1:
        return any(_readers(user, after) for user in n.users)
    return any(_readers(node, after) for node in n.all_input_nodes)


def _beside(node: torch.fx.Node, after: set[torch.fx.Node]) -> list[torch.fx.Node]:
    """Those of `after` that are the formula of an operator which keeps the value, itself or a view of it, unread."""
    found = []
    for user in node.users:
        if isinstance(user.target, torch._ops.OpOverload) and user not in after:
            if user.target._schema.name in _FIRST_KEPT_UNREAD and user.args[0] is node:
                found += [r for a in user.all_input_nodes if a is not node for r in _readers(a, after)]
            elif gives_views(user.target):
                found += _beside(user, after)
    return found


def _readers(node: torch.fx.Node, after: set[torch.fx.Node]) -> list[torch.fx.Node]:
    """Those of `after` that read the value, itself or views of it."""
    return [
        r
        for user in node.users
        for r in ([user] if user in after else _readers(user, after) if gives_views(user.target) else ())
    ]


def remember(which: Sequence[tuple[int, bool]], values: Sequence[Any]) -> list:
    """(tensor or reference, version) of each tensor, anything else as it is; what C's GradForward does."""
    return [
        (tensor if strong else weakref.ref(tensor), tensor._version)
        if isinstance(tensor := values[i], torch.Tensor)
        else tensor
        for i, strong in which
    ]


def refuse_changed(watched: Sequence[int], remembered: Sequence[Any]) -> None:
    """Raises as eager does where a tensor that it keeps for backward was changed in place. This compiler may keep
    another one, and would go on.
    """
    for k in watched:
        tensor, version = remembered[k]
        tensor = tensor() if isinstance(tensor, weakref.ref) else tensor
        if tensor is not None and tensor._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
                f"expected version {version} instead"
            )


def taken_from(ctx: Any) -> list[torch.Tensor]:
    """What a node keeps for backward. Unless the graph is retained, the node lets go of it: whoever runs backward frees
    each tensor after its last use. (The nodes in C do so themselves.)
    """
    saved = list(ctx.saved_tensors)
    if isinstance(ctx, torch._C._FunctionBase):
        ctx.maybe_clear_saved_tensors()
    return saved
