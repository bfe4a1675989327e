"""Assertions on the values of tensors: nodes of the graph. Where one does not hold, the call is run again as plain Python, which raises the program's own
error. On an accelerator a failed check would end the process's use of it: there an assertion breaks."""
from __future__ import annotations

from typing import Any

import torch

from . import tensor_calls
from .frame import Frame
from .machine import Machine, Unread
from .world import TraceTensor

__all__ = ["asserted"]

_EXACT = 2 ** 53                 # integers up to it are float64 numbers
_OTHER = (torch.complex32, torch.complex64, torch.complex128, torch.uint64)        # not in an int64 or float64


def asserted(m: Machine, f: Frame, v: Any, wanted: bool) -> bool:
    """`assert v` or `assert not v` of a tensor becomes a node; False where the jump in front is not an assertion's."""
    if type(v) is not TraceTensor or f.program[f.pc][1].op != "LOAD_ASSERTION_ERROR" or v.device.type != "cpu" or v.numel() != 1:
        return False
    held = v if wanted else tensor_calls.call_method(m, v, "logical_not", [], {})
    m.graph.record("call_function", torch._assert_async, (held,), {}, None)
    return True


def _item(m: Machine, t: TraceTensor) -> Any:
    """`assert x.item() < n`: a number that nothing but the assertion reads stays a tensor, of the dtype that holds Python's number. Every other
    number is read where the call stands."""
    f = m.frames[-1]
    other, *jump = (ins for _, ins in f.program[f.pc:f.pc + 5])
    if not jump or jump.pop(0).op != "COMPARE_OP" or "LOAD_ASSERTION_ERROR" not in (ins.op for ins in jump[1:3]) or t.device.type != "cpu" or t.numel() != 1:
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
