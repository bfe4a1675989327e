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
    first, as in the program. Gradients are computed, and dropped. Gives the results of forward."""
    out: list[Any] = []
    passes: list[tuple[list[Any], list[Any]]] = []
    for g in graphs:
        results = function(g)(*g.inputs)
        out.append(results)
        ran = backward_seen(g)
        if ran is None or not torch.is_grad_enabled():
            continue
        some = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
        wanted = [t for t in g.inputs if isinstance(t, torch.Tensor) and t.requires_grad]
        if len(some) == len(ran) and wanted and not any(t._backward_hooks for t in wanted):
            passes.append(([t for t, here in zip(some, ran) if here], wanted))
    while passes:
        roots, wanted = passes.pop()
        torch.autograd.grad(roots, wanted, [torch.ones_like(t) for t in roots], allow_unused=True)
    return out


def backward_seen(g: GraphCall) -> tuple[bool, ...] | None:
    """Which results had gradients in the one kind of backward that a graph has run; None where there was none, or
    several."""
    ran = list(getattr(g.compiled, "backwards", ()))
    return ran[0][0] if len(ran) == 1 else None
