"""The dashboard's small slice: tiny models of transformers are captured whole, are equal to eager, and fall back
nowhere. And what the program writes of rows that pass and that fail.
"""

from __future__ import annotations

import json

import pytest
import torch

import tcompile
from tests.benchmarks import dashboard, dashboard_models
from tests.benchmarks.dashboard_page import failures, median, page, passes, ratio, reached

HALVES = ("eager", "tcompile")


def test_every_tiny_model_is_made():
    """How each is captured and trained: tests/capture/test_huggingface.py, tests/autograd/test_public_models.py."""
    pytest.importorskip("transformers")
    assert len(dashboard_models.TINY) >= 6
    assert all(any(True for _ in dashboard_models.make(name, "tiny").parameters()) for name in dashboard_models.TINY)


@pytest.mark.parametrize("name, mode", list(zip(dashboard_models.TINY, dashboard.MODES)))
def test_a_tiny_model_passes(name, mode):
    pytest.importorskip("transformers")
    tcompile.reset()
    row = dashboard.measure(name, mode, size="tiny", engines=HALVES, seconds=0.0)
    assert not failures(row), failures(row)
    assert row["engines"]["tcompile"]["breaks"] == 0
    if mode == "training":
        assert row["engines"]["tcompile"]["error_of_gradients"] is not None


def row(**ours):
    """A row that passes, but for what is given."""
    good = {
        "error_of_result": 0.0,
        "error_of_gradients": None,
        "gradients_missing": 0,
        "graphs": 1,
        "breaks": 0,
        "graphs_run_by_eager": 0,
        "fallbacks": [],
        "first_seconds": 1.0,
        "memory_bytes": 2**20,
        "quartiles": [0.9, 1.0, 1.1],
    }
    other = {"first_seconds": 4.0, "memory_bytes": 2**21, "quartiles": [1.9, 2.0, 2.1]}
    return {
        "model": "transformers:bert",
        "mode": "inference",
        "device": "cpu",
        "size": "tiny",
        "random": False,
        "engines": {"eager": dict(other), "stock": {**good, **other}, "tcompile": {**good, **ours}},
    }


def test_how_near_a_row_comes_to_the_machines_limit():
    near = row(bytes_of_kernels=2e9)
    near["work"] = {"flops": 3e11, "flops_per_second": 1e12, "bytes_per_second": 1e10}
    assert reached(near) == pytest.approx(0.5) and reached(row()) is None
    facts = {"commit": "abc", "date": "2026-01-01", "device": "CPU"}
    assert "50 %" in page([{"facts": facts, "rows": [near]}])


def test_what_a_step_of_products_works():
    x = torch.ones(4, 8)
    work = dashboard._work(lambda: x @ x.T, "cpu")
    assert work["flops"] == 2 * 4 * 8 * 4 and min(work.values()) > 0


@pytest.mark.parametrize(
    "ours, says",
    [
        ({"error": "RuntimeError: no"}, "RuntimeError: no"),
        ({"error_of_result": 0.1}, "the result differs"),
        ({"error_of_result": float("inf")}, "the result differs"),
        ({"error_of_gradients": 0.1}, "gradients differ"),
        ({"gradients_missing": 2}, "2 parameters"),
        ({"graphs": 0}, "nothing was compiled"),
        ({"graphs_run_by_eager": 1}, "torch's own kernels"),
        ({"fallbacks": ["f: runs eager"]}, "runs eager"),
    ],
)
def test_what_fails_a_row_is_said(ours, says):
    failing = row(**ours)
    assert passes(row()) and not passes(failing)
    assert says in failures(failing)[0]
    said = page([{"facts": {"commit": "abc", "date": "2026-01-01", "device": "CPU"}, "rows": [failing]}])
    assert "0 of 1" in said and failures(failing)[0].replace("'", "&#x27;") in said


def test_errors_are_relative_and_unlike_values_are_infinite():
    import torch

    values = torch.tensor([3.0, 4.0])
    assert dashboard._relative([(values + torch.tensor([0.0, 0.05]), values)]) == pytest.approx(0.01, rel=1e-3)
    nan = torch.tensor([3.0, float("nan")])
    assert dashboard._relative([(nan, nan.clone())]) == 0.0
    for unlike in (nan, values.double(), values[:1], torch.tensor([3.0, float("inf")])):
        assert dashboard._relative([(unlike, values)]) == float("inf")


def test_rows_add_up_and_the_page_is_over_commits(tmp_path, capsys):
    facts = {"commit": "aaa", "date": "2026-01-01", "device": "<CPU>"}
    first = tmp_path / "dashboard-2026-01-01-aaa-cpu.json"
    dashboard.keep(first, facts, [row()])
    dashboard.keep(first, facts, [{**row(), "model": "transformers:gpt2"}])
    dashboard.keep(first, facts, [row(first_seconds=2.0)])  # measured again: it takes the place of the first
    rows = json.loads(first.read_text())["rows"]
    assert sorted(r["model"] for r in rows) == ["transformers:bert", "transformers:gpt2"]
    assert [r["engines"]["tcompile"]["first_seconds"] for r in rows] == [1.0, 2.0]
    dashboard.keep(tmp_path / "dashboard-2026-01-02-bbb-cpu.json", {**facts, "commit": "bbb"}, [row(graphs=0)])
    (tmp_path / "dashboard-2026-01-03-ccc-cpu.json").write_text("{}")
    out = tmp_path / "page.html"
    assert dashboard.main(["--page", "--results", str(tmp_path), "--out", str(out)]) == 0
    assert "ccc-cpu.json is no result" in capsys.readouterr().err
    text = out.read_text()
    assert text.count("<h2>") == 1 and "aaa" in text and "2 of 2" in text and "0 of 1" in text
    assert "&lt;CPU&gt;" in text and "<CPU>" not in text and "http" not in text and "<svg" in text
    assert ratio(row(), "stock", median) == 2.0


def test_runs_of_one_day_are_in_the_order_of_their_time(tmp_path):
    for commit, time in (("bbb", "09:00 UTC"), ("aaa", "11:30 UTC"), ("ccc", "10:00 UTC")):
        facts = {"commit": commit, "date": "2026-01-01", "time": time, "device": "CPU"}
        dashboard.keep(tmp_path / f"dashboard-2026-01-01-{commit}-cpu.json", facts, [row()])
    assert [run["facts"]["commit"] for run in dashboard.kept(tmp_path)] == ["bbb", "ccc", "aaa"]
    assert "UTC" in dashboard.environment("cpu")["time"]


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--names", "nosuch"], "no model's name has 'nosuch' in it"),
        (["--modes", "inferring"], "a mode is inference or training"),
        (["--modes", "training:fast"], "a mode is inference or training"),
        (["--engines", "xla"], "no engine xla"),
    ],
)
def test_a_wrong_command_line_is_refused_in_words(arguments, says, capsys):
    with pytest.raises(SystemExit):
        dashboard.main(["--device", "cpu", *arguments])
    assert says in capsys.readouterr().err


def test_a_process_that_fails_is_a_row_that_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dashboard.sys, "executable", "/bin/false")
    arguments = ["--names", "transformers:bert", "--modes", "inference", "--device", "cpu", "--size", "tiny"]
    assert dashboard.main([*arguments, "--results", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 1
    assert "the process ended with status 1" in capsys.readouterr().out
