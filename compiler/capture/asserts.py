"""Assertions on the values of tensors, `if bad: raise ...` among them: nodes of the graph. Where one does not hold, the call is run again as plain Python, which raises the program's own
error. On an accelerator a failed check would end the process's use of it: there an assertion breaks."""
from __future__ import annotations

from typing import Any

import torch

from . import tensor_calls
from .bytecode.opset import CONDITIONAL_JUMPS, JUMPS
from .frame import Frame
from .machine import Machine, Unread
from .world import TraceTensor

__all__ = ["asserted", "is_assertion"]

_EXACT = 2 ** 53                 # integers up to it are float64 numbers
_OTHER = (torch.complex32, torch.complex64, torch.complex128, torch.uint64)        # not in an int64 or float64


def asserted(m: Machine, f: Frame, v: Any, jumps_if: bool, target: int) -> bool | None:
    """A jump to instruction `target` where the tensor `v` is `jumps_if`, with one side that only raises: a node says that the other side is taken.
    Returns whether it is the jump's; None where both sides go on."""
    if type(v) is not TraceTensor or v.device.type != "cpu" or v.numel() != 1:
        return None
    jump = _only_raises(f, f.pc)
    if not jump and not _only_raises(f, target):
        return None
    held = v if jump is jumps_if else tensor_calls.call_method(m, v, "logical_not", [], {})
    m.graph.record("call_function", torch._assert_async, (held,), {}, None)
    return jump


def is_assertion(f: Frame, index: int) -> bool:
    """Whether the instruction is a branch with a side that only raises."""
    branch = f.program[index][1]
    return branch.op in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE") and (_only_raises(f, index + 1) or _only_raises(f, branch.target.index))


def _only_raises(f: Frame, index: int) -> bool:
    """Whether every way through the code from there ends in a raise statement, without a loop on it."""
    while (ins := f.program[index][1]).op != "RAISE_VARARGS":
        if ins.op in ("RETURN_VALUE", "RERAISE", "YIELD_VALUE", "FOR_ITER", "SEND", "SEND_POP"):
            return False
        if ins.op in JUMPS:
            if ins.target.index <= index or ins.op in CONDITIONAL_JUMPS and not _only_raises(f, ins.target.index):
                return False
            index = index + 1 if ins.op in CONDITIONAL_JUMPS else ins.target.index
        else:
            index += 1
    return True


def _item(m: Machine, t: TraceTensor) -> Any:
    """`assert x.item() < n`: a number that nothing but the assertion reads stays a tensor, of the dtype that holds Python's number. Every other
    number is read where the call stands."""
    f = m.frames[-1]
    other, *jump = (ins for _, ins in f.program[f.pc:f.pc + 5])
    if len(jump) < 3 or jump[0].op != "COMPARE_OP" or t.device.type != "cpu" or t.numel() != 1:
        return NotImplemented
    if not is_assertion(f, f.pc + (3 if jump[1].op in ("UNARY_NOT", "TO_BOOL") else 2)):       # behind the comparison, and the number's truth
        return NotImplemented
    number = other.arg if other.op == "LOAD_CONST" else _local(m, f, other.slot) if other.op == "LOAD_FAST" else None
    if t.dtype.is_floating_point and (type(number) is float or type(number) is int and abs(number) <= _EXACT):
        return tensor_calls.call_method(m, t, "double", [], {})
    if not t.dtype.is_floating_point and t.dtype not in _OTHER and type(number) in (int, torch.SymInt):
        return tensor_calls.call_method(m, t, "long", [], {})
    return NotImplemented


def _local(m: Machine, f: Frame, slot: int) -> Any:
    v = f.slots[slot]
    return v.load(m) if type(v) is Unread else v


tensor_calls.METHODS["item"] = _item
