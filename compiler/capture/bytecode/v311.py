"""CPython 3.11 <-> canonical instructions.

Its own: PRECALL and KW_NAMES before CALL; LOAD_METHOD; conditional jumps with a direction in their name;
JUMP_IF_x_OR_POP; IMPORT_STAR and PRINT_EXPR that leave nothing; LOAD_FAST that checks; SEND that pops the receiver when
it ends.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, Iterator

from .mapping import COMPARISONS, Lifted, Native, Operands, lift_common, lower_common
from .wire import Raw

NULL_FIRST = True
BRANCHES_ON_BOOL = False
FOR_ITER_EXIT: tuple[str, ...] = ()

_OR_POP = {"JUMP_IF_FALSE_OR_POP": "POP_JUMP_IF_FALSE", "JUMP_IF_TRUE_OR_POP": "POP_JUMP_IF_TRUE"}


def lift(raws: list[Raw], code: CodeType, slot_names: list[str], slot_is_cell: list[bool]) -> Iterator[Lifted]:
    """See mapping.py."""
    kwnames: tuple[str, ...] = ()
    pending: int | None = None  # where a call's KW_NAMES or PRECALL began
    for raw in raws:
        op, arg, start = raw.op, raw.arg, raw.start
        if op == "KW_NAMES":
            kwnames, pending = code.co_consts[arg], start
        elif op == "PRECALL":
            pending = start if pending is None else pending
        elif op == "CALL":
            yield (start if pending is None else pending), raw.offset, {"op": "CALL", "arg": arg, "kwnames": kwnames}
            kwnames, pending = (), None
        elif op == "LOAD_GLOBAL":
            if arg & 1:
                yield start, raw.offset, {"op": "PUSH_NULL"}
            yield start, raw.offset, {"op": "LOAD_GLOBAL", "arg": code.co_names[arg >> 1]}
        elif op in ("LOAD_ATTR", "LOAD_METHOD"):
            yield start, raw.offset, {"op": op, "arg": code.co_names[arg]}
        elif op == "COMPARE_OP":
            yield start, raw.offset, {"op": op, "arg": COMPARISONS[arg]}
        elif op.startswith("POP_JUMP_"):
            _, _, direction, condition = op.split("_", 3)
            distance = 2 * arg if direction == "FORWARD" else -2 * arg
            yield start, raw.offset, {"op": f"POP_JUMP_{condition}", "target": raw.next + distance}
        elif op in _OR_POP:
            yield start, raw.offset, {"op": "COPY", "arg": 1}
            yield start, raw.offset, {"op": _OR_POP[op], "target": raw.next + 2 * arg}
            yield start, raw.offset, {"op": "POP_TOP"}
        elif op == "SEND":
            yield start, raw.offset, {"op": "SEND_POP", "target": raw.next + 2 * arg}
        else:
            yield start, raw.offset, lift_common(raw, code, slot_names)
            if op in ("PRINT_EXPR", "IMPORT_STAR"):
                yield start, raw.offset, {"op": "POP_TOP"}


def lower(ins: Any, peek: Any, operands: Operands) -> tuple[Native, int]:
    """See mapping.py."""
    op = ins.op
    if op == "CALL":
        names: Native = [("KW_NAMES", operands.const(ins.kwnames))] if ins.kwnames else []
        return names + [("PRECALL", ins.arg), ("CALL", ins.arg)], 1
    if op == "PUSH_NULL" and peek is not None and peek.op == "LOAD_GLOBAL":
        return [("LOAD_GLOBAL", operands.name(peek.arg) << 1 | 1)], 2
    if op == "LOAD_GLOBAL":
        return [(op, operands.name(ins.arg) << 1)], 1
    if op in ("LOAD_ATTR", "LOAD_METHOD"):
        return [(op, operands.name(ins.arg))], 1
    if op == "COMPARE_OP":
        return [(op, COMPARISONS.index(ins.arg))], 1
    if op in ("PRINT_EXPR", "IMPORT_STAR"):
        if peek is not None and peek.op == "POP_TOP":
            return [(op, 0)], 2
        return [(op, 0), ("LOAD_CONST", operands.const(None))], 1
    if op == "LOAD_FAST_CHECK":
        return [("LOAD_FAST", ins.slot)], 1
    if op == "TO_BOOL":
        return [("UNARY_NOT", 0), ("UNARY_NOT", 0)], 1
    return lower_common(ins, operands), 1


def jump(op: str, backward: bool) -> tuple[str, bool]:
    """See mapping.py."""
    if op == "JUMP":
        return ("JUMP_BACKWARD" if backward else "JUMP_FORWARD"), False
    if op == "JUMP_NO_INTERRUPT":
        return ("JUMP_BACKWARD_NO_INTERRUPT" if backward else "JUMP_FORWARD"), False
    if op == "SEND_POP":
        return "SEND", backward
    if op == "FOR_ITER":
        return op, backward
    return op.replace("POP_JUMP_", "POP_JUMP_BACKWARD_" if backward else "POP_JUMP_FORWARD_"), False
