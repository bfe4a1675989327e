"""What autograd's own graph says of a traced tensor."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch.autograd.graph import _engine_run_backward

__all__ = [
    "BACKWARD",
    "backward_module",
    "gradients",
    "history",
    "is_refused",
    "node_of",
    "remember_module",
    "saves_tensors",
]

BACKWARD = "backward"  # the module that nodes of backward passes are in
_MODULE = "tcompile_module"  # in the metadata of autograd's nodes
_saves: dict[type, bool] = {}  # class of autograd nodes -> whether its nodes save tensors


def is_refused(tensor: torch.Tensor) -> bool:
    """Whether t is a view (one of split()'s, or made under no_grad) that eager refuses to use, as its base was written
    into.
    """
    try:
        _ = tensor.grad_fn  # to ask makes the view's history anew
    except RuntimeError:
        return True
    return False


def node_of(tensor: torch.Tensor) -> Any:
    """`t.grad_fn`; None also for a view that eager refuses to use."""
    return None if is_refused(tensor) else tensor.grad_fn


def gradients(
    roots: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    retain_graph: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """torch.autograd.grad(roots, inputs, tangents, allow_unused=True) of tangents that fit. torch compares their sizes
    with its own algebra, for which it imports sympy: a third of a second in the first step of a process.
    """
    return _engine_run_backward(
        tuple(roots), tuple(tangents), retain_graph, False, tuple(inputs), True, accumulate_grad=False
    )


def history(*tensors: torch.Tensor) -> set[Any]:
    """The autograd nodes that these were computed by."""
    seen: set[Any] = {node_of(tensor) for tensor in tensors} - {None}
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
        # nodes of autograd.Functions, and writes through views, which hold a node of their own, do not say: taken to
        # save
        _saves[kind] = kind.__name__ != "AccumulateGrad" and (
            any(name.startswith("_raw_saved_") for name in names)
            or "saved_tensors" in names
            or kind.__name__ == "CopySlices"
        )
    return _saves[kind]


def remember_module(results: Any, module: str) -> None:
    """Note with the autograd nodes that a module's call has just made that they are of this module. Views are passed
    over: to ask for their history makes it anew."""
    results = results if isinstance(results, (tuple, list)) else (results,)
    todo = [
        result.grad_fn
        for result in results
        if isinstance(result, torch.Tensor) and result.requires_grad and not result._is_view() and result.grad_fn
    ]
    while todo:
        node = todo.pop()
        if _MODULE not in node.metadata and type(node).__name__ != "AccumulateGrad":
            node.metadata[_MODULE] = module
            todo += [n for n, _ in node.next_functions if n is not None]


def backward_module() -> str:
    """Where the operation is at home that a backward pass is in at the moment: `backward.encoder.0`, or `backward`."""
    node = torch._C._current_autograd_node()
    module = "" if node is None else node.metadata.get(_MODULE, "")
    return f"{BACKWARD}.{module}" if module and not module.startswith(BACKWARD) else BACKWARD
