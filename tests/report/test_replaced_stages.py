"""The report names the function that stood for a stage, and counts what it declined."""

from __future__ import annotations

import torch

import tcompile
from tcompile.kernel_magics.render import html


def program(x):
    return torch.relu(x * 2) + 1


def test_the_report_names_the_function_in_a_stages_place():
    whole = tcompile.stages.original("fusion")

    def my_fusion(lowered, opts):
        return whole(lowered, opts=opts)

    x = torch.randn(8)
    with tcompile.stages.replace("fusion", my_fusion):
        report = tcompile.explain(program)(x)
    row = next(st for st in report.stages if st.name == "fusion")
    assert row.by.endswith("my_fusion") and row.count == 1 and row.declined == 0
    assert "fusion by " in str(report) and "my_fusion" in html.render_html(report)
    assert next(st for st in report.stages if st.name == "lowering").by == ""
    assert all(not st.by for st in tcompile.explain(program)(x).stages)


def test_a_replacement_that_declines_is_counted_and_the_compilers_own_does_it():
    def my_fusion(lowered, opts):
        raise tcompile.stages.Decline("no reductions yet")

    x = torch.randn(8)
    with tcompile.stages.replace("fusion", my_fusion):
        report = tcompile.explain(program)(x)
    row = next(st for st in report.stages if st.name == "fusion")
    assert row.declined == row.count == 1
    assert "declined 1 of 1" in str(report)
    torch.testing.assert_close(report.result, program(x))
    again = type(report).from_json(report.to_json())
    assert next(st for st in again.stages if st.name == "fusion").declined == 1
