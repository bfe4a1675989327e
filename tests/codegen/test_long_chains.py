"""Kernels of many operations: the compiler's time stays within bounds, because functions that are used often are
called.
"""

from __future__ import annotations

import re

import torch

import tcompile
from tcompile.compiler import events


def chain(n: int):
    steps = [torch.sin, torch.tanh, lambda x: torch.exp(-x * x), torch.erf, lambda x: x * 1.1 + 0.2, torch.log1p]

    def f(x: torch.Tensor) -> torch.Tensor:
        for i in range(n):
            x = steps[i % len(steps)](x.abs() + 0.1)
        return x

    return f


def test_a_thousand_operations_in_one_kernel(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path))
    sources, seconds = [], []
    f, x = chain(400), torch.randn(500)
    with events.listen(
        lambda e: (
            sources.append(e.source)
            if e.kind == "kernel"
            else seconds.append(e.seconds)
            if e.kind == "compile_c"
            else None
        )
    ):
        got = tcompile.compile(f)(x)
    torch.testing.assert_close(got, f(x), rtol=1e-4, atol=1e-5)
    assert len(sources) == 1 and re.search(r"noinline\)\) vf32 sin\(", sources[0])
    assert sum(seconds) < 30, "inlined, this takes minutes"


def test_two_uses_are_inlined() -> None:
    sources = []
    with events.listen(lambda e: sources.append(e.source) if e.kind == "kernel" else None):
        tcompile.compile(lambda x: torch.sin(x) + torch.sin(x * 2))(torch.randn(300))
    assert not re.search(r"noinline\)\) vf32 sin\(", sources[0])
