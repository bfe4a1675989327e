"""Which frames a break leaves: the root frame and, within it, those whose callers do nothing with what they return but
push it on the stack.

A break inside of the code of a call keeps what was captured there: each of these frames is left by a break function of
its own (bytecode/nested.py). Where capture itself would still have had to do something with a frame's result (a
property, `__init__`, a callback of sorted()), the break lies at the call, in the frame before. So it does where the
call has no tensor work (python_alone.py).
"""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Sequence, TypeVar

from ..bytecode.flow import EXC, LASTI, PREV_EXC, analyse
from ..bytecode.instructions import decode
from ..bytecode.loops import Loop
from .native_loops import enclosing_loop
from .python_alone import is_python_alone

if TYPE_CHECKING:
    from .frame import Frame

__all__ = ["Step", "passes_on", "frames_left", "path_of"]

F = TypeVar("F", bound=Callable)

_MAX_LEVELS = 24
_NO_FUNCTION = 0x3A0  # generators, coroutines, asynchronous generators: their frames outlive the call
_passing: set[types.CodeType] = set()  # code of capture's functions whose result is that of the call that they end with


def passes_on(function: F) -> F:
    """Mark a function of capture through which calls go: every call in it that may interpret code gives its result, as
    it is.
    """
    _passing.add(function.__code__)
    return function


@dataclass(frozen=True, eq=False)
class Step:
    """A frame within the root frame, and where it is left: before instruction `index`, or before `loop`."""

    code: types.CodeType
    index: int
    loop: Loop | None = None


def frames_left(frames: Sequence["Frame"]) -> list["Frame"]:
    """The frames, root first, that may be left where the innermost is. Called by the interpreter's loop over the
    innermost.
    """
    linked: list[bool] = []  # innermost first: whether its result goes straight to the frame before
    run = sys._getframe(1)
    at, direct = run.f_back, True
    while at is not None and len(linked) < len(frames) - 1:
        if at.f_code is run.f_code:
            linked.append(direct)
            direct = True
        elif at.f_code not in _passing:
            direct = False
        at = at.f_back
    depth = 1
    for direct in reversed(linked):
        if not direct:
            break
        depth += 1
    return list(frames[:depth])


def path_of(frames: Sequence["Frame"]) -> list[Step]:
    """Where to leave the frames within the root, as far in as they can be resumed. A loop is left as a whole. torch's
    own functions are not left where they break themselves: they rely on what eager autograd makes."""
    depth = next((i for i, frame in enumerate(frames) if i and _is_python_alone(frame)), len(frames))
    while depth > 1 and frames[depth - 1].scope.trusted:
        depth -= 1
    path: list[Step] = []
    for frame in frames[1 : min(depth, _MAX_LEVELS + 1)]:
        code, index, bytecode = frame.code, frame.pc - 1, decode(frame.code)
        loop = enclosing_loop(code, index)
        if loop is not None:
            index = loop.head if loop.kind == "for" else loop.entry
        kinds = analyse(bytecode).kinds[index]
        if (
            not bytecode.is_function
            or code.co_flags & _NO_FUNCTION
            or kinds is None
            or {PREV_EXC, LASTI, EXC} & {*kinds}
        ):
            break
        path.append(Step(code, index, loop))
        if loop is not None:
            break
    return path


def _is_python_alone(frame: "Frame") -> bool:
    """Whether the call that the frame is of has no tensor work."""
    given = (value for slot, value in zip(frame.bytecode.slots, frame.slots) if slot.param)
    return isinstance(frame.function, types.FunctionType) and is_python_alone(frame.function, given)
