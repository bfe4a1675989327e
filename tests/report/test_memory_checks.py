"""Reads and writes of a plan's kernels against their buffers, and memory that buffers share."""

import tcompile
import torch
import torch.nn.functional as F
from tcompile.compiler.report.builder import record
from tcompile.compiler.report.facts.memory_checks import accesses_of, shared_memory


def plan_of(fn, *args):
    with record(title="a plan") as builder:
        compiled = tcompile.compile(fn)
        compiled(*args)
    (ref,) = [ref for ref, _ in builder.schedules]
    return compiled, ref()


def f(x, w, i):
    h = torch.softmax(F.pad(x, (1, 1)) @ w, -1)
    return h.sum(0) + w[i].mean(0)


def test_each_access_with_its_range_and_why_it_stays_inside():
    compiled, plan = plan_of(f, torch.randn(16, 14), torch.randn(16, 16), torch.randint(0, 16, (5,)))
    rows = accesses_of(plan)
    padded = next(r for r in rows if r["how"] == "masked")
    assert padded["way"] == "reads" and padded["range"] == [-1, 224] and padded["elements"] == 224
    gathered = [r for r in rows if r["how"] == "by values"]
    assert [r["range"] for r in gathered] == [None] and gathered[0]["elements"] == 256
    assert {r["how"] for r in rows} == {"masked", "by values", "proved"}
    for r in rows:
        assert r["how"] != "proved" or 0 <= r["range"][0] <= r["range"][1] < r["elements"]
    assert {r["way"] for r in rows} == {"reads", "writes"}
    (shared,) = [r for r in shared_memory(plan) if r["how"] == "in place"]
    assert shared["of"] == "mm" and "softmax" not in shared["of"] and shared["after"].startswith("k2")


def test_an_index_that_leaves_its_buffer_is_seen():
    compiled, plan = plan_of(lambda x: torch.sin(x) + 1, torch.randn(8, 8))
    (kernel,) = [s.kernel for s in plan.steps if hasattr(s, "kernel")]
    store = kernel.stages[-1].stores[0]
    object.__setattr__(store, "index", store.index + 3)
    (row,) = [r for r in accesses_of(plan) if r["way"] == "writes"]
    assert row["how"] == "outside" and row["range"] == [3, 66] and row["elements"] == 64


def test_remainders_of_an_axis_have_a_range_and_masked_edges_are_told():
    def g(x):
        return torch.roll(x, 3, 0).flatten()[: 64 * 4].view(64, 4).t().reshape(8, 32) + 1

    _, plan = plan_of(g, torch.randn(70, 4))
    rows = accesses_of(plan)
    assert rows and not [r for r in rows if r["how"] in ("unknown", "outside")], rows
