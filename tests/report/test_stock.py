"""Stock torch.compile's graphs, breaks and guards in the same report."""

from __future__ import annotations

import pytest
import tcompile
import torch


def branching(x):
    y = x.sin()
    if y.sum() > 0:
        y = y + 1
    return y * 2


def test_explain_stock() -> None:
    r = tcompile.explain_stock(branching)(torch.ones(4))
    assert len(r.graphs) == 2 and len(r.graph_breaks) == 1 and r.summary.status == "partly"
    b = r.graph_breaks[0]
    assert b.line == branching.__code__.co_firstlineno + 2 and "if y.sum() > 0" in b.code and b.reason
    ops = [n.op for n in r.graphs[0].captured.nodes()]
    assert "input" in ops and any("sin" in op for op in ops)
    lines = {n.line for n in r.graphs[0].captured.nodes() if "sin" in n.op}
    assert lines == {branching.__code__.co_firstlineno + 1}
    again = tcompile.CompileReport.from_json(r.to_json())
    assert again.summary.line == r.summary.line and r.marks
    with pytest.raises(TypeError, match="explain_stock"):
        tcompile.explain_stock(3)


def test_code_without_a_text_is_explained_as_well():
    import tcompile

    namespace = {}
    exec("def f(x):\n    return x + 1", namespace)
    for explain in (tcompile.explain, tcompile.explain_stock):
        r = explain(namespace["f"])(torch.ones(3))
        assert len(r.graphs) == 1 and r.source.text == ""


def test_explain_keeps_the_code_that_it_is_about():
    import tcompile

    def g(x):
        return torch.sin(x) + 1

    r = tcompile.explain(g)(torch.ones(3))
    assert "torch.sin(x) + 1" in r.source.text and r.source.first_line == g.__code__.co_firstlineno
    assert [m.kind for m in r.marks] == ["captured"]
    module = torch.nn.Linear(3, 3)
    assert "F.linear" in tcompile.explain(module)(torch.ones(2, 3)).source.text
