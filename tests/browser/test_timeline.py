"""The profile tab: one call as a flame chart, linked to the other views, by pointer and by keyboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tcompile import CompileReport
from tcompile.compiler.report import schema as s
from tcompile.compiler.report.profiles import encode_spans, on_the_device

from .notebooks import sample_report
from .pages import SAMPLE, cpu_ms, opened, saved, show


def test_the_call_by_name_with_its_time(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path)) as (page, problems):
        show(page, "profile")
        panel = page.locator(".tc-panel-root:not([hidden])")
        words = panel.inner_text()
        assert "61.0 µs with the clock, 59.0 µs without" in words
        rows = [row.inner_text().split("\t") for row in panel.locator("tbody tr").all()]
        assert rows[0][0].strip() == "mm" and rows[0][1].strip() == "21.6 µs" and "35 %" in rows[0][2]
        for by in ("module", "line", "kind"):
            panel.locator(".tc-segment", has_text=by).last.click()
            rows = [row.inner_text() for row in panel.locator("tbody tr").all()]
            assert any({"module": "layers.1", "line": "line 5", "kind": "library call"}[by] in r for r in rows), rows
        assert not problems


def test_keyboard_walks_zooms_and_says_where_it_is(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path)) as (page, problems):
        show(page, "profile")
        canvas = page.locator(".tc-flame")
        canvas.focus()
        details = page.locator(".tc-flame-details")
        for key, words in (
            ("ArrowDown", "the call"),
            ("ArrowDown", "guards of forward"),
            ("ArrowRight", "compiled entry"),
            ("ArrowDown", "graph_0"),
            ("ArrowUp", "compiled entry"),
        ):
            page.keyboard.press(key)
            assert words in details.inner_text(), (key, details.inner_text())
        page.keyboard.press("Enter")
        page.keyboard.press("+")
        page.keyboard.press("0")
        page.keyboard.press("Escape")
        assert "Choose a bar" in details.inner_text()
        assert canvas.get_attribute("aria-label") and canvas.get_attribute("role") == "application"
        assert not problems


def test_search_and_selection_reach_the_other_views(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path)) as (page, problems):
        show(page, "profile")
        panel = page.locator(".tc-panel-root:not([hidden])")
        panel.locator("input[type=search]").fill("softmax")
        assert "1 match, 3.30 µs" in panel.locator("[role=status]").inner_text()
        panel.locator("tbody tr", has_text="kernel_softmax_2").click()
        assert "line 9" in panel.locator(".tc-flame-details").inner_text()
        panel.locator(".tc-flame-details .tc-link", has_text="kernel_softmax_2").click()
        assert "kernel_softmax_2" in page.locator(".tc-panel-root:not([hidden])").inner_text()
        assert page.locator(".tc-tab[aria-selected=true]").inner_text().lower() == "code"
        page.locator(".tc-panel-root:not([hidden]) .tc-line[data-line='5']").first.click()
        show(page, "profile")
        assert "6 steps, 56 % of the call" in panel.locator("[role=status]").inner_text()
        assert not problems


def test_the_line_with_the_product_has_its_cost(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path)) as (page, _):
        heat = page.locator(".tc-line[data-line='5'] .tc-heat").first
        assert heat.inner_text() == "27 %", "as the table of what took the run's time has it"


def test_where_the_run_was_not_looked_at_a_profile_tells_what_lines_cost(browser: Any, tmp_path: Path) -> None:
    report = CompileReport.from_json(SAMPLE.read_text())
    report.wall = s.Wall()
    with opened(browser, saved(tmp_path, report)) as (page, _):
        heat = page.locator(".tc-line[data-line='5'] .tc-heat").first
        assert heat.inner_text() == "87 %", "the product's library call, and its kernels"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_narrow_and_enlarged_nothing_is_cut(browser: Any, tmp_path: Path, theme: str) -> None:
    with opened(browser, saved(tmp_path), width=380, theme=theme) as (page, problems):
        show(page, "profile")
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0 and not problems


def deep(layers: int) -> CompileReport:
    """A call of some thousands of steps in modules."""
    spans = [s.ProfileSpan("call", "f", -1, 0.0, layers * 1e-4), s.ProfileSpan("graph", "g", 0, 0.0, layers * 1e-4, 0)]
    for i in range(layers):
        for k in range(4):
            kind = "library" if k % 2 else "kernel"
            spans.append(
                s.ProfileSpan(
                    kind,
                    f"k{i % 7}",
                    1,
                    i * 1e-4 + k * 2e-5,
                    1.9e-5,
                    0,
                    i % 3,
                    f"n{i}",
                    "In[4]",
                    5,
                    f"m.layer.{i}.x",
                    "forward",
                )
            )
    profile = s.CallProfile("f", "", None, "call", "cpu", layers * 1e-4)
    encode_spans(profile, spans)
    report = CompileReport.from_json(json.dumps(sample_report()))
    report.profiles = [profile]
    return report


def test_on_a_gpu_the_last_row_is_the_gpus_and_costs_are_its_own(browser: Any, tmp_path: Path) -> None:
    report = CompileReport.from_json(json.dumps(sample_report()))
    for k in report.kernels:
        k.seconds = 40e-6
    file = report.source.file
    rows = [
        s.ProfileSpan("call", "step", -1, 0.0, 200e-6),
        s.ProfileSpan("graph", "graph_0", 0, 0.0, 60e-6, 0),
        s.ProfileSpan("kernel", report.kernels[0].name, 1, 5e-6, 5e-6, 0, 0, "add", file, 5, part="forward"),
        s.ProfileSpan("kernel", report.kernels[1].name, 1, 15e-6, 5e-6, 0, 1, "mul", file, 6, part="forward"),
    ]
    call = s.CallProfile("step", file, 4, "call", "cuda", 200e-6, 190e-6)
    encode_spans(call, on_the_device(rows, report))
    report.profiles = [call]
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        show(page, "profile")
        panel = page.locator(".tc-panel-root:not([hidden])")
        words = panel.inner_text()
        assert "The last row is the GPU’s" in words and "launch of a step on the GPU" in words
        table = panel.locator("table").first.inner_text()
        assert report.kernels[1].name in table and "40.0 µs" in table and "10.0 µs" in table, table
        assert not problems


def test_6000_steps_draw_and_zoom(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path, deep(1500))) as (page, problems):
        first = cpu_ms(page, "document.querySelectorAll('.tc-tab')[3].click()", 1)
        assert first < 1000, first
        zoom = "document.querySelectorAll('.tc-panel-root:not([hidden]) .tc-tool')[i % 2].click()"
        assert cpu_ms(page, zoom, 8) < 50
        assert not problems
