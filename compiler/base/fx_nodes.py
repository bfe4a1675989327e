"""What a node of a torch.fx graph is. fx says it by five strings, in words of its own; here each has one name."""

from __future__ import annotations

from torch.fx import Node

__all__ = ["is_call", "is_constant", "is_input", "is_output", "is_returned"]


def is_input(node: Node) -> bool:
    return node.op == "placeholder"


def is_constant(node: Node) -> bool:
    """Whether a node names a tensor that the graph holds."""
    return node.op == "get_attr"


def is_call(node: Node) -> bool:
    """Whether a node calls a function. (A method of a tensor, which only a captured graph has, is "call_method".)"""
    return node.op == "call_function"


def is_output(node: Node) -> bool:
    """Whether it is the graph's last node, whose arguments are the results."""
    return node.op == "output"


def is_returned(node: Node) -> bool:
    return any(map(is_output, node.users))
