"""One fusion or split against the compiler's own decision: what a report offers to try."""

from __future__ import annotations

import pytest
import torch

import tcompile
from tcompile.compiler.errors import OptionError


def f(x):
    y = torch.relu(x * 2)
    s = y.sum(-1, keepdim=True)
    return y / s, x.exp().t().contiguous()


def kernels(x, **options):
    """The operators of each kernel, the refusals, and the results."""
    x = x.clone()
    report = tcompile.explain(f, options=options or None)(x)
    with tcompile.config.patch(**options):
        got = tcompile.compile(f)(x)
    for a, b in zip(got, f(x)):
        torch.testing.assert_close(a, b)
    return [set(k.origins) for k in report.kernels], report.graphs[0].unfused


X = torch.rand(64, 128) + 0.1


def test_the_compiler_decides_where_nothing_is_wished():
    parts, _ = kernels(X)
    assert {"mul", "relu", "sum_1", "div"} in parts and {"exp", "clone"} in parts


@pytest.mark.parametrize("pair", ["relu:sum_1", "sum_1:relu", "mul:relu", "sum_1:div"])
def test_a_split_always_holds(pair):
    a, b = pair.split(":")
    parts, unfused = kernels(X, force_split=pair)
    assert not any({a, b} <= p for p in parts) and set.union(*parts) >= {"mul", "relu", "sum_1", "div", "exp", "clone"}
    assert any("kept apart by force_split" in why for _, _, why in unfused) or pair == "mul:relu"


def test_a_fusion_overrides_the_cost():
    parts, _ = kernels(X, force_fuse="exp:relu")
    assert len(parts) == 1


def test_a_fusion_that_would_be_wrong_is_refused_with_its_reason():
    def g(x):
        return torch.relu(x).sum(0) + 1, torch.relu(x * 3).sum(1)

    options = {"force_fuse": "sum_1:sum_2"}
    report = tcompile.explain(g, options=options)(X)
    assert not any({"sum_1", "sum_2"} <= set(k.origins) for k in report.kernels)
    assert any({a, b} == {"sum_1", "sum_2"} and why for a, b, why in report.graphs[0].unfused)


def test_whoever_reads_another_kernels_result_has_a_reason_for_being_apart():
    net = torch.nn.Sequential(torch.nn.LayerNorm(32), torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))

    def g(x, table, i):
        y = torch.softmax(net(x), -1).cumsum(0) * 2
        return y.sum(0), (y.t() * x.mean()).sort(0).values, torch.cat([table[i], y]).relu()

    report = tcompile.explain(g)(torch.randn(16, 32), torch.randn(4, 32), torch.tensor([1, 2]))
    (graph,) = [x for x in report.graphs if x.unfused]
    nodes, pairs = graph.lowered.nodes(), {frozenset(p[:2]) for p in graph.unfused}
    made_by = {name: k for k in graph.kernels for name in report.kernels[k].origins}
    kernels_apart = {frozenset((made_by.get(a), made_by.get(b))) for a, b, _ in graph.unfused}
    together = [set(report.kernels[k].origins) for k in graph.kernels]
    apart = [
        (a, b)
        for b in nodes
        for a in (nodes[i] for i in b.inputs)
        if None not in (a.kernel, b.kernel) and not any({a.name, b.name} <= names for names in together)
    ]
    assert len(apart) > 2
    for a, b in apart:  # of the two, or of others that the same kernels compute
        assert {a.name, b.name} in pairs or {a.kernel, b.kernel} in kernels_apart, (a.name, b.name, graph.unfused)
    assert all(why and one and other for one, other, why in graph.unfused)
    assert any("matrix product" in why for _, _, why in graph.unfused)


def test_a_wish_is_part_of_what_an_entry_is():
    compiled = [tcompile.compile(f, options={"force_split": pair}) for pair in ("relu:sum_1", "sum_1:div")]
    reports = []
    for c in compiled:
        with tcompile.record() as builder:
            c(X)
        reports.append(builder.report())
    assert [set(k.origins) for k in reports[0].kernels] != [set(k.origins) for k in reports[1].kernels]


@pytest.mark.parametrize("text", ["relu", "a:b:c", "a:a", "a:", ":"])
def test_what_is_no_pair_is_said(text):
    with pytest.raises(OptionError, match="pairs of operators"):
        tcompile.compile(lambda x: x + 1, options={"force_split": text})(X)


def test_contradictions_are_said():
    with pytest.raises(OptionError, match="both name a:b"):
        tcompile.compile(lambda x: x + 1, options={"force_split": "a:b", "force_fuse": "b:a"})(X)
