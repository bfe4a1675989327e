"""Floats that may differ from call to call, where they meet tensors: a scalar input of the graph in place of a number in its code.

A 0-dim tensor of the other operand's own dtype gives what eager gives for a Python number: the same result dtype, and the same
rounding, as the number is rounded to the operator's type either way. For bfloat16 and float16, whose operators compute in
float32, the operation is written out in float32. Where that does not hold, the number is relied on.
"""
from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Callable

import torch

from ..graph.tensor import TraceTensor, trace_tensor_like
from ..guards import source as S
from ..guards.guard import TensorSpec
from .float_node import FloatNode

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["holds_float", "scalar_operation", "pinned", "float_symbol", "scalar_input"]

_OPERATORS: dict[Any, bool] = {              # -> whether it writes to its first operand
    operator.add: False, operator.sub: False, operator.mul: False, operator.truediv: False, operator.iadd: True, operator.isub: True,
    operator.imul: True, operator.itruediv: True, torch.add: False, torch.sub: False, torch.mul: False, torch.div: False,
    torch.subtract: False, torch.multiply: False, torch.divide: False, torch.true_divide: False}
METHODS: dict[str, Callable] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "subtract": torch.subtract, "multiply": torch.multiply,
    "divide": torch.divide, "true_divide": torch.true_divide, "add_": operator.iadd, "sub_": operator.isub, "mul_": operator.imul,
    "div_": operator.itruediv}
_WIDE = (torch.float32, torch.float64)
_NARROW = (torch.bfloat16, torch.float16)


def float_symbol(m: Machine, value: float, source: S.Source) -> torch.SymFloat:
    """The stack value of a float that may differ from call to call."""
    return torch.SymFloat(FloatNode(value, source, m.env))


def holds_float(args: Any) -> bool:
    """Whether one of the arguments is a float that may vary."""
    return any(type(a) is torch.SymFloat for a in args)


def pinned(value: Any) -> Any:
    """A value in which every float that may vary is the number that it is now, which is relied on."""
    if type(value) is torch.SymFloat:
        return float(value)
    if type(value) in (list, tuple):
        return type(value)(map(pinned, value))
    return {k: pinned(v) for k, v in value.items()} if type(value) is dict else value


def scalar_operation(m: Machine, fn: Any, args: list, run: Callable[[Any, list], Any]) -> Any:
    """`fn(*args)` where an argument is a float that may vary; `run(fn, args)` records a call."""
    writes = _OPERATORS.get(fn) if getattr(fn, "__hash__", None) else None
    from .tensor_calls import call_method
    tensors = [a for a in args if type(a) is TraceTensor]
    floats = [a for a in args if type(a) is torch.SymFloat]
    if writes is None or len(args) != 2 or len(tensors) != 1 or len(floats) != 1 or not isinstance(floats[0].node, FloatNode):
        return run(fn, pinned(args))
    tensor, dtype = tensors[0], tensors[0].dtype
    if writes and type(args[0]) is not TraceTensor:
        return run(fn, pinned(args))
    if fn is operator.truediv and args[0] is floats[0]:          # as Tensor.__rtruediv__ computes it
        return scalar_operation(m, operator.mul, [call_method(m, tensor, "reciprocal", [], {}), floats[0]], run)
    if dtype in _WIDE or not (dtype.is_floating_point or dtype.is_complex):
        scalar = scalar_input(m, floats[0].node, dtype if dtype in _WIDE else torch.get_default_dtype(), tensor.device)
        return run(fn, [scalar if a is floats[0] else a for a in args])
    if dtype in _NARROW and not writes:
        wide = call_method(m, tensor, "to", [torch.float32], {})
        scalar = scalar_input(m, floats[0].node, torch.float32, tensor.device)
        return call_method(m, run(fn, [scalar if a is floats[0] else wide for a in args]), "to", [dtype], {})
    return run(fn, pinned(args))


def scalar_input(m: Machine, node: FloatNode, dtype: torch.dtype, device: torch.device) -> TraceTensor:
    """The graph's input for the float, one for each dtype and device. The entry fills it at each call."""
    source = S.scalar(node.source, dtype, device)
    known = m.world.scalars.get(source)
    if known is None:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            real = S.scalar_tensor(node.expr, dtype, device)
        known = m.world.scalars[source] = trace_tensor_like(real)
        spec = TensorSpec(torch.Tensor, dtype, device, False, (), ())
        m.graph.add_input(real, known, source, spec, False)
    return known
