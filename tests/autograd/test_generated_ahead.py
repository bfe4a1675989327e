"""Backward graphs that are generated while forward's kernels are compiled, as on a GPU."""

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler import stages
from tcompile.compiler.base import meanwhile


def program(x, w):
    return F.layer_norm(torch.tanh(x @ w), (6,)).exp()


def inputs():
    torch.manual_seed(0)
    return torch.randn(4, 5, requires_grad=True), torch.randn(5, 6, requires_grad=True)


@pytest.fixture
def waits(monkeypatch):
    """`waits(done)`: building a graph waits, until done(); what ran of lowering is listed, graph by graph."""

    def begin(done=lambda: False):
        lowered = []
        build, lower = stages.original("runtime"), stages.original("lowering")

        def runtime(generated, opts, eager=None):
            meanwhile.use(done)
            return build(generated, opts=opts, eager=eager)

        def lowering(aten, opts):
            lowered.append(aten.name)
            return lower(aten, opts=opts)

        for stage, f in (("runtime", runtime), ("lowering", lowering)):
            monkeypatch.setitem(stages._functions, stages._by_name[stage].function, f)
        return lowered

    stages.load()
    tcompile.reset()
    return begin


def gradients(f, wanted=(0, 1)):
    given = inputs()
    return torch.autograd.grad(f(*given).square().sum(), [given[i] for i in wanted])


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_it_is_generated_once_however_far_it_came(steps, waits):
    looked = []
    lowered = waits(lambda: looked.append(0) or len(looked) > steps + 1)
    with tcompile.record() as recording:
        torch.testing.assert_close(gradients(tcompile.compile(program)), gradients(program))
    assert len(lowered) == 2, lowered
    report = recording.report()
    assert [g.name for g in report.graphs] == ["graph_0", "graph_0_backward"] and not report.errors
    assert {k.graph for k in report.kernels} == {0, 1} and not report.fallbacks
    known = {k.graph: [x.name for x in report.kernels if x.graph == k.graph] for k in report.kernels}
    with tcompile.record() as recording:  # the same without waiting
        tcompile.reset()
        waits(lambda: True)
        gradients(tcompile.compile(program))
    plain = recording.report()
    assert known == {k.graph: [x.name for x in plain.kernels if x.graph == k.graph] for k in plain.kernels}


def test_the_time_it_takes_counts_once(waits):
    waits()
    with tcompile.record() as recording:
        gradients(tcompile.compile(program))
    report = recording.report()
    lowering = {s.parent: s.count for s in report.stages if s.name == "lowering"}
    assert lowering == {"": 1, "runtime": 1}
    runtime = next(s for s in report.stages if s.name == "runtime")
    assert runtime.self_seconds < runtime.seconds


def test_another_backward_than_the_likely_one(waits):
    lowered = waits()

    def two(x, w):
        y = torch.tanh(x @ w)
        return y * 2, y.exp()

    f = tcompile.compile(two)
    for used in (1, 0):
        got, want = inputs(), inputs()
        f(*got)[used].sum().backward()
        two(*want)[used].sum().backward()
        for a, b in zip(got, want):
            assert (a.grad is None) == (b.grad is None)
            torch.testing.assert_close(a.grad, b.grad)
    assert len(lowered) == 4  # (forward, what was likely, and two others)


def test_forward_alone(waits):
    lowered = waits()
    given = inputs()
    torch.testing.assert_close(tcompile.compile(program)(*given), program(*given))
    assert len(lowered) == 2


def test_what_fails_ahead_is_said_where_backward_runs(waits, monkeypatch):
    waits()
    path = stages._by_name["fusion"].function
    schedule, seen = stages.original("fusion"), []

    def fusion(lowered, opts):
        seen.append(lowered)
        if len(seen) > 1:
            raise RuntimeError("no such kernel")
        return schedule(lowered, opts=opts)

    monkeypatch.setitem(stages._functions, path, fusion)
    with tcompile.record() as recording:
        f = tcompile.compile(program, options={"suppress_errors": True})
        torch.testing.assert_close(gradients(f), gradients(program))
    said = [x.reason for x in recording.report().fallbacks]
    assert len(seen) == 3 and len(said) == 1 and "no such kernel" in said[0]


def test_a_stage_that_was_replaced_meanwhile_is_asked(waits):
    lowered = waits()
    given, seen = inputs(), []
    y = tcompile.compile(program)(*given)

    def lowering(aten, opts):
        seen.append(aten.name)
        raise stages.Decline("no")

    with stages.replace("lowering", lowering):
        y.square().sum().backward()
    assert len(seen) == 1 and len(lowered) == 3
    torch.testing.assert_close(tuple(x.grad for x in given), gradients(program))


def test_work_that_is_offered_last_comes_behind_what_others_offered():
    ran = []
    with meanwhile.offered(lambda done: ran.append("backward")):
        with meanwhile.offered_last(lambda done: ran.append("first calls")):
            meanwhile.use(lambda: bool(ran))
            assert ran == ["backward"]
            meanwhile.use(lambda: False)
        with meanwhile.offered_last(lambda done: ran.append("never")):
            pass
        meanwhile.use(lambda: False)
    assert ran == ["backward", "first calls"]
    with meanwhile.offered_last(lambda done: ran.append("alone")):
        meanwhile.use(lambda: False)
    meanwhile.use(lambda: False)
    assert ran[2:] == ["alone"]
