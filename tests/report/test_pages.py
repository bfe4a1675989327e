"""A report outside of the notebook: as a page, at the command line, and against an earlier one."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from tcompile.cli import main
from tcompile import CompileReport
from tcompile.compiler.report import schema as s
from tcompile.kernel_magics.render import bundle
from tcompile.kernel_magics.render.html import render_html

SAMPLE = Path(__file__).parent / "sample_report.json"


@pytest.fixture
def report() -> CompileReport:
    return CompileReport.from_json(SAMPLE.read_text())


def test_page_holds_the_report_and_no_markup_of_the_users(report: CompileReport, tmp_path: Path) -> None:
    report.title = "<script>alert(1)</script>"
    report.source.text = "x = '</script><b>'"
    text = Path(report.save(str(tmp_path / "r.html"))).read_text()
    assert "<script>alert" not in text and "'</script><b>'" not in text
    assert report.summary.line.split("(")[0].strip()[:20] in text
    assert "http://" not in text.replace("http://www.w3.org", "") and "https://" not in text


def test_command_line_shows_and_converts(report: CompileReport, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["report", str(SAMPLE)]) == 0 and report.summary.line in capsys.readouterr().out
    out = tmp_path / "out.html"
    assert main(["report", str(SAMPLE), "-o", str(out)]) == 0 and out.exists()
    notebook = tmp_path / "n.ipynb"
    output = {"output_type": "display_data", "data": {s.MIME: report.to_dict()}}
    notebook.write_text(json.dumps({"cells": [{"outputs": [output]}]}))
    capsys.readouterr()
    assert main(["report", str(notebook)]) == 0 and report.summary.line in capsys.readouterr().out
    assert main(["report", str(notebook), "-n", "2"]) == 2 and "1 to 1" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "gone.json")]) == 1 and "cannot be read" in capsys.readouterr().err
    notebook.write_text("{}")
    assert main(["report", str(notebook)]) == 1 and "expected" in capsys.readouterr().err


def test_what_changed_since_the_last_run(report: CompileReport) -> None:
    before = CompileReport.from_json(SAMPLE.read_text())
    assert not report.diff(before).changes and not report.diff(before).source
    report.source.text += "\nz = 1"
    report.summary.breaks, report.graph_breaks = 0, []
    report.options["mode"] = "max-autotune"
    for call in report.speedups.calls:
        for e in call.engines:
            if e.engine == "tcompile" and e.median:
                e.median, e.lo, e.hi = e.median / 2, e.lo / 2, e.hi / 2
    d = report.diff(before)
    words = {c.what: c for c in d.changes}
    assert (
        words["graph breaks"].better
        and words["graph break gone"].before
        and words["option mode"].after == "max-autotune"
    )
    assert any(c.what.startswith("time of") and c.better for c in d.changes)
    assert ["+", "z = 1"] in d.source
    report.previous = d
    again = CompileReport.from_json(report.to_json())
    assert again.previous == d and "Since the last run" in str(again)
    with pytest.raises(TypeError, match="CompileReport"):
        report.diff("yesterday")


def test_one_sample_of_a_busy_machine_is_no_gain(report: CompileReport) -> None:
    before = CompileReport.from_json(SAMPLE.read_text())
    for r, factor in ((before, 100.0), (report, 1.0)):
        for e in (e for call in r.speedups.calls for e in call.engines if e.median):
            e.n, e.median = 1, e.median * factor
            e.lo = e.hi = e.median
    told = [c for c in report.diff(before).changes if c.what.startswith("time of")]
    assert told and all(c.better is None and c.why.startswith("one sample") for c in told)


def test_a_run_that_earlier_entries_served_has_lost_nothing(report: CompileReport) -> None:
    before = CompileReport.from_json(SAMPLE.read_text())
    report.summary.compile_seconds, report.graphs, report.memory, report.kernels = 0.0, [], [], []
    report.summary.graphs = report.summary.kernels = 0
    report.options["mode"] = "max-autotune"
    told = {c.what: c.after for c in report.diff(before).changes}
    assert told.pop("option mode") == "max-autotune"
    assert told == {"compile time": "none: earlier entries served"}


def test_widgets_are_the_views_of_the_labextension(report: CompileReport) -> None:
    pytest.importorskip("anywidget")
    from tcompile.kernel_magics.page import bundle_path
    from tcompile.kernel_magics.widgets import view_widget

    with pytest.raises(ValueError, match="overview"):
        view_widget(report, "nonsense")
    if bundle_path() is None:
        pytest.skip("the labextension is not built (make labextension)")
    w = report.graph_widget()
    assert w.view == "graph" and w.report["schema"] == "tcompile.report"
    sent = []
    w.send = sent.append
    w._asked(w, {"id": 3, "ask": "retime"}, [])
    assert sent[-1]["id"] == 3 and "run the cell again" in sent[-1]["error"]
    data, _ = w._repr_mimebundle_()
    assert "text/html" in data and "application/vnd.jupyter.widget-view+json" in data


def test_the_bundle_of_a_large_report_is_small_enough_to_save(report: CompileReport) -> None:
    r = report
    r.kernels = [
        dataclasses.replace(r.kernels[i % 3], name=f"kernel_{i}", source=f"// {i}\n" * 800) for i in range(400)
    ]
    r.graphs = [
        dataclasses.replace(r.graphs[0], name=f"graph_{i}", inputs=[f"layers_{k}_weight_of_{i}" for k in range(300)])
        for i in range(60)
    ]
    made = bundle(r)
    assert sum(len(json.dumps(v, ensure_ascii=False).encode()) for v in made.values()) < 200_000
    assert len(made["text/html"]) <= 20_000 and "not in this summary: " in made["text/html"]
    whole = render_html(r)
    assert "kernel_39" in whole and "kernel_40" not in whole and "and 360 more" in whole
    assert len(r.kernels) == 400 and "source of" in whole


def test_the_saved_html_is_a_summary_that_names_what_it_leaves_out(report: CompileReport) -> None:
    whole, summary = render_html(report), render_html(report, 20_000)
    assert len(summary) <= 20_000 < len(whole)
    for title in ("Where the time went", "Code", "Graph breaks", "Recompiles", "Speed"):
        assert f'<b class="sec">{title}</b>' in summary, title
    left = re.search(r"not in this summary: ([^.]*)\.", summary)
    assert left is not None
    for title in left.group(1).split(", "):
        assert f'<b class="sec">{title.capitalize()}</b>' not in summary, title
    assert len(render_html(report, 6_000)) <= 6_000
    assert "data:image/svg+xml" in summary and "<script" not in summary
