"""Break, resume and region functions by execution: every instruction of many small programs is broken at, every loop is
taken apart, and results, exceptions, side effects and last traceback lines must be those of the original function."""

from __future__ import annotations

import copy
import gc
import random
import re
import sys
import traceback
import weakref
from types import FunctionType

import pytest
from tcompile.compiler.capture.bytecode import assemble, decode
from tcompile.compiler.capture.bytecode.flow import analyse
from tcompile.compiler.capture.bytecode.loops import find_loops
from tcompile.compiler.capture.bytecode.memo import CodeMemo
from tcompile.compiler.capture.bytecode.regions import CannotOutline
from tcompile.compiler.capture.bytecode.resume import CannotResume, make_break, make_resume

from .bytecode_programs import CASES, IDS, LOG, A, branches, for_else, nested_handlers, say
from .native_breaks import outline_loops, rebuilt, states, variant_that_breaks, variant_that_loops, without_method_loads


# --- harness
# -------------------------------------------------------------------------------------------------------------
def outcome(function, args):
    """All that a caller can see, as text without addresses."""
    LOG.clear()
    args = copy.deepcopy(args)
    try:
        result = ("returned", function(*args))
    except Exception as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
        result = ("raised", type(e), str(e), e.__context__, e.__cause__, last.filename, last.lineno)
    own = [vars(a) for a in args if isinstance(a, A)]
    return re.sub(r"0x[0-9a-f]+", "", repr((result, LOG, args, own)))


class _Counter:
    """Calls of `due` count the visits of one instruction; the nth breaks."""

    def __init__(self, nth):
        self.nth, self.visits, self.dispatched = nth, 0, 0

    def due(self):
        self.visits += 1
        return self.visits == self.nth

    def dispatch(self, function, *args):
        self.dispatched += 1
        return function(*args)


def plain_and_states(function, args):
    plain = rebuilt(function, without_method_loads(function.__code__))
    LOG.clear()
    return plain, states(plain, copy.deepcopy(args))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_break_at_every_instruction(case):
    function, *args = case
    want = outcome(function, args)
    plain, seen = plain_and_states(function, args)
    assert outcome(plain, args) == want
    tried = 0
    for index, masks in sorted(seen.items()):
        for nth, mask in enumerate(masks[:3], 1):
            counter = _Counter(nth)
            try:
                code, _spec = variant_that_breaks(
                    plain.__code__, index, mask, counter.due, counter.dispatch, finish_short=bool(nth & 1)
                )
            except CannotResume:
                assert decode(plain.__code__).instructions[index].op in ("RESUME", "MAKE_CELL", "COPY_FREE_VARS")
                continue
            tried += 1
            assert outcome(rebuilt(function, code), args) == want, (decode(plain.__code__).instructions[index], nth)
            assert counter.visits >= 1, (decode(plain.__code__).instructions[index], nth, masks)
    assert tried > 5


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_break_at_every_loop(case):
    function, *args = case
    want = outcome(function, args)
    plain, seen = plain_and_states(function, args)
    for loop in find_loops(plain.__code__):
        for nth, mask in enumerate(seen.get(loop.head, [])[:3], 1):
            counter = _Counter(nth)
            try:
                code, spec = variant_that_loops(plain.__code__, loop, mask, counter.due, counter.dispatch)
            except CannotOutline as refusal:
                assert "comprehension" in str(refusal)
                continue
            assert outcome(rebuilt(function, code), args) == want, (loop, nth)
            assert spec.region is not None


@pytest.mark.parametrize("innermost", [False, True], ids=["outermost", "innermost"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_outlined_loops(case, innermost):
    function, *args = case
    want = outcome(function, args)
    calls = []

    def dispatch(region, *values):
        calls.append(region.__code__)
        result = region(*values)
        assert type(result) is tuple and type(result[0]) is int
        return result

    host, regions, refused = outline_loops(function.__code__, dispatch, innermost=innermost)
    assert outcome(rebuilt(function, host), args) == want
    assert {id(code) for code in calls} <= {id(region.code) for region in regions}
    assert all("comprehension" in reason for _, reason in refused)


class _Chaos:
    """A dispatcher that breaks the functions it is given once more, at an instruction where the code alone decides the
    state.
    """

    def __init__(self, seed):
        self.random, self.budget = random.Random(seed), 40

    def __call__(self, function, *args):
        return self.spoil(function)(*args)

    def spoil(self, function: FunctionType) -> FunctionType:
        if self.budget <= 0 or self.random.random() < 0.2:
            return function
        self.budget -= 1
        code = without_method_loads(function.__code__)
        counter = _Counter(self.random.randint(1, 2))
        if self.random.random() < 0.4 and find_loops(code):
            try:
                made, _ = variant_that_loops(code, self.random.choice(find_loops(code)), None, counter.due, self)
                return rebuilt(function, made)
            except (CannotOutline, CannotResume, ValueError):
                pass  # not this loop: break at an instruction instead
        for _ in range(8):
            index = self.random.randrange(len(decode(code).instructions))
            try:
                made, _ = variant_that_breaks(
                    code, index, None, counter.due, self, finish_short=self.random.random() < 0.5
                )
            except (CannotResume, ValueError):
                continue
            return rebuilt(function, made)
        return function


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_breaks_within_breaks(case):
    function, *args = case
    want = outcome(function, args)
    for seed in range(4):
        chaos = _Chaos(seed)
        assert outcome(lambda *a, chaos=chaos: chaos.spoil(function)(*a), args) == want, seed


# --- interface
# -----------------------------------------------------------------------------------------------------------
def test_same_state_gives_the_same_code():
    code = for_else.__code__
    index = next(i.index for i in decode(code).instructions if i.op == "FOR_ITER")
    bound = [0, 1]
    assert make_resume(code, index, (), bound) is make_resume(code, index, (), bound)
    # resume functions have entries, break functions have none
    again = [make_break(code, index, (), bound) for _ in range(2)]
    assert again[0].successors == again[1].successors != ()
    assert make_resume(code, index, (), [0, 1, 2]).code is not make_resume(code, index, (), bound).code


def test_nothing_is_remembered_of_code_that_is_gone():
    def make(k):
        scope = {}
        exec(f"def f(x):\n    for i in range(x):\n        x = g(i) + {k}\n    return x", scope)
        code = scope["f"].__code__
        for ins in decode(code).instructions:
            try:
                make_break(code, ins.index)
            except (CannotResume, ValueError):
                continue
        return weakref.ref(code)

    gone = [make(k) for k in range(5)]
    gc.collect()
    assert [ref() for ref in gone] == [None] * 5


def test_equal_code_is_told_apart():
    texts = ["def f(x):\n    return x"] * 2
    first, second = (compile(text, "<same>", "exec").co_consts[0] for text in texts)
    assert first == second and first is not second
    memo = CodeMemo()
    memo[first] = 1
    assert second not in memo and memo.get(second) is None and memo.get(first) == 1 and list(memo) == [first]
    del first
    texts.clear()
    gc.collect()
    assert len(memo) == 0


def test_only_live_locals_are_passed():
    def f(a, b):
        c = say(a)
        return c

    code = f.__code__
    store = next(i for i in decode(code).instructions if i.op == "STORE_FAST")
    spec = make_resume(code, store.index)
    assert [p.kind for p in spec.params] == ["stack"]
    assert spec.function(globals())(7) == 7
    assert spec.code.co_name == code.co_name and spec.code.co_filename == code.co_filename


def test_frame_inspection_keeps_all_locals():
    def f(a, b):
        c = 1
        say(c)
        return sorted(locals())

    index = next(i.index for i in decode(f.__code__).instructions if i.op == "POP_TOP")
    spec = make_resume(f.__code__, index)
    assert spec.function(globals())(1, 2, 3, None) == ["a", "b", "c"]


def test_cells_keep_their_identity():
    def f(x):
        def get():
            return x

        say(0)
        x = 5
        return get

    code = f.__code__
    index = next(i.index for i in decode(code).instructions if i.op == "POP_TOP")
    spec = make_resume(code, index)
    cell = type((lambda: code).__closure__[0])(1)
    reader = FunctionType((lambda: cell).__code__, {}, "get", None, (cell,))
    get = spec.function(globals(), [cell])(*spec.arguments({1: reader}, [None]))
    assert get() == 5 and cell.cell_contents == 5


def test_what_cannot_be_resumed_says_why():
    def gen():
        yield 1

    with pytest.raises(CannotResume, match="generator"):
        make_break(gen.__code__, 3)
    body = compile("class K:\n    a = 1\n    b = a + 1\n", "<k>", "exec").co_consts[0]
    with pytest.raises(CannotResume, match="namespace of its own"):
        make_break(body, 5)
    with pytest.raises(CannotResume, match="not started"):
        make_break(branches.__code__, 0)


def test_state_that_contradicts_the_code_is_refused():
    index = next(i.index for i in decode(branches.__code__).instructions if i.op == "BINARY_OP")
    with pytest.raises(ValueError, match="NULL"):
        make_break(branches.__code__, index, [0], [0, 1])
    with pytest.raises(ValueError, match="'b'"):
        make_break(branches.__code__, index + 1, [], [0])


CELL = """
total = 0
names = []
for i in data:
    total += i
    if i == 3:
        continue
    names.append([k * i for k in range(i)])
    if i > 5:
        break
else:
    total = -1
n = 5
while n:
    n -= 1
    def g():
        return n
    if n == 2:
        continue
    z: int = g()
try:
    del i
except NameError as e:
    message = str(e)
here = sorted(k for k in locals() if not k.startswith("_"))
last = globals() is locals()
"""


def run_cell(code, data):
    namespace = {"data": data, "__name__": "cell"}
    exec(code, namespace)
    namespace.pop("__builtins__")
    namespace.pop("g")
    return namespace


@pytest.mark.parametrize("data", [[], [1, 2, 3], [1, 7, 8]], ids=str)
def test_module_level_loops(data):
    code = compile(CELL, "<cell>", "exec")
    want = run_cell(code, data)
    calls = []

    def dispatch(region, *args):
        calls.append(args)
        return region(*args)

    host, regions, refused = outline_loops(code, dispatch, locals_are_globals=True)
    assert run_cell(host, data) == want
    assert len(calls) >= 5 and len(regions) >= 2
    assert all(len(region.params) == (region.loop.kind == "for") for region in regions)


def test_module_level_break_at_every_instruction():
    code = without_method_loads(compile(CELL, "<cell>", "exec"))
    want = run_cell(code, [1, 2, 3, 7])
    tried = 0
    for ins in decode(code).instructions:
        for nth in (1, 3):
            counter = _Counter(nth)
            try:
                made, _ = variant_that_breaks(
                    code, ins.index, None, counter.due, counter.dispatch, locals_are_globals=True
                )
            except (CannotResume, ValueError) as e:
                assert "not started" in str(e) or "does not decide" in str(e)  # a comprehension's variable
                continue
            tried += 1
            got = run_cell(made, [1, 2, 3, 7])
            got.pop(".t", None)
            assert got == want, ins
    assert tried > 100


def test_stack_kinds_and_traceback_lines():
    code = nested_handlers.__code__
    inside = next(i for i in decode(code).instructions if i.op == "STORE_FAST" and i.arg == "e")
    assert analyse(decode(code)).kinds[inside.index] == ("prev_exc", "value")
    assert assemble(decode(code)).co_linetable == code.co_linetable or sys.version_info >= (3, 12)
