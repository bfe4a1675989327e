"""Compile and drop, again and again: nothing stays. `make leak` runs each kind 10,000 times (TCOMPILE_LEAK), the
default a few dozen.
"""

from __future__ import annotations

import gc
import linecache
import os
import sys
from pathlib import Path

import pytest
import torch
from torch.fx import graph_module as fx

import tcompile
from tcompile.compiler import events
from tcompile.compiler.frontend import hook
from tcompile.compiler.capture.bytecode.instructions import _decoded
from tcompile.compiler.runtime import frame_hook as runtime_hook
from tcompile.compiler.runtime.dispatch import code_cache

CYCLES = int(os.environ.get("TCOMPILE_LEAK", "25"))

TEXTS = {
    "function": "def f(x):\n    return x * {k} + 1\n",
    "break": "def f(x):\n    y = x * {k}\n    print(end='')\n    return y + 1\n",
    "loop that breaks": "def f(x):\n    for i in range(2):\n        x = x * {k}\n        print(end='')\n    return x + 1\n",
    "closure": "def make():\n    s = [{k}]\n    def f(x):\n        s.append(1)\n        print(end='')\n        return x * s[0]\n    return f\nf = make()\n",
    "inlined": "class C:\n    def __init__(self, k):\n        self.k = k\n    def scale(self, x):\n        return x * self.k\n"
    "def f(x, c=C({k})):\n    return c.scale(x) + {k}\n",
    "module": "class M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.l = torch.nn.Linear(4, 4)\n"
    "    def forward(self, x):\n        return self.l(x) * {k}\nf = M()\n",
    "exception": "def f(x):\n    try:\n        y = x * {k}\n        raise KeyError(y)\n    except KeyError as e:\n        return e.args[0] + 1\n",
    "gradient": "def f(x):\n    y = (x.clone().requires_grad_() * {k}).sum()\n    return y\n",
    "class and global": "class C:\n    def __init__(self, k):\n        self.k = k\n    def go(self, x):\n        return x * self.k + G\nG = {k}\n"
    "def f(x):\n    return C({k}).go(x)\n",
    "method": "class C:\n    def go(self, x):\n        return x * {k}\n    def f(self, x):\n        print(end='')\n        return self.go(x)\nf = C().f\n",
    "submodule": "class A(torch.nn.Module):\n    def forward(self, x):\n        return x * {k}\nclass M(torch.nn.Module):\n    def __init__(self):\n"
    "        super().__init__()\n        self.a = A()\n    def forward(self, x):\n        return self.a(x) + 1\nm = M()\ndef f(x):\n    return m(x)\n",
    "property and super": "class B:\n    @property\n    def k(self):\n        return {k}\n    @staticmethod\n    def one():\n        return 1\n"
    "    def go(self, x):\n        return x + self.k\nclass C(B):\n    def go(self, x):\n        return super().go(x) * self.one()\n"
    "c = C()\ndef f(x):\n    return c.go(x) if isinstance(c, (B, int)) else x\n",
    "enum": "import enum\nclass E(enum.Enum):\n    A = {k}\ndef g(x, e):\n    return x * e.value if e is E.A else x\ndef f(x):\n    return g(x, E.A)\n",
    "autograd function": "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x * {k}\n    @staticmethod\n"
    "    def backward(ctx, g):\n        return g * {k}\ndef f(x):\n    return F.apply(x.clone().requires_grad_())\n",
    "recursion": "def f(x, n=2):\n    return x * {k} if n == 0 else f(x, n - 1) + 1\n",
}


def by_compile(text, k, session, backend):
    scope = {"torch": torch, "__name__": "leak"}
    exec(compile(text.format(k=k), f"<cell {k}>", "exec"), scope)
    compiled = tcompile.compile(scope["f"], backend=backend)
    for _ in range(2):
        compiled(torch.ones(4))


def by_hook(text, k, session, backend):
    """As cells do: in one namespace, where the next definition takes the place of the last."""
    exec(compile(text.format(k=k), f"<cell {k}>", "exec"), session)
    with hook.enable(backend=backend):
        for _ in range(2):
            session["f"](torch.ones(4))


def by_hook_anew(text, k, session, backend):
    """As a test suite does: in a namespace of its own, which goes as a whole."""
    by_hook(text, k, {"torch": torch, "__name__": "leak"}, backend)


def by_compile_in_place(text, k, session, backend):
    """What was compiled stands where the function stood: the namespace reaches the entries, and they reach it."""
    scope = {"torch": torch, "__name__": "leak"}
    exec(compile(text.format(k=k), f"<cell {k}>", "exec"), scope)
    scope["f"] = tcompile.compile(scope["f"], backend=backend)
    for _ in range(2):
        scope["f"](torch.ones(4))


@pytest.fixture(autouse=True)
def nothing_older():
    """What earlier tests left is no part of the counts, and the collector does not go over it again each time: with all
    of it each of these took eight seconds in a whole run."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def counts():
    for _ in range(3):
        gc.collect()
    return {
        "objects": len(gc.get_objects()),
        "lines": len(linecache.cache),
        "graphs' sources": len(fx._loader.eval_cache),
        "codes": len(_decoded),
    }


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("way", [by_compile, by_compile_in_place, by_hook, by_hook_anew], ids=lambda f: f.__name__)
def test_compile_and_drop(way, kind):
    if way in (by_hook, by_hook_anew) and not runtime_hook.available():
        pytest.skip("the C extension is not built")
    session = {"torch": torch, "__name__": "leak"}

    def cycles(first, n):
        for k in range(first, first + n):
            way(TEXTS[kind], k + 2, session, "eager")

    cycles(0, 10)
    before = counts()
    cycles(10, CYCLES)
    after = counts()
    grown = {what: after[what] - before[what] for what in before}
    assert all(n <= 8 for what, n in grown.items() if what != "objects"), grown
    assert grown["objects"] < 40 + CYCLES // 4, grown  # less than one object in four cycles


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
def test_resident_memory():
    session = {"torch": torch, "__name__": "leak"}

    def cycles(first, n):
        for k in range(first, first + n):
            for way in (by_compile, by_hook) if runtime_hook.available() else (by_compile,):
                for kind in ("break", "module"):
                    way(TEXTS[kind], k + 2, session, "eager")

    cycles(0, max(20, CYCLES // 10))
    counts()
    before = resident()
    cycles(1000, CYCLES)
    counts()
    assert resident() - before < (8 << 20) + CYCLES * 2048  # pages that the allocator keeps, and 2 KiB a cycle


def entries_of(code):
    return [e for engine in hook.all_engines() for e in code_cache(code, owner=engine.number).entries]


@pytest.mark.skipif(not runtime_hook.available(), reason="the C extension is not built")
def test_an_entry_goes_with_its_class():
    """Classes that a function makes share the code of their methods: each has an entry for as long as it lives, and
    none counts after that.
    """

    def make(k):
        class C:
            factor = k

            def go(self, x):
                return x * self.factor

        return C()

    kinds = []
    with hook.enable(backend="eager"), events.listen(lambda event: kinds.append(event.kind)):
        for k in range(12):  # more than recompile_limit
            c = make(k)
            assert torch.equal(c.go(torch.ones(2)), torch.full((2,), float(k)))
            code = type(c).go.__code__
            assert len(entries_of(code)) <= 2
            del c
            gc.collect()
    assert "limit" not in kinds
    assert entries_of(code) == []


@pytest.mark.skipif(not runtime_hook.available(), reason="the C extension is not built")
def test_reset_reaches_entries_whose_engine_is_gone():
    def within(x):
        return x + 1

    def f(x):
        print(end="")
        return within(x) * 2

    c = tcompile.compile(f, backend="eager")
    c(torch.ones(2))
    with hook.enable(backend="eager"):
        assert torch.equal(within(torch.ones(2)), torch.full((2,), 2.0))
    assert entries_of(within.__code__)
    engines = dict(hook._engines)
    hook._engines.clear()
    del c
    gc.collect()
    tcompile.reset()
    hook._engines.update(engines)
    assert entries_of(within.__code__) == []


@pytest.mark.skipif(not runtime_hook.available(), reason="the C extension is not built")
def test_backends_that_are_defined_anew_do_not_pile_up():
    def work(x):
        return x * 2

    for _ in range(hook._ENGINES + 20):

        def backend(graph, inputs):
            return graph.forward

        with hook.enable(backend=backend):
            assert torch.equal(work(torch.ones(2)), torch.full((2,), 2.0))
    assert len(hook._engines) <= hook._ENGINES
    assert len(entries_of(work.__code__)) <= hook._ENGINES
