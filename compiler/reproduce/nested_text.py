"""Operators whose operands are graphs, as one writes them: backward, checkpoint, torch.cond.

Their bodies become functions of their own in front of the program.
"""

from __future__ import annotations

from typing import Any, Callable

import torch.fx

from ..errors import ReproduceError
from ..graph.higher_order import BackwardCall, CheckpointCall, CondCall, HigherOrderCall

__all__ = ["nested_call"]

Print = Callable[[torch.fx.Graph, str], str]  # of a body's graph and a name: the name under which it was written


def nested_call(target: HigherOrderCall, values: list[str], write: Print, imports: set[str]) -> str:
    """The text of a call with `values` as arguments. ReproduceError for an operator that has no such text yet."""
    if isinstance(target, BackwardCall):
        if target.n_watched:
            raise ReproduceError("hooks on gradients have no text of their own yet")
        n_roots, k = target.n_roots, sum(target.has_gradient)
        roots, given, inputs = values[:n_roots], iter(values[n_roots : n_roots + k]), values[n_roots + k :]
        gradients = [next(given) if has else "None" for has in target.has_gradient]
        how = f"retain_graph={target.retain}, create_graph={target.create}, allow_unused={target.allow_unused}"
        return f"torch.autograd.grad({_tuple(roots)}, {_tuple(inputs)}, {_tuple(gradients)}, {how})"
    names = {name: write(_plain(target, name, body), f"{target.kind}_{name}") for name, body in target.bodies.items()}
    if isinstance(target, CheckpointCall):
        imports.add("torch.utils.checkpoint")
        how = f"use_reentrant={target.reentrant}, preserve_rng_state={target.preserve_rng_state}"
        return f"torch.utils.checkpoint.checkpoint({', '.join([names['body'], *values])}, {how})"
    if isinstance(target, CondCall):
        return f"torch.cond({values[0]}, {names['true']}, {names['false']}, {_tuple(values[1:])})"
    raise ReproduceError(f"an operator of kind {target.kind} has no text of its own yet")


def _tuple(values: list[str]) -> str:
    return f"({', '.join(values)}{',' * (len(values) == 1)})"


def _plain(target: HigherOrderCall, name: str, body: Any) -> torch.fx.Graph:
    graph: torch.fx.Graph = body.graph
    if graph.find_nodes(op="get_attr"):
        raise ReproduceError(f"the body {name!r} of {target.kind} holds tensors of its own")
    return graph
