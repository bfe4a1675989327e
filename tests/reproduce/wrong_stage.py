"""Lowerings with a fault of their own, for programs that are to be made smaller. Importing this puts none in place."""

import os

import torch
from tcompile.compiler import stages

aten = torch.ops.aten


def tanh_as_sin(graph, **how):
    """A wrong number: what computes tanh computes sin."""
    made = graph.copy()
    for n in made.graph.nodes:
        if n.target is aten.tanh.default:
            n.target = aten.sin.default
    return stages.original("lowering")(made, **how)


def dies_of_erf(graph, **how):
    """The process ends."""
    if any(n.target is aten.erf.default for n in graph.graph.nodes):
        os.abort()
    return stages.original("lowering")(graph, **how)


def refuses_cumsum(graph, **how):
    """An internal error."""
    if any(n.target is aten.cumsum.default for n in graph.graph.nodes):
        raise RuntimeError("no loop for this")
    return stages.original("lowering")(graph, **how)


def put(name):
    """For the `setup` of a reproducer: what it gives is to be kept."""
    held = stages.replace("lowering", globals()[name])
    held.__enter__()
    return held
