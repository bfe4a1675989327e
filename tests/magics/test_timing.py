"""Timing engines in turn: what is measured when the time is short, and what is said of the figures."""

import os
import threading
import time

import pytest
import torch

from tcompile.compiler.backends import stock
from tcompile.compiler.config import Options
from tcompile.compiler.frontend.entry_calls import EntryCall
from tcompile.compiler.report.builder import ReportBuilder
from tcompile.kernel_magics import timing
from tcompile.kernel_magics.profiles import profile_calls
from tcompile.kernel_magics.waiting import RunQueue


def job(**engines):
    return timing._Job(
        EntryCall("f", lambda: None, safe=True),
        "call",
        {name: timing.Contender(name, run) for name, run in engines.items()},
    )


def test_a_budget_that_the_first_calls_use_up_still_gives_a_figure_of_each():
    slow = job(eager=lambda: time.sleep(0.018), torch=lambda: time.sleep(0.018))
    timing._rounds(slow, 0.1)  # no call is slow for it alone, all warm-up calls together are
    result = timing._result(slow, ["eager", "torch"])
    assert slow.rounds and all(e.median is not None and e.median > 0.01 for e in result.engines)


def test_another_backend_is_named_where_its_times_stand():
    def mine(gm, inputs):
        return gm

    assert timing._backend(Options.make()) == "" and timing._backend(Options.make(backend="eager")) == "backend=eager"
    assert timing._backend(Options.make(backend=mine)) == "backend=mine"


def test_a_busy_machine_is_said(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (11.2, 9.0, 8.0))
    assert timing.busy_words() == "the machine was busy with other programs: 11 wanted to run on 2 cores"
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 9.0, 8.0))
    assert timing.busy_words() == ""


def test_what_cannot_be_run_again_is_said_as_that():
    """Timing and picture are the compiler's: what they run into is no fault of the cell, which had run."""

    def fails(x):
        raise RuntimeError("modified by an inplace operation\nHint: detect_anomaly")

    call = EntryCall("step", fails, (torch.ones(2),), safe=True, compiled=fails)
    out = timing.measure([call], None, Options.make(), (), 0.01)
    assert out.status == "unavailable" and not out.overall
    why = "running it again raised RuntimeError: modified by an inplace operation"
    assert out.reason == f"step could not be timed: {why}, which it had not done in the cell"
    builder = ReportBuilder()
    profile_calls([call], builder, None, Options.make(), 0.01)
    (note,) = builder.r.notes
    assert note.text == f"there is no profile of step: {why}" and note.severity == "info"
    r = builder.report()
    assert r.findings == [note] and not r.profiles


class Clock:
    """A machine on which some calls wait: each sample takes what a list says next."""

    starved = 0.0

    def __init__(self, monkeypatch, load, **seconds):
        self.seconds = {name: iter(took) for name, took in seconds.items()}
        monkeypatch.setattr(timing, "_rounds", self.rounds)
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))

    def rounds(self, job, budget):
        for c in job.contenders.values():
            c.starved = self.starved
        job.rounds += [dict(zip(self.seconds, took)) for took in zip(*self.seconds.values())]

    def measured(self):
        call = EntryCall("f", lambda x: x + 1, (torch.ones(2),), safe=True)
        call.compiled = call.fn
        return timing.measure([call], None, Options.make(), (), 0.1)


def test_rounds_that_waited_for_a_core_make_no_speedup(monkeypatch):
    """Seen: 3317 times faster, where eager's threads had no core in most rounds."""
    eager = [1e-5, 1e-5, 1.1e-5, *[33e-3] * 8]
    out = Clock(monkeypatch, 12.0 * os.cpu_count(), eager=eager, tcompile=[1e-5] * 11).measured()
    (x,) = out.overall
    assert 0.9 < x.ratio < 1.2 and x.hi < 1.3
    assert "8 of 11 rounds waited for other programs: 8 of them are left out" in out.note
    assert all(e.median < 2e-5 for e in out.calls[0].engines)


def test_where_all_but_a_round_waited_the_shortest_samples_are_one_sample(monkeypatch):
    out = Clock(monkeypatch, 0.0, eager=[1e-5, 33e-3, 33e-3, 1.0], tcompile=[1e-2, 1e-5, 1e-5, 1e-5]).measured()
    (x,) = out.overall
    assert x.ratio == x.lo == x.hi == 1.0 and "the shortest sample" in out.note


def test_an_engine_that_waited_in_each_round_makes_no_figure(monkeypatch):
    """Seen: 11685 times faster, for eager's second thread had no core in any round."""
    clock = Clock(monkeypatch, 0.0, eager=[4e-2] * 6, tcompile=[3.5e-6] * 6)
    clock.starved = 0.9
    out = clock.measured()
    assert out.overall == [] and "eager waited for other programs" in out.reason
    assert out.calls[0].break_even_calls is None and out.calls[0].engines[0].median == 4e-2


def test_a_sample_knows_that_threads_wait_for_a_core():
    class Queue(RunQueue):
        def seconds(self):
            return next(waits)

    c, waits = timing.Contender("eager", lambda: time.sleep(0.01), queue=Queue()), iter([1.0, 2.0, 2.0, 2.0, 2.0, 9.0])
    assert timing._sample(c, settle=False) >= 0.01 and c.starved > 1
    for _ in range(2):
        timing._sample(c, settle=False)
    assert c.starved == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="only Linux tells it")
def test_waiting_for_a_core_is_counted():
    stop = threading.Event()
    others = [threading.Thread(target=lambda: [*iter(stop.is_set, True)], daemon=True) for _ in range(3)]
    for t in others:
        t.start()
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        with RunQueue() as queue:
            began = queue.seconds()
            torch.ones(1 << 20).sin()
            end = time.monotonic() + 20.0
            while queue.seconds() == began and time.monotonic() < end:
                sum(range(10**5))
            assert queue.seconds() > began
    finally:
        os.sched_setaffinity(0, before)
        stop.set()
        for t in others:
            t.join()


def test_a_quiet_machine_keeps_all_rounds(monkeypatch):
    out = Clock(monkeypatch, 0.0, eager=[2e-5, 3e-5, 2.2e-5, 5e-5], tcompile=[1e-5, 1.2e-5, 1e-5, 1e-5]).measured()
    assert out.note == "" and out.overall[0].ratio > 2 and out.calls[0].engines[0].n == 4


def test_a_comparison_with_stock_leaves_the_process_as_it_was(monkeypatch):
    """Stock switches off the argument checks of torch.distributions at its first compile, for good."""
    distribution = torch.distributions.Distribution
    monkeypatch.setattr(distribution, "_validate_args", True)
    call = EntryCall("f", lambda x: x + 1, (torch.ones(2),), safe=True)
    stock.explain(lambda x: x + 1)(torch.ones(2))
    assert distribution._validate_args is True
    with stock.beside():
        assert distribution._validate_args is False
        assert torch.equal(stock.compile(call.fn, backend="eager")(*call.args), torch.full((2,), 2.0))
    assert distribution._validate_args is True


def test_a_figure_of_a_cells_loop_is_not_the_cells():
    cell, loop = compile("y = 1", "c", "exec"), compile("y = 1", "c", "exec").replace(co_name="<loop at line 3>")
    of = lambda code, name: EntryCall(name, type(test_a_figure_of_a_cells_loop_is_not_the_cells)(code, {}), sets=("y",))
    assert timing._names([of(cell, "the cell's top level")]) == ""
    assert timing._names([of(loop, "the loop at line 3")]) == "`the loop at line 3`"
