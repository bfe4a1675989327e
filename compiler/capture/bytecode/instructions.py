"""Code objects as lists of canonical instructions.

`decode(code)` gives a Bytecode: instructions (opset.py says what each does), the layout of the frame's local slots, and
per instruction the exception handler that covers it. Jump targets and handlers are references to Instructions, so that
code can be cut and spliced without arithmetic; `assemble` (assemble.py) is the way back.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Iterable, NamedTuple

from .memo import CodeMemo
from .opset import CONDITIONAL_JUMPS, JUMPS, TERMINATORS
from .wire import UnsupportedBytecode, parse_exception_table, read_raw

__all__ = ["Position", "Handler", "Instruction", "Slot", "Bytecode", "decode", "UnsupportedBytecode"]


class Position(NamedTuple):
    """Where in the source an instruction comes from; columns are UTF-8 byte offsets. None: unknown."""

    line: int | None = None
    end_line: int | None = None
    col: int | None = None
    end_col: int | None = None


NO_POSITION = Position()


@dataclass(eq=False)
class Handler:
    """Where an exception raised by a covered instruction goes: the stack is cut to `depth` slots, the instruction
    pointer (an int) is pushed if `lasti`, then the exception, and execution goes on at `target`."""

    target: Instruction
    depth: int
    lasti: bool


@dataclass(eq=False)
class Instruction:
    """One canonical instruction. Compared by identity; operands by meaning:

    arg         constant (LOAD_CONST), name (NAME_OPS), slot's name (SLOT_OPS), operator text (BINARY_OP, COMPARE_OP),
                True for the
                negated form (IS_OP, CONTAINS_OP), count or flags elsewhere; see opset.OPS
    slot        index into Bytecode.slots (SLOT_OPS), else -1
    target      where it jumps to (JUMPS)
    offset      byte offset in the code object it was decoded from, -1 for made ones; split instructions share it
    index       position in its Bytecode's list
    starts_line the line if it begins a line, else None
    """

    op: str
    arg: Any = None
    slot: int = -1
    target: Instruction | None = None
    kwnames: tuple[str, ...] = ()  # CALL
    method: bool = False  # LOAD_SUPER_ATTR
    two_arg: bool = False  # LOAD_SUPER_ATTR
    with_spec: bool = False  # FORMAT_VALUE
    positions: Position = NO_POSITION
    handler: Handler | None = None
    offset: int = -1
    index: int = -1
    starts_line: int | None = None

    @property
    def is_jump(self) -> bool:
        return self.op in JUMPS

    @property
    def is_conditional(self) -> bool:
        """It may jump or fall through."""
        return self.op in CONDITIONAL_JUMPS

    @property
    def falls_through(self) -> bool:
        """The next instruction is one of its successors."""
        return self.op not in TERMINATORS

    @property
    def pushes_method(self) -> bool:
        """It leaves a method's call sequence: a function and its object, or a callable and a NULL."""
        return self.op == "LOAD_METHOD" or self.method

    @property
    def line(self) -> int | None:
        return self.positions.line

    def copy(self, **changes: Any) -> Instruction:
        """A new Instruction with the same operands; `target` and `handler` still refer to the old code."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        parts = [f"{self.index:4d}" if self.index >= 0 else "   -", self.op]
        if self.arg is not None or self.op == "LOAD_CONST":
            parts.append(repr(self.arg) if not isinstance(self.arg, CodeType) else f"<code {self.arg.co_name}>")
        if self.kwnames:
            parts.append(f"kwnames={self.kwnames}")
        for flag in ("method", "two_arg", "with_spec"):
            if getattr(self, flag):
                parts.append(flag)
        if self.target is not None:
            parts.append(f"-> {self.target.index}")
        if self.handler is not None:
            parts.append(
                f"[handler {self.handler.target.index} depth"
                f" {self.handler.depth}{' lasti' if self.handler.lasti else ''}]"
            )
        return " ".join(parts)


class Slot(NamedTuple):
    """One of the frame's local slots. A parameter captured by a closure is `param` and `cell` at once."""

    name: str
    local: bool  # in co_varnames
    cell: bool  # in co_cellvars: holds a cell from MAKE_CELL on
    free: bool  # in co_freevars: a cell of the closure
    param: bool  # a parameter: bound when the frame starts


@dataclass
class Bytecode:
    """A code object taken apart. Results of `decode` are shared: copy() before editing."""

    instructions: list[Instruction]
    slots: list[Slot]
    argcount: int = 0  # positional parameters, positional-only ones included
    posonlyargcount: int = 0
    kwonlyargcount: int = 0
    flags: int = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
    name: str = "<code>"
    qualname: str = "<code>"
    filename: str = "<tcompile>"
    firstlineno: int = 1
    consts: tuple = ()  # kept in front when assembled: consts[0] may be the docstring
    names: tuple[str, ...] = ()  # likewise
    shared: bool = False  # a result of `decode`
    flow: Any = field(default=None, repr=False)  # flow.analyse of a shared one

    @property
    def nlocals(self) -> int:
        return sum(slot.local for slot in self.slots)

    @property
    def n_params(self) -> int:
        """Slots filled by a call: parameters, then *args, then **kwargs."""
        return (
            self.argcount
            + self.kwonlyargcount
            + bool(self.flags & inspect.CO_VARARGS)
            + bool(self.flags & inspect.CO_VARKEYWORDS)
        )

    @property
    def varnames(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots if slot.local)

    @property
    def cellvars(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots if slot.cell)

    @property
    def freevars(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots if slot.free)

    @property
    def is_generator(self) -> bool:
        """Generators, coroutines, async generators: their frames outlive a call."""
        return bool(self.flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))

    @property
    def is_function(self) -> bool:
        """Locals are slots (not a module's or class's namespace)."""
        return bool(self.flags & inspect.CO_OPTIMIZED)

    def reindex(self) -> Bytecode:
        """Number the instructions after an edit; returns self."""
        for index, ins in enumerate(self.instructions):
            ins.index = index
        return self

    def copy(self) -> Bytecode:
        """Independent copy: new Instructions, references among them kept."""
        return replace(
            self, instructions=copy_instructions(self.instructions), slots=list(self.slots), shared=False, flow=None
        ).reindex()

    def dump(self) -> str:
        """Readable listing."""
        targets = {id(ins.target) for ins in self.instructions if ins.target is not None}
        targets |= {id(ins.handler.target) for ins in self.instructions if ins.handler is not None}
        lines = [f"{self.qualname} ({self.filename}:{self.firstlineno}) slots {[slot.name for slot in self.slots]}"]
        for ins in self.instructions:
            lines.append(f"{ins.starts_line or '':>6} {'>>' if id(ins) in targets else '  '} {ins!r}")
        return "\n".join(lines)


def copy_instructions(instructions: Iterable[Instruction]) -> list[Instruction]:
    """Copies whose targets and handlers refer to each other; a reference out of the list keeps its old referent."""
    old = list(instructions)
    new = [ins.copy() for ins in old]
    of = {id(a): b for a, b in zip(old, new)}
    handlers: dict[int, Handler] = {}
    for ins in new:
        if ins.target is not None:
            ins.target = of.get(id(ins.target), ins.target)
        if ins.handler is not None:
            handler = ins.handler
            if id(handler) not in handlers:
                handlers[id(handler)] = Handler(
                    of.get(id(handler.target), handler.target), handler.depth, handler.lasti
                )
            ins.handler = handlers[id(handler)]
    return new


_decoded: CodeMemo[Bytecode] = CodeMemo()


def decode(code: CodeType) -> Bytecode:
    """The canonical form of `code`, shared and read-only. Raises UnsupportedBytecode."""
    known = _decoded.get(code)
    if known is None:
        known = _decoded[code] = _decode(code)
    return known


def slots_of(code: CodeType) -> list[Slot]:
    """The frame's slots in order: locals, cells that are not locals, closure cells."""
    n_params = (
        code.co_argcount
        + code.co_kwonlyargcount
        + bool(code.co_flags & inspect.CO_VARARGS)
        + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    )
    cells = set(code.co_cellvars)
    slots = [Slot(name, True, name in cells, False, i < n_params) for i, name in enumerate(code.co_varnames)]
    locals_ = set(code.co_varnames)
    slots += [Slot(name, False, True, False, False) for name in code.co_cellvars if name not in locals_]
    slots += [Slot(name, False, False, True, False) for name in code.co_freevars]
    return slots


def _decode(code: CodeType) -> Bytecode:
    from .version import DIALECT  # dialects build Instructions, so they import this module's neighbours first

    slots = slots_of(code)
    raws = read_raw(code)
    positions = [Position(p[0], p[1], p[2], p[3]) for p in code.co_positions()]
    instructions: list[Instruction] = []
    for start, where, fields in DIALECT.lift(
        raws, code, [slot.name for slot in slots], [slot.cell or slot.free for slot in slots]
    ):
        instructions.append(Instruction(offset=start, positions=positions[where // 2], **fields))
    starts = [ins.offset for ins in instructions]
    handlers: list[tuple[int, int, Handler]] = []
    for start, end, target, depth, lasti in parse_exception_table(code.co_exceptiontable):
        handlers.append((start, end, Handler(instructions[bisect_left(starts, target)], depth, lasti)))
    row, previous_line = 0, None
    for index, ins in enumerate(instructions):
        ins.index = index
        if ins.target is not None:
            offset: Any = ins.target  # as lift() leaves it
            ins.target = instructions[bisect_left(starts, offset)]
        while row < len(handlers) and handlers[row][1] <= ins.offset:
            row += 1
        if row < len(handlers) and handlers[row][0] <= ins.offset:
            ins.handler = handlers[row][2]
        line = ins.positions.line
        if line is not None and line != previous_line:
            ins.starts_line = previous_line = line
    return Bytecode(
        instructions=instructions,
        slots=slots,
        argcount=code.co_argcount,
        posonlyargcount=code.co_posonlyargcount,
        kwonlyargcount=code.co_kwonlyargcount,
        flags=code.co_flags,
        name=code.co_name,
        qualname=code.co_qualname,
        filename=code.co_filename,
        firstlineno=code.co_firstlineno,
        consts=code.co_consts,
        names=code.co_names,
        shared=True,
    )
