"""The frame hook: what it sees, what it leaves alone, and that frames end as they should."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import threading
import traceback
import weakref

import pytest
import tcompile.compiler.runtime.frame_hook as hook
from tcompile.compiler.guards import Guard, compile_guards
from tcompile.compiler.guards import source as S
from tcompile.compiler.native import native
from tcompile.compiler.runtime.dispatch import RUN_ORIGINAL, Dispatcher, Entry, code_cache, disabled, forget_code

from ..pace import least, within

pytestmark = pytest.mark.skipif(native is None, reason="the C extension is not built")
HERE = __file__


class Recorder:
    """A callback that notes which functions of this file are asked about, and answers by name."""

    def __init__(self, **answers):
        self.seen, self.answers = [], answers

    def __call__(self, code, func, args):
        if code.co_filename != HERE:
            native.skip_code(code)
            return RUN_ORIGINAL
        self.seen.append((code.co_name, args))
        answer = self.answers.get(code.co_name, RUN_ORIGINAL)
        if callable(answer) and not isinstance(answer, Entry):
            entry = Entry(compile_guards([], len(args)), answer)
            native.skip_code(answer.__code__)
            code_cache(code).add(entry)
            return entry
        return answer

    @property
    def names(self):
        return [n for n, _ in self.seen]


@pytest.fixture(autouse=True)
def clean():
    yield
    assert not native.hook_installed() and not native.hook_active()
    for f in list(globals().values()):
        if callable(f) and hasattr(f, "__code__"):
            forget_code(f.__code__)


def plain(a, b=2, *rest, k=3, **more):
    return a, b, rest, k, more


def nothing():
    return "original"


def caller(x):
    return plain(x) + plain(x, 1)


def generator(n):
    for i in range(n):
        yield plain(i)[0]


async def coroutine(x):
    await asyncio.sleep(0)
    return plain(x)[0]


def raising(x):
    raise ValueError(x)


def closing(x):
    def inner(y):
        return x + y

    return inner


def swapped(func, *args):
    return ("compiled", *args)


def test_sees_frames_only_inside():
    r = Recorder()
    plain(0)
    with hook.capturing(r):
        assert native.hook_active()
        assert caller(5) == (5, 2, (), 3, {}, 5, 1, (), 3, {})
    plain(9)
    assert r.seen == [("caller", (5,)), ("plain", (5, 2, 3, (), {})), ("plain", (5, 1, 3, (), {}))]


def test_entries_take_the_frames_place():
    r = Recorder(plain=swapped, nothing=swapped)
    with hook.capturing(r):
        assert plain(1, 4, 5, k=6, z=7) == ("compiled", 1, 4, 6, (5,), {"z": 7})
        assert plain(2) == ("compiled", 2, 2, 3, (), {})
        assert nothing() == ("compiled",)
        assert [plain(i)[1] for i in range(50)] == list(range(50))
        assert sorted(map(plain, range(3))) == [("compiled", i, 2, 3, (), {}) for i in range(3)]
    r.seen = [s for s in r.seen if s[0] != "<listcomp>"]  # a frame of its own on 3.11
    assert r.names == ["plain", "nothing"]  # asked once; then the cache serves
    assert plain(1) == (1, 2, (), 3, {})
    with hook.capturing(r):  # entries are kept from one cell to the next
        assert nothing() == ("compiled",)
    assert r.names == ["plain", "nothing"]


def test_guards_choose_between_entries_and_misses_name_the_guard():
    asked = []

    def callback(code, func, args):
        if code is not nothing.__code__ and code is not closing.__code__:
            return RUN_ORIGINAL
        asked.append([i for _, i in code_cache(code).last_failures])
        e = Entry(compile_guards([Guard(S.local(0, "x"), "EQUALS", args[0])], 1), lambda f, x, v=args[0]: ("for", v))
        code_cache(code).add(e)
        native.skip_code(e.fn.__code__)
        return e

    with hook.capturing(callback):
        assert [closing(v) for v in (1, 2, 1, 2)] == [("for", v) for v in (1, 2, 1, 2)]
    assert asked == [[], [0]]


def test_plain_results_may_be_given():
    with hook.capturing(Recorder(nothing=41)):
        assert nothing() == 41


def test_closures_and_cells_at_entry():
    def local_entry(func, y):
        return ("free", func.__closure__[0].cell_contents, y)

    native.skip_code(local_entry.__code__)
    with hook.capturing(Recorder(inner=local_entry)):
        assert closing(3)(4) == ("free", 3, 4)
        assert closing(5)(6) == ("free", 5, 6)
    assert closing(3)(4) == 7
    x_is_cell = Recorder(closing=swapped)
    forget_code(closing.__code__)
    with hook.capturing(x_is_cell):  # x is a cell variable: the parameter itself is handed over
        assert closing(8) == ("compiled", 8)


def test_generators_coroutines_and_class_bodies_are_passed_over():
    r = Recorder()
    with hook.capturing(r):
        assert list(generator(3)) == [0, 1, 2]
        assert asyncio.run(coroutine(4)) == 4
        g = generator(2)
        next(g)

        class Body:
            value = nothing()

    assert next(g) == 1
    assert set(r.names) <= {"plain", "nothing", "<listcomp>", "<lambda>"}
    assert r.names.count("nothing") == 1


def test_exceptions_keep_their_traceback():
    with hook.capturing(Recorder()):
        with pytest.raises(ValueError) as original:
            raising(3)
    assert [f.name for f in traceback.extract_tb(original.tb)][-1] == "raising"

    def entry(func, x):
        raise KeyError(x)

    with hook.capturing(Recorder(raising=entry)):
        for _ in range(3):
            try:
                raising(7)
            except KeyError as error:
                frames = [f.name for f in traceback.extract_tb(error.__traceback__)]
                assert error.args == (7,) and frames == ["test_exceptions_keep_their_traceback", "entry"]
            else:
                pytest.fail("no exception")
        assert plain(1) == (1, 2, (), 3, {})


def test_exceptions_of_the_callback_reach_the_caller():
    def callback(code, func, args):
        if code is nothing.__code__:
            raise RuntimeError("compiler bug")
        return RUN_ORIGINAL

    with hook.capturing(callback):
        with pytest.raises(RuntimeError, match="compiler bug"):
            nothing()
    assert nothing() == "original"


def test_the_compiler_itself_is_not_captured():
    depth = []

    def callback(code, func, args):
        if code.co_filename == HERE:
            depth.append(code.co_name)
            assert native.disabled_depth() == 1
            caller(1)  # frames while compiling
        return RUN_ORIGINAL

    with hook.capturing(callback):
        nothing()
        with disabled():
            plain(1)
    assert depth == ["nothing", "capturing"] or depth == ["nothing"]


def test_other_threads_are_left_alone():
    r = Recorder()
    results = []
    with hook.capturing(r):
        t = threading.Thread(target=lambda: results.append(plain("other")))
        t.start()
        t.join()
        context = contextvars.copy_context()  # also with the context of this thread copied over
        t = threading.Thread(target=lambda: results.append(context.run(plain, "copied")))
        t.start()
        t.join()
        plain("mine")
    assert [a[0] for n, a in r.seen if n == "plain"] == ["mine"] and len(results) == 2


def test_other_tasks_are_left_alone_and_own_tasks_are_seen():
    r = Recorder()

    async def cell():
        with hook.capturing(r):
            await asyncio.sleep(0.01)
            plain("cell")
            child = asyncio.get_running_loop().create_task(child_task())
            await asyncio.sleep(0.02)
        late.set()
        await child

    async def child_task():
        plain("child")
        await late.wait()
        plain("child after the cell")

    async def kernel():
        for _ in range(10):
            plain("kernel")
            await asyncio.sleep(0.005)

    async def main():
        global late
        late = asyncio.Event()
        await asyncio.gather(kernel(), cell(), kernel())

    asyncio.run(main())
    assert [a[0] for n, a in r.seen if n == "plain"] == ["cell", "child"]


def test_nests():
    outer, inner = Recorder(), Recorder()
    with hook.capturing(outer):
        plain("outer")
        with hook.capturing(inner):
            plain("inner")
        assert native.hook_active()
        plain("outer again")
    assert [a[0] for n, a in outer.seen if n == "plain"] == ["outer", "outer again"]
    assert [a[0] for n, a in inner.seen if n == "plain"] == ["inner"]


def test_each_thread_asks_its_own_callback():
    first, second = Recorder(), Recorder()
    ready, done = threading.Event(), threading.Event()

    def other():
        with hook.capturing(second):
            ready.set()
            plain("second")
            done.wait(10)

    with hook.capturing(first):
        t = threading.Thread(target=other)
        t.start()
        ready.wait(10)
        plain("first")
        done.set()
        t.join()
        plain("first again")
    assert [a[0] for n, a in first.seen if n == "plain"] == ["first", "first again"]
    assert [a[0] for n, a in second.seen if n == "plain"] == ["second"]


def test_dispatchers_and_the_hook_share_caches():
    code_cache(nothing.__code__).add(Entry(compile_guards([], 0), swapped))
    d = Dispatcher(nothing, code_cache(nothing.__code__), lambda *a: pytest.fail("missed"))
    r = Recorder()
    native.skip_code(swapped.__code__)
    with hook.capturing(r):
        assert nothing() == ("compiled",) and d() == ("compiled",)
    assert r.names == []
    with hook.capturing(Recorder()):
        native.skip_code(nothing.__code__)
        assert nothing() == "original" and hook.is_skipped(nothing.__code__)
        native.unskip_code(nothing.__code__)
        assert nothing() == ("compiled",)


def test_deep_recursion():
    def down(n):
        return 0 if n == 0 else 1 + down(n - 1)

    def forever(n):
        return forever(n + 1)

    with hook.capturing(Recorder()):
        assert down(500) == 500
        with pytest.raises(RecursionError):
            forever(0)

    def entry(func, n):
        return func(n + 1)  # compiled code that calls itself through the hook

    native.skip_code(entry.__code__)
    forget_code(forever.__code__)
    with hook.capturing(Recorder(forever=entry)):
        with pytest.raises(RecursionError):
            forever(0)
        assert down(50) == 50


def test_no_leaks_in_many_frames():
    class Thing:
        pass

    def identity(x, y=None):
        return x

    def entry(func, x, y):
        if y is not None:
            raise y
        return x

    native.skip_code(entry.__code__)
    thing, error = Thing(), ValueError("again")
    with hook.capturing(Recorder(identity=entry)):
        identity(thing)
        gc.collect()
        before, blocks = sys.getrefcount(thing), sys.getallocatedblocks()
        for _ in range(100_000):
            identity(thing)
        for _ in range(2_000):
            try:
                identity(thing, error)
            except ValueError:
                pass
            error.__traceback__ = None
        gc.collect()
        assert sys.getrefcount(thing) == before
        assert sys.getallocatedblocks() - blocks < 500
    gone = weakref.ref(thing)
    del thing
    gc.collect()
    assert gone() is None


def test_skip_prefixes():
    native.set_skip_prefixes((HERE[:-3],))
    r = Recorder()
    try:
        with native.Capturing(r):
            (lambda: 1)()
    finally:
        native.set_skip_prefixes(())
    assert r.names == []
    assert any(p.endswith("threading.py") for p in hook.default_skip_prefixes())
    assert all(p.endswith(os.sep + "triton" + os.sep) for p in hook.default_skip_prefixes() if "site-packages" in p)


def test_bad_arguments():
    with pytest.raises(TypeError):
        native.Capturing(3)
    with pytest.raises(TypeError):
        native.Capturing(callback=print)
    once = native.Capturing(Recorder())
    with once:
        with pytest.raises(RuntimeError, match="in use"):
            once.__enter__()
    with pytest.raises(TypeError):
        native.set_skip_prefixes([1])
    with pytest.raises(TypeError):
        native.skip_code("code")
    with pytest.raises(RuntimeError):
        native.enable()


@pytest.mark.slow
def test_nests_with_torchs_own_hook():
    """Stock torch.compile inside and outside of ours (in a process of its own: it imports torch._dynamo)."""
    script = """
import torch
import tcompile.compiler.runtime.frame_hook as hook
from tcompile.compiler.native import native
from tcompile.compiler.runtime.dispatch import RUN_ORIGINAL
seen = []
def callback(code, func, args):
    seen.append(code.co_name)
    return RUN_ORIGINAL
def helper(x): return x + 1
def stock(x): return helper(x).sin()
compiled = torch.compile(stock, backend="eager")
def cell(x):
    return compiled(x) + helper(x)
x = torch.ones(3)
with hook.capturing(callback):
    y = cell(x)
    y2 = cell(x)
z = compiled(x)
with hook.capturing(callback):
    helper(x)
assert torch.equal(y, torch.sin(x + 1) + x + 1) and torch.equal(y, y2) and torch.equal(z, torch.sin(x + 1))
assert "cell" in seen and "helper" in seen, seen
assert not native.hook_active()
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "ok", done.stderr[-2000:]


def test_passing_over_costs_little():
    """tests/benchmarks/hook.py measures it; here only that it is no Python call."""

    def small(x):
        return x

    def often():
        for _ in range(5_000):
            small(1)

    def cost():
        (bare,) = least(often, rounds=20)
        with hook.capturing(lambda *a: pytest.fail("asked"), (dict,)):
            (over,) = least(often, rounds=20)
        return (over - bare) / bare

    assert within(cost, 3) <= 3  # 0.5 on an idle machine; a Python call would be 5 and more
