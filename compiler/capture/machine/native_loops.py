"""Loops that hold a break: which loop runs natively, one captured region per iteration (bytecode/loop_break.py).

A loop over data does the same large work in each iteration: a model on one batch after another, a sampler's steps. One
graph of them all would gain nothing, and its compilation would grow with the loop. Such a loop runs natively, too, and
one iteration is compiled.

In a cell that holds for loops of little work, too, such as one over a tensor's elements: unrolled, 200 turns that take
a millisecond are compiled for seconds. Where a turn has too little work to pay for an entry's call, the loop is plain
Python. What the program names (`tcompile.compile`) is unrolled whole.
"""

from __future__ import annotations

import itertools
import math
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable

import torch
from torch.nn import Module, Parameter

from ...graph.tensor import TraceTensor
from ..bytecode.loops import Loop, find_loops
from ..entry.locations import is_library_file
from .signals import Break

if TYPE_CHECKING:
    from .frame import Frame
    from .machine import Machine

__all__ = ["Passes", "begins", "check_turn", "enclosing_loop", "in_a_loop"]

_LOOP_OPERATORS = 400  # of a loop of equal iterations: what is more is not unrolled into one graph
_ITERATION_OPERATORS = 40  # of each iteration, in what the program names: less is unrolled
_ENTRY_OPERATORS = 8  # of each iteration: below, guards and the call of an entry would cost more than is gained,
_LARGE = 1 << 16  # elements: a turn that gives so many is worth an entry's call, however few its operators are
_SMALL_LOOP_OPERATORS = 200  # and so many of them in a loop of a cell's are not unrolled
_MODULE_OPERATORS = 1000  # of a loop in a module of a cell's: a recurrence over a long sequence is not unrolled, either


@dataclass
class Passes:
    """What a loop that is being unrolled has put into the graph."""

    iterator: int  # its id: a generator that the program lets go of is closed there and then, so nobody else holds it
    before: int  # operators before the loop
    operators: int  # up to the present iteration
    weights: int = 0  # parameters that the graph knew then
    count: int = 0


def begins(frame: Frame) -> None:
    """An iterator was made: a loop that takes it is at its beginning, though its iterator may lie where that of an
    earlier run of the loop lay.
    """
    frame.passes.pop(frame.program[frame.pc][1], None)


def check_turn(machine: Machine, frame: Frame, head: Any, iterator: Any = None) -> None:
    """The next iteration of a loop begins. Raises Break where a loop of the program's own has done the same work in
    each one so far, and is not to be unrolled further. A loop over layers uses other parameters in each iteration, so
    that a model stays one graph.
    """
    now = machine.graph.calls
    passes = frame.passes.get(head)
    if passes is None or passes.iterator != id(iterator):
        frame.passes[head] = Passes(id(iterator), now, now)
        return
    made, passes.operators = now - passes.operators, now
    small = made < _ENTRY_OPERATORS and not _is_of_large_tensors(machine, made)
    long = now - passes.before >= (_SMALL_LOOP_OPERATORS if small else _LOOP_OPERATORS)
    if made < _ITERATION_OPERATORS and not (long and made and machine.opts.library is not None):
        passes.count = 0
        return
    weights = sum(isinstance(real, Parameter) for real in machine.world.reals.values())
    passes.count = passes.count + 1 if weights == passes.weights else 0
    passes.weights = weights
    if not passes.count or not long or not _is_own(machine, frame, now - passes.before):
        return
    if small:
        raise Break("small_loop")
    raise Break("long_loop", "each iteration of the loop does the same work")


def _is_of_large_tensors(machine: Machine, operators: int) -> bool:
    """Whether one of the last operators gives so much that an entry's call costs little beside it."""
    values = (node.meta.get("val") for node in itertools.islice(reversed(machine.graph.graph.nodes), operators))
    return any(type(value) is TraceTensor and math.prod(_now(n) for n in value.shape) >= _LARGE for value in values)


def _now(size: Any) -> int:
    """A size of the call that is captured."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _is_own(machine: Machine, frame: Frame, operators: int) -> bool:
    """Whether all frames from the root to this one are the program's, and none is a module's: what a model repeats is
    part of the model, unless it has very many operators.
    """
    whole = machine.opts.library is None or operators < _MODULE_OPERATORS
    return (
        not machine.one_graph
        and len(machine.graph.scopes) == 1
        and not any(is_library_file(g.file) or whole and _of_module(g) for g in machine.frames)
        and frame in machine.frames
    )


def _of_module(frame: Frame) -> bool:
    return frame.code.co_argcount > 0 and isinstance(frame.slots[0], Module)


def enclosing_loop(code: types.CodeType, index: int) -> Loop | None:
    """The outermost loop of `code` whose iterations execute instruction `index`."""
    found: Loop | None = None
    for loop in find_loops(code):
        inside = index in loop.body or index in loop.again or (loop.kind == "for" and index == loop.head)
        if inside and (found is None or loop.depth < found.depth):
            found = loop
    return found


def in_a_loop(frames: Iterable[Any]) -> bool:
    """Whether one of the interpreted frames is inside of a loop."""
    return any(enclosing_loop(frame.code, frame.pc - 1) is not None for frame in frames)
