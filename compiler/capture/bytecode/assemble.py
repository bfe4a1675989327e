"""Canonical instructions -> a code object of the running interpreter.

Unreachable instructions are dropped. Everything that CPython's own assembler derives is derived here: directions of
jumps, EXTENDED_ARG prefixes, inline caches, the exception table, the line table with columns, the stack size.
"""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any

from .flow import depths
from .instructions import Bytecode, Handler, Instruction, Position
from .opset import pops, pushes
from .version import DIALECT, VERSION
from .wire import UnsupportedBytecode, caches_of, encode_exception_table, encode_line_table, opcode_number

__all__ = ["assemble"]

_HAS_DOCSTRING = 0x4000000  # 3.13 on


class _Operands:
    """Numbers names and constants; constants by identity, so that 1, 1.0 and True stay apart."""

    def __init__(self, names: tuple[str, ...], consts: tuple) -> None:
        self.names = {name: i for i, name in enumerate(names)}
        self.consts = list(consts)
        self._by_id = {id(value): i for i, value in reversed(list(enumerate(consts)))}

    def name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def const(self, value: Any) -> int:
        known = self._by_id.get(id(value))
        if known is None:
            known = self._by_id[id(value)] = len(self.consts)
            self.consts.append(value)
        return known


class _Native:
    """One native instruction on its way. `label` is a key into the label table for jumps."""

    __slots__ = ("op", "number", "arg", "label", "positions", "handler", "caches", "prefixes", "offset")

    def __init__(self, op: str, arg: int, label: object, positions: Position, handler: Handler | None) -> None:
        self.op, self.arg, self.label, self.positions, self.handler = op, arg, label, positions, handler
        self.number, self.caches = opcode_number(op), caches_of(op)
        self.prefixes = _prefixes(arg) if label is None else 0
        self.offset = 0

    @property
    def units(self) -> int:
        return self.prefixes + 1 + self.caches


def _prefixes(arg: int) -> int:
    return 0 if arg < 256 else 1 if arg < 65536 else 2 if arg < 1 << 24 else 3


def _same_handler(a: Handler | None, b: Handler | None) -> bool:
    if a is b:
        return True
    return a is not None and b is not None and (a.target, a.depth, a.lasti) == (b.target, b.depth, b.lasti)


class _Emitter:
    """Lowers a list of canonical instructions into native ones with labels."""

    def __init__(self, instructions: list[Instruction], operands: _Operands) -> None:
        self.instructions, self.operands = instructions, operands
        self.out: list[_Native] = []
        self.labels: dict[object, int] = {}  # label -> index into out
        self.place = {id(ins): i for i, ins in enumerate(instructions)}
        self.targets = {id(ins.target) for ins in instructions if ins.target is not None}
        self.targets |= {id(ins.handler.target) for ins in instructions if ins.handler is not None}
        self.stubs: list[tuple[object, Instruction, Instruction]] = []  # (label, loop or send, where it goes on)
        self.exits: dict[int, Instruction] = {}  # where loops before it end: needs FOR_ITER_EXIT in front
        if DIALECT.FOR_ITER_EXIT:
            for i, ins in enumerate(instructions):
                if ins.op == "FOR_ITER" and self.place[id(ins.target)] > i:
                    self.exits.setdefault(id(ins.target), ins)

    def emit(self, op: str, arg: int, like: Instruction, label: object = None) -> None:
        self.out.append(_Native(op, arg, label, like.positions, like.handler))

    def run(self) -> tuple[list[_Native], dict[object, int]]:
        """All of it: the native list, and where each label stands in it."""
        at, count = 0, len(self.instructions)
        while at < count:
            ins = self.instructions[at]
            if id(ins) in self.exits:
                self._loop_exit(at, ins)
            self.labels[id(ins)] = len(self.out)
            if ins.target is not None:
                self._jump(at, ins)
                at += 1
                continue
            peek = self.instructions[at + 1] if at + 1 < count else None
            if peek is not None and (id(peek) in self.targets or not _same_handler(ins.handler, peek.handler)):
                peek = None
            natives, used = DIALECT.lower(ins, peek, self.operands)
            for op, arg in natives:
                self.emit(op, arg, ins)
            at += used
        for label, ins, after in self.stubs:
            self.labels[label] = len(self.out)
            if ins.op == "FOR_ITER":
                for op in DIALECT.FOR_ITER_EXIT:
                    self.emit(op, 0, ins)
            self.emit("JUMP_BACKWARD", 0, ins, id(after))
        return self.out, self.labels

    def _loop_exit(self, at: int, after: Instruction) -> None:
        loop = self.exits[id(after)]
        if self.instructions[at - 1].falls_through:
            self.emit("JUMP_FORWARD", 0, loop, id(after))
        self.labels[("exit", id(after))] = len(self.out)
        for op in DIALECT.FOR_ITER_EXIT:
            self.emit(op, 0, loop)

    def _jump(self, at: int, ins: Instruction) -> None:
        target = ins.target
        assert target is not None
        if id(target) not in self.place:
            raise UnsupportedBytecode(f"{ins!r} jumps out of the code")
        backward = self.place[id(target)] <= at
        op, inverted = DIALECT.jump(ins.op, backward)
        if not inverted:
            exit_label = ("exit", id(target))
            self.emit(op, 0, ins, exit_label if ins.op == "FOR_ITER" and id(target) in self.exits else id(target))
        elif ins.op in ("FOR_ITER", "SEND", "SEND_POP"):
            label = ("stub", id(ins))
            self.stubs.append((label, ins, target))
            self.emit(op, 0, ins, label)
        else:
            label = ("over", id(ins))
            self.emit(op, 0, ins, label)
            self.emit("JUMP_BACKWARD", 0, ins, id(target))
            self.labels[label] = len(self.out)


def _lay_out(out: list[_Native], labels: dict[object, int]) -> None:
    """Offsets (in code units) and operands of jumps; prefixes only ever grow, so this ends."""
    while True:
        offset = 0
        for native in out:
            native.offset = offset
            offset += native.units
        stable = True
        for native in out:
            if native.label is None:
                continue
            distance = out[labels[native.label]].offset - (native.offset + native.units)
            native.arg = -distance if "BACKWARD" in native.op else distance
            if native.arg < 0:
                raise UnsupportedBytecode(f"{native.op} jumps the wrong way")
            needed = _prefixes(native.arg)
            if needed > native.prefixes:
                native.prefixes, stable = needed, False
        if stable:
            return


def _text(out: list[_Native]) -> bytes:
    extended = opcode_number("EXTENDED_ARG")
    text = bytearray()
    for native in out:
        for shift in range(native.prefixes, 0, -1):
            text += bytes((extended, native.arg >> 8 * shift & 255))
        text += bytes((native.number, native.arg & 255))
        text += bytes(2 * native.caches)
    return bytes(text)


def _exception_rows(out: list[_Native], labels: dict[object, int]) -> list[tuple[int, int, int, int, bool]]:
    rows: list[tuple[int, int, int, int, bool]] = []
    for native in out:
        handler = native.handler
        if handler is None:
            continue
        start, end = 2 * native.offset, 2 * (native.offset + native.units)
        target = 2 * out[labels[id(handler.target)]].offset
        if rows and rows[-1][1:] == (start, target, handler.depth, handler.lasti):
            rows[-1] = (rows[-1][0], end, target, handler.depth, handler.lasti)
        else:
            rows.append((start, end, target, handler.depth, handler.lasti))
    return rows


def _stack_size(instructions: list[Instruction], found: list[int | None]) -> int:
    largest = 0
    for ins, depth in zip(instructions, found):
        if depth is None:
            continue
        within = depth - pops(ins) + max(pushes(ins), pushes(ins, True))
        if ins.op == "CALL" and ins.kwnames and VERSION >= (3, 13):
            within = depth + 1  # the names are pushed before the call
        elif ins.op == "FOR_ITER":
            within = depth + 1
        elif VERSION >= (3, 14):  # the NULL in the mapping's place; both methods' call sequences
            within += {"CALL_FUNCTION_EX": 1, "BEFORE_WITH": 1, "BEFORE_ASYNC_WITH": 1}.get(ins.op, 0)
        largest = max(largest, depth, within, 0 if ins.handler is None else ins.handler.depth + ins.handler.lasti + 1)
    return largest


def assemble(bytecode: Bytecode) -> CodeType:
    """The code object. Raises UnsupportedBytecode if the code does not hold together (stack depths that disagree, jumps
    that leave it) or cannot be expressed in this version."""
    bytecode.reindex()
    found = depths(bytecode)
    kept = [ins for ins, depth in zip(bytecode.instructions, found) if depth is not None]
    operands = _Operands(bytecode.names, bytecode.consts)
    out, labels = _Emitter(kept, operands).run()
    _lay_out(out, labels)
    spans: list[tuple[int, Position]] = []
    for native in out:
        if VERSION >= (3, 12) and spans and spans[-1][1] == native.positions:  # 3.11 keeps one entry an instruction
            spans[-1] = (spans[-1][0] + native.units, native.positions)
        else:
            spans.append((native.units, native.positions))
    varnames = bytecode.varnames
    if not bytecode.flags & inspect.CO_OPTIMIZED:
        # Locals of a module or class body belong to comprehensions inlined into it and are hidden from its namespace. A
        # code object made from Python cannot say so: a name that no program can spell keeps them out of the way of
        # locals().
        params = bytecode.n_params
        varnames = varnames[:params] + tuple(name if name.startswith(".") else "." + name for name in varnames[params:])
    flags = bytecode.flags
    if not (operands.consts and isinstance(operands.consts[0], str)):
        flags &= ~_HAS_DOCSTRING  # CPython reads the first constant without asking whether there is one
    return CodeType(
        bytecode.argcount,
        bytecode.posonlyargcount,
        bytecode.kwonlyargcount,
        len(varnames),
        max(1, _stack_size(bytecode.instructions, found)),
        flags,
        _text(out),
        tuple(operands.consts),
        tuple(operands.names),
        varnames,
        bytecode.filename,
        bytecode.name,
        bytecode.qualname,
        bytecode.firstlineno,
        encode_line_table(bytecode.firstlineno, spans),
        encode_exception_table(_exception_rows(out, labels)),
        bytecode.freevars,
        bytecode.cellvars,
    )
