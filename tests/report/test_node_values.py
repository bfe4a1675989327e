"""What values nodes have: as eager computes them, with what is no number marked."""

import torch
import tcompile
from tcompile.compiler.report.node_values import describe, values_of


def rows_of(f, *args):
    r = tcompile.explain(f)(*args)
    return {row["node"]: row for row in values_of(r.graphs[0].aten, args)}


def test_ranges_are_those_of_eager():
    x, w = torch.randn(16, 8), torch.randn(8, 4)
    rows = rows_of(lambda x, w: torch.relu(x @ w) * 2, x, w)
    mm = x @ w
    assert rows["mm"]["min"] == float(mm.double().min()) and rows["mm"]["count"] == 64 and not rows["mm"]["mark"]
    assert rows["relu"]["zero"] == int((torch.relu(mm) == 0).sum()) and rows["relu"]["min"] == 0
    assert rows["mm"]["sample"] == mm.reshape(-1)[:8].tolist()


def test_the_first_nan_is_where_it_arises():
    x = torch.tensor([1.0, -1.0, 0.0])
    rows = rows_of(lambda x: (torch.sqrt(x) + 1, 1 / x), x)
    assert rows["sqrt"]["mark"] == "nan" and rows["sqrt"]["nan"] == 1 and rows["sqrt"]["min"] == 0
    assert [r["mark"] for n, r in rows.items() if "reciprocal" in n or "div" in n] == ["inf"]
    assert rows["sqrt"]["sample"][1] == "nan"


def test_near_overflow_empty_complex_and_whole_numbers():
    assert describe(torch.tensor([60000.0], dtype=torch.float16))["mark"] == "large"
    assert describe(torch.tensor([60000.0], dtype=torch.bfloat16))["mark"] == ""
    assert describe(torch.empty(0))["min"] is None
    assert describe(torch.tensor([1 + 2j]))["mark"] == ""
    whole = describe(torch.tensor([3, -1]))
    assert (whole["min"], whole["max"], whole["mean"]) == (-1.0, 3.0, 1.0)


def test_inputs_are_read_never_written():
    x = torch.zeros(4)

    def f(x):
        x.add_(1)
        return x * 2

    r = tcompile.explain(f)(x.clone())
    kept = x.clone()
    values_of(r.graphs[0].aten, (x,))
    assert torch.equal(x, kept)
