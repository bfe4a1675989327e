"""Loops that hold a break: which loop runs natively, one captured region per iteration (bytecode/loop_break.py)."""
from __future__ import annotations

import types
from typing import Any, Iterable

from .bytecode.loops import Loop, find_loops

__all__ = ["enclosing_loop", "in_a_loop"]


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
