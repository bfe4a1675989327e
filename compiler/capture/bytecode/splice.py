"""Making new functions out of parts of an existing one.

A Splice collects instructions for a function whose frame holds some of the original's state. It lays out the slots
(parameters, other locals, closure cells) and copies original instructions with their slots renumbered. It emits glue,
too: restoring an operand stack, packing it up again, calling through the integrator's dispatch."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from types import CellType, CodeType, TracebackType
from typing import Any, Callable, Iterable, Sequence

from ...base.unbound import UNBOUND
from .assemble import assemble
from .flow import LASTI, NULL, PREV_EXC, Kinds, looks_at_frame
from .instructions import Bytecode, Handler, Instruction, Position, Slot, copy_instructions
from .version import NULL_FIRST

__all__ = [
    "CannotResume",
    "Param",
    "UNBOUND",
    "Splice",
    "push_or_unbound",
    "delete_if_unbound",
    "as_globals",
    "check_supported",
    "check_first_cell",
    "cells_used",
    "in_flight",
]


class CannotResume(Exception):
    """The frame's state at this instruction cannot be carried into another function. str() says why, for the report."""


@dataclass(frozen=True)
class Param:
    """One parameter of a made function.

    kind "local": the value of slot `number`;  "stack": the value at depth `number` of the operand stack (0 is the
                                               bottom);
    "handled": depth `number` holds what PUSH_EXC_INFO saved, and the argument is the exception which that PUSH_EXC_INFO
    made the handled one (for the topmost such slot: sys.exception()).
    """

    kind: str
    number: int
    name: str


_NAMESPACE = {"LOAD_NAME": "LOAD_GLOBAL", "STORE_NAME": "STORE_GLOBAL", "DELETE_NAME": "DELETE_GLOBAL"}


def check_supported(bytecode: Bytecode, locals_are_globals: bool) -> None:
    """Raises CannotResume for kinds of code whose frames cannot be continued in another function."""
    if bytecode.is_generator:
        raise CannotResume(f"{bytecode.name} is a generator or coroutine: its frame outlives the call")
    if not bytecode.is_function and not locals_are_globals:
        raise CannotResume(
            f"{bytecode.name} runs in a namespace of its own (a class body, or exec with separate locals)"
        )


def as_globals(instructions: Iterable[Instruction]) -> None:
    """Module-level code whose locals are its globals: *_NAME -> *_GLOBAL, in place."""
    for ins in instructions:
        ins.op = _NAMESPACE.get(ins.op, ins.op)


def check_first_cell(bytecode: Bytecode) -> None:
    """Zero-argument super() where `self` is a cell: the frame's first slot would no longer hold it."""
    if (
        bytecode.slots
        and bytecode.slots[0].cell
        and any(slot.free and slot.name == "__class__" for slot in bytecode.slots)
    ):
        if any(ins.op in ("LOAD_GLOBAL", "LOAD_NAME") and ins.arg == "super" for ins in bytecode.instructions):
            if not any(ins.op == "LOAD_SUPER_ATTR" for ins in bytecode.instructions):
                raise CannotResume(f"{bytecode.name} uses super() while a closure captures its first parameter")


def made_at_start(bytecode: Bytecode) -> set[int]:
    """The slots of the cells that a frame makes before it starts and keeps: inlined comprehensions put their own into a
    slot for a while.
    """
    start = next(i for i, ins in enumerate(bytecode.instructions) if ins.op == "RESUME")
    found = {ins.slot for ins in bytecode.instructions[:start] if ins.op == "MAKE_CELL"}
    return found - {ins.slot for ins in bytecode.instructions[start:] if ins.op in ("MAKE_CELL", "LOAD_FAST_AND_CLEAR")}


def cells_used(bytecode: Bytecode, indices: Iterable[int]) -> tuple[int, ...]:
    """Cell and free slots that a function made of these instructions needs: those they mention, and every closure cell
    of the original. (Zero-argument super() finds `__class__` in the frame, not in an instruction.) All, if it may look
    at its frame.
    """
    everything = looks_at_frame(bytecode)
    # a free slot of that name only handed the cell in, see Splice
    own = {bytecode.slots[i].name for i in made_at_start(bytecode)}
    used = {
        i for i, slot in enumerate(bytecode.slots) if slot.free and slot.name not in own or (slot.cell and everything)
    }
    for index in indices:
        number = bytecode.instructions[index].slot
        if number >= 0 and (bytecode.slots[number].cell or bytecode.slots[number].free):
            used.add(number)
    return tuple(sorted(used))


def _no_positions(position: Position) -> Position:
    return position if position.line is not None else Position()


def push_or_unbound(
    emit: Callable[..., Instruction], slot: int, depth: int, handler: Handler | None, late: list[Callable[[], None]]
) -> None:
    """Push a local, or UNBOUND if it is empty. `late` gets what must be emitted out of line."""
    load = emit("LOAD_FAST_CHECK", slot=slot)
    after = emit("NOP")
    after.handler = handler

    def out_of_line() -> None:
        first = emit("POP_TOP")
        emit("LOAD_CONST", UNBOUND)
        back = emit("JUMP")
        back.target = after
        load.handler = Handler(first, depth, False)

    late.append(out_of_line)


def delete_if_unbound(emit: Callable[..., Instruction], slot: int) -> None:
    """Empty a local that holds UNBOUND."""
    emit("LOAD_FAST", slot=slot)
    emit("LOAD_CONST", UNBOUND)
    emit("IS_OP", False)
    bound = emit("POP_JUMP_IF_FALSE")
    emit("DELETE_FAST", slot=slot)
    bound.target = emit("NOP")


def in_flight(exc: BaseException) -> BaseException:
    """`exc` with a traceback, for the argument that becomes the exception being handled: it always has one, and 3.11
    hands it to `__exit__` unchecked."""
    if isinstance(exc, BaseException) and exc.__traceback__ is None:
        frame = sys._getframe(1)
        exc.__traceback__ = TracebackType(None, frame, frame.f_lasti, frame.f_lineno)
    return exc


class Splice:
    """A function under construction. `params` become its positional parameters in order, `closure` (slots of the
    original that hold cells) its free variables.

    What the original owns as a cell variable stays one. The cell comes in as a free variable of the same name and is
    put into a cell slot: an empty one raises UnboundLocalError, an empty free variable NameError. (Cells of inlined
    comprehensions, which come and go, are free variables.)"""

    def __init__(self, original: Bytecode, params: Sequence[Param], closure: Sequence[int], position: Position) -> None:
        self.original, self.params, self.closure = original, tuple(params), tuple(closure)
        self.position = _no_positions(position)
        self.code: list[Instruction] = []
        self._taken = {slot.name for slot in original.slots}
        self._taken.update(param.name for param in params)
        self._locals: list[str] = [param.name for param in params]
        self._local_of: dict[int, int] = {param.number: i for i, param in enumerate(params) if param.kind == "local"}
        self._own = [number for number in closure if number in made_at_start(original)]
        self._cell_of = {number: i for i, number in enumerate([*self._own, *closure])} | {
            number: i for i, number in enumerate(self._own)
        }
        for i in range(len(self._own)):
            self.emit("MAKE_CELL", slot=-2 - i)  # for locals(), which look for it
        if closure:
            self.emit("COPY_FREE_VARS", len(closure))
        self.emit("RESUME", 0)
        for i, number in enumerate(self._own):
            self.emit("LOAD_CLOSURE", slot=-2 - len(self._own) - closure.index(number))
            self.emit("STORE_FAST", slot=-2 - i)

    # --- slots: negative numbers stand for cells of its own, then free variables, until the number of locals is known
    def slot(self, number: int) -> int:
        """This function's slot for a slot of the original."""
        if number in self._cell_of:
            return -2 - self._cell_of[number]
        if number not in self._local_of:
            self._local_of[number] = len(self._locals)
            self._locals.append(self.original.slots[number].name)
        return self._local_of[number]

    def temporary(self, name: str) -> int:
        """A fresh local."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        self._locals.append(name)
        return len(self._locals) - 1

    # --- instructions
    def emit(self, op: str, arg: Any = None, **fields: Any) -> Instruction:
        """Append a made instruction, at the position of the break or region."""
        ins = Instruction(op, arg, positions=self.position, **fields)
        self.code.append(ins)
        return ins

    def copy(self, indices: Iterable[int]) -> dict[int, Instruction]:
        """Append copies of original instructions, in their order, and return them by index. References among them are
        kept.
        """
        chosen = sorted(indices)
        copies = copy_instructions(self.original.instructions[i] for i in chosen)
        for ins in copies:
            if ins.slot >= 0:
                ins.slot = self.slot(ins.slot)
        self.code += copies
        return dict(zip(chosen, copies))

    def push_call(self, function: Any) -> None:
        """Start calling a constant."""
        if NULL_FIRST:
            self.emit("PUSH_NULL")
        self.emit("LOAD_CONST", function)
        if not NULL_FIRST:
            self.emit("PUSH_NULL")

    def load_and_forget(self, slot: int) -> None:
        """Push a local and empty it, so that the frame does not keep the value alive."""
        self.emit("LOAD_FAST", slot=slot)
        self.emit("DELETE_FAST", slot=slot)

    def restore_stack(self, kinds: Kinds, numbers: dict[int, int]) -> None:
        """Build an operand stack from parameters; numbers[depth] is the parameter's slot."""
        for depth, kind in enumerate(kinds):
            if kind == NULL:
                self.emit("PUSH_NULL")
            elif kind == LASTI:
                self.emit("LOAD_CONST", 0)  # RERAISE points the frame there; no traceback entry is made from it
            else:
                self.load_and_forget(numbers[depth])
                if kind == PREV_EXC:
                    self.emit("PUSH_EXC_INFO")
                    self.emit("POP_TOP")

    def save_stack(self, kinds: Kinds) -> dict[int, int]:
        """Take the operand stack apart into temporaries, leaving all exception handlers; depth -> slot."""
        saved: dict[int, int] = {}
        for depth in range(len(kinds) - 1, -1, -1):
            kind = kinds[depth]
            if kind == LASTI:
                self.emit("POP_TOP")
                continue
            if kind == PREV_EXC:
                self.push_call(sys.exception)
                self.emit("CALL", 0)
            saved[depth] = self.temporary(f"__saved_{depth}")
            self.emit("STORE_FAST", slot=saved[depth])  # also takes NULL, as comprehensions do
            if kind == PREV_EXC:
                self.emit("POP_EXCEPT")
        return saved

    def push_function(self, code: CodeType, closure: Sequence[int], bound: int) -> None:
        """Push a function over `code` whose closure is the cells in these slots of the original (a new cell for a slot
        that is empty).
        """
        if closure:
            for number in closure:
                if bound >> number & 1:
                    self.emit("LOAD_CLOSURE", slot=self.slot(number))
                else:
                    self.push_call(CellType)
                    self.emit("CALL", 0)
            self.emit("BUILD_TUPLE", len(closure))
        self.emit("LOAD_CONST", code)
        self.emit("MAKE_FUNCTION", 8 if closure else 0)

    def finish(self, name: str | None = None, qualname: str | None = None) -> CodeType:
        """Assemble. Names, file and lines are the original's, so tracebacks show the user's code."""
        original = self.original
        if not original.is_function:
            as_globals(self.code)
        n_locals = len(self._locals)
        for ins in self.code:
            if ins.slot < -1:
                ins.slot = n_locals - 2 - ins.slot
        slots = [Slot(local, True, False, False, i < len(self.params)) for i, local in enumerate(self._locals)]
        slots += [Slot(original.slots[number].name, False, True, False, False) for number in self._own]
        slots += [Slot(original.slots[number].name, False, False, True, False) for number in self.closure]
        flags = original.flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
        bytecode = Bytecode(
            instructions=self.code,
            slots=slots,
            argcount=len(self.params),
            posonlyargcount=0,
            kwonlyargcount=0,
            flags=flags,
            name=name or original.name,
            qualname=qualname or original.qualname,
            filename=original.filename,
            firstlineno=original.firstlineno,
        )
        return assemble(bytecode)
