"""Traps: torch's global state, exceptions and their effects, and forks.

Each test runs the whole compiler and compares with eager after the change that a weaker compiler would miss."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap

import pytest
import tcompile
import torch

from .traps import follows, linear, same


# ---- state
def test_grad_mode_and_inference_mode():
    m, x = linear(), torch.randn(4, 3)
    c = tcompile.compile(m)
    for _ in range(2):
        same(c(x), m(x))
        with torch.no_grad():
            same(c(x), m(x))
        with torch.inference_mode():
            got, want = c(x), m(x)
            same(got, want)
            assert got.is_inference() and want.is_inference()
    inside = tcompile.compile(lambda x: (m(x), torch.is_grad_enabled()))
    assert inside(x)[1] is True
    with torch.no_grad():
        assert inside(x)[1] is False


def test_autocast():
    m, x = linear(), torch.randn(4, 3)
    c = tcompile.compile(m)
    for _ in range(2):
        same(c(x), m(x))
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype):
                same(c(x), m(x), 1e-2)
            with torch.autocast("cpu", dtype, enabled=False):
                same(c(x), m(x))


def test_deterministic_algorithms():
    c = tcompile.compile(lambda x: (torch.are_deterministic_algorithms_enabled(), x + 1))
    assert c(torch.ones(2))[0] is False
    torch.use_deterministic_algorithms(True)
    try:
        assert c(torch.ones(2))[0] is True
    finally:
        torch.use_deterministic_algorithms(False)
    assert c(torch.ones(2))[0] is False
    fill = tcompile.compile(lambda x: torch.empty(3) + x * 0)
    fill(torch.ones(3))
    torch.use_deterministic_algorithms(True)
    try:
        assert fill(torch.ones(3)).isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_tf32_and_matmul_precision():
    c = tcompile.compile(lambda x: (torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32, x + 1))
    before = torch.get_float32_matmul_precision()
    try:
        for p in ("highest", "high", "medium", "highest"):
            torch.set_float32_matmul_precision(p)
            got = c(torch.ones(2))
            assert got[:2] == (p, torch.backends.cuda.matmul.allow_tf32)
    finally:
        torch.set_float32_matmul_precision(before)


def test_default_dtype():
    f = lambda x: x * torch.ones(3) + torch.arange(3.0) / 3 + torch.tensor(1.5)  # noqa: E731
    again = follows(f, torch.arange(3))
    torch.set_default_dtype(torch.float64)
    try:
        again(torch.arange(3))
    finally:
        torch.set_default_dtype(torch.float32)
    again(torch.arange(3))


def test_default_device():
    c = tcompile.compile(lambda n: torch.ones(n) + 1)
    assert c(3).device.type == "cpu"
    torch.set_default_device("meta")
    try:
        assert c(3).device.type == "meta"
    finally:
        torch.set_default_device(None)
    assert c(3).device.type == "cpu"
    with torch.device("meta"):
        assert c(3).device.type == "meta"
    assert c(3).device.type == "cpu"


def test_modes_of_torch_function_and_dispatch():
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Function(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    f = lambda x: torch.sin(x) + 1  # noqa: E731
    c, x = tcompile.compile(f), torch.randn(3)
    c(x)
    for mode in (Function, Dispatch):
        seen.clear()
        with mode():
            f(x)
        want = list(seen)
        seen.clear()
        with mode():
            c(x)
        assert seen == want and want


# ---- the four wrong answers of stock
def test_state_changed_before_an_exception_is_kept():
    class Box:
        n = 0

    log, box, table = [], Box(), {}

    def f(x, k):
        log.append(k)
        box.n += 1
        table[k] = x + 1
        x.add_(1)
        if k == 2:
            raise ValueError(f"bad {k}")
        y = x * 2
        return y[k]

    c = tcompile.compile(f)
    x = torch.zeros(3)
    c(x, 0)
    with pytest.raises(ValueError, match="^bad 2$"):
        c(x, 2)
    assert log == [0, 2] and box.n == 2 and list(table) == [0, 2] and (x == 2).all()
    torch.testing.assert_close(table[2], torch.full((3,), 2.0))
    with pytest.raises(IndexError):
        c(x, 5)
    assert log == [0, 2, 5] and box.n == 3 and (x == 3).all()
    torch.testing.assert_close(table[5], torch.full((3,), 3.0))


RAISING = {
    "KeyError": lambda x, d={}: x + d["missing"],
    "IndexError": lambda x: x + [1][3],
    "ZeroDivision": lambda x: x + 1 // (x.dim() - 1),
    "Attribute": lambda x: x.no_such_thing,
    "Type": lambda x: x + "a",
    "TypeCall": lambda x: len(3) + x,
    "Value": lambda x: x + int("q"),
    "Runtime": lambda x: x @ torch.ones(7, 7),
    "Shape": lambda x: x + torch.ones(5),
    "Assertion": lambda x: (_ for _ in ()).throw(AssertionError("no")),
    "Stop": lambda x: next(iter(())),
    "Unpack": lambda x: [a for a, b in [(1, 2, 3)]],
    "Name": lambda x: undefined_name,  # noqa: F821
    "Dim": lambda x: x.sum(4),
    "View": lambda x: x.view(17),
    "Index": lambda x: x[9],
    "NotImplemented": lambda x: abs(object()),
    "Keyword": lambda x: torch.sin(x, nothing=1),
    "Overflow": lambda x: x * (2.0**5000 if x.dim() else 0) if False else x * math.exp(10000),
    "Recursion": lambda x: __import__("no_such_module_at_all"),
}


@pytest.mark.parametrize("name", RAISING)
def test_exceptions_keep_their_type_and_words(name):
    f, x = RAISING[name], torch.randn(3)
    with pytest.raises(Exception) as want:
        f(x)
    c = tcompile.compile(f)
    for _ in range(2):
        with pytest.raises(Exception) as got:
            c(x)
        assert type(got.value) is type(want.value), repr(got.value)
        if name not in ("Runtime", "Shape"):
            assert str(got.value).splitlines()[:1] == str(want.value).splitlines()[:1]


def test_exceptions_that_change_on_their_way():
    class Mine(Exception):
        pass

    def f(x, k):
        try:
            try:
                y = x + 1
                if k == 0:
                    raise KeyError("k")
                if k == 1:
                    return [y][3]
                if k == 2:
                    raise Mine("own", 2)
            except KeyError as e:
                raise ValueError("from key") from e
            finally:
                x.mul_(2)
        except IndexError:
            raise
        return y

    c = tcompile.compile(f)
    for k, kind in ((0, ValueError), (1, IndexError), (2, Mine), (0, ValueError)):
        x = torch.ones(2)
        with pytest.raises(kind) as got:
            c(x, k)
        assert type(got.value) is kind and (x == 2).all()
        if kind is ValueError:
            assert isinstance(got.value.__cause__, KeyError)
        if kind is Mine:
            assert got.value.args == ("own", 2)
    same(c(torch.ones(2), 3), torch.full((2,), 2.0))


def run(script, **env):
    import os

    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **env},
    )
    assert out.returncode == 0, out.stdout + out.stderr
    return out.stdout


def test_fork_after_a_parallel_kernel():
    """A child that was forked after threads have run a kernel computes, too."""
    run("""
        import os, torch, tcompile
        torch.set_num_threads(2)
        f = tcompile.compile(lambda x: torch.sin(x) * 2 + x.exp().sum())
        x = torch.randn(300_000)
        f(x)
        small, want = f(x[:100]).tolist(), f(x).tolist()
        pid = os.fork()
        if pid == 0:
            # torch's own kernels hang in such a child
            ok = f(x).tolist() == want and f(x[:100]).tolist() == small
            os._exit(0 if ok else 1)
        import time
        for _ in range(600):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            time.sleep(0.1)
        else:
            os.kill(pid, 9)
            raise SystemExit("the child hangs")
        assert os.waitstatus_to_exitcode(status) == 0, status
        assert f(x).tolist() == want
    """)
