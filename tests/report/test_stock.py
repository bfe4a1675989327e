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


def test_stock_s_recompiles_over_several_calls() -> None:
    """Every call after the first adds to the same story: why stock compiled again, what it asked, in expected and
    got.
    """

    def scaled(x, n):
        y = x.sin() * n
        if y.sum() > 0:
            y = y + 1
        print("between")
        return y * 2

    explained = tcompile.explain_stock(scaled)
    first = explained(torch.ones(4), 2)
    assert not first.recompiles and len(first.entries) == 3 and first.result.shape == (4,)
    for args in ((torch.ones(8), 2), (torch.ones(9), 2), (torch.ones(8).double(), 2), (torch.ones(8), 3)):
        r = explained(*args)
    line = scaled.__code__.co_firstlineno
    assert {b.line for b in r.graph_breaks} == {line + 2, line + 4} and all(b.remedy for b in r.graph_breaks)
    own = [(c.source, c.detail, c.expected, c.got) for c in r.recompiles if c.frame_name.endswith("scaled")]
    assert own == [("x", "shape[0]", "4", "8"), ("x", "dtype", "Float", "Double"), ("n", "", "2", "another value")]
    assert "mark_dynamic(x, 0)" in r.recompiles[0].suggestion and r.recompiles[-1].line == line + 1
    assert [f.status for f in r.frames] == ["partly", "partly", "compiled"] and f"after line {line + 2}" in r.frames[
        1
    ].name
    assert "under torch.compile: " in r.summary.line and "kernels" not in r.summary.line
    again = tcompile.CompileReport.from_json(r.to_json())
    assert (
        [c.expected for c in again.recompiles] == [c.expected for c in r.recompiles] and again.timeline and str(again)
    )
    assert r.recompiles[0].line == line + 1 and "x.sin()" in r.recompiles[0].code
    assert {"n == 2", "`x` is a tensor of the class, dtype, device and sizes that it was captured with"} <= {
        g.text for g in r.guards if g.entry == 0
    }


def test_what_stock_failed_at_before_is_not_told_again() -> None:
    """Stock numbers frames from 0 again after a reset: an earlier failure has the id of a frame of ours."""

    def failing(x):
        return x.sin() + 1

    def backend(gm, inputs):
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(Exception, match="no"):
            torch.compile(failing, backend=backend)(torch.ones(4))
    r = tcompile.explain_stock(branching)(torch.ones(4))
    assert [f.name for f in r.frames] == [
        "branching",
        f"branching after line {branching.__code__.co_firstlineno + 2}",
    ] and not r.fallbacks


def test_what_stock_can_not_compile_is_said() -> None:
    def loops(x):
        for k in range(3):
            x = x + k
            if x.sum() > 0:
                x = x * 2
        return x

    r = tcompile.explain_stock(loops)(torch.ones(3))
    assert r.frames[0].status in ("skipped", "partly") and r.summary.status in ("eager", "partly") and not r.errors
    torch.testing.assert_close(r.result, loops(torch.ones(3)))


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
