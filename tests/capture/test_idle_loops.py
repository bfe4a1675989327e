"""A cell's loops without tensor work, behind tensor work: they run as plain Python, and what follows is compiled."""

from __future__ import annotations

import time

import pytest
import torch

from tcompile.compiler import events
from tcompile.compiler.config import Options
from tcompile.compiler.frontend import hook
from tcompile.compiler.runtime import frame_hook

pytestmark = pytest.mark.skipif(not frame_hook.available(), reason="the C extension is not built")
N = 40_000

CELLS = {
    "for": f"t = x * 2\ndef g(): pass\nfor _ in range({N}): g()\nu = t + 1",
    "nested": f"t = x * 2\nn = 0\nfor i in range(40):\n    for j in range({N // 40}): n += j & i\nu = t + n",
    "inside a function": f"def g():\n    n = 0\n    for i in range({N}): n += i & 3\n    return n\nt = x * 2\nu = t + g()",
    "while": f"t = x * 2\nn = 0\nwhile n < {N}:\n    n += 1\nu = t + n",
    "left by break": f"t = x * 2\nfor i in range({N}):\n    if i > {N - 9}: break\nu = t + i",
    "left by return": f"def g(t):\n    t = t * 2\n    for i in range({N}):\n        if i > {N - 9}: return t + i\nu = g(x) + 1",
    "raises": f"t = x * 2\ntry:\n    for i in range({N}): 1 / ({N - 9} - i)\nexcept ZeroDivisionError:\n    t = t + i\nu = t + 1",
    "comprehension": f"t = x * 2\nl = [i * i for i in range({N})]\nu = t + len(l) + l[7]",
    "tensors now and then": f"t = x * 2\nfor i in range({N}):\n    if i % {N // 4} == 0: t = t + i\nu = t + 1",
}


@pytest.mark.parametrize("name", CELLS)
def test_a_loop_that_computes_for_long_runs_as_it_is(name):
    names, opts, seen = {"torch": torch, "x": torch.linspace(-1, 1, 5)}, Options.make(None, "eager"), []
    code = compile(CELLS[name], "<cell 1>", "exec")
    exec(code, names)
    want, interpreted = names["u"], []

    def note(e):
        if e.kind == "graph":
            seen.append(e.frame)
        elif e.kind == "break":
            interpreted.append(e.brk.kind)

    try:
        began = time.perf_counter()
        with events.listen(note):
            for _ in range(3):
                names["u"] = None
                hook.run_code(code, names, opts)
                torch.testing.assert_close(names["u"], want)
        assert time.perf_counter() - began < 20  # interpreted, each took a minute
        assert "idle_loop" in interpreted and len(seen) >= (1 if name == "raises" else 2), (interpreted, seen)
    finally:
        hook.reset()
