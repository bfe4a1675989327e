"""The search of max-autotune on a GPU, with made-up times: what it tries, keeps, and says."""

from types import SimpleNamespace

import pytest
import torch

import tcompile

pytest.importorskip("triton")

from tcompile.compiler import events  # noqa: E402
from tcompile.compiler.codegen.triton.layout import Choices  # noqa: E402
from tcompile.compiler.config import Options  # noqa: E402
from tcompile.compiler.runtime.cache import open_cache  # noqa: E402
from tcompile.compiler.runtime.gpu import tune  # noqa: E402

from .interpreter import SMALL, compile_fn, generate  # noqa: E402


class Made:
    def __init__(self, choices):
        self.choices = choices

    def __call__(self, *args):
        raise AssertionError("nothing runs here")


@pytest.fixture
def device(monkeypatch, tmp_path):
    """A device on which kernels take the microseconds that `times` gives by their choices."""
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path))
    d = SimpleNamespace(times=lambda c: 100.0, heard=[], failing=False)

    def arguments(kernel, index):
        if d.failing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return []

    monkeypatch.setattr(tune, "compile_all", lambda jobs, opts: [SimpleNamespace(parts=()) for _ in jobs])
    monkeypatch.setattr(tune, "make_kernel", lambda k, *rest: Made(k.source.choices))
    monkeypatch.setattr(tune, "fits", lambda binary, index: True)
    monkeypatch.setattr(tune, "arguments", arguments)
    monkeypatch.setattr(tune, "copy_bandwidth", lambda index: 4e12)
    monkeypatch.setattr(tune, "time_in_turn", lambda calls, rounds: [d.times(c.func.choices) for c in calls])
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    listener = events.subscribe(lambda e: d.heard.append((e.kind, e.facts)))
    yield d
    events.unsubscribe(listener)


def search(g, seconds=60.0):
    import time

    chosen = {}
    wanted = [(f"tune-test-{k.name}", k) for k in g.kernels]
    tune._search(wanted, g, Options(), 0, open_cache(Options()), time.perf_counter() + seconds, chosen)
    return chosen


def made():
    return generate(compile_fn(lambda x: torch.softmax(x, -1), torch.randn(64, 512)))


def test_the_fastest_is_kept_and_its_trials_are_told(device):
    g = made()
    device.times = lambda c: 50.0 if c["warps"] == 2 else 100.0
    chosen = search(g)
    assert chosen[g.kernels[0].name].source.choices["warps"] == 2
    trials = next(f["trials"] for kind, f in device.heard if kind == "autotune")
    assert sum(t["kept"] for t in trials) == 1 and min(t["us"] for t in trials) == 50.0 and len(trials) > 2
    assert any(kind == "progress" for kind, _ in device.heard)


def test_what_measured_no_faster_is_not_kept(device):
    g = made()
    device.times = lambda c: 99.0 if c["warps"] == 2 else 100.0
    assert search(g)[g.kernels[0].name].source.choices == g.kernels[0].source.choices


def test_a_kernel_at_the_memory_s_speed_is_left_alone(device):
    g = made()
    device.times = lambda c: g.kernels[0].bytes / 4e12 * 1e6 + 1
    assert not search(g)


def test_the_budget_ends_the_search(device):
    assert not search(made(), seconds=-1.0)
    assert any("ends with its budget" in f["text"] for kind, f in device.heard if kind == "progress")


def test_out_of_memory_ends_in_a_message_and_the_rules_choice(device):
    device.failing = True
    g = made()
    assert not search(g)
    assert any(kind == "fallback" and "out of memory" in f["reason"] for kind, f in device.heard)


def test_candidates_are_no_more_than_a_few(device):
    for choices in (Choices("persistent"), Choices("looped", rblock=64), Choices("split", rblock=64, split=4)):
        g = generate(compile_fn(lambda x: torch.softmax(x, -1), torch.randn(64, 512)), choices)
        out = tune.candidates(g.kernels[0], SMALL)
        assert out[0] == Choices() and 3 < len(out) <= 40
