"""The frame hook in company: deep recursion, tracers and debuggers, profilers, other threads and tasks, signals."""

from __future__ import annotations

import _thread
import asyncio
import cProfile
import signal
import subprocess
import sys
import threading
import time
import traceback

import pytest
import tcompile.compiler.runtime.frame_hook as hook
from tcompile.compiler.guards import compile_guards
from tcompile.compiler.native import native
from tcompile.compiler.runtime.dispatch import RUN_ORIGINAL, Dispatcher, Entry, code_cache, forget_code

pytestmark = pytest.mark.skipif(native is None, reason="the C extension is not built")


class Watcher:
    """A callback that notes the names it is asked about, and replaces those in `swap` by an entry that says so."""

    def __init__(self, swap=()):
        self.names, self.swap = [], swap

    def __call__(self, code, func, args):
        if code.co_filename != __file__:
            native.skip_code(code)
            return RUN_ORIGINAL
        self.names.append(code.co_name)
        if code.co_name not in self.swap:
            return RUN_ORIGINAL

        def swapped(fn, *values):
            return "swapped"

        native.skip_code(swapped.__code__)
        entry = Entry(compile_guards([], len(args)), swapped)
        code_cache(code).add(entry)
        return entry


@pytest.fixture(autouse=True)
def clean():
    yield
    assert not native.hook_installed() and not native.hook_active()
    forget_code(work.__code__)
    forget_code(down.__code__)


def work(x):
    return x


def down(n):
    return 0 if n == 0 else 1 + down(n - 1)


@pytest.fixture
def deep_limit():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)
    yield
    sys.setrecursionlimit(before)


# ---- recursion
def test_python_recurses_as_deep_as_without_the_hook(deep_limit):
    with hook.capturing(Watcher()):
        assert down(50_000) == 50_000  # far more than C's stack would take
        assert native.hook_installed() and native.hook_active()
        work(1)

    def in_a_thread():
        with hook.capturing(Watcher()):
            found.append(down(20_000))

    found = []
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert found == [20_000]


def test_frames_are_seen_again_after_deep_recursion(deep_limit):
    watcher = Watcher(swap=("work",))
    with hook.capturing(watcher):
        down(30_000)
        assert work(1) == "swapped"


def test_the_hook_is_left_in_deep_recursion(deep_limit):
    def leave(n):
        if n == 0:
            context.__exit__(None, None, None)
            return 0
        return leave(n - 1)

    context = hook.capturing(Watcher())
    context.__enter__()
    leave(30_000)
    assert not native.hook_installed()


def test_the_hook_is_entered_in_deep_recursion(deep_limit):
    watcher = Watcher(swap=("work",))

    def enter(n):
        if n == 0:
            with hook.capturing(watcher):
                return work(1)
        return enter(n - 1)

    with hook.capturing(Watcher()):
        assert enter(30_000) == 1  # too deep to compile anything
        with hook.capturing(watcher):
            assert work(1) == "swapped"


def test_the_recursion_limit_is_where_it_was():
    def depth():
        deepest = 0

        def go(k):
            nonlocal deepest
            deepest = k
            go(k + 1)

        with pytest.raises(RecursionError):
            go(0)
        return deepest

    plain = depth()
    with hook.capturing(Watcher()):
        assert abs(depth() - plain) <= 5


def test_compiled_recursion_goes_about_as_deep():
    """An entry takes several Python frames where the function takes one."""

    def entry(fn, n):
        return between(fn, n)

    def between(fn, n):
        return 0 if n == 0 else 1 + (lambda: fn(n - 1))()

    native.skip_code(entry.__code__)
    native.skip_code(between.__code__)
    code_cache(down.__code__).add(Entry(compile_guards([], 1), entry))
    compiled = Dispatcher(down, code_cache(down.__code__), lambda *a: RUN_ORIGINAL)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000 + len(traceback.extract_stack()) * 4 // 3)
    try:
        with hook.capturing(Watcher(), (Tensor,)):
            assert down(700) == 700
        assert compiled(700) == 700
    finally:
        sys.setrecursionlimit(limit)


# ---- tracers, debuggers, profilers
def test_a_trace_function_sees_the_lines_it_would_see():
    lines = []

    def trace(frame, event, arg):
        if frame.f_code is work.__code__:
            lines.append((event, frame.f_lineno))
        return trace

    watcher = Watcher(swap=("work",))
    with hook.capturing(watcher):
        assert work(1) == "swapped"
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            assert work(2) == 2
        finally:
            sys.settrace(before)
        assert work(3) == "swapped"
    assert [event for event, _ in lines] == ["call", "line", "return"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
@pytest.mark.parametrize("tool", ["DEBUGGER_ID", "COVERAGE_ID"])
def test_a_debugger_by_monitoring_sees_frames_as_they_are(tool):
    tool, started = getattr(sys.monitoring, tool), []
    with hook.capturing(Watcher(swap=("work",))):
        assert work(1) == "swapped"
        sys.monitoring.use_tool_id(tool, "test debugger")
        try:
            sys.monitoring.register_callback(
                tool, sys.monitoring.events.PY_START, lambda code, offset: started.append(code.co_name)
            )
            sys.monitoring.set_events(tool, sys.monitoring.events.PY_START)
            assert work(2) == 2
        finally:
            sys.monitoring.set_events(tool, 0)
            sys.monitoring.register_callback(tool, sys.monitoring.events.PY_START, None)
            sys.monitoring.free_tool_id(tool)
        assert work(3) == "swapped"
    assert "work" in started


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_what_is_monitored_is_what_is_without_the_hook():
    """An interpreter with another evaluator takes calls of Python functions for calls of native ones, and ends
    generators another way.
    """
    tool, events = sys.monitoring.COVERAGE_ID, sys.monitoring.events

    def numbers():
        yield 1
        return 2

    def watched(note):
        sys.monitoring.register_callback(tool, events.C_RETURN, lambda code, offset, f, arg: note.append(f.__name__))
        sys.monitoring.register_callback(tool, events.RAISE, lambda code, offset, e: note.append(type(e)))
        sys.monitoring.set_events(tool, events.CALL | events.RAISE)
        work(len("ab"))
        for _ in numbers():
            pass
        sys.monitoring.set_events(tool, 0)
        return note

    def both():
        sys.monitoring.use_tool_id(tool, "test coverage")
        try:
            return watched([])
        finally:
            sys.monitoring.free_tool_id(tool)

    without = both()
    with hook.capturing(Watcher()):
        assert both() == without and "len" in without and "work" not in without


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_other_monitoring_tools_leave_compiled_code_alone():
    tool, raised = sys.monitoring.PROFILER_ID, []

    def failing(fn, x):
        raise KeyError(x)

    native.skip_code(failing.__code__)
    code_cache(work.__code__).add(Entry(compile_guards([], 1), failing))
    sys.monitoring.use_tool_id(tool, "test profiler")
    events = sys.monitoring.events
    every = (
        events.PY_START
        | events.PY_RETURN
        | events.RAISE
        | events.PY_UNWIND
        | events.PY_THROW
        | events.CALL
        | events.C_RAISE
        | events.C_RETURN
    )
    try:
        sys.monitoring.register_callback(
            tool, events.RAISE, lambda code, offset, e: raised.append((code.co_name, e.args))
        )
        sys.monitoring.register_callback(
            tool, events.PY_UNWIND, lambda code, offset, e: raised.append((code.co_name, e.args))
        )
        with hook.capturing(Watcher()):
            sys.monitoring.set_events(tool, every)
            for _ in range(3):
                with pytest.raises(KeyError):
                    work(7)
            forget_code(work.__code__)
            assert work(8) == 8
    finally:
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.free_tool_id(tool)
    assert ("failing", (7,)) in raised


def test_a_profiler_stays_balanced():
    def failing(fn, x):
        if x < 0:
            raise KeyError(x)
        return "swapped"

    native.skip_code(failing.__code__)
    code_cache(work.__code__).add(Entry(compile_guards([], 1), failing))
    depth, lowest = [0], [0]

    def profile(frame, event, arg):
        depth[0] += {"call": 1, "return": -1}.get(event, 0)
        lowest[0] = min(lowest[0], depth[0])

    def some():
        for x in (1, -1, 2, -2):
            try:
                work(x)
            except KeyError:
                pass

    with hook.capturing(Watcher()):
        before = sys.getprofile()
        sys.setprofile(profile)
        some()
        sys.setprofile(before)
        profiler = cProfile.Profile()
        profiler.runcall(some)
    assert depth[0] == 0 and lowest[0] == 0
    assert any(call.code is some.__code__ and call.callcount == 1 for call in profiler.getstats())


# ---- which frames are asked about
class Tensor:
    pass


class Special(Tensor):
    pass


class Lying:
    """Says of itself that it is a Tensor; its attributes run code."""

    def __getattribute__(self, name):
        raise AssertionError(f"asked for {name}")


@pytest.mark.parametrize(
    "value,asked",
    [
        (1, False),
        ("s", False),
        (None, False),
        (object(), False),
        (Tensor(), True),
        (Special(), True),
        ([1, Tensor()], True),
        ((1, 2), False),
        ({"a": Special()}, True),
        ({"a": 1}, False),
        ([1] * 16 + [Tensor()], False),
        (Lying, False),
    ],
)
def test_only_frames_with_the_types_looked_for_are_asked_about(value, asked):
    watcher = Watcher()
    value = Lying() if value is Lying else value
    with hook.capturing(watcher, (Tensor,)):
        work(value)
    assert watcher.names == ["work"] * asked


def test_frames_with_entries_are_looked_up_whatever_they_are_given():
    watcher = Watcher(swap=("work",))
    with hook.capturing(watcher, (Tensor,)):
        assert work(1) == 1
        assert work(Tensor()) == "swapped"
        assert work(1) == "swapped"


def test_types_must_be_types():
    with pytest.raises(TypeError, match="tuple of types"):
        with hook.capturing(Watcher(), (1,)):
            pass


# ---- threads, tasks, signals
def test_each_thread_sees_its_own():
    found, gate = {}, threading.Barrier(4)

    def run(k):
        watcher = Watcher(swap=())
        gate.wait()
        for _ in range(200):
            with hook.capturing(watcher, (Tensor,)):
                work(1)
                work(Tensor())
        found[k] = len(watcher.names)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == dict.fromkeys(range(4), 200)


def test_tasks_of_others_are_not_seen_while_a_cell_awaits():
    seen = []

    async def other(stop):
        while not stop.is_set():
            work("other")
            await asyncio.sleep(0)

    async def cell():
        def watch(code, func, args):
            if code is work.__code__:
                seen.append(args[0])
            return RUN_ORIGINAL

        with hook.capturing(watch):
            for k in range(20):
                work("cell")
                await asyncio.sleep(0)
            await asyncio.gather(*(inner() for _ in range(3)))

    async def inner():
        work("task of the cell")

    async def main():
        stop = asyncio.Event()
        task = asyncio.create_task(other(stop))
        await asyncio.sleep(0)
        await asyncio.create_task(cell())
        stop.set()
        await task

    asyncio.run(main())
    assert seen.count("cell") == 20 and seen.count("task of the cell") == 3 and "other" not in seen


def test_generators_driven_from_several_activations():
    def numbers():
        k = 0
        while True:
            work(k)
            yield k
            k += 1

    first, second = Watcher(), Watcher()
    g = numbers()
    with hook.capturing(first):
        next(g)
    next(g)
    with hook.capturing(second):
        next(g)
        g.close()
    assert first.names == ["work"] and second.names == ["work"]


def test_interrupts_at_any_moment_leave_the_hook_in_order():
    """Ctrl-C while frames are looked at, called, refused: it arrives once, and the hook is off afterwards."""

    def spin():  # by itself: 3.13.0 loses the handlers around a loop that is interrupted at its jump
        end = time.perf_counter() + 5
        while time.perf_counter() < end:
            work(Tensor())
            work(1)

    interrupted = 0
    for k in range(30):
        timer = threading.Timer(0.001 + 0.0003 * k, _thread.interrupt_main, (signal.SIGINT,))
        try:
            with hook.capturing(Watcher(), (Tensor,)):
                timer.start()
                spin()
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        while native.disabled_depth():  # an interrupt inside the test's own callback is no concern here
            native.enable()
            pytest.fail("compiled code stayed switched off")
    assert interrupted == 30


AFTER_STOCK_FAILED = """
import torch, torch._dynamo, tcompile
from torch._C._dynamo import eval_frame
from tcompile.compiler.native import native

def inside(x):
    return torch.relu(x) + 1

def internal_error(*args, **kwargs):
    raise RuntimeError("internal error of stock's")

eval_frame.set_eval_frame(internal_error)
try:
    inside(torch.ones(3))
    raise SystemExit("stock's hook did not ask")
except RuntimeError:
    pass
with tcompile.record() as r, tcompile.enable():
    assert native.hook_installed(), "stock's hook has nothing to do and is in the way"
    inside(torch.ones(3))
assert [f.name for f in r.report().frames] == ["inside"]
assert torch.compile(inside, backend="eager")(torch.ones(3)).sum() == 6, "stock works as before"
with tcompile.record() as r, tcompile.enable():
    inside(torch.ones(3).double())
assert len(r.report().graphs) == 1
"""


@pytest.mark.slow
def test_the_hook_works_after_an_internal_error_of_stock_s():
    """Stock leaves its hook on top then, for good: frames of later cells were not seen."""
    done = subprocess.run([sys.executable, "-c", AFTER_STOCK_FAILED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
