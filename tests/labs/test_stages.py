"""A student's functions as stages of the real pipeline."""

from __future__ import annotations

import torch

import tcompile
from tcompile.labs.plugs import Check, capture_stage, explain_with, guard_stage, split_stage, tracing


def test_a_graph_of_proxies_is_captured():
    def run(function, values):
        return function(**values)

    def program(x, k):
        return torch.relu(x) * k, x.sum(-1)

    x = torch.randn(4, 6)
    report = explain_with("capture", capture_stage(tracing(run)), program, x, 3)
    torch.testing.assert_close(report.result, program(x, 3))
    assert [(st.by == run.__qualname__, st.declined) for st in report.stages if st.name == "capture"] == [(True, 0)]
    assert len(report.graphs) == len(report.kernels) == 1


def test_guards_of_a_stage_are_asked_before_each_call():
    def positive(reads):
        return [Check(read.name, "v > 0") for read in reads if read.name == "k"]

    def program(x, k):
        return x * k

    with tcompile.stages.replace("capture", guard_stage(positive)):
        fast = tcompile.compile(program)
        with tcompile.record() as record:
            assert fast(torch.ones(2), 2).tolist() == fast(torch.ones(2), 3).tolist() == [2.0, 2.0]  # stale, as asked
    assert len(record.report().entries) == 1


def test_a_split_runs_its_middle_in_each_call():
    said = []

    def program(x):
        said.append("whole")
        return x + 1

    def before(x):
        return (x * 2,)

    def native(x):
        said.append("native")
        return (x,)

    def after(x):
        return x + 1

    def halves(function):
        return (before, native, after) if function is program else None

    with tcompile.stages.replace("capture", split_stage(halves)):
        fast = tcompile.compile(program)
        with tcompile.record() as record:
            results = [fast(torch.ones(2)).tolist() for _ in range(2)]
    assert results == [[3.0, 3.0]] * 2 and said == ["native"] * 2
    assert len(record.report().graphs) == 2
