"""The search of mode="max-autotune"."""

import pytest
import torch

import tcompile

from tcompile.compiler import events
from tcompile.compiler.codegen.cpp.layout import Choices
from tcompile.compiler.runtime import autotune

from .helper import chain_schedule, compiled, s0

pytestmark = pytest.mark.usefixtures("own_cache")

OPTIONS = {"max_autotune": True, "autotune_seconds": 0.2}


def heard(kind, action):
    out = []
    with events.listen(lambda e: out.append(e) if e.kind == kind else None):
        result = action()
    return result, out


def test_results_are_the_same_and_trials_are_told():
    x = torch.randn(5000)
    graph, trials = heard("autotune", lambda: compiled(chain_schedule(5000, 1.0), **OPTIONS))
    assert graph(x)[0].equal(x + 1)
    (tried,) = trials
    assert tried.kernel == "add_constant" and len(tried.trials) >= 3 and sum(t["kept"] for t in tried.trials) == 1
    assert all(t["us"] > 0 for t in tried.trials)


def test_second_search_is_read_from_the_disk():
    compiled(chain_schedule(5000, 1.0), **OPTIONS)
    _, compilations = heard("compile_c", lambda: compiled(chain_schedule(5000, 1.0), **OPTIONS))
    graph, trials = heard("autotune", lambda: compiled(chain_schedule(5000, 1.0), **OPTIONS))
    assert not compilations and len(trials[0].trials) >= 3
    assert graph(torch.zeros(5000))[0].equal(torch.ones(5000))


def test_a_faster_variant_is_kept_and_a_slower_one_is_not(monkeypatch):
    def race(times):
        def fake(runners, arguments, until):
            return [autotune.Trial(c, n, times.get(c, 10.0)) for c, n, _ in runners]

        return fake

    monkeypatch.setattr(autotune, "_race", race({Choices(unroll=1): 5.0}))
    graph = compiled(chain_schedule(4096, 1.0), **OPTIONS)
    assert graph.kernel_stats["add_constant"]["choices"]["unroll"] == [1]
    monkeypatch.setattr(autotune, "_race", race({Choices(unroll=1): 9.9}))
    graph = compiled(chain_schedule(4000, 2.0), **OPTIONS)
    assert graph.kernel_stats["add_constant"]["choices"]["unroll"] != [1]


def test_what_wins_by_luck_is_not_kept(monkeypatch):
    """The best of the search must win a second time, against the default alone."""
    races = []

    def race(runners, arguments, until):
        races.append(len(runners))
        lucky = len(races) == 1
        return [autotune.Trial(c, n, 5.0 if lucky and c == Choices(unroll=1) else 10.0) for c, n, _ in runners]

    monkeypatch.setattr(autotune, "_race", race)
    graph = compiled(chain_schedule(4096, 3.0), **OPTIONS)
    assert races[-1] == 2 and graph.kernel_stats["add_constant"]["choices"]["unroll"] != [1]


def test_symbolic_sizes_use_their_hints():
    graph = compiled(chain_schedule(s0, 1.0, 2.0), **OPTIONS)
    x = torch.randn(100)
    assert graph(x)[0].equal(x + 1 + 2)


def test_inputs_whose_elements_share_memory():
    """Expanded tensors and windows: they are measured on tensors that lie likewise."""
    f = tcompile.compile(lambda x, y: (x.sin() + 1, y.sum(1)), mode="max-autotune")
    x, y = torch.randn(64).expand(33, 64), torch.randn(100).unfold(0, 9, 1)
    heard = []
    with events.listen(lambda e: heard.append(e) if e.kind == "autotune" else None):
        a, b = f(x, y)
    torch.testing.assert_close((a, b), (x.sin() + 1, y.sum(1)))
    assert len(heard) == 2 and all(e.trials for e in heard)


def test_indices_that_made_up_numbers_fail_are_no_error():
    def f(x, i):
        return torch.gather(x * 2, 0, i - 1) + 1

    fast = tcompile.compile(f, mode="max-autotune", fullgraph=True)
    x, i = torch.tensor([-1.0, 4.0]), torch.tensor([1, 2])
    with tcompile.record() as recording:
        assert fast(x, i).equal(f(x, i))
    assert not recording.report().fallbacks
    with pytest.raises(RuntimeError, match="out of bounds"):
        fast(x, i + 5)
