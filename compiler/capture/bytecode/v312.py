"""CPython 3.12 <-> canonical instructions.

Its own: KW_NAMES before CALL; END_FOR (pops two) where a loop ends; LOAD_CLOSURE; FORMAT_VALUE.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, Iterator

from .mapping import COMPARE_MASK, COMPARISONS, Lifted, Native, Operands
from .modern import jump as jump
from .modern import lift_modern, lower_modern
from .wire import Raw

NULL_FIRST = True
BRANCHES_ON_BOOL = False
FOR_ITER_EXIT: tuple[str, ...] = ("END_FOR",)


def lift(raws: list[Raw], code: CodeType, slot_names: list[str], slot_is_cell: list[bool]) -> Iterator[Lifted]:
    """See mapping.py."""
    kwnames: tuple[str, ...] = ()
    pending: int | None = None
    for raw in raws:
        op, arg, start = raw.op, raw.arg, raw.start
        if op == "KW_NAMES":
            kwnames, pending = code.co_consts[arg], start
        elif op == "CALL":
            yield (start if pending is None else pending), raw.offset, {"op": "CALL", "arg": arg, "kwnames": kwnames}
            kwnames, pending = (), None
        elif op == "COMPARE_OP":
            yield start, raw.offset, {"op": op, "arg": COMPARISONS[arg >> 4]}
        elif op == "END_FOR":
            continue
        else:
            yield from lift_modern(raw, code, slot_names, NULL_FIRST)


def lower(ins: Any, peek: Any, operands: Operands) -> tuple[Native, int]:
    """See mapping.py."""
    op = ins.op
    if op == "CALL":
        names: Native = [("KW_NAMES", operands.const(ins.kwnames))] if ins.kwnames else []
        return names + [("CALL", ins.arg)], 1
    if op == "PUSH_NULL" and peek is not None and peek.op == "LOAD_GLOBAL":
        return [("LOAD_GLOBAL", operands.name(peek.arg) << 1 | 1)], 2
    if op == "COMPARE_OP":
        return [(op, COMPARISONS.index(ins.arg) << 4 | COMPARE_MASK[ins.arg])], 1
    if op == "TO_BOOL":
        return [("UNARY_NOT", 0), ("UNARY_NOT", 0)], 1
    return lower_modern(ins, peek, operands)
