"""The dialect of CPython 3.14 by its tables, on any interpreter; test_bytecode_roundtrip.py and its like run it on 3.14
itself.
"""

from __future__ import annotations

import opcode
import re
import sys
import sysconfig
import types

import pytest

from tcompile.compiler.capture.bytecode import v314
from tcompile.compiler.capture.bytecode.instructions import Instruction
from tcompile.compiler.capture.bytecode.mapping import COMMON_CONSTANTS
from tcompile.compiler.capture.bytecode.wire import Raw, UnsupportedBytecode

WITH = [("COPY", 1), ("LOAD_SPECIAL", 1), ("SWAP", 2), ("SWAP", 3), ("LOAD_SPECIAL", 0), ("CALL", 0)]

ASYNC_WITH = [(op, {1: 3, 0: 2}[arg] if op == "LOAD_SPECIAL" else arg) for op, arg in WITH]


def code_of(source="lambda x, y: (x, y, 'k', 300)"):
    return eval(source).__code__


def lifted(*native, code=None):
    """Canonical (op, arg) of native (op, arg), two bytes each."""
    raws = [Raw(op, arg, 2 * i, 2 * i, 2 * i + 2) for i, (op, arg) in enumerate(native)]
    fields = [f for _, _, f in v314.lift(raws, code or code_of(), ["x", "y"], [False, True])]
    return [(f["op"], f.get("slot", f.get("target", f.get("arg")))) for f in fields]


class Numbers:
    def const(self, value):
        return ("const", value)

    def name(self, name):
        return ("name", name)


def lowered(op, arg=None, **fields):
    return v314.lower(Instruction(op, arg, **fields), None, Numbers())[0]


@pytest.mark.parametrize(
    "native, canonical",
    [
        ([("LOAD_FAST_BORROW", 0)], [("LOAD_FAST", 0)]),
        ([("LOAD_FAST_BORROW", 1)], [("LOAD_CLOSURE", 1)]),
        ([("LOAD_FAST_BORROW_LOAD_FAST_BORROW", 0x10)], [("LOAD_FAST", 1), ("LOAD_FAST", 0)]),
        ([("LOAD_SMALL_INT", 7)], [("LOAD_CONST", 7)]),
        (
            [("TO_BOOL", 0), ("POP_JUMP_IF_TRUE", 2), ("NOT_TAKEN", 0), ("NOP", 0)],
            [("TO_BOOL", None), ("POP_JUMP_IF_TRUE", 8), ("NOP", None)],
        ),
        ([("FOR_ITER", 2), ("END_FOR", 0), ("POP_ITER", 0), ("NOP", 0)], [("FOR_ITER", 6), ("NOP", None)]),
        ([("POP_ITER", 0)], [("POP_TOP", None)]),
        ([("PUSH_NULL", 0), ("CALL_FUNCTION_EX", 0)], [("CALL_FUNCTION_EX", 0)]),
        ([("DICT_MERGE", 1), ("CALL_FUNCTION_EX", 0)], [("DICT_MERGE", 1), ("CALL_FUNCTION_EX", 1)]),
        (WITH, [("BEFORE_WITH", None)]),
        (ASYNC_WITH, [("BEFORE_ASYNC_WITH", None)]),
        ([("COPY", 1), *WITH], [("COPY", 1), ("BEFORE_WITH", None)]),
        (
            [
                ("MAKE_FUNCTION", 0),
                ("SET_FUNCTION_ATTRIBUTE", 8),
                ("SET_FUNCTION_ATTRIBUTE", 16),
                ("SET_FUNCTION_ATTRIBUTE", 1),
            ],
            [("MAKE_FUNCTION", 25)],
        ),
    ],
    ids=lambda rows: rows[0][0] if len(rows) < 6 else "with",
)
def test_lifts(native, canonical):
    assert lifted(*native) == canonical


def test_a_special_method_outside_of_a_with_statement_is_refused():
    with pytest.raises(UnsupportedBytecode, match="LOAD_SPECIAL outside of a with statement"):
        lifted(("COPY", 1), ("LOAD_SPECIAL", 1), ("NOP", 0))


@pytest.mark.parametrize(
    "ins, native",
    [
        (("LOAD_CONST", 7), [("LOAD_SMALL_INT", 7)]),
        (("LOAD_CONST", True), [("LOAD_CONST", ("const", True))]),
        (("LOAD_CONST", 256), [("LOAD_CONST", ("const", 256))]),
        (("CALL_FUNCTION_EX", 0), [("PUSH_NULL", 0), ("CALL_FUNCTION_EX", 0)]),
        (("CALL_FUNCTION_EX", 1), [("CALL_FUNCTION_EX", 0)]),
        (("BEFORE_ASYNC_WITH", None), ASYNC_WITH),
        (("MAKE_FUNCTION", 27), [("MAKE_FUNCTION", 0), *(("SET_FUNCTION_ATTRIBUTE", flag) for flag in (8, 16, 2, 1))]),
    ],
)
def test_lowers(ins, native):
    assert lowered(*ins) == native


def test_what_a_with_statement_is_lowered_to_is_known_again():
    """The manager's methods bound, so that what a break keeps of the stack is known."""
    native = lowered("BEFORE_WITH")
    code = code_of().replace(co_consts=(v314.with_methods,))
    assert lifted(*[(op, 0 if op == "LOAD_CONST" else arg) for op, arg in native], ("NOP", 0), code=code) == [
        ("BEFORE_WITH", None),
        ("NOP", None),
    ]


def test_the_methods_of_a_with_statement():
    class Manager:
        def __enter__(self):
            return self, "enter"

        def __exit__(self, *why):
            return self, why

    manager = Manager()
    manager.__enter__ = None  # looked up in the class
    enter, leave = v314.with_methods(manager)
    assert enter() == (manager, "enter") and leave(1, 2, 3) == (manager, (1, 2, 3))
    with pytest.raises(TypeError) as ours:
        v314.with_methods(object())
    with pytest.raises(TypeError) as python, object():
        pass
    assert str(ours.value) == str(python.value)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="the interpreter's own tables")
def test_the_interpreters_tables_are_those_that_the_dialect_knows():
    assert [v314._SPECIAL[name] for name in opcode._special_method_names] == list(range(len(v314._SPECIAL)))
    assert COMMON_CONSTANTS.index(AssertionError) == 0
    assert lowered("BINARY_SUBSCR") == [("BINARY_OP", opcode._nb_ops.index(("NB_SUBSCR", "[]")))]
    assert lowered("LOAD_CONST", all) == [("LOAD_COMMON_CONSTANT", COMMON_CONSTANTS.index(all))]
    assert isinstance(opcode._common_constants, (list, tuple)) and isinstance(v314.lift, types.FunctionType)


@pytest.mark.parametrize(
    "version, implementation, free, words",
    [
        ((3, 14), "cpython", 1, "does not run on the free-threaded build"),
        ((3, 10), "cpython", 0, "CPython 3.11 to 3.14; this is cpython 3.10"),
        ((3, 15), "cpython", 0, "this is cpython 3.15"),
        ((3, 11), "pypy", 0, "this is pypy 3.11"),
    ],
)
def test_interpreters_that_are_not_served_are_refused_in_words(monkeypatch, version, implementation, free, words):
    from tcompile.compiler.capture.bytecode import version as module

    with open(module.__file__, encoding="utf-8") as file:
        code = compile(file.read(), module.__file__, "exec")
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    monkeypatch.setattr(sys, "implementation", types.SimpleNamespace(name=implementation))
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: free)
    with pytest.raises(ImportError, match=re.escape(words)):
        exec(code, {"__name__": module.__name__, "__package__": module.__package__})
