"""Profiles of calls in the report: rows of a trace, columns and back, costs of lines, and what damages them."""

import json
from types import SimpleNamespace

import pytest
import torch
from tcompile import CompileReport
from tcompile.compiler.report import schema as s
from tcompile.compiler.report.profiles import encode_spans, on_the_device, profile_rows, tell_break_costs
from tcompile.compiler.runtime.trace import Span


def rows():
    return [
        s.ProfileSpan("call", "f", -1, 0.0, 1e-3),
        s.ProfileSpan("graph", "graph_0", 0, 1e-4, 8e-4, 0),
        s.ProfileSpan("library", "mm", 1, 1e-4, 6e-4, 0, None, "mm", "In[1]", 3, "layer.0", "forward"),
        s.ProfileSpan("kernel", "k", 1, 7e-4, 1e-4, 0, 0, "relu", "In[1]", 3, "layer.0", "forward"),
    ]


def report():
    r = CompileReport(title="f")
    r.graphs = [s.Graph("graph_0")]
    r.kernels = [s.Kernel("k", "cpp", "", "", 0, lines=[["In[1]", 3], ["In[1]", 4]])]
    p = s.CallProfile("f", "In[1]", 1, "call", "cpu", 1e-3, 9e-4)
    encode_spans(p, rows())
    r.profiles = [p]
    return r


def test_rows_survive_the_columns_and_the_json():
    again = CompileReport.from_json(report().to_json())
    assert [x.name for x in again.profiles[0].rows()] == ["f", "graph_0", "mm", "k"]
    for got, expected in zip(again.profiles[0].rows(), rows()):
        assert (got.kind, got.graph, got.kernel, got.node, got.line, got.module, got.part, got.parent) == (
            expected.kind,
            expected.graph,
            expected.kernel,
            expected.node,
            expected.line,
            expected.module,
            expected.part,
            expected.parent,
        )
        assert abs(got.seconds - expected.seconds) < 1e-9


def test_a_break_costs_the_time_between_its_graphs():
    """Without what a compiled function takes that is called in between."""
    first, called, after = (SimpleNamespace(meta=object()) for _ in range(3))
    spans = [
        Span("call", "f", 0.0, 100e-6),
        Span("entry", "f", 5e-6, 90e-6, 0, first),
        Span("graph", "graph_0", 10e-6, 20e-6, 1),
        Span("entry", "g", 40e-6, 15e-6, 1, called),
        Span("graph", "graph_1", 45e-6, 5e-6, 3),
        Span("entry", "f", 60e-6, 30e-6, 1, after),
        Span("graph", "graph_2", 65e-6, 20e-6, 5),
    ]
    r = report()
    r.entries = [s.Entry(0, breaks=[0]), s.Entry(1), s.Entry(0)]
    r.graph_breaks = [s.Break("item", "", "In[1]", 3)]
    tell_break_costs(spans, r, {id(e.meta): i for i, e in enumerate((first, called, after))})
    b = r.graph_breaks[0]
    assert b.seconds == pytest.approx(20e-6), "from 30 to 65, without the 15 of g"
    assert b.share == pytest.approx(0.2)
    b.kind = "print"  # making the text takes as long elsewhere
    tell_break_costs(spans, r, {id(e.meta): i for i, e in enumerate((first, called, after))})
    assert b.seconds == pytest.approx(5e-6), "from 60 to 65"


def test_on_a_gpu_steps_take_their_own_time_and_the_hosts_are_launches():
    """A launch takes 5 us of the host, its kernel 30 of the GPU: the second waits for the first."""
    r = report()
    r.kernels[0].seconds, r.externs = 30e-6, [s.Extern("aten.mm.default", 2, graph=0, seconds=80e-6)]
    spans = [
        s.ProfileSpan("call", "f", -1, 0.0, 200e-6),
        s.ProfileSpan("graph", "graph_0", 0, 10e-6, 50e-6, 0),
        s.ProfileSpan("kernel", "k", 1, 10e-6, 5e-6, 0, 0, "relu", "In[1]", 3),
        s.ProfileSpan("library", "mm", 1, 20e-6, 5e-6, 0, None, "mm", "In[1]", 4),
    ]
    rows = on_the_device(list(spans), r)
    assert [(x.kind, x.name, x.parent) for x in rows[2:]] == [
        ("launch", "launch of k", 1),
        ("launch", "launch of mm", 1),
        ("kernel", "k", 0),
        ("library", "mm", 0),
    ]
    assert [x.begin for x in rows[4:]] == pytest.approx([15e-6, 45e-6])
    assert [x.seconds for x in rows[4:]] == pytest.approx([30e-6, 40e-6])
    p = s.CallProfile("f", "In[1]", 1, "call", "cuda", 200e-6, 190e-6)
    encode_spans(p, rows)
    assert [x.kind for x in p.rows()] == [x.kind for x in rows]
    r.externs[0].seconds = None
    plain = [s.ProfileSpan("call", "f", -1, 0.0, 1e-4), s.ProfileSpan("library", "mm", 0, 0.0, 1e-5, 0)]
    assert on_the_device(list(plain), r) == plain, "a lane with holes would say that the GPU waits"


def test_a_report_without_profiles_is_read():
    data = json.loads(report().to_json())
    del data["profiles"]
    assert CompileReport.from_json(json.dumps(data)).profiles == []


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p["columns"]["parent"].__setitem__(2, 3),
        lambda p: p["columns"]["parent"].__setitem__(1, -1),
        lambda p: p["columns"]["name"].pop(),
        lambda p: p["columns"]["kind"].__setitem__(0, 99),
        lambda p: p["tables"].pop("line"),
        lambda p: p["tables"]["name"].__setitem__(0, 5),
    ],
)
def test_damage_is_refused_by_name(change):
    data = report().to_dict()
    from tcompile.compiler.report.json import unpack

    data = unpack(data)
    change(data["profiles"][0])
    with pytest.raises(ValueError, match=r"profiles\[0\]"):
        CompileReport.from_json(json.dumps(data))


def test_what_was_left_out_is_no_reference_any_more():
    r = report()
    r.kernels = []
    again = CompileReport.from_json(r.to_json())
    assert all(x.kernel is None for x in again.profiles[0].rows())


def test_backward_and_optimizer_nodes_know_their_part_and_module():
    import tcompile

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    opt = torch.optim.Adam(model.parameters())

    def step(x):
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()

    r = tcompile.explain(step)(torch.randn(5, 8))
    modules = {n.module for g in r.graphs for n in g.lowered.nodes() if n.op not in ("input", "parameter", "output")}
    assert {"model.0", "model.2", "backward.model.0", "backward.model.1", "backward.model.2", "optimizer"} <= modules


def test_a_backward_graph_of_its_own_has_the_modules_of_forward():
    import tcompile

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    compiled = tcompile.compile(lambda x: model(x).square().sum())
    with tcompile.record() as recorded:
        compiled(torch.randn(5, 8)).backward()
    r = recorded if hasattr(recorded, "graphs") else recorded.report()
    backward = [g for i, g in enumerate(r.graphs) if any(i in p.backward for p in r.partitions)]
    modules = {n.module for g in backward for n in g.lowered.nodes() if n.op.startswith("aten.")}
    assert {"backward.model.0", "backward.model.2"} <= modules


def test_strides_that_are_no_rows_are_kept():
    import tcompile

    r = tcompile.explain(lambda x: (x.t() * 2, x + 1))(torch.randn(3, 5))
    nodes = {n.op: n for n in r.graphs[0].lowered.nodes()}
    assert nodes["aten.permute.default"].stride == [1, 5] and nodes["aten.add.Tensor"].stride is None
    again = CompileReport.from_json(r.to_json()).graphs[0].lowered.nodes()
    assert [n.stride for n in again] == [n.stride for n in r.graphs[0].lowered.nodes()]


def test_a_replay_is_at_work_until_the_call_waits_for_it():
    """One launch of a recorded graph: no step of its plan is seen, and what follows is no Python."""
    entry = SimpleNamespace(meta=object())
    spans = [
        Span("call", "", 0.0, 200e-6),
        Span("guards", "", 2e-6, 8e-6, 0, entry),
        Span("entry", "", 10e-6, 50e-6, 0, entry),
    ]
    r = report()
    r.entries, r.frames = [s.Entry(0, graph=0)], [s.Frame("f")]
    rows = profile_rows(spans, r, {}, {id(entry.meta): 0}, "f")
    assert not any(x.kind == "graph" for x in rows), "on a CPU a plan is never replayed"
    r.kernels[0].language, r.graphs[0].kernels = "triton", [0]
    rows = profile_rows(spans, r, {}, {id(entry.meta): 0}, "f")
    (replay,) = [x for x in rows if x.kind == "graph"]
    assert (replay.name, replay.parent) == ("graph_0, replayed as one launch", 0)
    assert (replay.begin, replay.seconds) == pytest.approx((60e-6, 140e-6))
    assert sum(x.seconds for x in rows if x.kind == "python") < 60e-6
