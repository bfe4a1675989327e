"""torch._check and its like, of numbers that are read from tensors: a check becomes part of the graph."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from ..kinds.parameters import interpret
from ..kinds.callables import python_function
from ..numbers import tensor_reads
from ..numbers.tensor_reads import is_read

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__: list[str] = []


@python_function(("torch", "_check_is_size"))
def check_is_size(machine: Machine, value: Any, *args: Any, **kwargs: Any) -> None:
    if is_read(value):
        cond = tensor_reads.operation(machine, operator.ge, (value, 0))
        if is_read(cond):
            _hold(machine, cond.node)
        value = 0  # torch warns that the function is going
    machine.native(torch._check_is_size, value, *args, **kwargs)


def _hold(machine: Machine, node: tensor_reads.Read) -> None:
    tensor_reads.check(machine, tensor_reads.condition(machine, node))
    tensor_reads.learn(machine, node)


@python_function(
    *(("torch", name) for name in ("_check", "_check_index", "_check_value", "_check_type", "_check_not_implemented")),
    wants_function=True,
)
def check_number(machine: Machine, fn: Any, cond: Any, *args: Any, **kwargs: Any) -> None:
    """What does not hold of a number that is read is for the program to say, when the call runs again."""
    if is_read(cond):
        _hold(machine, cond.node)
    else:
        if machine.env.is_open(cond):  # a size that mark_unbacked named: the entry's guard
            cond = machine.env.branch(cond)
        interpret(machine, fn, [cond, *args], kwargs)
