"""The gradient that a leaf has after the entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...graph.tensor import TraceTensor

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["set_grad"]


def set_grad(m: Machine, leaf: TraceTensor, value: TraceTensor | None) -> None:
    """leaf.grad = value, when the entry runs. Of a leaf that was made inside, the gradient is read inside alone: one
    that leaves the captured part is made without a graph, the backward pass included."""
    real = m.world.reals.get(id(leaf))
    m.world.pending.setdefault(id(leaf), {})["grad"] = value
    if real is not None:
        m.effects.set_attribute(real, "grad", value)
    else:
        m.world.keep.append(leaf)
        m.origins.setdefault(id(leaf), m.root_index)
