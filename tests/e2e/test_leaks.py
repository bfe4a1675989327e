"""Compile and drop, again and again: nothing stays. `make leak` runs each kind 10,000 times (TCOMPILE_LEAK), the default a few dozen."""
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
from tcompile.compiler import hook
from tcompile.compiler.capture.bytecode.instructions import _decoded
from tcompile.compiler.runtime import hook as runtime_hook

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


def counts():
    for _ in range(3):
        gc.collect()
    return {"objects": len(gc.get_objects()), "lines": len(linecache.cache), "graphs' sources": len(fx._loader.eval_cache), "codes": len(_decoded)}


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("way", [by_compile, by_hook], ids=lambda f: f.__name__)
def test_compile_and_drop(way, kind):
    if way is not by_compile and not runtime_hook.available():
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
    assert grown["objects"] < 40 + CYCLES // 4, grown          # less than one object in four cycles


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
    assert resident() - before < (8 << 20) + CYCLES * 2048      # pages that the allocator keeps, and 2 KiB a cycle
