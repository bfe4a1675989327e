"""What is known of ints that are read from tensors: what their dtypes hold, and what the program has checked by
torch._check. The graph asserts a check, so that a comparison which follows from it is no question of data any more.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from .tensor_reads import ReadInt

if TYPE_CHECKING:
    from ..machine.machine import Machine
    from .tensor_reads import Read

__all__ = ["decided", "learn"]

Range = tuple[float, float]
_MIRRORED = {
    operator.lt: operator.gt,
    operator.le: operator.ge,
    operator.gt: operator.lt,
    operator.ge: operator.le,
    operator.eq: operator.eq,
}


_NEGATED = {
    operator.lt: operator.ge,
    operator.le: operator.gt,
    operator.gt: operator.le,
    operator.ge: operator.lt,
    operator.ne: operator.eq,
}


def learn(m: Machine, condition: Read, holds: bool = True) -> None:
    """Take in what a comparison gives wherever the graph goes on."""
    comparison = condition.function if holds else _NEGATED.get(condition.function)  # type: ignore[arg-type]
    if len(m.graph.scopes) > 1 or comparison not in _MIRRORED:
        return
    a, b = condition.operands
    _bound(m, a, comparison, _range(m, b))
    _bound(m, b, _MIRRORED[comparison], _range(m, a))


def _bound(m: Machine, value: Any, comparison: Any, other: Range | None) -> None:
    known = _range(m, value)
    if other is None or known is None or type(value) is int:
        return
    low, high = known
    if comparison in (operator.le, operator.lt, operator.eq):
        high = min(high, other[1] - (comparison is operator.lt))
    if comparison in (operator.ge, operator.gt, operator.eq):
        low = max(low, other[0] + (comparison is operator.gt))
    m.checked[value.node] = low, high


def decided(m: Machine, comparison: Any, operands: tuple) -> bool | None:
    """What a comparison of such numbers gives in every call that the entry serves; None where it may give both."""
    ranges = [r for v in operands if (r := _range(m, v)) is not None]
    if len(ranges) < 2:
        return None
    (a, b), (c, d) = ranges
    if comparison in (operator.gt, operator.ge):
        return decided(m, _MIRRORED[comparison], operands[::-1])
    if comparison in (operator.lt, operator.le):
        return True if comparison(b, c) else False if not comparison(a, d) else None
    apart, same = b < c or d < a, a == b == c == d
    return (same if comparison is operator.eq else apart) if apart or same else None


def _range(m: Machine, value: Any) -> Range | None:
    """The least and the greatest that an int may be."""
    if type(value) is int:
        return value, value
    node = value.node if type(value) is torch.SymInt else None
    if not isinstance(node, ReadInt):
        return None
    low, high = m.checked.get(node, (-math.inf, math.inf))
    made = _made_range(m, node)
    return None if made is None else (max(low, made[0]), min(high, made[1]))


def _made_range(m: Machine, node: ReadInt) -> Range | None:
    function = node.function
    if function is None:
        limits = torch.iinfo(node.tensor.dtype) if node.tensor is not None else None
        return (-math.inf, math.inf) if limits is None else (limits.min, limits.max)
    parts = [r for v in node.operands if (r := _range(m, v)) is not None]
    if len(parts) < len(node.operands):
        return None
    (a, b), *rest = parts
    if function is operator.neg:
        return -b, -a
    if function is abs:
        return (max(a, -b, 0), max(abs(a), abs(b)))
    if function in (min, max):
        return function(a, *(c for c, _ in rest)), function(b, *(d for _, d in rest))
    if function in (operator.add, operator.sub) and len(rest) == 1:
        c, d = rest[0] if function is operator.add else (-rest[0][1], -rest[0][0])
        return a + c, b + d
    return -math.inf, math.inf
