"""What a report says of forward and backward: what is kept, what is computed again."""

import tcompile
import torch
import torch.nn as nn

from tcompile.compiler.report import CompileReport


def training_report(**options) -> CompileReport:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 10))

    def loss(x, t):
        return nn.functional.cross_entropy(model(x), t)

    return tcompile.explain(loss, **options)(torch.randn(8, 16), torch.randint(0, 10, (8,)))


def test_kept_values_are_told_with_their_bytes():
    r = training_report()
    (p,) = r.partitions
    assert p.graph == 0 and p.budget == 1.0
    assert p.saved_bytes == sum(v.bytes for v in p.saved) > 0
    assert [v.bytes for v in p.saved] == sorted((v.bytes for v in p.saved), reverse=True)
    product = p.saved[0]
    assert (product.op, product.shape, product.dtype, product.bytes, product.kind) == (
        "aten.addmm.default",
        [8, 32],
        "float32",
        1024,
        "dear",
    )
    assert {v.name for v in p.saved} <= {n.name for n in r.graphs[0].lowered.nodes()}
    assert any(v.op == "aten.erf.default" for v in p.recomputed), "GELU is computed again"
    # eager: both layers' inputs, GELU's, LayerNorm's and its statistics, the mask as floats, the logarithms; nothing of
    # them is an input
    assert p.saved_bytes < p.eager_bytes and p.saved_bytes < p.read_bytes
    assert len(p.inputs) >= 2 and set(p.inputs) <= set(r.graphs[0].inputs)
    assert "Kept for backward" in str(r)
    assert CompileReport.from_json(r.to_json()).partitions == r.partitions


def test_a_memory_budget_is_told():
    r = training_report(options={"activation_memory_budget": 0.5})
    assert (
        r.partitions[0].budget == 0.5
        and r.partitions[0].saved_bytes <= 0.5 * training_report().partitions[0].saved_bytes
    )


def test_backward_graphs_are_told_with_their_partition():
    from tcompile.compiler.report.builder import record

    model = nn.Linear(4, 3)
    compiled = tcompile.compile(lambda x: torch.tanh(model(x)).sum())
    with record() as builder:
        compiled(torch.randn(2, 4)).backward()
    r = builder.report()
    (p,) = r.partitions
    assert p.backward == [1] and r.graphs[1].name.endswith("_backward")


def test_without_gradients_there_is_none():
    with torch.no_grad():
        assert training_report().partitions == []


def test_memory_of_forward_beside_what_eager_keeps_for_backward():
    net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(3)])
    with tcompile.record() as rec:
        tcompile.compile(net)(torch.randn(128, 64)).sum().backward()
    r = rec.report()
    forward = next(m for m in r.memory if m.graph == r.partitions[0].graph)
    one = 128 * 64 * 4
    assert (
        forward.eager_live == sorted(forward.eager_live)
        and forward.eager_live[-1] >= r.partitions[0].eager_bytes >= 4 * one
    )
    assert forward.eager_peak_bytes == max(forward.eager_live) and forward.eager_live[0] <= 2 * one
    assert not r.errors


def test_backward_of_a_graph_before_one_that_falls_back_has_a_row_of_its_own():
    def f(x, m):
        y = (x * 2).tanh()
        out = torch.zeros_like(y)
        out[m] = y[m]  # a break, then a graph whose gradient has a size that the data decide: torch's kernels run it
        return out.sum()

    x = torch.randn(4, requires_grad=True)
    with tcompile.record() as builder:
        tcompile.compile(f)(x, torch.tensor([True, False, True, True])).backward()
    report = builder.report()
    assert [g.name for g in report.graphs] == ["graph_0", "graph_1", "graph_0_backward"]
    assert [g.ran for g in report.graphs] == ["compiled", "eager", "compiled"]
    (partition,) = report.partitions
    assert (partition.graph, partition.backward) == (0, [2])
    assert report.graphs[2].runs == 1 and report.graphs[1].aten is None
