"""Which of several objects Python takes, where tensors decide: `max(x.sum(), 0)`, `min(map(f, xs))`, `max(xs, key=f)`,
`1 in [t, 1]`.

The graph computes the comparisons, and a tensor that holds what the chosen one holds (`torch.where`), which its
operators take. Where the chosen object itself leaves the graph, the entry chooses it, by the comparisons' outcome. What
depends on which one it is (whether it is a tensor or a number, its identity, writes to it) parts the graph: the entry
has made it by then.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable

import torch

from ...graph.tensor import TraceTensor
from ..numbers import tensor_reads
from ..machine.native_loops import in_a_loop
from ..machine.signals import Break

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["Choice", "Fold", "undecided", "any_of", "check_operands", "check_attribute", "refuse"]

_WHY = "which object max() or min() gave depends on the values of tensors"
_EXACT = frozenset(
    (
        operator.add,
        operator.sub,
        operator.mul,
        operator.truediv,
        operator.lt,
        operator.le,
        operator.gt,
        operator.ge,
        operator.eq,
        operator.ne,
    )
)
_ATTRIBUTES = frozenset(
    """shape dtype device ndim is_cuda is_cpu layout itemsize nbytes requires_grad T mT H mH real imag""".split()
)
_OF_MEMORY = frozenset(
    ("storage_offset", "is_inference", "is_shared", "is_pinned", "is_set_to", "__hash__", "requires_grad_")
)


@dataclass
class Choice:
    """`new` if the tensor `condition` holds, else `old`."""

    condition: TraceTensor
    new: Any
    old: Any


def undecided(machine: Machine, answer: Any) -> bool:
    """Whether the outcome of a comparison is a truth value that only the graph knows."""
    return (
        type(answer) is TraceTensor
        and all(type(size) is int and size == 1 for size in answer.shape)
        and len(machine.graph.scopes) == 1
    )


def any_of(machine: Machine, conditions: list[TraceTensor]) -> Any:
    """Whether one of them holds: a bool that the entry reads."""
    if not machine.one_graph and in_a_loop(machine.frames):
        raise Break("data_dependent_branch")  # such a loop is not unrolled
    flat = [_flat(machine, condition) for condition in conditions]
    found = flat[0]
    for c in flat[1:]:
        found = _call(machine, torch.logical_or, found, c)
    return tensor_reads.truth_of(machine, found)


def _flat(machine: Machine, tensor: TraceTensor) -> TraceTensor:
    return machine.torch_method(tensor, "reshape", [()], {}) if tensor.dim() else tensor


def _call(machine: Machine, fn: Any, *args: Any) -> Any:
    return machine.torch_function(fn, list(args), {})


class Fold:
    """What max() and min() take while they go through values: each is compared with the best before it."""

    def __init__(self, machine: Machine, first: Any, key: Any):
        self.m, self.key = machine, key  # the key that the next one is compared with
        self.candidates: list[tuple[TraceTensor | None, Any]] = [(None, first)]

    def take(self, value: Any, key: Any, answer: Any) -> None:
        """`value` comes after the others; `answer` says whether it replaces the best of them."""
        machine = self.m
        if not undecided(machine, answer):
            if machine.truth(answer):
                self.candidates, self.key = [(None, value)], key
            return
        condition = _flat(machine, answer)
        self.candidates.append((condition, value))
        self.key = _where(machine, condition, key, self.key)

    def result(self) -> Any:
        (_, first), *others = self.candidates
        if not others:
            return first
        values = [v for _, v in self.candidates]
        if all(type(item) in (int, torch.SymInt) for item in values) or all(
            type(item) in (float, torch.SymFloat) for item in values
        ):
            return self._number(values)
        best = first
        for condition, value in others:
            new = _where(self.m, condition, value, best)
            self.m.choices[id(new)] = Choice(condition, value, best)
            self.m.graph.chosen.add(id(new.tt_storage))
            self.m.world.keep.append(new)
            for t in (new, value, best):
                self.m.graph.fix(t)
            best = new
        return best

    def _number(self, values: list) -> Any:
        """The key is a tensor's, and what it chooses a number: one that the entry reads."""
        dtype = torch.float64 if type(values[0]) in (float, torch.SymFloat) else torch.int64
        best, *others = [self.m.torch_factory(torch.full, [(), item], {"dtype": dtype}) for item in values]
        for (condition, _), value in zip(self.candidates[1:], others):
            best = _call(self.m, torch.where, condition, value, best)
        number = tensor_reads.item(self.m, best)
        if number is NotImplemented:
            raise Break("choice", _WHY)
        return number


def _where(machine: Machine, condition: TraceTensor, new: Any, old: Any) -> TraceTensor:
    """A tensor that holds what the chosen one holds, where that needs no more than one kind of tensor."""
    tensors = [v for v in (new, old) if type(v) is TraceTensor]
    if len(tensors) == 2:
        if any(f(new) != f(old) for f in (_shape, TraceTensor.stride, _dtype, _device, _requires_grad)):
            raise Break("choice", _WHY)
    elif len(tensors) == 1 and not tensors[0].dim():
        number = old if tensors[0] is new else new
        if not _holds(tensors[0].dtype, number):
            raise Break("choice", _WHY)
    else:
        raise Break("choice", _WHY)
    return _call(machine, torch.where, condition, new, old)


def _shape(tensor: TraceTensor) -> Any:
    return tuple(tensor.shape)


def _dtype(tensor: TraceTensor) -> Any:
    return tensor.dtype


def _device(tensor: TraceTensor) -> Any:
    return tensor.device


def _requires_grad(tensor: TraceTensor) -> Any:
    return tensor.requires_grad


def _holds(dtype: torch.dtype, number: Any) -> bool:
    """Whether a number is what a tensor of this dtype may hold: of no higher category, and no larger."""
    cls = type(number)
    if dtype.is_floating_point:
        return (
            cls in (int, torch.SymInt, torch.SymFloat)
            or cls is float
            and (number - number != 0 or abs(number) <= torch.finfo(dtype).max)
        )
    return (
        not dtype.is_complex
        and dtype != torch.bool
        and (cls is torch.SymInt or cls is int and torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max)
    )


def _mixed(machine: Machine, choice: Choice) -> list[Any]:
    """The numbers among what may be chosen."""
    return [
        n
        for v in (choice.new, choice.old)
        for n in (
            _mixed(machine, machine.choices[id(v)])
            if id(v) in machine.choices
            else []
            if type(v) is TraceTensor
            else [v]
        )
    ]


def refuse(machine: Machine, value: Any) -> None:
    """`value` is used in a way that shows whether a tensor or a number was chosen."""
    choice = machine.choices.get(id(value))
    if choice is not None and _mixed(machine, choice):
        raise Break("choice", _WHY)


def check_operands(machine: Machine, fn: Any, args: Iterable) -> None:
    """Before a call: what may be a number or a tensor does as an operand where both mean the same."""
    args = list(args)
    for arg in args:
        if type(arg) in (list, tuple):
            check_operands(machine, None, arg)
        choice = machine.choices.get(id(arg))
        if choice is None or not (numbers := _mixed(machine, choice)):
            continue
        other = next((b for b in args if b is not arg), None)
        if (
            fn not in _EXACT
            or type(other) is not TraceTensor
            or not other.dim()
            or arg.requires_grad
            or not all(_exact(arg.dtype, number) for number in numbers)
            or arg.dtype.is_floating_point
            and not other.dtype.is_floating_point
            or other.dtype == torch.bool
        ):
            raise Break("choice", _WHY)


def _exact(dtype: torch.dtype, number: Any) -> bool:
    """Whether a tensor of this dtype holds the number without rounding it."""
    return type(number) in (int, float) and (number != number or torch.tensor(number, dtype=dtype).item() == number)


def check_attribute(machine: Machine, value: Any, name: str) -> None:
    """Before an attribute or a method of a chosen tensor is used: what only the object itself knows breaks."""
    choice = machine.choices.get(id(value))
    if choice is not None and (
        _mixed(machine, choice)
        or name in _OF_MEMORY
        or not callable(getattr(torch.Tensor, name, None))
        and name not in _ATTRIBUTES
    ):
        raise Break("choice", _WHY)
