"""CPython 3.13 <-> canonical instructions.

Its own: CALL_KW with the names on the stack; `callable NULL` order; END_FOR and POP_TOP where a loop ends; TO_BOOL;
LOAD_FAST for cells too (LOAD_CLOSURE); SET_FUNCTION_ATTRIBUTE after MAKE_FUNCTION; FORMAT_SIMPLE / FORMAT_WITH_SPEC;
pairs of local accesses.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, Iterator

from .mapping import COMPARE_MASK, COMPARISONS, Lifted, Native, Operands
from .modern import jump as jump
from .modern import lift_modern, lower_modern
from .wire import Raw, UnsupportedBytecode

NULL_FIRST = False
BRANCHES_ON_BOOL = True
FOR_ITER_EXIT: tuple[str, ...] = ("END_FOR", "POP_TOP")

_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
_PAIR_OF = {pair: op for op, pair in _PAIRS.items()}


def lift(raws: list[Raw], code: CodeType, slot_names: list[str], slot_is_cell: list[bool]) -> Iterator[Lifted]:
    """See mapping.py."""
    at, count = 0, len(raws)
    while at < count:
        raw = raws[at]
        op, arg, start, where = raw.op, raw.arg, raw.start, raw.offset
        following = raws[at + 1].op if at + 1 < count else ""
        at += 1
        if op == "LOAD_CONST" and following == "CALL_KW":
            call = raws[at]
            at += 1
            yield start, call.offset, {"op": "CALL", "arg": call.arg, "kwnames": code.co_consts[arg]}
        elif op == "CALL_KW":
            raise UnsupportedBytecode(f"CALL_KW without its names before it in {code.co_qualname}")
        elif op in _PAIRS:
            for part, slot in zip(_PAIRS[op], (arg >> 4, arg & 15)):
                yield start, where, {"op": part, "slot": slot, "arg": slot_names[slot]}
        elif op == "LOAD_FAST" and slot_is_cell[arg]:
            yield start, where, {"op": "LOAD_CLOSURE", "slot": arg, "arg": slot_names[arg]}
        elif op == "COMPARE_OP":
            yield start, where, {"op": op, "arg": COMPARISONS[arg >> 5]}
            if arg & 16:
                yield start, where, {"op": "TO_BOOL"}
        elif op == "END_FOR":
            if following != "POP_TOP":
                raise UnsupportedBytecode(f"END_FOR without POP_TOP in {code.co_qualname}")
            at += 1
        elif op == "MAKE_FUNCTION":
            flags = 0
            while at < count and raws[at].op == "SET_FUNCTION_ATTRIBUTE":
                flags |= raws[at].arg
                at += 1
            yield start, where, {"op": op, "arg": flags}
        elif op in ("FORMAT_SIMPLE", "FORMAT_WITH_SPEC"):
            yield start, where, {"op": "FORMAT_VALUE", "with_spec": op == "FORMAT_WITH_SPEC"}
        else:
            yield from lift_modern(raw, code, slot_names, NULL_FIRST)


def lower(ins: Any, peek: Any, operands: Operands) -> tuple[Native, int]:
    """See mapping.py."""
    op = ins.op
    if op == "CALL":
        if ins.kwnames:
            return [("LOAD_CONST", operands.const(ins.kwnames)), ("CALL_KW", ins.arg)], 1
        return [("CALL", ins.arg)], 1
    if op == "LOAD_GLOBAL" and peek is not None and peek.op == "PUSH_NULL":
        return [(op, operands.name(ins.arg) << 1 | 1)], 2
    if (
        peek is not None
        and (op, peek.op) in _PAIR_OF
        and ins.slot < 16
        and peek.slot < 16
        and ins.positions == peek.positions
    ):
        return [(_PAIR_OF[op, peek.op], ins.slot << 4 | peek.slot)], 2
    if op == "LOAD_CLOSURE":
        return [("LOAD_FAST", ins.slot)], 1
    if op == "COMPARE_OP":
        arg = COMPARISONS.index(ins.arg) << 5 | COMPARE_MASK[ins.arg]
        if peek is not None and peek.op == "TO_BOOL":
            return [(op, arg | 16)], 2
        return [(op, arg)], 1
    if op == "MAKE_FUNCTION":
        return [(op, 0)] + [("SET_FUNCTION_ATTRIBUTE", flag) for flag in (8, 4, 2, 1) if ins.arg & flag], 1
    if op == "FORMAT_VALUE":
        if ins.arg is not None:
            raise UnsupportedBytecode("FORMAT_VALUE with a conversion is written CONVERT_VALUE, FORMAT_VALUE on 3.13")
        return [("FORMAT_WITH_SPEC" if ins.with_spec else "FORMAT_SIMPLE", 0)], 1
    return lower_modern(ins, peek, operands)
