"""The canonical instruction set: what each operation takes from the stack, leaves on it, and means.

CPython 3.11 to 3.14 encode the same language in four dialects. `decode` (instructions.py) lifts each into the
operations below, so that an interpreter has one handler per row, and `assemble` lowers them again. A row reads

    NAME   stack before -- stack after   meaning

with the top of the stack on the right. `a..` stands for a run whose length the operand gives. What a reader may want to
know:

* NULL. A call sequence holds one slot more than the callable and its arguments. CPython up to 3.12 writes `NULL
  callable` or `function self`; 3.13 writes `callable NULL` or `function self`. CALL and CALL_FUNCTION_EX therefore read
  the two slots under the arguments as: the one that is not NULL is the callable; if neither is, the lower one is the
  callable and the upper one its first argument. `NULL_FIRST` (version.py) says which order this interpreter writes;
  whoever pushes such a pair must follow it.
* LOAD_GLOBAL, LOAD_ATTR and COMPARE_OP carry no flag bits: the NULL of LOAD_GLOBAL is a PUSH_NULL of its own,
  LOAD_ATTR's method form is LOAD_METHOD, 3.13's bool form of COMPARE_OP is COMPARE_OP then TO_BOOL.
* POP_JUMP_IF_TRUE / FALSE take the truth value of any object. (3.13 puts a TO_BOOL before them; up to 3.12 they
  convert. `BRANCHES_ON_BOOL` (version.py) says which.)
* FOR_ITER's target is where the loop goes on after exhaustion, with the iterator popped. There is no END_FOR.
* `a and b` on 3.11 (JUMP_IF_FALSE_OR_POP) reads COPY 1, POP_JUMP_IF_FALSE, POP_TOP, as on 3.12 and 3.13.
* x[a:b] reads BUILD_SLICE 2 then BINARY_SUBSCR (STORE_SUBSCR), as on 3.11; RETURN_CONST reads LOAD_CONST, RETURN_VALUE.
* PRINT_EXPR and IMPORT_STAR leave None, as on 3.12; on 3.11 a POP_TOP follows them.
* Instructions that were split share their `offset`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from .instructions import Instruction

__all__ = [
    "OPS",
    "Op",
    "pops",
    "pushes",
    "stack_effect",
    "JUMPS",
    "CONDITIONAL_JUMPS",
    "TERMINATORS",
    "NEVER_RAISES",
    "MOVES",
    "SLOT_OPS",
    "SLOT_READS",
    "SLOT_BINDS",
    "SLOT_EMPTIES",
    "SLOT_CELLS",
    "SLOT_CHANGES",
    "SLOT_USES",
    "reach",
    "NAME_OPS",
    "EXIT_SLOTS",
]

EXIT_SLOTS = 2 if sys.version_info >= (3, 14) else 1  # what a with statement's __exit__ takes on the stack


@dataclass(frozen=True)
class Op:
    """One row. `pops`/`pushes` give counts for an Instruction; `jump_pushes` those left when it jumps; `reach` how deep
    below the top it looks. `slot` says what it does to its local ("reads", "binds", "empties"), or that its slot holds
    a cell ("cell").
    """

    name: str
    before: str
    after: str
    meaning: str
    pops: Callable[[Instruction], int]
    pushes: Callable[[Instruction], int]
    jump_pushes: Callable[[Instruction], int]
    reach: Callable[[Instruction], int]
    slot: frozenset[str]


OPS: dict[str, Op] = {}


def _op(
    name: str,
    effect: str,
    meaning: str,
    pops: Callable | None = None,
    pushes: Callable | None = None,
    jump: int | None = None,
    *,
    reach: Callable | None = None,
    slot: str = "",
) -> None:
    before, _, after = (part.strip() for part in effect.partition("--"))
    n_in, n_out = len(before.split()), len(after.split())
    pops = pops or (lambda ins, n=n_in: n)
    pushes = pushes or (lambda ins, n=n_out: n)
    jump_pushes = pushes if jump is None else (lambda ins, n=jump: n)
    OPS[name] = Op(name, before, after, meaning, pops, pushes, jump_pushes, reach or pops, frozenset(slot.split()))


def _arg(extra: int = 0) -> Callable[[Instruction], int]:
    return lambda ins: ins.arg + extra


# --- stack
_op("NOP", "--", "nothing; holds a line")
_op("POP_TOP", "v --", "drop")
_op("PUSH_NULL", "-- NULL", "push the empty slot of a call sequence")
_op("COPY", "v .. -- v .. v", "arg n: push the n-th from the top again (1 is the top)", _arg(), _arg(1), reach=_arg())
_op("SWAP", "v .. w -- w .. v", "arg n: exchange the top and the n-th from the top", _arg(), _arg(), reach=_arg())
# --- constants, locals, cells
_op("LOAD_CONST", "-- v", "arg: the constant")
_op("LOAD_FAST", "-- v", "local `slot`; UnboundLocalError if empty", slot="reads")
_op("LOAD_FAST_CHECK", "-- v", "as LOAD_FAST, where the compiler could not prove the local bound", slot="reads")
_op(
    "LOAD_FAST_AND_CLEAR",
    "-- v",
    "push local `slot`, or NULL if it is empty, and empty it (inlined comprehensions)",
    slot="reads empties",
)
_op(
    "STORE_FAST",
    "v --",
    "local `slot` = v; v may be NULL after LOAD_FAST_AND_CLEAR: the slot becomes empty",
    slot="binds",
)
_op("DELETE_FAST", "--", "empty local `slot`; UnboundLocalError if empty", slot="reads empties")
_op("MAKE_CELL", "--", "wrap the content of `slot` (or nothing) in a new cell, which replaces it", slot="cell binds")
_op("COPY_FREE_VARS", "--", "arg n: the function's n closure cells go to the last n slots")
_op("LOAD_CLOSURE", "-- cell", "push the cell in `slot` itself", slot="cell")
_op("LOAD_DEREF", "-- v", "content of the cell in `slot`; NameError/UnboundLocalError if empty", slot="cell")
_op("STORE_DEREF", "v --", "set it", slot="cell")
_op("DELETE_DEREF", "--", "empty it", slot="cell")
_op("LOAD_CLASSDEREF", "-- v", "3.11 class bodies: the class namespace first, then the cell in `slot`", slot="cell")
_op("LOAD_FROM_DICT_OR_DEREF", "dict -- v", "dict[name] or the content of the cell in `slot`", slot="cell")
# --- names
_op("LOAD_GLOBAL", "-- v", "globals()[name], then builtins")
_op("STORE_GLOBAL", "v --", "globals()[name] = v")
_op("DELETE_GLOBAL", "--", "del globals()[name]")
_op("LOAD_NAME", "-- v", "f_locals[name], then globals, then builtins")
_op("STORE_NAME", "v --", "f_locals[name] = v")
_op("DELETE_NAME", "--", "del f_locals[name]")
_op("LOAD_LOCALS", "-- dict", "f_locals")
_op("LOAD_FROM_DICT_OR_GLOBALS", "dict -- v", "dict[name], then globals, then builtins")
_op("LOAD_BUILD_CLASS", "-- f", "builtins.__build_class__")
_op("LOAD_ASSERTION_ERROR", "-- type", "AssertionError")
_op("SETUP_ANNOTATIONS", "--", "create __annotations__ in f_locals")
# --- attributes and items
_op("LOAD_ATTR", "o -- v", "o.name")
_op(
    "LOAD_METHOD",
    "o -- a b",
    "call sequence for o.name(...): `function o`, or o.name and a NULL in this version's order",
)
_op(
    "LOAD_SUPER_ATTR",
    "super cls self -- v",
    "super(cls, self).name; `method`: pushes a call sequence (two slots); "
    "`two_arg`: super was written with two arguments",
    None,
    lambda ins: 2 if ins.method else 1,
)
_op("STORE_ATTR", "v o --", "o.name = v")
_op("DELETE_ATTR", "o --", "del o.name")
_op("BINARY_SUBSCR", "o k -- v", "o[k]")
_op("STORE_SUBSCR", "v o k --", "o[k] = v")
_op("DELETE_SUBSCR", "o k --", "del o[k]")
# --- operators
_op("UNARY_POSITIVE", "v -- r", "+v")
_op("UNARY_NEGATIVE", "v -- r", "-v")
_op("UNARY_NOT", "v -- r", "not v (any object)")
_op("UNARY_INVERT", "v -- r", "~v")
_op("BINARY_OP", "l r -- v", "arg: '+', '@', '+=', ...")
_op("COMPARE_OP", "l r -- v", "arg: '<', '<=', '==', '!=', '>', '>='; the rich result, any object")
_op("IS_OP", "l r -- bool", "arg False: l is r; True: l is not r")
_op("CONTAINS_OP", "l r -- bool", "arg False: l in r; True: l not in r")
_op("TO_BOOL", "v -- bool", "bool(v)")
# --- control
_op("RESUME", "--", "a frame starts (arg 0) or goes on; eval-breaker check")
_op("JUMP", "--", "go to target")
_op("JUMP_NO_INTERRUPT", "--", "as JUMP, without an interrupt check (await loops)")
_op("POP_JUMP_IF_TRUE", "v --", "jump if bool(v)")
_op("POP_JUMP_IF_FALSE", "v --", "jump if not bool(v)")
_op("POP_JUMP_IF_NONE", "v --", "jump if v is None")
_op("POP_JUMP_IF_NOT_NONE", "v --", "jump if v is not None")
_op("GET_ITER", "o -- it", "iter(o)")
_op("FOR_ITER", "it -- it v", "next(it); exhausted: pop it and go to target", jump=0)
_op("RETURN_VALUE", "v --", "return v")
# --- building
_op("BUILD_TUPLE", "v.. -- t", "arg n", _arg())
_op("BUILD_LIST", "v.. -- l", "arg n", _arg())
_op("BUILD_SET", "v.. -- s", "arg n", _arg())
_op("BUILD_MAP", "kv.. -- d", "arg n pairs", lambda ins: 2 * ins.arg)
_op("BUILD_CONST_KEY_MAP", "v.. keys -- d", "arg n values under a tuple of keys", _arg(1))
_op("BUILD_STRING", "s.. -- str", "arg n: join", _arg())
_op("BUILD_SLICE", "v.. -- slice", "arg 2 or 3", _arg())
# (the container, n below what is added, stays where it is: it is within reach, and not counted)
_op("LIST_APPEND", "v --", "arg n: append v to the list n below", reach=_arg(1))
_op("SET_ADD", "v --", "arg n: add v to the set n below", reach=_arg(1))
_op("MAP_ADD", "k v --", "arg n: d[k] = v, the dict is n below", reach=_arg(2))
_op("LIST_EXTEND", "it --", "arg n: extend the list n below", reach=_arg(1))
_op("SET_UPDATE", "it --", "arg n: update the set n below", reach=_arg(1))
_op("DICT_UPDATE", "m --", "arg n: update the dict n below", reach=_arg(1))
_op("DICT_MERGE", "m --", "arg n: the same; TypeError on a repeated key (call with **)", reach=_arg(1))
_op("LIST_TO_TUPLE", "l -- t", "tuple(l)")
_op("UNPACK_SEQUENCE", "o -- v..", "arg n; the first element on top", None, _arg())
_op(
    "UNPACK_EX",
    "o -- v..",
    "arg low | high << 8: before and after the starred name; the first element on top",
    None,
    lambda ins: (ins.arg & 0xFF) + 1 + (ins.arg >> 8),
)
_op("CONVERT_VALUE", "v -- s", "arg 'str' | 'repr' | 'ascii' (3.13)")
_op(
    "FORMAT_VALUE",
    "v spec? -- s",
    "format(conversion(v), spec or ''); arg: conversion or None; `with_spec`",
    lambda ins: 2 if ins.with_spec else 1,
)
# --- calls and functions
_op(
    "CALL",
    "a b v.. -- r",
    "arg n: arguments in all; `kwnames`: names of the last len(kwnames) of them; see NULL above",
    _arg(2),
)
_op(
    "CALL_FUNCTION_EX",
    "a b args kwargs? -- r",
    "f(*args, **kwargs); arg 1: a mapping is on top; see NULL above",
    lambda ins: 3 + (ins.arg & 1),
)
_op("CALL_INTRINSIC_1", "v -- r", "arg: the intrinsic's name (generic classes and the like)")
_op("CALL_INTRINSIC_2", "v w -- r", "arg: the intrinsic's name")
_op(
    "MAKE_FUNCTION",
    "defaults? kwdefaults? annotations? closure? code -- f",
    "arg: 1 tuple of defaults, 2 dict of keyword defaults, 4 annotations, 8 tuple of cells, 16 what makes annotations"
    " (3.14)",
    lambda ins: 1 + bin(ins.arg).count("1"),
)
_op("IMPORT_NAME", "level fromlist -- module", "__import__(name, ...)")
_op("IMPORT_FROM", "module -- module v", "from module import name")
_op("IMPORT_STAR", "module -- None", "into f_locals")
_op("PRINT_EXPR", "v -- None", "sys.displayhook(v)")
# --- with, exceptions
_op(
    "BEFORE_WITH",
    "mgr -- exit.. v",
    "the bound __exit__, and the result of __enter__(); 3.14: the bound __exit__ and a NULL",
    None,
    lambda ins: 1 + EXIT_SLOTS,
)
_op("BEFORE_ASYNC_WITH", "mgr -- exit.. v", "the same with __aexit__, __aenter__", None, lambda ins: 1 + EXIT_SLOTS)
_op(
    "WITH_EXCEPT_START",
    "exit lasti prev exc -- exit lasti prev exc r",
    "exit(type, exc, tb)",
    reach=lambda ins: 3 + EXIT_SLOTS,
)
_op("PUSH_EXC_INFO", "exc -- prev exc", "exc becomes the handled exception; prev is the one (or None) handled before")
_op("POP_EXCEPT", "prev --", "prev becomes the handled exception again")
_op("CHECK_EXC_MATCH", "exc type -- exc bool", "isinstance(exc, type) as except does")
_op("CHECK_EG_MATCH", "exc type -- rest match", "except*: split the group; match (or None) on top")
_op("PREP_RERAISE_STAR", "orig list -- exc", "what an except* statement raises in the end, or None")
_op("RAISE_VARARGS", "v.. --", "arg 0: re-raise the handled one; 1: raise v; 2: raise v from w", _arg())
_op(
    "RERAISE",
    "exc --",
    "raise exc without a new traceback entry; arg n: the instruction pointer is in the slot n below",
    reach=_arg(1),
)
# --- match
_op("GET_LEN", "o -- o n", "len(o)")
_op("MATCH_MAPPING", "o -- o bool", "is it a mapping")
_op("MATCH_SEQUENCE", "o -- o bool", "is it a sequence (not str, bytes)")
_op("MATCH_KEYS", "o keys -- o keys values", "tuple of o[key], or None")
_op("MATCH_CLASS", "o type names -- r", "arg n positional patterns; tuple of attributes, or None")
# --- generators and coroutines (a frame that has them is not captured; kept so that code can be decoded and assembled)
_op("RETURN_GENERATOR", "-- gen", "return a generator over the rest of this frame; it starts with a value on the stack")
_op("YIELD_VALUE", "v -- sent", "yield v")
_op("SEND", "it v -- it r", "it.send(v); when it ends: push its result and go to target (END_SEND)")
_op("END_SEND", "it v -- v", "drop what lies under the top")
_op("SEND_POP", "it v -- it r", "3.11: it.send(v); when it ends: replace it by its result and go to target", jump=1)
_op("CLEANUP_THROW", "it last exc -- none v", "exc is StopIteration: its value; else raise it")
_op("GET_YIELD_FROM_ITER", "o -- it", "iterator for yield from")
_op("GET_AWAITABLE", "o -- it", "o.__await__()")
_op("GET_AITER", "o -- it", "o.__aiter__()")
_op("GET_ANEXT", "it -- it aw", "it.__anext__()")
_op("END_ASYNC_FOR", "it exc --", "exc is StopAsyncIteration: drop both; else raise it")
_op("ASYNC_GEN_WRAP", "v -- w", "wrap what an async generator yields")

JUMPS = frozenset(
    """JUMP JUMP_NO_INTERRUPT POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE FOR_ITER SEND
    SEND_POP""".split()
)
CONDITIONAL_JUMPS = JUMPS - {"JUMP", "JUMP_NO_INTERRUPT"}
# the next instruction is not a successor
TERMINATORS = frozenset(["JUMP", "JUMP_NO_INTERRUPT", "RETURN_VALUE", "RAISE_VARARGS", "RERAISE"])
NEVER_RAISES = frozenset(
    """NOP POP_TOP LOAD_CONST STORE_FAST COPY SWAP PUSH_NULL JUMP LOAD_FAST_AND_CLEAR LOAD_CLOSURE MAKE_CELL POP_EXCEPT
    PUSH_EXC_INFO POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE""".split()
)
# Moves values between the stack and names, and ends the frame: never tensor work, whatever the values are.
MOVES = NEVER_RAISES | frozenset(
    """
    RESUME COPY_FREE_VARS JUMP_NO_INTERRUPT LOAD_FAST LOAD_FAST_CHECK DELETE_FAST LOAD_DEREF STORE_DEREF DELETE_DEREF
    LOAD_NAME STORE_NAME DELETE_NAME LOAD_GLOBAL STORE_GLOBAL DELETE_GLOBAL RETURN_VALUE
    """.split()
)


def _slots(*words: str) -> frozenset[str]:
    return frozenset(name for name, op in OPS.items() if not op.slot.isdisjoint(words))


SLOT_READS, SLOT_BINDS, SLOT_EMPTIES, SLOT_CELLS = (_slots(word) for word in ("reads", "binds", "empties", "cell"))
SLOT_CHANGES, SLOT_USES = _slots("binds", "empties"), _slots("reads", "cell")
SLOT_OPS = SLOT_CHANGES | SLOT_USES
NAME_OPS = frozenset(
    """LOAD_GLOBAL STORE_GLOBAL DELETE_GLOBAL LOAD_NAME STORE_NAME DELETE_NAME LOAD_FROM_DICT_OR_GLOBALS LOAD_ATTR
    LOAD_METHOD LOAD_SUPER_ATTR STORE_ATTR DELETE_ATTR IMPORT_NAME IMPORT_FROM""".split()
)


def pops(ins: Instruction) -> int:
    """How many stack slots the instruction takes."""
    return OPS[ins.op].pops(ins)


def pushes(ins: Instruction, jump: bool = False) -> int:
    """How many it leaves, on falling through or on jumping."""
    op = OPS[ins.op]
    return op.jump_pushes(ins) if jump else op.pushes(ins)


def reach(ins: Instruction) -> int:
    """How many slots from the top the instruction looks at."""
    return OPS[ins.op].reach(ins)


def stack_effect(ins: Instruction, jump: bool = False) -> int:
    """Change of stack depth."""
    op = OPS[ins.op]
    return (op.jump_pushes(ins) if jump else op.pushes(ins)) - op.pops(ins)
