"""Numbers that the program reads from tensors of the graph: `x.sum().item()`, `float(t)`, `sizes.tolist()`.

Such a number is known when the graph has run. Until somebody needs it, it stays what it is made of: the entry reads it
from a result of the graph and computes with it as Python does. An operator of the graph takes it as a 0-dim tensor. A
branch, a size or native code needs the number: a break, there and not where the tensor was read.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Callable, NoReturn

import torch

from ...graph.known_values import known
from ...graph.tensor import TraceTensor
from ...symbolic.node import SymNode
from .float_node import FloatNode
from ..machine.native_loops import in_a_loop
from ..machine.signals import Break

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = [
    "Read",
    "ReadFloat",
    "ReadInt",
    "is_read",
    "item",
    "truth",
    "truth_of",
    "negated",
    "negation",
    "tolist",
    "operation",
    "to_float",
    "as_tensor",
    "check",
    "condition",
    "ASK_FOR_TRUTH",
    "COMPARISONS",
    "ASSUMED",
    "METHODS",
    "decided",
    "learn",
]

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_MOST = 64  # numbers of one tolist()
# Functions by what they do to plain numbers. The first raise for none of them, the second for zero alone.
_SAFE = {operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul} | {
    f: f for f in (operator.add, operator.sub, operator.mul, operator.neg, operator.pos, abs, min, max)
}
_DIVISIONS = {
    operator.itruediv: operator.truediv,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
} | {f: f for f in (operator.truediv, operator.floordiv, operator.mod)}
ASK_FOR_TRUTH = ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT")  # instructions: where a truth is needed
COMPARISONS = frozenset((operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne))


class Read:
    """What a number is made of: the element at `path` of what a tensor of the graph holds, or `function` of `operands`,
    which are stack values.
    """

    tensor: TraceTensor | None
    path: tuple[int, ...]
    function: Callable | None
    operands: tuple

    def __init__(
        self,
        env: Any,
        tensor: TraceTensor | None,
        path: tuple[int, ...] = (),
        function: Callable | None = None,
        operands: tuple = (),
    ):
        self._stands_for(env)
        self.tensor, self.path, self.function, self.operands = tensor, path, function, operands

    def _stands_for(self, env: Any) -> None:
        """Make it a node of the environment."""
        raise NotImplementedError

    def _refuse(self, *args: Any) -> NoReturn:
        raise Break("item", "a number that was read from a tensor is needed before the graph has run")


class ReadFloat(Read, FloatNode):
    """A float that is read."""

    def _stands_for(self, env: Any) -> None:
        SymNode.__init__(self, 1.5, env, float)  # any number

    source: Any = property(Read._refuse)
    _number: Any = Read._refuse

    def bool_(self) -> bool:
        raise Break("data_dependent_branch")


class _ReadWhole(Read, SymNode):
    """No expression of sizes holds it."""

    expr: Any = property(Read._refuse)
    constant = None
    kind: type

    def _stands_for(self, env: Any) -> None:
        self.env, self.pytype = env, self.kind

    def is_constant(self) -> bool:
        return False

    def maybe_as_int(self) -> None:
        return None

    maybe_as_bool = maybe_as_int

    def _in_words(self) -> str:
        return "<a number of a tensor>"

    def bool_(self) -> bool:
        raise Break("data_dependent_branch")

    def guard_bool(self, file: str, line: int) -> bool:
        raise Break("data_dependent_branch")

    guard_size_oblivious = guard_or_false = guard_or_true = expect_true = guard_bool


class ReadInt(_ReadWhole):
    """An int that is read."""

    kind = int
    hint = 2


class ReadBool(_ReadWhole):
    """What a comparison gives of tensors, or of numbers one of which is read."""

    kind = bool
    hint = True


def is_read(value: Any) -> bool:
    """Whether a stack value is such a number, or what a comparison with one gave."""
    return type(value) in (torch.SymFloat, torch.SymInt, torch.SymBool) and isinstance(value.node, Read)


def item(machine: Machine, tensor: TraceTensor) -> Any:
    """`t.item()`; NotImplemented where it is to be read at once."""
    if (value := known(tensor)) is not None and value.numel() == 1:
        return value.item()
    if not _fit(machine, tensor) or any(type(size) is not int or size != 1 for size in tensor.shape):
        return NotImplemented
    held = _held(machine, tensor)
    return _number(machine, _method(machine, held, "reshape", ()) if tensor.dim() else held, ())


def truth_of(machine: Machine, held: TraceTensor) -> torch.SymBool:
    """`bool(held)` of a 0-dim tensor that nobody writes to."""
    return torch.SymBool(ReadBool(machine.env, held))


def truth(machine: Machine, value: Any) -> Any:
    """`bool(value)` of a tensor with one element, or of a number that is read: a bool that the entry reads.
    NotImplemented where it is to be read at once.
    """
    if is_read(value):
        return value if type(value) is torch.SymBool else operation(machine, operator.ne, (value, 0))
    if type(value) is not TraceTensor or value.tt_wrapper is not None:
        return NotImplemented
    if (fact := known(value)) is not None:
        return bool(fact) if fact.numel() == 1 else NotImplemented
    if not _fit(machine, value) or any(type(size) is not int or size != 1 for size in value.shape):
        return NotImplemented
    held = _held(machine, value)
    held = _method(machine, held, "reshape", ()) if held.dim() else held
    return truth_of(machine, held if held.dtype == torch.bool else _method(machine, held, "ne", 0))


def negated(machine: Machine, value: torch.SymBool) -> torch.SymBool:
    """`not value` of a bool that is read."""
    return truth_of(machine, _method(machine, condition(machine, value.node), "logical_not"))


def negation(machine: Machine, value: Any) -> Any:
    """`not value`"""
    read = truth(machine, value)
    return not machine.truth(value) if read is NotImplemented else negated(machine, read)


def tolist(machine: Machine, tensor: TraceTensor) -> Any:
    """`t.tolist()`; NotImplemented where it is to be read at once."""
    if (value := known(tensor)) is not None:
        return value.tolist()
    if (
        not _fit(machine, tensor)
        or any(type(size) is not int for size in tensor.shape)
        or not 0 < tensor.numel() <= _MOST
    ):
        return NotImplemented
    return _numbers(machine, _held(machine, tensor), ())


def _method(machine: Machine, tensor: TraceTensor, name: str, *args: Any) -> TraceTensor:
    return machine.torch_method(tensor, name, list(args), {})


def _fit(machine: Machine, tensor: TraceTensor) -> bool:
    """A loop that reads a number is not unrolled: its iterations are graphs."""
    return (
        (tensor.dtype in _FLOATS or tensor.dtype in _INTS or tensor.dtype == torch.bool)
        and len(machine.graph.scopes) == 1
        and (machine.one_graph or not in_a_loop(machine.frames))
    )


def _held(machine: Machine, tensor: TraceTensor) -> TraceTensor:
    """What the tensor holds now: the program may write to it."""
    return _method(machine, _method(machine, tensor, "detach"), "clone")


def _numbers(machine: Machine, held: TraceTensor, path: tuple[int, ...]) -> Any:
    if len(path) == held.dim():
        return _number(machine, held, path)
    return [_numbers(machine, held, (*path, i)) for i in range(held.shape[len(path)])]


def _number(machine: Machine, held: TraceTensor, path: tuple[int, ...]) -> Any:
    if held.dtype == torch.bool:
        return torch.SymBool(ReadBool(machine.env, held, path))
    return (
        torch.SymFloat(ReadFloat(machine.env, held, path))
        if held.dtype in _FLOATS
        else torch.SymInt(ReadInt(machine.env, held, path))
    )


def to_float(machine: Machine, value: torch.SymInt) -> torch.SymFloat:
    """`float(value)`"""
    return torch.SymFloat(ReadFloat(machine.env, None, (), float, (_held_by_float(value),)))


def _held_by_float(value: Any) -> Any:
    """An operand where a float is computed: no int of more than 64 bits, which might raise."""
    if (
        type(value) is torch.SymInt
        and is_read(value)
        and value.node.function is not None
        or type(value) is int
        and abs(value) >= 1 << 63
    ):
        raise Break("item")
    return value


def operation(machine: Machine, fn: Any, args: tuple) -> Any:
    """`fn(*args)` of numbers, one of which is read."""
    numbers = {int, float, torch.SymInt, torch.SymFloat}.issuperset(map(type, args))
    if fn in COMPARISONS and numbers:
        return torch.SymBool(ReadBool(machine.env, None, (), fn, args))
    if fn is round and len(args) == 2 and type(args[0]) is torch.SymFloat and type(args[1]) is int and args[1] >= 0:
        return torch.SymFloat(ReadFloat(machine.env, None, (), fn, args))
    divides = fn in _DIVISIONS
    if fn not in _SAFE and not divides or not numbers or divides and not (type(args[1]) in (int, float) and args[1]):
        raise Break("item")
    fn = _DIVISIONS[fn] if divides else _SAFE[fn]
    if fn in (min, max) and not (
        {int, torch.SymInt}.issuperset(map(type, args)) or {float, torch.SymFloat}.issuperset(map(type, args))
    ):
        raise Break("item")  # of one type or the other
    if fn is operator.truediv or any(type(arg) in (float, torch.SymFloat) for arg in args):
        return torch.SymFloat(ReadFloat(machine.env, None, (), fn, tuple(map(_held_by_float, args))))
    return torch.SymInt(ReadInt(machine.env, None, (), fn, args))


def as_tensor(machine: Machine, node: Read, dtype: torch.dtype, device: torch.device, strict: bool) -> TraceTensor:
    """The number as a 0-dim tensor of the graph. `strict`: one that the dtype does not hold would be refused."""
    held = _calculated(machine, node)
    if (
        held.device != device
        or strict
        and held.dtype != dtype
        and not (
            held.dtype.is_floating_point
            and dtype.is_floating_point
            and torch.finfo(held.dtype).max <= torch.finfo(dtype).max
        )
    ):
        raise Break("item")
    return _method(machine, held, "to", dtype) if held.dtype != dtype else held


def _calculated(machine: Machine, node: Read) -> TraceTensor:
    """A tensor that holds the number: in float64 where it is computed, as Python computes. Ints are computed where they
    take 64 bits at most.
    """
    if node.tensor is not None:
        held = node.tensor
        for i in node.path:
            held = _method(machine, held, "select", 0, i)
    elif node.function not in _IN_GRAPHS or isinstance(node, ReadInt) and _magnitude(machine, node) >= 1 << 63:
        raise Break("item")
    else:
        floats = isinstance(node, ReadFloat) or any(
            type(operand) in (float, torch.SymFloat) for operand in node.operands
        )
        operands = [
            _method(machine, _calculated(machine, operand.node), "to", torch.float64 if floats else torch.int64)
            if is_read(operand)
            else operand
            for operand in node.operands
        ]
        held = operands[0] if node.function is float else machine.torch_operator(node.function, operands)
    if len(machine.graph.scopes) == 1:
        node.tensor, node.path = held, ()
    return held


def _magnitude(machine: Machine, value: Any) -> int:
    """A bound of an int's absolute value. What is read as 64 bits is asserted to have 31: a call where it has more runs
    as plain Python.
    """
    if type(value) is int:
        return abs(value)
    if not is_read(value) and not isinstance(value, ReadInt):
        raise Break("item")
    node = value if isinstance(value, ReadInt) else value.node
    if node.function is not None:
        sizes = [_magnitude(machine, operand) for operand in node.operands]
        return sizes[0] * sizes[1] if node.function is operator.mul else sum(sizes)
    if node.tensor.dtype == torch.int64:
        check(
            machine,
            _method(machine, _method(machine, _calculated(machine, node), "abs"), "lt", 1 << 31),
            f"{ASSUMED} of 31 bits",
        )
        return 1 << 31
    return torch.iinfo(node.tensor.dtype).max + 1


def check(machine: Machine, condition: TraceTensor, *message: str) -> None:
    """Assert in the graph that a 0-dim tensor holds. On an accelerator a failed assertion would end the process's use
    of it.
    """
    if condition.device.type != "cpu":
        raise Break("data_dependent_branch")
    machine.graph.record("call_function", torch._assert_async, (condition, *message), {}, None)


def condition(machine: Machine, node: Read) -> TraceTensor:
    """The truth of a number, as a tensor of the graph."""
    held = _calculated(machine, node)
    return held if held.dtype == torch.bool else _method(machine, held, "ne", 0)


_IN_GRAPHS = COMPARISONS | {
    operator.add,
    operator.sub,
    operator.mul,
    operator.neg,
    operator.pos,
    operator.truediv,
    abs,
    float,
}
ASSUMED = "a number that is read from a tensor is"


METHODS = {"item": item, "tolist": tolist}


# ---- what is known of ints that are read: what their dtypes hold, and what the program has checked by torch._check.
# The graph asserts a check, so that a comparison which follows from it is no question of data any more.
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


def learn(machine: Machine, condition: Read, holds: bool = True) -> None:
    """Take in what a comparison gives wherever the graph goes on."""
    comparison = condition.function if holds else _NEGATED.get(condition.function)  # type: ignore[arg-type]
    if len(machine.graph.scopes) > 1 or comparison not in _MIRRORED:
        return
    a, b = condition.operands
    _bound(machine, a, comparison, _range(machine, b))
    _bound(machine, b, _MIRRORED[comparison], _range(machine, a))


def _bound(machine: Machine, value: Any, comparison: Any, other: Range | None) -> None:
    known = _range(machine, value)
    if other is None or known is None or type(value) is int:
        return
    low, high = known
    if comparison in (operator.le, operator.lt, operator.eq):
        high = min(high, other[1] - (comparison is operator.lt))
    if comparison in (operator.ge, operator.gt, operator.eq):
        low = max(low, other[0] + (comparison is operator.gt))
    machine.checked[value.node] = low, high


def decided(machine: Machine, comparison: Any, operands: tuple) -> bool | None:
    """What a comparison of such numbers gives in every call that the entry serves; None where it may give both."""
    ranges = [r for operand in operands if (r := _range(machine, operand)) is not None]
    if len(ranges) < 2:
        return None
    (a, b), (c, d) = ranges
    if comparison in (operator.gt, operator.ge):
        return decided(machine, _MIRRORED[comparison], operands[::-1])
    if comparison in (operator.lt, operator.le):
        return True if comparison(b, c) else False if not comparison(a, d) else None
    apart, same = b < c or d < a, a == b == c == d
    return (same if comparison is operator.eq else apart) if apart or same else None


def _range(machine: Machine, value: Any) -> Range | None:
    """The least and the greatest that an int may be."""
    if type(value) is int:
        return value, value
    node = value.node if type(value) is torch.SymInt else None
    if not isinstance(node, ReadInt):
        return None
    low, high = machine.checked.get(node, (-math.inf, math.inf))
    made = _made_range(machine, node)
    return None if made is None else (max(low, made[0]), min(high, made[1]))


def _made_range(machine: Machine, node: ReadInt) -> Range | None:
    function = node.function
    if function is None:
        limits = torch.iinfo(node.tensor.dtype) if node.tensor is not None else None
        return (-math.inf, math.inf) if limits is None else (limits.min, limits.max)
    parts = [r for operand in node.operands if (r := _range(machine, operand)) is not None]
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
