"""In which order autograd's engine accumulates the gradients that one node gives.

In eager the gradient of a leaf is accumulated as soon as it is there, and hooks see the order. A compiled graph is one
node, which gives all of them at once. The engine queues what accumulates them by urgency, all alike, and takes them out
in an order of its own: it depends on nothing but their number, and is measured. So the node takes the leaves in that
order which makes it eager's.
"""

from __future__ import annotations

import functools
from typing import Any, Sequence

import torch

from ..runtime.dispatch import disabled

__all__ = ["arranged", "hears_order"]


def hears_order(t: Any) -> bool:
    """Whether somebody is told when the gradient of a tensor is there."""
    return isinstance(t, torch.Tensor) and t.is_leaf and bool(t._backward_hooks or t._post_accumulate_grad_hooks)


def arranged(leaves: Sequence[int], others: Sequence[int]) -> list[int]:
    """The inputs of a node, so that the engine accumulates gradients in the order of `leaves`."""
    placed = dict(zip(_order(len(leaves), len(others)), leaves))
    return [*(placed[k] for k in range(len(leaves))), *others]


@functools.lru_cache(maxsize=None)
def _order(n_leaves: int, n_others: int) -> tuple[int, ...]:
    """In which order the first of a node's inputs, which are leaves, get their gradients. The others are no leaves."""
    order: list[int] = []
    with disabled(), torch.inference_mode(False), torch.enable_grad():
        inputs = [torch.zeros((), device="cpu").requires_grad_() for _ in range(n_leaves + n_others)]
        for k, t in enumerate(inputs[:n_leaves]):
            t.register_hook(lambda g, k=k: order.append(k))
        _Node.apply(*inputs[:n_leaves], *(t.clone() for t in inputs[n_leaves:])).backward()
    return tuple(order)


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.n = len(inputs)
        return torch.zeros((), device="cpu")

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:  # type: ignore[override]
        return (grad,) * ctx.n
