"""In which order autograd's engine accumulates the gradients that one node gives.

In eager the gradient of a leaf is accumulated as soon as it is there, and hooks see the order. A compiled graph is one
node, which gives all of them at once. The engine queues what accumulates them by urgency, all alike, and takes them out
in an order that depends on how many there are, others of the program's included. Of other nodes it takes the one that
was made last. So where somebody is told of the order, each leaf has a node of its own before it.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ..guards.tensors import is_hooked

__all__ = ["hears_order", "one_by_one"]


def hears_order(t: Any) -> bool:
    """Whether somebody is told when the gradient of a tensor is there."""
    if not isinstance(t, torch.Tensor) or not t.is_leaf:
        return False
    return bool(t._backward_hooks or t._post_accumulate_grad_hooks) or is_hooked(t)


def one_by_one(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a node takes in the place of `leaves`, so that their gradients are accumulated in this order."""
    made = [leaf.expand_as(leaf) for leaf in reversed(leaves)]  # (its backward hands on the very gradient)
    return made[::-1]
