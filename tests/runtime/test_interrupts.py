"""Ctrl-C while a compiled graph runs: heard between its steps, and the graph runs again as ever."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch

import tcompile

STEPS, SIZE = 60, 600


def chain(x, w):
    for _ in range(STEPS):
        x = torch.mm(x, w)
    return x


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread alone"
)
def test_a_long_graph_hears_an_interrupt():
    x, w = torch.randn(SIZE, SIZE), torch.eye(SIZE)
    fast = tcompile.compile(chain)
    small = [t[:4, :4].contiguous() for t in (x, w)]
    torch.testing.assert_close(fast(*small), chain(*small))
    fast(x, w)
    began = time.perf_counter()
    fast(x, w)
    whole = time.perf_counter() - began
    sent: list[float] = []

    def send():
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(whole / 8, send)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            while True:
                fast(x, w)
    finally:
        timer.join()
    assert time.perf_counter() - sent[0] < max(whole / 3, 0.05)
    torch.testing.assert_close(fast(x, w), chain(x, w))
