"""Timing engines in turn: what is measured when the time is short, and what is said of the figures."""

import os
import time

import torch

from tcompile.compiler.backends import stock
from tcompile.compiler.config import Options
from tcompile.compiler.frontend.entry_calls import EntryCall
from tcompile.kernel_magics import timing


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
