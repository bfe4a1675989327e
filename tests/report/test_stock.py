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
