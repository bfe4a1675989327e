"""Interpreted frames: slots, stack and program counter of one call."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from ...guards.source import Source
from ..bytecode.instructions import Bytecode
from ..entry.locations import Position, is_library_file
from .stack_values import MISSING

if TYPE_CHECKING:
    from .machine import Machine
    from .native_loops import Passes

__all__ = ["Frame", "Cell", "GlobalScope", "Unread", "read_cell", "write_cell"]


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
        "passes",
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
        self.handled: Any = None  # what a generator that waits in a handler handles
        self.passes: dict[Any, Passes] = {}  # first instruction of a loop -> what the loop has put into the graph

    def position(self) -> Position:
        """Of the instruction being executed."""
        ins = self.program[max(self.pc - 1, 0)][1]
        line, end_line, col, end_col = ins.positions
        return Position(
            self.file, line or self.code.co_firstlineno, col, end_line, end_col, self.function_name, self.library
        )


class Unread:
    """A parameter, or a captured variable, of the root frame that nothing has read yet: no guard on it so far."""

    __slots__ = ("value", "source")

    def __init__(self, value: Any, source: Any):
        self.value, self.source = value, source

    def load(self, machine: Machine) -> Any:
        return machine.world.load(self.value, self.source, "parameter")


# --- cells
def read_cell(machine: Machine, cell: Any) -> Any:
    """Content of a cell as a stack value, or MISSING."""
    written = machine.world.pending.get(id(cell))
    if written is not None:
        return written["cell_contents"]
    try:
        value = cell.cell_contents
    except ValueError:
        return MISSING
    source = machine.world.cell_contents.get(id(cell))
    return value if source is None else machine.world.load(value, source, "closure variable")


def write_cell(machine: Machine, cell: Any, value: Any) -> None:
    if id(cell) in machine.world.cell_contents:
        machine.world.pending[id(cell)] = {"cell_contents": value}
        machine.effects.set_cell(cell, value)
    elif value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value
