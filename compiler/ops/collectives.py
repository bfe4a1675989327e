"""Collectives: operators by which processes exchange tensors (`_c10d_functional`).

What they give is ready once it was waited for; on an accelerator that is work of the device's, in a stream of its own.
Until then their memory, and that of what they are given, belongs to them: their results count as views of what they
are given. Each process of a group has to issue the same ones in the same order, whoever reads the results.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from .messages import SPACE

__all__ = ["communicates", "waits", "gives_waiting", "gathers_parts", "reduces_parts"]

_NAMESPACES = frozenset(("_c10d_functional", "_c10d_functional_autograd", SPACE))


def communicates(op: Any) -> bool:
    """Whether an operator exchanges tensors with other processes, or waits for that."""
    return isinstance(op, torch._ops.OpOverload) and op.namespace in _NAMESPACES


def waits(op: Any) -> bool:
    """Whether an operator gives a collective's result once it is there."""
    return communicates(op) and op._schema.name == "_c10d_functional::wait_tensor"


def gives_waiting(op: Any) -> bool:
    """Whether an operator makes a tensor that waits for the collective when it is read."""
    return communicates(op) and op._schema.name == "_c10d_functional::_wrap_tensor_autograd"


def gathers_parts(node: torch.fx.Node) -> bool:
    """Whether a node of a graph gathers parameters that FSDP2 has sharded."""
    return "unshard" in node.meta and communicates(node.target) and not waits(node.target)


def reduces_parts(node: torch.fx.Node) -> bool:
    """Whether a node of a graph exchanges gradients of such parameters."""
    return "reduced" in node.meta and communicates(node.target) and not waits(node.target)
