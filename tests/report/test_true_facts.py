"""Facts that a report is made of: bytes that are really read, classes that were defined again, breaks that cost nothing."""

from __future__ import annotations

import pytest
import tcompile
import torch
from make_sample import sample
from tcompile.compiler.report import schema as s
from tcompile.compiler.report.finish import finish


def kernels_of(fn, *args):
    report = tcompile.explain(fn)(*args)
    assert not report.errors
    return report.kernels


def test_bytes_of_a_gather_are_those_that_are_read():
    table, at = torch.randn(5000, 16), torch.randint(0, 5000, (8,))
    (k,) = kernels_of(lambda t, i: t[i] * 2 + 1, table, at)
    assert k.bytes == 8 * 8 + 2 * 8 * 16 * 4, "positions, rows read, rows written: not the table"
    (k,) = kernels_of(lambda t, i: t[i] * 2 + t[:8], table, at)
    assert k.bytes >= table.nbytes or k.bytes == 8 * 8 + 3 * 8 * 16 * 4
    many = torch.randint(0, 10, (4000,))
    (k,) = kernels_of(lambda t, i: t[i] * 2 + 1, table[:10].clone(), many)
    assert k.bytes == 4000 * 8 + 10 * 16 * 4 + 4000 * 16 * 4, "a small table is read once"


def test_what_nobody_reads_is_told_as_a_share():
    def loop(x):
        for i in range(20):
            y = torch.sin(x + i)
        return y

    def used(x):
        values, _ = torch.sort(torch.sin(x))
        return values.t()

    x = torch.randn(64, 64)
    assert tcompile.explain(loop)(x).graphs[0].unused == pytest.approx(0.95, abs=0.02)
    assert tcompile.explain(used)(x).graphs[0].unused == 0


def test_a_class_that_was_defined_again_is_told_as_that():
    def net(k):
        namespace = {"torch": torch, "__name__": "__main__"}
        exec(f"class Net:\n    def go(self, x):\n        return torch.sin(x) * {k}", namespace)
        return namespace["Net"]()

    @tcompile.compile
    def f(n, x):
        return n.go(x)

    x = torch.ones(4)
    with tcompile.record() as builder:
        for k in (2, 3):
            torch.testing.assert_close(f(net(k), x), torch.sin(x) * k)
    (again,) = builder.report().recompiles
    assert again.suggestion.startswith("no change is needed: the class was defined again")
    assert "one type" not in again.suggestion


def test_a_break_in_library_code_that_costs_nothing_is_no_finding():
    for outside, excused in ((0.01, True), (0.5, False)):
        r = sample()
        r.recompiles, r.fallbacks = [], []
        for b in r.graph_breaks:
            b.library, b.harmless = True, False
        r.wall = s.Wall(
            1.0, "sampled", 90, [s.WallPart("compiled", "calls", 1 - outside), s.WallPart("python", "f", outside)]
        )
        finish(r)
        assert r.graph_breaks[0].harmless == excused
        assert r.summary.status == ("compiled" if excused else "partly")
        assert not any(f.severity == "warning" for f in r.findings) or not excused


def test_a_function_that_was_defined_again_is_told_as_that():
    def step(text, file):
        namespace = {"torch": torch, "__name__": "__main__"}
        exec(compile(f"def step(x):\n    return torch.{text}(x) * 2", file, "exec"), namespace)
        return namespace["step"]

    @tcompile.compile
    def f(step, x):
        return step(x)

    x = torch.ones(4)
    with tcompile.record() as builder:
        for text in ("sin", "cos"):
            torch.testing.assert_close(f(step(text, f"<cell {text}>"), x), getattr(torch, text)(x) * 2)
    report = builder.report()
    (again,) = report.recompiles
    assert again.suggestion.startswith("no change is needed: the function was defined again")
    assert again.got.endswith("of a later definition")
    assert not [a for a in report.answers if a.action]


def test_the_remedy_for_bins_ends_no_graph():
    with tcompile.record() as builder:
        tcompile.compile(lambda x: torch.bincount(x, minlength=4).clamp(min=1) * 2)(torch.tensor([0, 1, 1]))
    (told,) = builder.report().graph_breaks
    assert "torch.zeros(bins).index_add(0, x, torch.ones(len(x)))" in told.remedy

    def counts(x, bins):
        return torch.zeros(bins).index_add(0, x, torch.ones(len(x))).clamp(min=1) * 2

    with tcompile.record() as builder:
        compiled = tcompile.compile(counts, fullgraph=True)
        torch.testing.assert_close(compiled(torch.tensor([0, 1, 1]), 4), torch.tensor([2.0, 4, 2, 2]))
    assert not builder.report().graph_breaks
