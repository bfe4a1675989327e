"""decode and assemble: the standard library survives the round trip, in form and when executed."""

from __future__ import annotations

import dis
import importlib
import sys
import types

import pytest

from tcompile.compiler.capture.bytecode import (
    OPS,
    Bytecode,
    Instruction,
    Slot,
    UnsupportedBytecode,
    assemble,
    decode,
    stack_effect,
)
from tcompile.compiler.capture.bytecode.flow import analyse, depths
from tcompile.compiler.capture.bytecode.opset import JUMPS, NAME_OPS, SLOT_OPS, TERMINATORS
from tcompile.compiler.capture.bytecode.wire import encode_exception_table, encode_line_table, parse_exception_table

MODULES = (
    """
        argparse ast asyncio.tasks asyncio.base_events collections contextlib copy csv dataclasses datetime difflib
        doctest email.message enum fractions functools gettext heapq inspect ipaddress json.decoder logging pathlib
        pickle plistlib random re._parser statistics string subprocess tempfile textwrap threading tokenize traceback
        turtle types typing unittest.mock zipfile"""
).split()
SMALL = "heapq json.decoder textwrap difflib fractions string csv statistics copy re._parser".split()


def code_objects(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from code_objects(const)


def source_of(name):
    pytest.importorskip(name, exc_type=ImportError)
    module = importlib.import_module(name)
    with open(module.__file__, encoding="utf-8") as file:
        return compile(file.read(), module.__file__, "exec", dont_inherit=True)


def form(bytecode: Bytecode):
    """Everything an instruction says, references as indices; hidden locals of module code change their names."""

    def operand(ins):
        if isinstance(ins.arg, types.CodeType):
            return ins.arg.co_name
        return repr(ins.arg).replace("'.", "'") if ins.op in SLOT_OPS else repr(ins.arg)

    return [
        (
            ins.op,
            operand(ins),
            ins.slot,
            ins.target and ins.target.index,
            ins.kwnames,
            ins.method,
            ins.two_arg,
            ins.with_spec,
            ins.positions,
            ins.handler and (ins.handler.target.index, ins.handler.depth, ins.handler.lasti),
        )
        for ins in bytecode.instructions
    ]


@pytest.mark.parametrize("name", MODULES)
def test_stdlib_module(name):
    for code in code_objects(source_of(name)):
        bytecode = decode(code)
        made = assemble(bytecode)
        flow = analyse(bytecode)
        again = decode(made)
        if None not in depths(bytecode):
            assert form(again) == form(bytecode), code
        # RETURN_CONST and 3.11's JUMP_IF_x_OR_POP need no slot of their own, LOAD_CONST and COPY do
        assert made.co_stacksize <= code.co_stacksize + 1
        assert max(len(k) for k in flow.kinds if k is not None) <= made.co_stacksize
        assert (
            made.co_freevars,
            made.co_cellvars,
            made.co_argcount,
            made.co_kwonlyargcount,
            made.co_posonlyargcount,
            made.co_flags,
        ) == (
            code.co_freevars,
            code.co_cellvars,
            code.co_argcount,
            code.co_kwonlyargcount,
            code.co_posonlyargcount,
            code.co_flags,
        )
        assert (made.co_name, made.co_qualname, made.co_filename, made.co_firstlineno) == (
            code.co_name,
            code.co_qualname,
            code.co_filename,
            code.co_firstlineno,
        )
        if made.co_code == code.co_code:
            assert made.co_exceptiontable == code.co_exceptiontable
            for index, slot in enumerate(bytecode.slots):
                assert code._varname_from_oparg(index) == slot.name


BORROWS = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="3.14 borrows locals where it can prove it safe; made code takes them"
)


@BORROWS
def test_most_code_comes_back_byte_for_byte():
    same = total = 0
    for name in SMALL:
        for code in code_objects(source_of(name)):
            same += assemble(decode(code)).co_code == code.co_code
            total += 1
    assert same / total > 0.9


def reassembled(code):
    """`code` and all code objects in it, taken apart and put together."""
    made = assemble(decode(code))
    return made.replace(co_consts=tuple(reassembled(c) if isinstance(c, types.CodeType) else c for c in made.co_consts))


def fresh(name):
    module = types.ModuleType(name)
    module.__file__ = importlib.import_module(name).__file__
    module.__package__ = name.rpartition(".")[0]
    exec(reassembled(source_of(name)), module.__dict__)
    return module


def test_reassembled_modules_work():
    heap = [5, 3, 8, 1, 9, 2]
    heapq = fresh("heapq")
    heapq.heapify(heap)
    assert [heapq.heappop(heap) for _ in range(6)] == [1, 2, 3, 5, 8, 9] and list(
        heapq.merge([1, 4], [2, 3], key=lambda v: v)
    ) == [1, 2, 3, 4]
    decoder = fresh("json.decoder")
    assert decoder.py_scanstring('a\\u00e9"', 0) == ("a\u00e9", 8)
    assert decoder.JSONDecoder().decode('{"a": [1, 2.5, null, true], "b": {}}') == {"a": [1, 2.5, None, True], "b": {}}
    with pytest.raises(ValueError, match="Expecting"):
        decoder.JSONDecoder().decode("{")
    textwrap = fresh("textwrap")
    assert textwrap.fill("the quick brown fox " * 3, 20) == importlib.import_module("textwrap").fill(
        "the quick brown fox " * 3, 20
    )
    difflib = fresh("difflib")
    one, two = "a b c d".split(), "a x c e d".split()
    assert list(difflib.unified_diff(one, two)) == list(importlib.import_module("difflib").unified_diff(one, two))
    fractions = fresh("fractions")
    assert (
        str(fractions.Fraction("3/7") + fractions.Fraction(1, 3) ** 2) == "34/63"
        and round(fractions.Fraction(7, 2)) == 4
    )
    statistics = fresh("statistics")
    assert statistics.median([3, 1, 2]) == 2 and statistics.quantiles(range(9)) == [1.5, 4.0, 6.5]
    string = fresh("string")
    assert string.Template("$a and ${b}").safe_substitute(a=1) == "1 and ${b}"


def test_reassembled_generators_and_coroutines_work():
    text = """
import asyncio
def gen(n):
    try:
        for i in range(n):
            got = yield i
            if got: yield from inner(got)
    finally:
        log.append("closed")
def inner(k):
    r = yield [k for _ in range(2)]
    return r
class Source:
    def __aiter__(self): return self
    n = 0
    async def __anext__(self):
        self.n += 1
        if self.n > 3: raise StopAsyncIteration
        return self.n
    async def __aenter__(self): return self
    async def __aexit__(self, *a): log.append(a[0])
async def work():
    out = []
    async with Source() as s:
        async for v in s:
            out.append(v)
            await asyncio.sleep(0)
    out += [v async for v in agen()]
    return out
async def agen():
    for i in range(2):
        yield i
log = []
g = gen(3); log.append([next(g), g.send(7), next(g), next(g)]); g.close()
log.append(asyncio.run(work()))
"""
    code = compile(text, "<generators>", "exec")
    a, b = {}, {}
    exec(code, a)
    exec(reassembled(code), b)
    assert a["log"] == b["log"] and len(a["log"]) == 4


def test_positions_survive():
    source = "def f(a):\n    x = (a +\n         1)\n    return x // 0\n"
    scope: dict = {}
    exec(reassembled(compile(source, "<p>", "exec")), scope)
    code = scope["f"].__code__
    original = compile(source, "<p>", "exec").co_consts[0]
    assert list(code.co_positions()) == list(original.co_positions()) and list(code.co_lines()) == list(
        original.co_lines()
    )
    try:
        scope["f"](1)
    except ZeroDivisionError as e:
        assert e.__traceback__.tb_next.tb_lineno == 4


def test_every_canonical_op_is_described_and_known_to_one_class():
    for op in OPS.values():
        assert op.meaning and op.name == op.name.upper()
    assert (
        not SLOT_OPS & NAME_OPS
        and not JUMPS & SLOT_OPS
        and TERMINATORS <= set(OPS)
        and JUMPS | SLOT_OPS | NAME_OPS <= set(OPS)
    )


def test_stack_effects_agree_with_dis():
    def f(a, b, *c, **d):
        for i in a:
            with b as q:
                x, *y = c
                z = [*c, i, {**d, "k": q}]
                if x and not y or z is None:
                    f(a, b, *c, **d)
        return a[1:2], f"{a!r:>{b}}", lambda: z

    bytecode = decode(f.__code__)
    depth = analyse(bytecode).kinds
    raw = {i.offset: i for i in dis.get_instructions(f.__code__)}
    for ins in bytecode.instructions:
        native = raw.get(ins.offset)
        if (
            native is not None
            and native.opname == ins.op not in ("MAKE_FUNCTION", "RETURN_VALUE")
            and depth[ins.index] is not None
        ):
            want = dis.stack_effect(
                native.opcode, native.arg if native.opcode >= dis.HAVE_ARGUMENT else None, jump=False
            )
            assert stack_effect(ins) == want, ins


@BORROWS
def test_far_jumps_and_many_constants():
    lines = ["def f(n):", "    t = 0", "    while n:", "        n -= 1", "        if n == 2: continue"]
    lines += [f"        t += {1000 + k} + len('c{k}') * n" for k in range(600)]
    lines += ["        if t < 0: break", "    else:", "        t += 1", "    return t"]
    scope: dict = {}
    again: dict = {}
    code = compile("\n".join(lines), "<far>", "exec")
    exec(code, scope)
    exec(reassembled(code), again)
    assert scope["f"](5) == again["f"](5)
    assert again["f"].__code__.co_code == scope["f"].__code__.co_code


def test_tables_encode_what_they_decode():
    rows = [(0, 2, 4, 0, False), (2, 130, 700, 3, True), (10000, 20000, 300000, 70, False)]
    assert list(parse_exception_table(encode_exception_table(rows))) == rows
    spans = [
        (1, (5, 5, 0, 3)),
        (20, (5, 5, 90, 95)),
        (3, (7, 9, 130, 2)),
        (2, (None, None, None, None)),
        (1, (6, 6, None, None)),
        (1, (3, 3, 2, 70)),
    ]
    code = (lambda: 0).__code__
    units = sum(n for n, _ in spans)
    nops = bytes([dis.opmap["RESUME"], 0]) + bytes([dis.opmap["NOP"], 0]) * (units - 3) + code.co_code[-4:]
    made = code.replace(co_code=nops, co_linetable=encode_line_table(code.co_firstlineno, spans))
    got = list(made.co_positions())[:units]
    want = [
        (line, end if col is not None else line, col, end_col)
        for n, (line, end, col, end_col) in spans
        for _ in range(n)
    ]
    assert got == want[: len(got)]


def test_backward_conditional_jump_and_backward_loop_exit():
    """What splicing makes and compilers do not: a conditional jump back, a loop whose exit lies before it."""

    def build(*instructions):
        return assemble(Bytecode(list(instructions), [Slot("n", True, False, False, True)], 1, name="f", qualname="f"))

    top = Instruction("LOAD_FAST", "n", slot=0)
    back = Instruction("POP_JUMP_IF_TRUE", target=top)
    pieces = [
        Instruction("RESUME", 0),
        top,
        Instruction("LOAD_CONST", 1),
        Instruction("BINARY_OP", "-"),
        Instruction("COPY", 1),
        Instruction("STORE_FAST", "n", slot=0),
        Instruction("TO_BOOL"),
        back,
        Instruction("LOAD_FAST", "n", slot=0),
        Instruction("RETURN_VALUE"),
    ]
    assert types.FunctionType(build(*pieces), {})(9) == 0

    done = Instruction("LOAD_FAST", "n", slot=0)
    head = Instruction("FOR_ITER", target=done)
    start = Instruction("LOAD_FAST", "n", slot=0)
    pieces = [
        Instruction("RESUME", 0),
        Instruction("JUMP", target=start),
        done,
        Instruction("RETURN_VALUE"),
        start,
        Instruction("GET_ITER"),
        head,
        Instruction("STORE_FAST", "n", slot=0),
        Instruction("JUMP", target=head),
    ]
    assert types.FunctionType(build(*pieces), {})([1, 2, 3]) == 3


def test_code_that_does_not_hold_together_is_refused():
    with pytest.raises(UnsupportedBytecode, match="runs off its end"):
        assemble(Bytecode([Instruction("RESUME", 0), Instruction("LOAD_CONST", 1)], []))
    end = Instruction("RETURN_VALUE")
    with pytest.raises(UnsupportedBytecode, match="stack"):
        assemble(Bytecode([Instruction("RESUME", 0), end], []))
    other = Instruction("NOP", index=3)
    with pytest.raises((UnsupportedBytecode, IndexError)):
        assemble(Bytecode([Instruction("RESUME", 0), Instruction("JUMP", target=other)], []))


def test_decode_is_shared_and_copies_are_not():
    code = test_far_jumps_and_many_constants.__code__
    assert decode(code) is decode(code)
    copy = decode(code).copy()
    assert copy.instructions[0] is not decode(code).instructions[0]
    inside = {id(i) for i in copy.instructions}
    assert all(id(i.target) in inside for i in copy.instructions if i.target is not None)
    assert "RESUME" in copy.dump() and copy.instructions[0].op in ("RESUME", "MAKE_CELL", "COPY_FREE_VARS")


def test_the_layer_needs_no_torch():
    import subprocess
    from pathlib import Path

    import tcompile.compiler.capture.bytecode as package

    # (the packages around it are bare names, so that none of them is run)
    root = Path(package.__file__).parents[2]
    script = (
        "import sys, types\n"
        "for name, folder in (('c', ''), ('c.capture', '/capture'), ('c.base', '/base')):\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        "    sys.modules[name].__path__ = [sys.argv[1] + folder]\n"
        "import c.capture.bytecode.regions, c.capture.bytecode.loop_break\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(root)], check=True)


def test_code_that_loses_its_docstring_makes_a_function():
    """From 3.13 on a flag says that the first constant is the docstring: without any constant CPython would end the
    process.
    """

    def f(x):
        """Words."""
        return x

    bytecode = decode(f.__code__).copy()
    bytecode.consts = ()
    made = types.FunctionType(assemble(bytecode), globals())
    assert made(3) == 3 and made.__doc__ is None
    assert types.FunctionType(assemble(decode(f.__code__)), globals()).__doc__ == "Words."
