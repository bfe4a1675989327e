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
from tcompile.compiler.capture.bytecode.loops import find_loops
from tcompile.compiler.capture.bytecode.memo import CodeMemo
from tcompile.compiler.capture.bytecode.regions import CannotOutline
from tcompile.compiler.capture.bytecode.resume import CannotResume, make_break, make_resume, stack_kinds

from .native_breaks import outline_loops, rebuilt, states, variant_that_breaks, variant_that_loops, without_method_loads

LOG: list = []


def say(*values):
    LOG.append(values)
    return len(LOG)


def boom(x):
    LOG.append(("boom", x))
    raise ValueError(x)


class Manager:
    def __init__(self, swallow=False):
        self.swallow = swallow

    def __enter__(self):
        LOG.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        LOG.append(("exit", kind and kind.__name__, str(value)))
        return self.swallow


# --- programs
# ------------------------------------------------------------------------------------------------------------
def branches(a, b):
    c = a + b
    if c > 3 and a:
        c = say(c) * 2
    else:
        c = -c
    return [c, a, b]


def for_else(n):
    t = 0
    for i in range(n):
        if i == 3:
            continue
        if i == 6:
            break
        t += i * say(i)
    else:
        t = -1
    return t, i if n else None


def nested_handlers(x):
    r = []
    try:
        r.append(say(1))
        boom(x)
        r.append(2)
    except ValueError as e:
        r.append(str(e))
        r.append(sys.exception() is e)
        try:
            boom(str(x) + "in")
        except ValueError:
            r.append(str(sys.exception()))
            r.append(str(sys.exception().__context__))
        r.append(str(sys.exception()))
    finally:
        r.append(sys.exception())
        say("fin")
    r.append(sys.exception())
    return r


def with_blocks(x):
    with Manager(True) as c, Manager() as d:
        y = say(x)
        if x > 2:
            boom(y)
        z = c.swallow, d.swallow
    try:
        return z
    except UnboundLocalError:
        return "unbound"


def closures(x):
    def g():
        return x + 1

    x = x * 2
    h = lambda k: (x, k, y)
    y = g()
    return [h(i) for i in range(3)], g()


def arguments(xs, k=3, *rest, m=4, **kw):
    a, *b = xs
    d = {"p": a, **kw}
    s = f"{a!r:>{k}}|{b}"
    q = [i * k for i in xs if i]
    w = {i: j for i, j in zip(xs, b)}
    del a
    return d, s, q, w, xs[1:2], rest, m, not b, max(*xs, key=lambda v: -v), dict(z=1, **kw)


def while_with_finally(x):
    while True:
        x -= 1
        try:
            if x < 0:
                return x
            if x == 2:
                continue
            if x == 1:
                boom(x)
        except ValueError:
            say("v")
        finally:
            say("f", x)


class A:
    def __init__(self):
        self.v = 1

    def m(self, x):
        return x + self.v


class B(A):
    def method(self, x):
        y = say(x)
        r = super().m(x) + y
        self.v += r
        return r, __class__.__name__, self.v

    def loop(self, xs):
        t = 0
        for x in xs:
            t += super().m(x)
            self.v += 1
        return t, self.v


def matching(x):
    match x:
        case [a, b]:
            return say(a + b)
        case {"k": v}:
            return v
        case A(v=z):
            return z
        case _:
            return "none"


def statements(x):
    global GLOBAL
    GLOBAL = x
    import math
    from os import path as p

    assert x, "msg"
    x.append(GLOBAL[0])
    x[0] += 1
    x[0:1] = [7]
    return (
        math.floor(2.5),
        p is not None,
        GLOBAL,
        (x is None or x),
        x if x[0] < 9 < 10 else None,
        x[-1] if None is x else +x[0],
    )


def raising(x):
    raise KeyError(x) from ValueError("c")


def captured_loop_variables(xs):
    out = []
    for x in xs:
        for y in xs:
            if y > x:
                continue
            out.append((lambda: x * y)())
        else:
            out.append("e")
    fs = [lambda: z for z in xs]
    return out, [g() for g in fs], sorted(locals())


def exception_groups(x):
    try:
        try:
            boom(x)
        finally:
            say("inner")
    except* ValueError as eg:
        r = len(eg.exceptions), say("s")
    return r


def raise_in_handler(x):
    try:
        boom(x)
    except TypeError:
        return 1
    except (KeyError, ValueError) as e:
        with Manager():
            raise RuntimeError("x") from e


def loop_sum(xs):
    t = 0
    for x in xs:
        if x == 2:
            continue
        y = say(x)
        if x > 5:
            break
        t += y
    else:
        t += 100
    return t, (y if xs else None)


def loops_in_loops(xs):
    for i, (a, b) in enumerate(xs):
        for j in range(a):
            if j == b:
                return i, j
            if j > b:
                break
            last = j
        say(i)
    try:
        return last
    except UnboundLocalError:
        return "u"


def loop_with_everything(xs):
    out = []
    k = 0
    fs = []
    for x in xs:
        k += 1
        try:
            with Manager(x == 1) as c:
                if x == 3:
                    continue
                if x == 1:
                    boom(x)
                if x == 7:
                    break
                out.append((x, c.swallow))
        except ValueError as e:
            out.append(str(e))
            if x == 5:
                raise
        finally:
            out.append(("f", x))
        fs.append(lambda: (x, k))
    return out, [f() for f in fs]


def while_else(n):
    while n > 0:
        n -= 1
        if n == 5:
            say("c")
            continue
        if n == 2:
            break
        z = n
    else:
        return "else", n
    try:
        return z, n
    except NameError as e:
        return str(e)


def endless(n):
    while True:
        try:
            n = n - say(n)
            if n < 0:
                boom(n)
        except ValueError as e:
            if n < -5:
                return str(e), sys.exception() is e
            continue


def deleted_in_loop(xs):
    try:
        for x in xs:
            if x:
                del x
            if say(1) == 3:
                boom("q")
    except ValueError:
        return "caught", "x" in repr(xs)
    return x


def read_while_unbound(xs):
    d = {}
    for x in xs:
        try:
            d[x] = prev  # noqa: F821
        except UnboundLocalError:
            d[x] = None
        prev = x
    for y in xs:
        while y:
            y -= 1
            if y == 1:
                return d
            for q in range(y):
                d[q, y] = [q * w for w in range(q)]
    return d


def sometimes_bound(xs):
    for x in xs:
        if x > 2:
            del xs[0]
            r = x
        elif x == 1:
            r = 0
            del r
    try:
        return r
    except UnboundLocalError as e:
        return str(e)


def nonlocal_in_loop(x):
    def inc():
        nonlocal c
        c += 1

    c = 0
    for i in range(x):
        inc()
        if c % 2:
            w = c
    return c, w, i


def loops_in_with(n):
    with Manager(True):
        for i in range(n):
            with Manager():
                for j in range(i):
                    if j == 2:
                        boom((i, j))
                    if j == 1 and i == 2:
                        return "ret", i, j
    return i, j


def handler_leaves_loop(xs):
    for x in xs:
        try:
            try:
                boom(x)
            except ValueError:
                if x == 2:
                    break
                if x == 3:
                    return sys.exception().args
                raise KeyError(x)
        except KeyError as k:
            say(str(k), str(k.__context__))
    return sys.exception()


def and_or_while(x, n):
    r = []
    while n:
        while x and n:
            n -= 1
            if n == 2:
                continue
            while x > 0:
                x -= 1
                if x == 3:
                    break
            r.append((x, n))
        n -= 1
    return r


CASES = [
    (branches, 1, 2),
    (branches, 3, 2),
    (for_else, 0),
    (for_else, 3),
    (for_else, 9),
    (nested_handlers, 5),
    (with_blocks, 1),
    (with_blocks, 5),
    (closures, 3),
    (arguments, [1, 2, 3], 2, 9),
    (while_with_finally, 4),
    (B.method, B(), 4),
    (matching, [1, 2]),
    (matching, {"k": 3}),
    (matching, A()),
    (matching, 3),
    (statements, [1, 2]),
    (statements, []),
    (raising, 1),
    (captured_loop_variables, [1, 2, 3]),
    (exception_groups, 2),
    (raise_in_handler, 2),
    (loop_sum, []),
    (loop_sum, [1, 2, 3]),
    (loop_sum, [1, 2, 7, 3]),
    (loops_in_loops, [(3, 5), (2, 5)]),
    (loops_in_loops, [(3, 1), (2, 5)]),
    (loops_in_loops, []),
    (loop_with_everything, [1, 2, 3, 4]),
    (loop_with_everything, [1, 7, 4]),
    (loop_with_everything, [2, 1, 5]),
    (while_else, 9),
    (while_else, 0),
    (while_else, 2),
    (while_else, 3),
    (endless, 4),
    (endless, 40),
    (deleted_in_loop, [0, 1]),
    (deleted_in_loop, [1, 0]),
    (deleted_in_loop, [1, 0, 0, 0]),
    (read_while_unbound, [1, 2]),
    (read_while_unbound, [3, 4]),
    (sometimes_bound, [1]),
    (sometimes_bound, [3, 1]),
    (sometimes_bound, [1, 3]),
    (sometimes_bound, [1, 3, 4, 5, 6]),
    (B.loop, B(), [1, 2]),
    (nonlocal_in_loop, 4),
    (loops_in_with, 5),
    (loops_in_with, 2),
    (loops_in_with, 1),
    (loops_in_with, 0),
    (handler_leaves_loop, [1, 1]),
    (handler_leaves_loop, [1, 2]),
    (handler_leaves_loop, [1, 3, 3]),
    (and_or_while, 9, 7),
]
IDS = [f"{case[0].__name__}-{at}" for at, case in enumerate(CASES)]


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
    again = [
        make_break(code, index, (), bound) for _ in range(2)
    ]  # resume functions have entries, break functions have none
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
    assert stack_kinds(code, inside.index) == ("prev_exc", "value")
    assert assemble(decode(code)).co_linetable == code.co_linetable or sys.version_info >= (3, 12)
