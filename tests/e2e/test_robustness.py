"""Threads, memory, lifetimes, state after exceptions, and the compiler without its C extension."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn as nn

import tcompile

ROOT = Path(__file__).resolve().parents[2]


# ---- threads
def test_one_compilation_at_a_time():
    """A backward graph, compiled when autograd asks for it, and another thread's functions: their stages share
    tables.
    """
    told = []

    def lowering(aten, opts):
        told.append(("begins", threading.get_ident()))
        time.sleep(0.02)
        lowered = tcompile.stages.original("lowering")(aten, opts=opts)
        told.append(("ends", threading.get_ident()))
        return lowered

    def forward(numbers):
        for n in numbers:
            tcompile.compile(lambda x: x * n + 1)(torch.ones(n))

    def backward(numbers):
        for n in numbers:
            x = torch.ones(n, requires_grad=True)
            tcompile.compile(lambda x: (x.sin() * n).sum())(x).backward()

    with tcompile.stages.replace("lowering", lowering):
        threads = [
            threading.Thread(target=forward, args=(range(20, 26),)),
            threading.Thread(target=backward, args=(range(30, 34),)),
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert len(told) >= 2 * (6 + 8) and len({who for _, who in told}) == 2
    assert all(a == ("begins", b[1]) and b[0] == "ends" for a, b in zip(told[::2], told[1::2]))


def test_threads_with_shapes_of_their_own():
    """One compiled function, four threads, other shapes: results are right while entries are being made."""
    m = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()

    def f(x, k):
        y = m(x) * k
        return torch.softmax(y, -1) + x.sum()

    c = tcompile.compile(f)
    start, wrong = threading.Barrier(4), []

    def work(t):
        g = torch.Generator().manual_seed(t)
        start.wait()
        try:
            for i in range(25):
                x = torch.randn(2 + (t * 3 + i) % 5, 8, generator=g)
                with torch.set_grad_enabled(t % 2 == 0):
                    got, want = c(x, t), f(x, t)
                assert got.requires_grad == want.requires_grad
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads), "threads wait for each other"
    assert not wrong, wrong[0]


def test_a_thread_that_calls_while_another_compiles_keeps_its_own_grad_mode():
    c = tcompile.compile(lambda x: x * torch.tensor(2.0) + torch.is_grad_enabled())
    out = {}

    def work(flag):
        with torch.set_grad_enabled(flag):
            out[flag] = [c(torch.ones(3)).tolist() for _ in range(20)]

    threads = [threading.Thread(target=work, args=(b,)) for b in (False, True)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert out[True] == [[3.0] * 3] * 20 and out[False] == [[2.0] * 3] * 20


# ---- memory and lifetimes
def rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_two_thousand_calls_do_not_grow_the_process(grad):
    m = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    c, x = tcompile.compile(m), torch.randn(64, 32)

    def calls(n):
        for _ in range(n):
            with torch.set_grad_enabled(grad):
                y = c(x)
            if grad:
                y.sum().backward()
                m.zero_grad()

    calls(300)
    gc.collect()
    before = rss()
    calls(2000)
    gc.collect()
    assert rss() - before < 4 << 20


@pytest.mark.parametrize("trained", [False, True], ids=["inference", "training"])
def test_a_model_that_is_dropped_is_freed(trained):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            return torch.relu(self.lin(x)) + 1

    m = Net()
    c = tcompile.compile(m)
    y = c(torch.ones(2, 4))
    if trained:
        y.sum().backward()
    dead = [weakref.ref(m), weakref.ref(m.lin.weight)]
    del m, c, y
    gc.collect()
    assert [r() for r in dead] == [None, None]


def test_a_model_in_a_closure_is_freed_with_its_function():
    m = nn.Linear(4, 4)
    dead = weakref.ref(m)

    def make(m):
        return tcompile.compile(lambda x: m(x) * 2)

    c = make(m)
    c(torch.ones(2, 4))
    del m, c
    gc.collect()
    assert dead() is None


def test_arguments_are_not_kept():
    def f(x, box):
        box.append(x.sum())
        return x * 2

    c = tcompile.compile(f)
    x, box = torch.ones(1000), []
    dead = weakref.ref(x)
    y = c(x, box)
    alive = weakref.ref(y)
    del x, y, box
    gc.collect()
    assert dead() is None and alive() is None


# ---- exceptions
def test_state_after_an_exception_in_the_middle():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.calls, self.log = 0, []

        def forward(self, x, k):
            self.calls += 1
            self.seen += x.sum()
            self.log.append(k)
            y = x * 2
            if k == 3:
                raise RuntimeError("three")
            self.log.append(-k)
            return y.view(k, -1)

    eager, other = Counter(), Counter()
    c = tcompile.compile(other)
    for k in (2, 3, 5, 1, 3, 2):
        x, results = torch.full((4,), float(k)), []
        for call in (eager, c):
            try:
                results.append(call(x, k))
            except Exception as e:
                results.append((type(e), str(e).splitlines()[0]))
        if isinstance(results[0], tuple):
            assert results[0] == results[1]
        else:
            torch.testing.assert_close(*results)
        assert (eager.calls, eager.log) == (other.calls, other.log) and torch.equal(eager.seen, other.seen), k


def test_grad_mode_after_an_exception():
    def f(x):
        with torch.no_grad():
            y = x + 1
            raise ValueError("inside")
        return y

    c = tcompile.compile(f)
    for _ in range(2):
        with pytest.raises(ValueError, match="inside"):
            c(torch.ones(2))
        assert torch.is_grad_enabled()


# ---- without the C extension
def test_without_the_extension():
    """Pure Python evaluators, no hook: a slice of the programs above and of the traps."""
    names = [
        "tests/e2e/test_traps_of_changes.py",
        "tests/e2e/test_traps_of_tensors.py",
        "tests/e2e/test_traps_of_state.py",
        "tests/e2e/test_programs_that_must_run.py",
    ]
    pick = (
        "data_of_a_parameter or requires_grad_changes or class_of or dict_of or after_compilation or overlap or state_changed or grad_mode or alias "
        "or exceptions_that or (test_small and not shape) or appending or gradients or dynamic_batch"
    )
    env = {**os.environ, "TCOMPILE_NATIVE": "0", "OMP_NUM_THREADS": "1"}
    out = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--import-mode=importlib",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            *names,
            "-k",
            pick,
        ],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert out.returncode == 0, textwrap.shorten(out.stdout[-3000:], 3000) + out.stderr[-1000:]


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_rests_while_compiling_alone(collects):
    from tcompile.compiler.fusion.fuse import schedule

    seen = []

    def watched(lowered, opts):
        seen.append(gc.isenabled())
        return schedule(lowered, opts)

    def failing(lowered, opts):
        raise KeyboardInterrupt

    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        with tcompile.stages.replace("fusion", watched):
            f = tcompile.compile(lambda x: (x * 2).sum())
            f(torch.ones(3, requires_grad=True)).backward()
        assert seen == [False, False] and gc.isenabled() == collects
        with tcompile.stages.replace("fusion", failing), pytest.raises(KeyboardInterrupt):
            tcompile.compile(lambda x: x + 1)(torch.ones(3))
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()
