"""CPython 3.14 <-> canonical instructions: as 3.13, but for what follows.

Its own: borrowed loads of locals; LOAD_SMALL_INT, LOAD_COMMON_CONSTANT; indexing is a BINARY_OP; POP_ITER where a loop
ends; NOT_TAKEN after conditional jumps; no RETURN_CONST; CALL_FUNCTION_EX always has a slot for the mapping; a function
that makes annotations. A with statement loads `__exit__` and `__enter__` itself (LOAD_SPECIAL) and keeps the first as a
call sequence of two slots: `function self`, or `callable NULL`. What is made here has them bound, so that the second
slot is known to be NULL.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, Iterator

from . import v313
from .mapping import BINARY_NUMBER, COMMON_CONSTANTS, Lifted, Native, Operands
from .modern import jump as jump
from .wire import Raw, UnsupportedBytecode

NULL_FIRST = False
BRANCHES_ON_BOOL = True
FOR_ITER_EXIT: tuple[str, ...] = ("END_FOR", "POP_ITER")

_SAME = {
    "LOAD_FAST_BORROW": "LOAD_FAST",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": "LOAD_FAST_LOAD_FAST",
    "POP_ITER": "POP_TOP",
}
_INDEX = BINARY_NUMBER.get("[]")
_SPECIAL = {"__enter__": 0, "__exit__": 1, "__aenter__": 2, "__aexit__": 3}  # opcode._special_method_names
_WITH = {"BEFORE_WITH": ("__exit__", "__enter__"), "BEFORE_ASYNC_WITH": ("__aexit__", "__aenter__")}


def with_methods(manager: Any) -> tuple[Any, Any]:
    """(__enter__, __exit__), bound, as a with statement looks them up. Raises its TypeError."""
    cls = type(manager)
    found = [next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), None) for name in ("__enter__", "__exit__")]
    if None in found:
        with manager:  # refused before anything of it runs
            pass
    enter, leave = (f.__get__(manager, cls) if hasattr(type(f), "__get__") else f for f in found)
    return enter, leave


def _bound_enter(operands: Operands) -> Native:
    """manager -- exit NULL result-of-enter"""
    call: Native = [
        ("LOAD_CONST", operands.const(with_methods)),
        ("SWAP", 2),
        ("PUSH_NULL", 0),
        ("SWAP", 2),
        ("CALL", 1),
        ("UNPACK_SEQUENCE", 2),
    ]
    return call + [("PUSH_NULL", 0), ("SWAP", 2), ("PUSH_NULL", 0), ("CALL", 0)]


def _enter(op: str) -> Native:
    """manager -- exit self-or-NULL result-of-enter, as CPython has it"""
    leave, enter = _WITH[op]
    return [
        ("COPY", 1),
        ("LOAD_SPECIAL", _SPECIAL[leave]),
        ("SWAP", 2),
        ("SWAP", 3),
        ("LOAD_SPECIAL", _SPECIAL[enter]),
        ("CALL", 0),
    ]


def lift(raws: list[Raw], code: CodeType, slot_names: list[str], slot_is_cell: list[bool]) -> Iterator[Lifted]:
    """See mapping.py."""
    yield from v313.lift(list(_as_313(raws, code)), code, slot_names, slot_is_cell)


def _as_313(raws: list[Raw], code: CodeType) -> Iterator[Raw]:
    """The instructions as 3.13 has them."""
    starts = {tuple(_enter(op)): op for op in _WITH}
    at, count = 0, len(raws)
    while at < count:
        raw = raws[at]
        op, arg = raw.op, raw.arg
        at += 1
        if op == "NOT_TAKEN":
            continue
        if op == "LOAD_CONST" and code.co_consts[arg] is with_methods:
            at += 9
            yield Raw("BEFORE_WITH", 0, raw.start, raws[at - 1].offset, raws[at - 1].next)
        elif op == "COPY" and (begun := starts.get(tuple((raw.op, raw.arg) for raw in raws[at - 1 : at + 5]))):
            at += 5
            yield Raw(begun, 0, raw.start, raw.offset, raws[at - 1].next)
        elif op == "LOAD_SPECIAL":
            raise UnsupportedBytecode(f"LOAD_SPECIAL outside of a with statement in {code.co_qualname}")
        elif op == "PUSH_NULL" and at < count and raws[at].op == "CALL_FUNCTION_EX":
            yield Raw("CALL_FUNCTION_EX", 0, raw.start, raws[at].offset, raws[at].next)
            at += 1
        elif op == "CALL_FUNCTION_EX":
            yield raw._replace(arg=1)
        elif op == "BINARY_OP" and arg == _INDEX:
            yield raw._replace(op="BINARY_SUBSCR", arg=0)
        elif op == "LOAD_COMMON_CONSTANT" and COMMON_CONSTANTS[arg] is AssertionError:
            yield raw._replace(op="LOAD_ASSERTION_ERROR", arg=0)
        else:
            yield raw._replace(op=_SAME.get(op, op))


def lower(ins: Any, peek: Any, operands: Operands) -> tuple[Native, int]:
    """See mapping.py."""
    op = ins.op
    if op == "LOAD_CONST":
        if type(ins.arg) is int and 0 <= ins.arg < 256:
            return [("LOAD_SMALL_INT", ins.arg)], 1
        known = [number for number, value in enumerate(COMMON_CONSTANTS) if value is ins.arg]
        return [("LOAD_COMMON_CONSTANT", known[0]) if known else (op, operands.const(ins.arg))], 1
    if op == "LOAD_ASSERTION_ERROR":
        return [("LOAD_COMMON_CONSTANT", COMMON_CONSTANTS.index(AssertionError))], 1
    if op == "BINARY_SUBSCR":
        return [("BINARY_OP", BINARY_NUMBER["[]"])], 1
    if op == "BEFORE_WITH":
        return _bound_enter(operands), 1
    if op == "BEFORE_ASYNC_WITH":
        return _enter(op), 1
    if op == "CALL_FUNCTION_EX":
        return [(op, 0)] if ins.arg & 1 else [("PUSH_NULL", 0), (op, 0)], 1
    if op == "MAKE_FUNCTION":
        return [(op, 0)] + [("SET_FUNCTION_ATTRIBUTE", flag) for flag in (8, 16, 4, 2, 1) if ins.arg & flag], 1
    return v313.lower(ins, peek, operands)
