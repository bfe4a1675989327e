"""Floats that sizes make: n / 2, x.shape[0] ** 0.5, 1 / math.sqrt(n), float(n), where n varies.

They stay floats that vary (`float_node.py`) over a source of kind `ratio`: the entry divides two integers as Python
does. What gives an integer again (`math.ceil(n / 2)`, `int(n * 0.5)`) and what compares is integer arithmetic, where
the division is exact or nothing is rounded across an integer.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Callable

import torch

from ...guards import source as S
from ...symbolic import expr as E
from ...symbolic.node import SymNode
from . import tensor_reads
from .float_node import FloatNode, computed, is_power_of_two
from .tensor_reads import decided, is_read

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["operation", "to_float", "to_int"]

_OPERATORS: dict[Any, tuple[str, Callable]] = {}
for _name in ("add", "sub", "mul", "truediv", "pow"):
    _OPERATORS[getattr(operator, _name)] = _OPERATORS[getattr(operator, f"i{_name}")] = (
        _name,
        getattr(operator, _name),
    )
_FUNCTIONS = (math.sqrt, math.log, math.log2, math.log10)
_PURE = frozenset(
    (
        operator.add,
        operator.sub,
        operator.mul,
        operator.truediv,
        operator.pow,
        operator.mod,
        operator.floordiv,
        operator.imod,
        operator.ifloordiv,
        operator.neg,
        operator.pos,
        abs,
        round,
        min,
        max,
    )
)
_MATH = frozenset(f for f in vars(math).values() if callable(f))
_SMALL = 1 << 16
_LARGE = 1 << 53  # integers below it are float64 numbers


def operation(machine: Machine, fn: Any, args: tuple) -> Any:
    """`fn(*args)` of numbers among which are symbols; None where it is for integer arithmetic, or needs the number of a
    symbol.
    """
    if any(map(is_read, args)):
        if fn in tensor_reads.COMPARISONS and (known := decided(machine, fn, args)) is not None:
            return known
        return tensor_reads.operation(machine, fn, args)
    if not machine.opts.size_floats:
        return None
    if len(args) == 1 and fn in _FUNCTIONS and (node := _node(machine, args[0])) is not None:
        return _wrapped(machine.native(node.function, fn))
    if len(args) == 1 and fn in (math.floor, math.ceil, math.trunc) and type(args[0]) is torch.SymFloat:
        return to_int(machine, args[0], fn)
    if len(args) != 2 or fn not in _OPERATORS:
        return _computed(machine, fn, args)
    name, function = _OPERATORS[fn]
    a, b = args
    if name == "truediv" and type(a) in (int, torch.SymInt) and type(b) in (int, torch.SymInt):
        return _ratio(machine, a, b)
    for symbol, other, reflected in ((a, b, False), (b, a, True)):
        plain = (
            type(other) is float
            or type(other) is int
            and (type(symbol) is torch.SymFloat or name == "pow" and other < 0 and not reflected)
        )
        if plain and abs(other) < _LARGE and (node := _node(machine, symbol)) is not None:
            exact = _exact(machine, node, name, float(other), reflected)
            return (
                _wrapped(machine.native(node.calculated, name, function, node.wrap_float(other), reflected))
                if exact is None
                else exact
            )
    return _computed(machine, function, args)


def _computed(machine: Machine, fn: Any, args: tuple) -> Any:
    """A function that the entry computes as Python does, of floats that vary, or one of module math of integers that
    do.
    """
    if not (fn in _PURE and any(type(arg) is torch.SymFloat for arg in args) or fn in _MATH) or not all(
        type(arg) in (int, float, torch.SymInt) or type(arg) is torch.SymFloat and isinstance(arg.node, FloatNode)
        for arg in args
    ):
        return None
    nodes = [
        (
            arg.node
            if type(arg) in (torch.SymInt, torch.SymFloat)
            else SymNode(E.integer(arg) if type(arg) is int else arg, machine.env, type(arg))
        )
        for arg in args
    ]
    return _wrapped(machine.native(computed, fn, *nodes))


def to_float(machine: Machine, value: torch.SymInt) -> Any:
    """float(value)"""
    if is_read(value):
        return tensor_reads.to_float(machine, value)
    return _ratio(machine, value, 1) if machine.opts.size_floats else float(value)


def to_int(machine: Machine, value: torch.SymFloat, rounded: Callable = math.trunc) -> Any:
    """floor, ceil or trunc of a float that a size makes; None where it is none, or is large enough for the division to
    be rounded to an integer.
    """
    node = value.node
    if not isinstance(node, FloatNode) or node.source.kind != "ratio":
        return None
    a, b = node.source.key
    if not (
        machine.env.decide(E.gt(b, 0))
        and machine.env.decide(E.lt(a, 1 << 50))
        and machine.env.decide(E.gt(a, -(1 << 50)))
    ):
        return None
    down = rounded is math.floor or rounded is math.trunc and machine.env.decide(E.ge(a, 0))
    return machine.env.wrap(a // b if down else -(-a // b))


def _ratio(machine: Machine, a: Any, b: Any) -> Any:
    """a / b of integers, b not zero."""
    if isinstance(b, int) and not b or not isinstance(b, int) and machine.env.decide(E.eq(machine.env.to_expr(b), 0)):
        return None
    return torch.SymFloat(
        FloatNode(
            machine.env.hint(machine.env.to_expr(a)) / machine.env.hint(machine.env.to_expr(b)),
            S.ratio(machine.env.to_expr(a), machine.env.to_expr(b)),
            machine.env,
        )
    )


def _exact(machine: Machine, node: FloatNode, name: str, c: float, reflected: bool) -> Any:
    """A sum or product that rounds once at most, as a ratio of its own; None for others."""
    if (
        node.source.kind != "ratio"
        or not is_power_of_two(node.source.key[1])
        or name == "pow"
        or name == "truediv"
        and reflected
        or c == 0
    ):
        return None
    (a, b), (p, q) = node.source.key, c.as_integer_ratio()
    if abs(p) > _SMALL or q > _SMALL or b.value > _SMALL:
        return None
    if p < 0 and name in ("mul", "truediv") and not machine.env.decide(E.ne(a, 0)):
        return None  # -0.0, which no ratio of integers is
    if name == "truediv":
        p, q = (q, p) if p > 0 else (-q, -p)
    top = (
        a * p
        if name in ("mul", "truediv")
        else a * q + p * b
        if name == "add"
        else p * b - a * q
        if reflected
        else a * q - p * b
    )
    if not (machine.env.decide(E.lt(top, 1 << 50)) and machine.env.decide(E.gt(top, -(1 << 50)))):
        return None
    return _ratio(machine, top, b * q)


def _node(machine: Machine, value: Any) -> FloatNode | None:
    """What stands behind a symbol, as a float."""
    if type(value) is torch.SymInt:
        value = _ratio(machine, value, 1)
    return value.node if type(value) is torch.SymFloat and isinstance(value.node, FloatNode) else None


def _wrapped(node: Any) -> Any:
    return torch.SymFloat(node) if isinstance(node, FloatNode) else node
