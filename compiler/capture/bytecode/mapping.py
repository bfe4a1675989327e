"""What the dialects have in common when they map native instructions to canonical ones and back.

A dialect (v311 to v314) offers
    NULL_FIRST              order of a call sequence
    FOR_ITER_EXIT           native instructions that must stand where an exhausted loop lands; they are skipped, not run
    lift(raws, code, slot_names, slot_is_cell)  -> (start offset, offset that holds the position, Instruction fields)
    lower(ins, peek, operands)                  -> ([(native op, arg)], how many canonical instructions were used)
    jump(op, backward)                          -> native op, and whether its sense was inverted (see assemble.py)
where `peek` is the next canonical instruction if it may be merged with this one, and `operands` numbers names and
constants.
"""

from __future__ import annotations

import opcode
from types import CodeType
from typing import Any, Protocol

from .opset import JUMPS, OPS, SLOT_OPS
from .wire import Raw, UnsupportedBytecode

__all__ = [
    "Operands",
    "Lifted",
    "BINARY_OPERATORS",
    "BINARY_NUMBER",
    "COMMON_CONSTANTS",
    "COMPARISONS",
    "lift_common",
    "lower_common",
]

Lifted = tuple[int, int, dict[str, Any]]
Native = list[tuple[str, int]]

BINARY_OPERATORS: tuple[str, ...] = tuple(symbol for _, symbol in opcode._nb_ops)
BINARY_NUMBER = {symbol: number for number, symbol in enumerate(BINARY_OPERATORS)}
COMMON_CONSTANTS: tuple = tuple(getattr(opcode, "_common_constants", ()))  # 3.14 on
COMPARISONS: tuple[str, ...] = ("<", "<=", "==", "!=", ">", ">=")
# 3.12 on: which outcomes of a three-way test mean True
COMPARE_MASK = {"<": 2, "<=": 10, "==": 8, "!=": 7, ">": 4, ">=": 12}
_CONVERSIONS = (None, "str", "repr", "ascii")

_NAMES = frozenset(
    """LOAD_NAME STORE_NAME DELETE_NAME STORE_GLOBAL DELETE_GLOBAL STORE_ATTR DELETE_ATTR IMPORT_NAME IMPORT_FROM
    LOAD_FROM_DICT_OR_GLOBALS""".split()
)
# a plain integer operand, the same in every version
_COUNTED = frozenset(
    """COPY SWAP COPY_FREE_VARS RESUME BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_MAP BUILD_CONST_KEY_MAP BUILD_STRING
    BUILD_SLICE LIST_APPEND SET_ADD MAP_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE UNPACK_SEQUENCE UNPACK_EX
    CALL_FUNCTION_EX RAISE_VARARGS RERAISE MATCH_CLASS YIELD_VALUE GET_AWAITABLE""".split()
)
_SPECIAL = frozenset(
    """LOAD_CONST LOAD_GLOBAL LOAD_ATTR LOAD_METHOD LOAD_SUPER_ATTR BINARY_OP COMPARE_OP IS_OP CONTAINS_OP CALL
    CALL_INTRINSIC_1 CALL_INTRINSIC_2 MAKE_FUNCTION FORMAT_VALUE CONVERT_VALUE""".split()
)
_BARE = frozenset(op for op in OPS if op not in JUMPS | SLOT_OPS | _NAMES | _COUNTED | _SPECIAL)  # no operand


class Operands(Protocol):
    """Numbers what the native operands index."""

    def name(self, name: str) -> int: ...
    def const(self, value: Any) -> int: ...


def lift_common(raw: Raw, code: CodeType, slot_names: list[str]) -> dict[str, Any]:
    """Fields of an instruction that means the same in every version. Raises UnsupportedBytecode."""
    op, arg = raw.op, raw.arg
    if op in SLOT_OPS:
        return {"op": op, "slot": arg, "arg": slot_names[arg]}
    if op == "LOAD_CONST":
        return {"op": op, "arg": code.co_consts[arg]}
    if op == "LOAD_SMALL_INT":
        return {"op": "LOAD_CONST", "arg": arg}
    if op == "LOAD_COMMON_CONSTANT":
        return {"op": "LOAD_CONST", "arg": COMMON_CONSTANTS[arg]}
    if op in _NAMES:
        return {"op": op, "arg": code.co_names[arg]}
    if op in _COUNTED:
        return {"op": op, "arg": arg}
    if op == "BINARY_OP":
        return {"op": op, "arg": BINARY_OPERATORS[arg]}
    if op in ("IS_OP", "CONTAINS_OP"):
        return {"op": op, "arg": bool(arg)}
    if op == "FORMAT_VALUE":
        return {"op": op, "arg": _CONVERSIONS[arg & 3], "with_spec": bool(arg & 4)}
    if op == "CONVERT_VALUE":
        return {"op": op, "arg": _CONVERSIONS[arg]}
    if op in ("CALL", "MAKE_FUNCTION"):
        return {"op": op, "arg": arg}
    if op.startswith("POP_JUMP_IF_") or op == "FOR_ITER" or op == "SEND" or op == "JUMP_FORWARD":
        return {"op": "JUMP" if op == "JUMP_FORWARD" else op, "target": raw.next + 2 * arg}
    if op == "JUMP_BACKWARD":
        return {"op": "JUMP", "target": raw.next - 2 * arg}
    if op == "JUMP_BACKWARD_NO_INTERRUPT":
        return {"op": "JUMP_NO_INTERRUPT", "target": raw.next - 2 * arg}
    if op in _BARE:
        return {"op": op}
    raise UnsupportedBytecode(
        f"unknown instruction {op} in {code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
    )


def lower_common(ins: Any, operands: Operands) -> Native:
    """The inverse for everything but jumps. Raises UnsupportedBytecode."""
    op, arg = ins.op, ins.arg
    if op in SLOT_OPS:
        return [(op, ins.slot)]
    if op == "LOAD_CONST":
        return [(op, operands.const(arg))]
    if op in _NAMES:
        return [(op, operands.name(arg))]
    if op in _COUNTED:
        return [(op, arg)]
    if op == "BINARY_OP":
        return [(op, BINARY_NUMBER[arg])]
    if op in ("IS_OP", "CONTAINS_OP"):
        return [(op, int(arg))]
    if op == "FORMAT_VALUE":
        return [(op, _CONVERSIONS.index(arg) | 4 * ins.with_spec)]
    if op == "CONVERT_VALUE":
        return [(op, _CONVERSIONS.index(arg))]
    if op == "MAKE_FUNCTION":
        return [(op, arg)]
    if op in _BARE:
        return [(op, 0)]
    raise UnsupportedBytecode(f"{op} cannot be expressed in this version of Python")
