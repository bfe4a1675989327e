"""Kernels timed by a GPU's clock, and how much of it they keep busy: with a device that is made up."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from tcompile.compiler.codegen.generated import Generated, GeneratedKernel, HostPlan
from tcompile.compiler.runtime.compiled_graph import CompiledGraph
from tcompile.compiler.runtime.gpu.gpu_kernels import occupancy
from tcompile.compiler.runtime.profile import profile

H200 = SimpleNamespace(
    warp_size=32,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_multiprocessor=233472,
)


class Clock:
    """The device's time: it stands still but for what runs on it."""

    def __init__(self):
        self.now, self.slept = 0.0, 0

    def event(self, enable_timing):
        assert enable_timing
        made = SimpleNamespace(at=None)
        made.record = lambda: setattr(made, "at", self.now)
        made.elapsed_time = lambda other: (other.at - made.at) * 1e3
        return made

    def sleep(self, cycles):
        self.slept += 1


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "_sleep", made.sleep)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    return made


def test_kernels_are_timed_by_the_devices_clock(clock):
    def kernel(seconds):
        def run(x, y):
            clock.now += seconds

        return run

    def product(x):
        clock.now += 3e-3
        return x

    host = HostPlan(
        "def run(x):\n    y = empty_like(x)\n    k0(x, y)\n    k1(y, x)\n    k1(x, y)\n    return (product(y),)\n",
        {"empty_like": torch.empty_like, "product": product},
        1,
    )
    kernels = {"k0": kernel(1e-3), "k1": kernel(2e-3)}
    generated = Generated(
        None,
        [GeneratedKernel(n, None, SimpleNamespace(text="", choices={}, phases=[])) for n in kernels],
        {},
        host,
        None,
        cuda=0,
    )
    found = profile(CompiledGraph(generated, lambda x: (x,), "cuda graph", kernels), (torch.ones(3),), budget=0.01)
    assert found.kernels == pytest.approx({"k0": 1e-3, "k1": 4e-3}) and found.library["product"] == pytest.approx(3e-3)
    assert clock.slept == found.runs >= 1, "each run begins behind a busy stream"


def test_what_runs_by_torchs_kernels_is_not_timed():
    generated = Generated(None, [], {}, HostPlan("def run(): return ()"), None)
    with pytest.raises(ValueError, match="compiled"):
        profile(CompiledGraph(generated, tuple, "eager", {}), ())


@pytest.mark.parametrize(
    "registers, shared, threads, share",
    [
        (32, 0, 256, 1.0),
        (64, 0, 256, 0.5),
        (33, 0, 256, 6 * 256 / 2048),
        (255, 0, 256, 0.125),
        (16, 100_000, 128, 2 * 128 / 2048),
        (16, 0, 1024, 1.0),
    ],
)
def test_occupancy(registers, shared, threads, share):
    assert occupancy(registers, shared, threads, H200) == pytest.approx(share)
