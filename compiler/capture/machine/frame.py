"""Interpreted frames: slots, stack and program counter of one call."""

from __future__ import annotations

import types
from typing import Any

from ...guards.source import Source
from ..bytecode.instructions import Bytecode
from ..entry.locations import Position, is_library_file
from .world import MISSING

__all__ = ["Frame", "Cell", "GlobalScope"]


class GlobalScope:
    """A module's namespace as the interpreted code sees it: the dict and the Source of each name."""

    __slots__ = ("namespace", "source", "trusted", "root", "module")

    def __init__(self, namespace: dict, source: Source | None, trusted: bool, root: bool, module: bool = False):
        self.namespace = namespace
        self.module = module  # `source` is the module's own, else its dict's
        self.source = source  # of the module or dict; None for the globals of the root frame
        self.trusted = trusted  # torch's and the standard library's own: functions and classes there need no guard
        self.root = root


Cell = types.CellType


class Frame:
    __slots__ = (
        "code",
        "bytecode",
        "program",
        "pc",
        "stack",
        "slots",
        "names",
        "scope",
        "function",
        "parent",
        "is_root",
        "library",
        "file",
        "function_name",
        "result",
        "module_path",
        "handled",
    )

    def __init__(
        self, code: types.CodeType, bytecode: Bytecode, program: list, scope: GlobalScope, function: Any, is_root: bool
    ):
        self.code, self.bytecode, self.program, self.scope = code, bytecode, program, scope
        self.function = function
        self.pc = 0
        self.stack: list[Any] = []
        self.slots: list[Any] = [MISSING] * len(bytecode.slots)
        self.names: Any = None  # f_locals of class bodies and modules
        self.parent: Frame | None = None
        self.is_root = is_root
        self.file = code.co_filename
        self.library = not is_root and is_library_file(self.file)
        self.function_name = code.co_qualname
        self.result: Any = None
        self.module_path = ""
        self.handled: Any = None  # exception being handled when a generator was suspended

    def position(self) -> Position:
        """Of the instruction being executed."""
        ins = self.program[max(self.pc - 1, 0)][1]
        line, end_line, col, end_col = ins.positions
        return Position(
            self.file, line or self.code.co_firstlineno, col, end_line, end_col, self.function_name, self.library
        )
