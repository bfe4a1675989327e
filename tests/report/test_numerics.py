"""Errors per node: what agrees, what is random, and that a wrong kernel is found at its node."""

from __future__ import annotations

import tcompile
import torch
from tcompile.compiler.config import Options
from tcompile.compiler.report.numerics import check_calls, check_graph


def chain(x, w):
    h = torch.nn.functional.gelu(x @ w)
    return torch.softmax(h, -1).sum(0), h > 0.5, h.mean().bfloat16()


def test_every_node_is_compared() -> None:
    x, w = torch.randn(32, 64), torch.randn(64, 16)
    r = tcompile.explain(chain, check=True)(x, w)
    rows = {n.node: n for n in r.numerics}
    assert len(rows) >= 12 and {n.verdict for n in r.numerics} <= {"same", "close"}
    assert any(n.op.startswith("aten.erf") and n.rms_vs_float64 is not None and n.line for n in r.numerics)
    assert any(n.dtype == "bool" for n in r.numerics) and not [f for f in r.findings if f.ref == "numerics"]
    again = tcompile.CompileReport.from_json(r.to_json())
    assert [n.node for n in again.numerics] == [n.node for n in r.numerics]


def test_what_follows_from_random_numbers_is_compared_with_the_same_ones() -> None:
    def f(x):
        return torch.nn.functional.dropout((torch.rand_like(x) + x).exp(), 0.5).sum(-1).tanh()

    r = tcompile.explain(f, check=True)(torch.randn(8, 64))
    verdicts = {n.op.split(".")[1]: n.verdict for n in r.numerics}
    assert {v for op, v in verdicts.items() if op in ("add", "exp", "sum", "tanh")} <= {"same", "close"}, verdicts
    drawn = [n for n in r.numerics if n.verdict == "random"]
    assert drawn and all("random numbers" in n.why for n in drawn)


def verdicts_with_a_sine_for_each_cosine(f) -> dict[str, str]:
    """Operator -> what the check says of it, where lowering is wrong."""

    def wrong_lowering(aten, opts):
        for n in aten.calls():
            if n.target is torch.ops.aten.cos.default:
                n.target = torch.ops.aten.sin.default
        return tcompile.stages.original("lowering")(aten, opts=opts)

    aten = tcompile.explain(f)(torch.randn(64)).graphs[0].aten
    with tcompile.stages.replace("lowering", wrong_lowering):
        rows = check_graph(aten, [torch.randn(64)], Options.make())
    return {n.op: n.verdict for n in rows}


def test_a_wrong_kernel_behind_random_numbers_is_found() -> None:
    verdicts = verdicts_with_a_sine_for_each_cosine(lambda x: torch.cos(torch.rand_like(x) + x))
    assert verdicts["aten.cos.default"] == "diverges"


def test_a_wrong_stage_is_found_at_its_node() -> None:
    verdicts = verdicts_with_a_sine_for_each_cosine(lambda x: torch.cos(x * 2) + 1)
    assert verdicts["aten.mul.Tensor"] in ("same", "close") and verdicts["aten.cos.default"] == "diverges"


def test_inputs_stay_as_they_are() -> None:
    x = torch.zeros(4)

    def f(x):
        x.add_(1)
        return x * 2

    r = tcompile.explain(f, check=True)(x)
    assert x.tolist() == [1.0] * 4
    assert {n.op: n.verdict for n in r.numerics} == {"aten.add.Tensor": "same", "aten.mul.Tensor": "same"}


def test_a_training_step_is_compared_by_its_forward_graphs() -> None:
    """A backward graph is compiled next to its forward graph where sizes are symbols, and the parameters have been
    written to since.
    """
    layer = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    step = tcompile.compile(lambda x: torch.nn.functional.gelu(layer(x)).square().mean(), dynamic=True)
    with tcompile.record() as recorded:
        step(torch.randn(8, 16)).backward()
        optimizer.step()
    report = recorded.report()
    assert any("backward" in g.name for g in report.graphs)
    check_calls(recorded.calls, report, Options.make())
    assert len(report.numerics) > 5 and {n.verdict for n in report.numerics} <= {"same", "close"}
    assert {report.graphs[n.graph].name for n in report.numerics} == {report.graphs[0].name}


def test_a_graph_that_can_not_be_run_again_says_why() -> None:
    table, index = torch.randn(4, 8), torch.tensor([3])
    with tcompile.record() as recorded:
        tcompile.compile(lambda t, i: torch.index_select(t, 0, i) * 2)(table, index)
    index.fill_(99)
    report = recorded.report()
    check_calls(recorded.calls, report, Options.make())
    assert [n.verdict for n in report.numerics] == ["random"] and "could not be run again" in report.numerics[0].why


def test_where_nan_comes_from_is_told():
    def f(x):
        y = torch.log(x - x.min())
        return (y * 0).sum()

    r = tcompile.explain(f, check=True)(torch.randn(8, 64))
    rows = {n.op.split(".")[1]: n for n in r.numerics}
    assert (rows["log"].inf, rows["log"].nan, rows["log"].count) == (1, 0, 512)
    assert rows["mul"].nan == 1 and rows["sum"].nan == 1 and not rows["sub"].nan
    (found,) = [x for x in r.findings if x.ref == "numerics"]
    assert "first value with NaN: 1 of 512, as in eager" in found.text and found.line == rows["mul"].line


def test_where_digits_are_lost_comes_first_with_what_keeps_them():
    """An exp beyond float16's range, a difference of nearly equal values, and a mask's infinity, which is meant."""

    def too_large(x):
        e = torch.exp(x)
        return e / e.sum(-1, keepdim=True)

    def variance(x):
        return (x * x).mean(-1) - x.mean(-1) ** 2

    def masked(x):
        return torch.softmax(x.masked_fill(x < 0, float("-inf")), -1)

    def too_small(x):
        p = torch.exp(-x) * 1e-3
        return x + (p.half() ** 2).float()

    large = torch.linspace(-5, 20, 4 * 64).reshape(4, 64)
    for f, x, cause, dtype in (
        (too_large, large.half(), "overflow", "float32"),
        (too_small, torch.full((4,), 7.0), "underflow", "float32"),
        (variance, torch.randn(8, 512) + 4096, "cancellation", "float64"),
    ):
        r = tcompile.explain(f, check=True)(x)
        blamed = [n for n in r.numerics if n.cause]
        assert [n.cause for n in blamed] == [cause] and blamed[0].why
        first = next(x for x in r.findings if x.ref == "numerics")
        assert "loses what float64 keeps" in first.text and dtype in first.action
        assert not any("emulate_precision" in x.action for x in r.findings)
    r = tcompile.explain(too_small, check=True)(torch.full((4,), 7.0))
    cast, square = [n for n in r.numerics if n.dtype == "float16"]
    assert (square.cause, square.rms_vs_float64, square.eager_rms_vs_float64) == ("underflow", None, 1.0)
    assert square.why.startswith("in eager 4 of 4 values become 0 in float16") and "never rounds it" in square.why
    assert cast.rms_vs_float64 is not None and not cast.why, "a cast that the program asks for is rounded"
    exact = tcompile.explain(too_small, check=True, options={"emulate_precision": True})(torch.full((4,), 7.0))
    assert [n.rms_vs_float64 for n in exact.numerics if n.cause] == [1.0]
    r = tcompile.explain(masked, check=True)(large)
    assert not any(n.cause for n in r.numerics) and not [x for x in r.findings if x.ref == "numerics"]
