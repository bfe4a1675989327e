"""What 3.12 and 3.13 share and 3.11 has not: intrinsics, LOAD_ATTR's method bit, RETURN_CONST, slices, forward-only
conditional jumps.
"""

from __future__ import annotations

import opcode
from types import CodeType
from typing import Any, Iterator

from .mapping import Lifted, Native, Operands, lift_common, lower_common
from .wire import Raw, UnsupportedBytecode

__all__ = ["lift_modern", "lower_modern", "jump"]

_UNARY = list(getattr(opcode, "_intrinsic_1_descs", ()))
_BINARY = list(getattr(opcode, "_intrinsic_2_descs", ()))
_CANONICAL = {
    "INTRINSIC_PRINT": "PRINT_EXPR",
    "INTRINSIC_IMPORT_STAR": "IMPORT_STAR",
    "INTRINSIC_ASYNC_GEN_WRAP": "ASYNC_GEN_WRAP",
    "INTRINSIC_UNARY_POSITIVE": "UNARY_POSITIVE",
    "INTRINSIC_LIST_TO_TUPLE": "LIST_TO_TUPLE",
    "INTRINSIC_PREP_RERAISE_STAR": "PREP_RERAISE_STAR",
}
_NATIVE = {canonical: native for native, canonical in _CANONICAL.items()}
_INVERSE = {
    "POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE",
    "POP_JUMP_IF_FALSE": "POP_JUMP_IF_TRUE",
    "POP_JUMP_IF_NONE": "POP_JUMP_IF_NOT_NONE",
    "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE",
}


def lift_modern(raw: Raw, code: CodeType, slot_names: list[str], null_first: bool) -> Iterator[Lifted]:
    """One native instruction."""
    op, arg, start, at = raw.op, raw.arg, raw.start, raw.offset
    if op == "LOAD_GLOBAL":
        if arg & 1 and null_first:
            yield start, at, {"op": "PUSH_NULL"}
        yield start, at, {"op": op, "arg": code.co_names[arg >> 1]}
        if arg & 1 and not null_first:
            yield start, at, {"op": "PUSH_NULL"}
    elif op == "LOAD_ATTR":
        yield start, at, {"op": "LOAD_METHOD" if arg & 1 else "LOAD_ATTR", "arg": code.co_names[arg >> 1]}
    elif op == "LOAD_SUPER_ATTR":
        yield start, at, {"op": op, "arg": code.co_names[arg >> 2], "method": bool(arg & 1), "two_arg": bool(arg & 2)}
    elif op == "RETURN_CONST":
        yield start, at, {"op": "LOAD_CONST", "arg": code.co_consts[arg]}
        yield start, at, {"op": "RETURN_VALUE"}
    elif op in ("BINARY_SLICE", "STORE_SLICE"):
        yield start, at, {"op": "BUILD_SLICE", "arg": 2}
        yield start, at, {"op": "BINARY_SUBSCR" if op == "BINARY_SLICE" else "STORE_SUBSCR"}
    elif op in ("CALL_INTRINSIC_1", "CALL_INTRINSIC_2"):
        name = (_UNARY if op == "CALL_INTRINSIC_1" else _BINARY)[arg]
        canonical = _CANONICAL.get(name)
        yield start, at, {"op": canonical} if canonical else {"op": op, "arg": name}
    else:
        yield start, at, lift_common(raw, code, slot_names)


def lower_modern(ins: Any, peek: Any, operands: Operands) -> tuple[Native, int]:
    """One canonical instruction, or a pair that has a native instruction of its own."""
    op = ins.op
    if op == "LOAD_GLOBAL":
        return [(op, operands.name(ins.arg) << 1)], 1
    if op in ("LOAD_ATTR", "LOAD_METHOD"):
        return [("LOAD_ATTR", operands.name(ins.arg) << 1 | (op == "LOAD_METHOD"))], 1
    if op == "LOAD_SUPER_ATTR":
        return [(op, operands.name(ins.arg) << 2 | ins.two_arg << 1 | ins.method)], 1
    if op == "LOAD_CONST" and peek is not None and peek.op == "RETURN_VALUE" and peek.positions == ins.positions:
        return [("RETURN_CONST", operands.const(ins.arg))], 2
    if op == "BUILD_SLICE" and ins.arg == 2 and peek is not None and peek.op in ("BINARY_SUBSCR", "STORE_SUBSCR"):
        return [("BINARY_SLICE" if peek.op == "BINARY_SUBSCR" else "STORE_SLICE", 0)], 2
    if op in ("CALL_INTRINSIC_1", "CALL_INTRINSIC_2") or op in _NATIVE:
        name = _NATIVE.get(op, ins.arg)
        if name in _UNARY:
            return [("CALL_INTRINSIC_1", _UNARY.index(name))], 1
        if name in _BINARY:
            return [("CALL_INTRINSIC_2", _BINARY.index(name))], 1
        raise UnsupportedBytecode(f"this version of Python has no intrinsic {name}")
    return lower_common(ins, operands), 1


def jump(op: str, backward: bool) -> tuple[str, bool]:
    """See mapping.py: conditional jumps only go forward, so one that must go back is inverted and hops over a
    JUMP_BACKWARD.
    """
    if op == "JUMP":
        return ("JUMP_BACKWARD" if backward else "JUMP_FORWARD"), False
    if op == "JUMP_NO_INTERRUPT":
        return ("JUMP_BACKWARD_NO_INTERRUPT" if backward else "JUMP_FORWARD"), False
    if backward and op in _INVERSE:
        return _INVERSE[op], True
    return op, backward
