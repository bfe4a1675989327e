"""Conjugate and negative views at the ends of a graph: its inputs and results are the memory as it lies there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...graph.tensor import TraceTensor

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["record_flipped"]


def record_flipped(machine: Machine, tensor: TraceTensor, conj: bool, neg: bool, recorded: bool) -> TraceTensor:
    """The same memory with these bits turned, as part of the graph. recorded: by autograd, in whatever mode."""
    graph, mode = machine.graph, torch.is_grad_enabled()
    inner, graph.scopes = graph.scopes, [graph.root]  # bodies take it from there, whichever asks first
    switched = tensor.requires_grad and recorded is not mode
    if switched:
        graph.record_state(torch._C._set_grad_enabled, (recorded,))
    with torch.set_grad_enabled(recorded):
        for turned, view in ((conj, torch._conj), (neg, torch._neg_view)):
            if turned:
                tensor = graph.record("call_function", view, (tensor,), {}, view(tensor))
    if switched:
        graph.record_state(torch._C._set_grad_enabled, (mode,))
    graph.scopes = inner
    return tensor
