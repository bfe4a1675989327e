"""Entries of library code hang on its code object: those of one set of options serve no other."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import threading

import pytest
import torch

import tcompile
from tcompile.compiler.runtime import frame_hook

pytestmark = pytest.mark.skipif(not frame_hook.available(), reason="no frame hook")
X = torch.ones(2)
LOG: list = []


def backend(name):
    def run_by(gm, examples):
        def run(*args):
            LOG.append(name)
            return gm.forward(*args)

        return run

    return run_by


A, B = backend("A"), backend("B")
ask_back = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)  # a native function that calls Python


def make():
    def helper(x):
        return x * 2 + 1

    native = ask_back(helper)

    def f(x):
        y = x + 1
        return native(y) * 3

    return helper, f


def ran(f, *args):
    LOG.clear()
    torch.testing.assert_close(f(*args), (X + 1) * 6 + 3 if f.__name__ == "f" else X * 2 + 1)
    return "".join(LOG)


def test_compiled_functions_and_cells():
    helper, f = make()
    fa, fb = tcompile.compile(f, backend=A), tcompile.compile(f, backend=B)
    for _ in range(2):
        assert ran(fa, X) == "AAA"
        assert ran(fb, X) == "BBB"
        for b, name in ((A, "A"), (B, "B"), ("eager", "")):
            LOG.clear()
            with tcompile.enable(backend=b):
                helper(X)
            assert LOG == list(name)
    assert ran(fa, X) == "AAA"


def test_a_cell_inside_of_a_cell():
    helper, _ = make()
    for _ in range(2):
        LOG.clear()
        with tcompile.enable(backend=A):
            helper(X)
            with tcompile.enable(backend=B):
                helper(X)
            helper(X)
        helper(X)
        assert LOG == ["A", "B", "A"]


def test_options_are_not_mixed():
    """The same backend under other options compiles anew; under the same options it does not."""
    compiled = []

    def counting(gm, examples):
        compiled.append(1)
        return gm.forward

    helper, _ = make()
    for options in ({"recompile_limit": 3}, {"recompile_limit": 4}, {"recompile_limit": 3}):
        for dynamic in (None, False):
            with tcompile.enable(backend=counting, options=options, dynamic=dynamic):
                helper(X)
    assert len(compiled) == 4


def test_threads_with_different_backends():
    helper, f = make()
    fa, fb = tcompile.compile(f, backend=A), tcompile.compile(f, backend=B)
    errors = []

    def work(g, n):
        try:
            for _ in range(n):
                torch.testing.assert_close(g(X), (X + 1) * 6 + 3)
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(g, 30)) for g in (fa, fb, fa, fb)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert ran(fa, X) == "AAA" and ran(fb, X) == "BBB"


def test_a_callback_of_a_pattern_is_interpreted():
    out = []

    def f(x):
        y = x * 2

        def replace(match):
            out.append(y)
            return "b"

        return re.compile("a").sub(replace, "aa"), y

    c = tcompile.compile(f, backend="eager")
    for n in range(1, 4):
        assert c(X)[0] == "bb"
        assert len(out) == 2 * n


def test_a_first_call_imports_nothing_large():
    code = (
        "import sys, torch, tcompile\n"
        "assert tcompile.compile(lambda x: torch.sin(x) + 1)(torch.zeros(3)).tolist() == [1, 1, 1]\n"
        "bad = [m for m in ('torch.onnx', 'torch._dynamo', 'torch._inductor', 'sympy', 'triton', 'numpy.testing', 'IPython') if m in sys.modules]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
