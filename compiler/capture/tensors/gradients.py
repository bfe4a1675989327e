"""The gradient that a leaf has after the entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...graph.tensor import TraceTensor

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["set_grad"]


def set_grad(machine: Machine, leaf: TraceTensor, value: TraceTensor | None) -> None:
    """leaf.grad = value, when the entry runs. Of a leaf that was made inside, the gradient is read inside alone: one
    that leaves the captured part is made without a graph, the backward pass included."""
    real = machine.world.reals.get(id(leaf))
    machine.world.pending.setdefault(id(leaf), {})["grad"] = value
    if real is not None:
        machine.effects.set_attribute(real, "grad", value)
    else:
        machine.world.keep.append(leaf)
        machine.origins.setdefault(id(leaf), machine.root_index)
