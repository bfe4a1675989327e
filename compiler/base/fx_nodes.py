"""What a node of a torch.fx graph is. fx says it by five strings, in words of its own; here each has one name."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.fx import Node

__all__ = ["called", "is_call", "is_constant", "is_input", "is_method", "is_output", "is_returned"]


def is_input(node: Node) -> bool:
    return node.op == "placeholder"


def is_constant(node: Node) -> bool:
    """Whether a node names a tensor that the graph holds."""
    return node.op == "get_attr"


def is_call(node: Node) -> bool:
    return node.op == "call_function"


def is_method(node: Node) -> bool:
    """Whether a node calls a method of a tensor, by name: in captured graphs alone."""
    return node.op == "call_method"


def called(node: Node) -> Callable[..., Any]:
    """The function that a node calls, of a method torch.Tensor's."""
    return getattr(torch.Tensor, node.target) if is_method(node) else node.target  # type: ignore[arg-type,return-value]


def is_output(node: Node) -> bool:
    """Whether it is the graph's last node, whose arguments are the results."""
    return node.op == "output"


def is_returned(node: Node) -> bool:
    return any(map(is_output, node.users))
