"""Assertions on the values of tensors, `if bad: raise ...` among them: nodes of the graph. Where one does not hold, the
call is run again as plain Python, which raises the program's own error. On an accelerator a failed check would end the
process's use of it: there an assertion breaks."""

from __future__ import annotations

from typing import Any

from ..tensors import tensor_calls
from ..bytecode.opset import CONDITIONAL_JUMPS, JUMPS
from ..machine.frame import Frame
from ..machine.machine import Machine
from ..numbers.tensor_reads import learn
from ..numbers.tensor_reads import check, condition, is_read
from ...graph.tensor import TraceTensor

__all__ = ["asserted"]


def asserted(machine: Machine, frame: Frame, v: Any, jumps_if: bool, target: int) -> bool | None:
    """A jump to instruction `target` where the tensor `v` is `jumps_if`, with one side that only raises: a node says
    that the other side is taken. Returns whether it is the jump's; None where both sides go on."""
    if machine.env.is_open(v):  # a check of a size: the entry's guard
        raises = _only_raises(frame, frame.pc) or _only_raises(frame, target)
        return machine.env.branch(v) is jumps_if if raises else None
    if not is_read(v) and (type(v) is not TraceTensor or v.device.type != "cpu" or v.numel() != 1):
        return None
    jump = _only_raises(frame, frame.pc)
    if not jump and not _only_raises(frame, target):
        return None
    if is_read(v):
        learn(machine, v.node, jump is jumps_if)
        v = condition(machine, v.node)
    held = v if jump is jumps_if else tensor_calls.call_method(machine, v, "logical_not", [], {})
    check(machine, held)
    return jump


def _only_raises(frame: Frame, index: int) -> bool:
    """Whether every way through the code from there ends in a raise statement, without a loop on it."""
    while (ins := frame.program[index][1]).op != "RAISE_VARARGS":
        if ins.op in ("RETURN_VALUE", "RERAISE", "YIELD_VALUE", "FOR_ITER", "SEND", "SEND_POP"):
            return False
        if ins.op in JUMPS:
            if ins.target.index <= index or ins.op in CONDITIONAL_JUMPS and not _only_raises(frame, ins.target.index):
                return False
            index = index + 1 if ins.op in CONDITIONAL_JUMPS else ins.target.index
        else:
            index += 1
    return True
