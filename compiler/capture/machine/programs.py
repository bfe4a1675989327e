"""The table of instructions: what the interpreter does for each, and code objects decoded into such steps."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Callable

from ..bytecode.instructions import Bytecode, decode
from ..bytecode.memo import CodeMemo
from .signals import Break

if TYPE_CHECKING:
    from .frame import Frame
    from .machine import Machine

__all__ = ["RETURN", "YIELD", "HANDLERS", "handler", "program_of"]

RETURN, YIELD = "return", "yield"
HANDLERS: dict[str, Callable] = {}  # canonical operation -> function(machine, frame, instruction)


def handler(*names: str) -> Callable:
    """Register the interpreter's code for canonical operations."""

    def add(fn: Callable) -> Callable:
        for name in names:
            HANDLERS[name] = fn
        return fn

    return add


def _unsupported(machine: Machine, frame: Frame, ins: Any) -> None:
    raise Break("bytecode", f"capture does not support the bytecode instruction {ins.op}")


_programs: CodeMemo[tuple[Bytecode, list]] = CodeMemo()


def program_of(code: types.CodeType) -> tuple[Bytecode, list]:
    """Decoded instructions paired with their handlers."""
    got = _programs.get(code)
    if got is None:
        bytecode = decode(code)
        got = _programs[code] = (bytecode, [(HANDLERS.get(ins.op, _unsupported), ins) for ins in bytecode.instructions])
    return got
