"""A student's C++ as the codegen stage: right where it is right, and an error in words where it is not."""

from __future__ import annotations

import pytest
import torch

from tcompile.labs import cpp_trial
from tcompile.labs.cpp_plugs import cpp_stage, evaluate, instructions, rows_of
from tcompile.labs.plugs import explain_with
from tcompile.labs.answers import told


def scaled(x):
    return x * 2 + 1


def scaled_by(p):
    """By hand, for `scaled` alone."""
    return "for (i64 i = 0; i < n; ++i) out0[i] = in0[i] * 2.0f + 1.0f;"


def words(printer, program=scaled, *args) -> str:
    with pytest.raises(Exception) as caught:
        explain_with("codegen", cpp_stage(printer), program, *(args or (torch.ones(5, 9),)))
    return told(caught.value)


def test_what_a_student_prints_runs_and_the_report_names_it():
    x = torch.randn(5, 9)
    report = explain_with("codegen", cpp_stage(scaled_by), scaled, x)
    torch.testing.assert_close(report.result, scaled(x))
    assert [(s.by, s.declined) for s in report.stages if s.name == "codegen"] == [("scaled_by", 0)]


def test_a_kernel_as_passes_of_a_row():
    (row,) = rows_of(lambda x: x - (x * x).sum(-1, keepdim=True), torch.ones(4, 16))
    first, second = row.passes
    assert [s.op for s in first.steps] == ["load", "mul", "sum"] and first.each and first.reductions
    assert [s.op for s in second.steps] == ["load", "sub", "store"] and second.steps[1].args[1] == "sum0"


def test_instructions_repeat_and_grow_with_the_work():
    few, many = (instructions(scaled, torch.ones(n), by=scaled_by) for n in (100, 200))
    assert few == instructions(scaled, torch.ones(100), by=scaled_by)
    assert 300 < few < many < 2 * few + 50


@pytest.mark.parametrize(
    "text, told_as",
    [
        ("for (i64 i = 0; i <= n; ++i) out0[i] = 1;", "outside of its tensors"),
        ("__builtin_trap();", "crashed: SIGILL"),
        ("out0[0] = lod(in0);", "the lab's C++:2:11: error"),
        ("  ", "gave no C++"),
        (None, "gave NoneType"),
    ],
)
def test_what_is_wrong_is_said_before_it_runs_here(text, told_as):
    assert told_as in words(lambda p: text)


def test_a_kernel_without_an_end_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpp_trial, "SECONDS", 1)
    assert "is still running after 1 s" in words(lambda p: "volatile int k = 0; while (true) k = k + 1;")


def test_what_is_too_hard_is_declined():
    report = explain_with("codegen", cpp_stage(scaled_by), torch.exp, torch.ones(4))
    (row,) = [s for s in report.stages if s.name == "codegen"]
    assert row.declined == row.count == 1
    torch.testing.assert_close(report.result, torch.exp(torch.ones(4)))


def test_the_value_of_an_expression():
    assert evaluate("maximum(a, 0.5f) * 2.0f", a=-1.0) == 1.0
    with pytest.raises(SyntaxError, match="the lab's C\\+\\+:1"):
        evaluate("a +", a=1.0)
