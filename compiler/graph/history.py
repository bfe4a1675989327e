"""What autograd's own graph says of a traced tensor."""
from __future__ import annotations

from typing import Any

import torch

__all__ = ["history", "is_refused", "node_of", "saves_tensors"]

_saves: dict[type, bool] = {}            # class of autograd nodes -> whether its nodes save tensors


def is_refused(t: torch.Tensor) -> bool:
    """Whether t is a view (one of split()'s, or made under no_grad) that eager refuses to use, as its base was written into."""
    try:
        _ = t.grad_fn               # to ask makes the view's history anew
    except RuntimeError:
        return True
    return False


def node_of(t: torch.Tensor) -> Any:
    """`t.grad_fn`; None also for a view that eager refuses to use."""
    return None if is_refused(t) else t.grad_fn


def history(*tensors: torch.Tensor) -> set[Any]:
    """The autograd nodes that these were computed by."""
    seen: set[Any] = {node_of(t) for t in tensors} - {None}
    todo = list(seen)
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                todo.append(node)
    return seen


def saves_tensors(node: Any) -> bool:
    """Whether a node keeps tensors for its backward pass, which frees them: a second pass through it is an error."""
    kind = type(node)
    if kind not in _saves:
        names = dir(kind)
        # nodes of autograd.Functions, and writes through views, which hold a node of their own, do not say: taken to save
        _saves[kind] = kind.__name__ != "AccumulateGrad" and (
            any(n.startswith("_raw_saved_") for n in names) or "saved_tensors" in names or kind.__name__ == "CopySlices")
    return _saves[kind]
