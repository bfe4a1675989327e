"""Scratch memory of plans on a CPU: the block of one call serves the next, instead of going back to the system."""

from __future__ import annotations

import resource
import threading

import pytest
import torch

import tcompile
from tcompile.compiler.native import native

pytestmark = pytest.mark.skipif(native is None, reason="plans run in C")


def model(x, w):
    for _ in range(3):
        x = torch.softmax(torch.tanh(x @ w), -1) * 2  # (products part what is between them)
    return x.sum()


def faults(call, n=20):
    """Pages of memory that a call asks the system for."""
    for _ in range(3):
        call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(n):
        call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / n


def test_a_block_stays_between_calls():
    # (36 MB: blocks of more than 32 MB the C library takes from the system each time, whatever was freed before)
    x, w = torch.randn(2_360_000, 4), torch.randn(4, 4)

    def fn(x, w):
        return torch.tanh(x @ w).sum()

    compiled = tcompile.compile(fn, dynamic=False)
    torch.testing.assert_close(compiled(x, w), fn(x, w), rtol=1e-3, atol=1)
    assert faults(lambda: compiled(x, w)) < 500, "of 9,200 pages"


def test_plans_of_other_sizes_and_threads_do_not_share_a_block():
    compiled = tcompile.compile(model, dynamic=True)
    w = torch.randn(64, 64) / 8
    inputs = [torch.randn(n, 64) for n in (700, 30, 1500, 4, 900)]
    want = [model(x, w) for x in inputs]
    wrong = []

    def work(k):
        for i in range(40):
            n = (i + k) % len(inputs)
            if not torch.allclose(compiled(inputs[n], w), want[n], rtol=1e-4, atol=1e-4):
                wrong.append(n)

    for x in inputs:
        compiled(x, w)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
