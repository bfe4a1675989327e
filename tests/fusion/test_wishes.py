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
