"""One run of a call's graphs, where the call itself can't be made again: forward, then backward as the cell ran it.

Timing and profile run the same, so that their figures are of the same work.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

from ..compiler.frontend.entry_calls import GraphCall

__all__ = ["backward_seen", "run_graphs"]


def run_graphs(graphs: Sequence[GraphCall], function: Callable[[GraphCall], Callable[..., Any]]) -> list[Any]:
    """Run graphs, each by its `function`, and then the backward that the cell ran of each, where that was one, the last
    first, as in the program, and before a graph that changes what it needs. Gradients are computed, and dropped. Gives
    the results of forward."""
    out: list[Any] = []
    passes: list[tuple[list[Any], list[Any]]] = []
    for g in graphs:
        given = {id(t): t for t in g.inputs if isinstance(t, torch.Tensor) and t.requires_grad}
        ran = backward_seen(g)
        if ran is None and any(id(t) in given for _, wanted in passes for t in wanted):
            _run_backward(passes)  # (an optimizer's step writes to the parameters that they still need)
        results = function(g)(*g.inputs)
        out.append(results)
        if ran is None or not torch.is_grad_enabled():
            continue
        some = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
        if len(some) == len(ran) and given and not any(t._backward_hooks for t in given.values()):
            passes.append(([t for t, here in zip(some, ran) if here], list(given.values())))
    _run_backward(passes)
    return out


def _run_backward(passes: list[tuple[list[Any], list[Any]]]) -> None:
    while passes:
        roots, wanted = passes.pop()
        torch.autograd.grad(roots, wanted, [torch.ones_like(t) for t in roots], allow_unused=True)


def backward_seen(g: GraphCall) -> tuple[bool, ...] | None:
    """Which results had gradients in the one kind of backward that a graph has run; None where there was none, or
    several."""
    ran = list(getattr(g.compiled, "backwards", ()))
    return ran[0][0] if len(ran) == 1 else None
