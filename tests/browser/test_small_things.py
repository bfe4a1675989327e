"""Small things that readers trip over: what covers code, page-long beginnings, rows of one kind, marks of warnings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tcompile import CompileReport
from tcompile.compiler.report import schema as s

from .notebooks import sample_report
from .pages import TABS, opened, saved, show


def sample() -> CompileReport:
    return CompileReport.from_json(json.dumps(sample_report()))


def test_a_kernels_numbering_begins_at_its_own_first_line(browser: Any, tmp_path: Path) -> None:
    report = sample()
    kernel = report.kernels[0]
    kernel.source = (
        "#include <stdint.h>\n" * 30 + '// the softmax\nextern "C" void k(float* out) {\n    out[0] = 1;\n}\n'
    )
    kernel.names = {"out": "add"}
    report.kernels = [kernel]
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        show(page, "code")
        pane = page.locator(".tc-pane[aria-label='Kernel']")
        first = pane.locator(".tc-pane-body > .tc-listing .tc-line").first
        assert first.get_attribute("data-line") == "1" and "the softmax" in first.inner_text()
        fold = pane.locator(".tc-preamble")
        assert "30 lines" in fold.inner_text()
        pane.locator(".tc-pane-body > .tc-listing .tc-line[data-line='3']").click()
        assert page.locator(".tc-pane[aria-label='Graph'] .tc-selected").inner_text().startswith("%add")
        assert not problems


def test_panes_are_resized_by_keyboard_and_pointer(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path), width=1400) as (page, problems):
        show(page, "code")
        pane, bar = page.locator(".tc-pane[aria-label='Graph']"), page.get_by_role("separator", name="Width of Graph")
        before = pane.bounding_box()["width"]
        bar.focus()
        page.keyboard.press("ArrowLeft")
        wider = pane.bounding_box()["width"]
        assert 15 < wider - before < 40
        box = bar.bounding_box()
        page.mouse.move(box["x"] + 3, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + 63, box["y"] + 40, steps=4)
        page.mouse.up()
        assert -75 < pane.bounding_box()["width"] - wider < -45
        assert not problems


def test_a_lines_cost_covers_no_code(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path), width=700) as (page, _):
        covered = page.evaluate(
            """() => [...document.querySelectorAll('.tc-line')].some(line => {
                const heat = line.querySelector('.tc-heat'), code = line.querySelector('code');
                return heat && heat.getBoundingClientRect().right > code.getBoundingClientRect().left; })"""
        )
        assert page.locator(".tc-heat").count() > 1 and not covered


def test_guards_of_one_kind_are_one_row_with_their_cost(browser: Any, tmp_path: Path) -> None:
    report = sample()
    row = report.guards[2]
    failed = [g for g in report.guards if g.failed]
    more = [s.GuardRow(0, f"x{i}", "TENSOR", f"`x{i}` is a tensor", ns=10.0) for i in range(40)]
    report.guards = [*failed, row, *more]
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        show(page, "guards")
        panel = page.locator(".tc-panel-root:not([hidden])")
        kind = panel.locator(".tc-guard-kind")
        assert kind.count() == 1 and "40 guards · 400 ns a call" in kind.inner_text()
        assert panel.locator("[data-guard]").count() == len(failed) + 1
        kind.locator("summary").click()
        kind.locator("[data-guard]").last.wait_for()  # (drawn in a task of its own)
        assert kind.locator("[data-guard]").count() == 40
        panel.locator("input[type=search]").fill("x17")
        assert panel.locator("[data-guard]").count() == 1
        assert not problems


def test_what_needs_no_change_has_no_warning(browser: Any, tmp_path: Path) -> None:
    report = sample()
    for b in report.graph_breaks:
        b.harmless = True
    for r in report.recompiles:
        r.suggestion = "no change is needed: the second iteration makes it any number"
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        show(page, "guards")
        panel = page.locator(".tc-panel-root:not([hidden])")
        assert not panel.locator("button.tc-event-break, button.tc-event-recompile").count()
        assert panel.locator("button.tc-event-harmless").count() == 2
        assert "no change needed" in panel.locator(".tc-legend").inner_text()
        assert "what to change" not in panel.inner_text()
        assert not problems


def test_what_costs_most_comes_first_and_long_lists_stay_short(browser: Any, tmp_path: Path) -> None:
    report = sample()
    for i, k in enumerate(report.kernels):
        k.seconds, k.launches = (i + 1) * 1e-3, 1
    report.guards.append(
        s.GuardRow(0, "", "NO_OVERLAP", "different memory: " + ", ".join(f"p[{i}]" for i in range(90)))
    )
    report.graph_breaks = [dataclasses.replace(report.graph_breaks[0], harmless=True) for _ in range(3)]
    row = s.NumericError("mul", node="mul", graph=0, op="aten.mul.Tensor", dtype="float32", line=3, rms_vs_float64=1e-8)
    most = dataclasses.replace(row, name="half", rms_vs_float64=2e-4, line=5)
    drawn = s.NumericError(
        "rand", node="rand", graph=0, op="aten.rand", dtype="float32", verdict="random", why="random"
    )
    report.numerics = [drawn, row, most]
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        panel = page.locator(".tc-panel-root:not([hidden])")
        show(page, "speed")
        names = panel.locator("table[aria-label=Kernels] tbody tr td:first-child").all_inner_texts()
        assert names == [k.name for k in reversed(report.kernels)]
        show(page, "guards")
        panel.locator("input[type=search]").fill("different memory")
        assert "p[21] and 68 more" in panel.locator("[data-guard] td").first.inner_text()
        show(page, "more")
        text = panel.inner_text()
        assert "3 that need no change" in text and "s.item()" not in text.split("Functions")[0]
        assert "2 values were compared" in text and "Not compared: 1" in text
        assert "first differ from float64 at mul, line 3 (by 1.0e-8), and most at half, line 5 (by 2.0e-4)" in text
        assert page.locator(".tc-tab:has-text('more') .tc-count").count() == 0
        assert not problems


HOST = """answer => {
    window.asked = [];
    document.addEventListener('tcompile-host', event => {
        event.detail.host = { ask: async (question, facts) => (window.asked.push([question, facts]), answer) };
    });
}"""


def test_what_an_answer_wins_is_measured_before_the_cell_is_changed(browser: Any, tmp_path: Path) -> None:
    report = sample()
    bound = s.Answer("most is kernels", 1.6, "at most", action="search", settings={"mode": "max-autotune"})
    report.answers = [bound]
    after = json.loads(report.to_json())
    after["answers"][0].update(how="measured", gain=1.25, lo=1.2, hi=1.3)
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        measure = page.get_by_role("button", name="measure what it wins")
        assert not measure.count(), "nobody to ask"
        page.evaluate(HOST, {"report": after})
        show(page, "code")
        show(page, "overview")
        measure.click()
        page.wait_for_selector(".tc-answers >> text=1.3× [1.2–1.3], measured")
        question, facts = page.evaluate("window.asked[0]")
        assert question == "try" and facts["settings"] == {"mode": "max-autotune"} and facts["report"] == report.id
        assert not problems


def test_what_is_asked_first_is_answered_at_a_glance(browser: Any, tmp_path: Path) -> None:
    report = sample()
    lines = [["-", "    h = h * 2"], ["+", "    h = h * 3"]]
    report.previous = s.RunDiff("before", "", [s.Change("graph breaks", "2", "1", True)], lines)
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        rows = page.locator(".tc-glance > div")
        told = {row.locator("dt").inner_text(): row.locator("dd").inner_text() for row in rows.all()}
        assert told["Which line costs most?"].startswith("line ") and "%" in told["Which line costs most?"]
        assert "KB" in told["Where is the peak of memory?"] and "value" in told["What is kept for backward, and why?"]
        assert {"Which call waited for the compiler?", "Why did it compile again?"} <= {*told}
        assert told["What is different from its last run?"].startswith("2 changed lines; graph breaks 2 → 1")
        assert "guard" in told["What would compile it again?"]
        changes = told["What would compile it again?"].split("; ")
        assert changes[0] == "another second size or dtype of x", "of the entry that asks for least"
        assert changes[1:4] == [
            "another shape or dtype of w",
            "another length of layers",
            "another value of threshold",
        ]
        assert "size below 2" in changes[4]
        page.get_by_role("button", name="What is different from its last run?: show more").click()
        assert page.locator(".tc-previous.tc-selected").is_visible()
        page.get_by_role("button", name="What is kept for backward, and why?: show more").click()
        assert page.locator(".tc-partition.tc-selected").is_visible()
        assert not problems


def test_the_lane_of_a_function_shows_which_call_waited(browser: Any, tmp_path: Path) -> None:
    report = sample()
    report.timeline = [
        s.TimelineEvent(1.0, "compile", 0, 0, "compiling", 2.0),
        s.TimelineEvent(3.0, "entry", 0, 0, "f, entry 0"),
        s.TimelineEvent(5.0, "compile", 0, 0, "compiling what follows entry 0, a backward pass", 1.0),
    ]
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        show(page, "guards")
        waits = page.locator(".tc-lane .tc-compiling")
        assert [w.get_attribute("title") for w in waits.all()] == [
            "compiling: this call waited 2.00 s",
            "compiling what follows entry 0, a backward pass: this call waited 1.00 s",
        ]
        entry, wait = page.locator(".tc-lane .tc-entry-block").bounding_box(), waits.nth(0).bounding_box()
        assert abs(wait["x"] + wait["width"] - entry["x"]) < 4, "it ends where the entry begins"
        assert "a call waits for the compiler" in page.locator(".tc-panel-root:not([hidden]) .tc-legend").inner_text()
        assert not problems


# Texts that end where an element ends: all but those that can be scrolled to, or whose whole is in a hint.
CUT = """() => [...document.querySelectorAll('.tc-report *')].filter(e => {
    if (!e.checkVisibility({checkVisibilityCSS: true}) || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
        return false;
    const range = document.createRange();
    range.selectNodeContents(e);
    const text = range.getBoundingClientRect();
    for (let p = e; text.width > 1 && p && !p.classList.contains('tc-report'); p = p.parentElement) {
        const way = getComputedStyle(p).overflowX, box = p.getBoundingClientRect();
        if (way === 'auto' || way === 'scroll') return false;
        if (way !== 'visible' && (text.right > box.right + 1 || text.left < box.left - 1)) return !e.closest('[title]');
    }
    return false;
}).map(e => `${e.className}: ${e.textContent.slice(0, 60)}`)"""


@pytest.mark.parametrize(("width", "zoom"), [(1280, 1), (760, 1), (640, 2)])
def test_no_text_is_cut_and_tables_fit(browser: Any, tmp_path: Path, width: int, zoom: int) -> None:
    report = sample()
    report.frames[0].name = "train_one_epoch_of_the_model.<loop at line 3>"
    with opened(browser, saved(tmp_path, report), width=width, device_scale_factor=zoom) as (page, problems):
        for tab in TABS:
            show(page, tab)
            assert not page.evaluate(CUT), (tab, width)
        show(page, "guards")
        lane = page.locator(".tc-lane-name").first
        assert lane.inner_text() == "the loop at line 3 in train_one_epoch_of_the_model"
        assert lane.evaluate("e => e.scrollWidth <= e.clientWidth && getComputedStyle(e).whiteSpace !== 'nowrap'")
        fits = "tables => tables.every(e => e.scrollWidth <= e.clientWidth + 1)"
        assert page.locator(".tc-table-wrap:visible").evaluate_all(fits), "guards and their costs, without scrolling"
        assert not problems


def test_the_form_opens_at_what_compiled_again(browser: Any, tmp_path: Path) -> None:
    report = sample()
    again = report.frames[report.recompiles[0].frame or 0]
    rows = [{"name": "x", "kind": "value", "value": "1", "inner": False}]
    top = {"name": "<module>", "function": "the cell's top level", "line": 1, "entries": 1, "rows": rows}
    other = {"name": again.name, "function": "what compiled again", "line": again.line, "entries": 1, "rows": rows}
    answer = {"functions": [top, {**top, "name": "often", "entries": 3}, other], "dtypes": ["float32"]}
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        page.evaluate(HOST, answer)
        show(page, "guards")
        chooser = page.get_by_role("combobox", name="Function", exact=True)
        chooser.wait_for()
        assert chooser.evaluate("e => e.selectedOptions[0].textContent") == "what compiled again"
        page.get_by_role("button", name="ask").click()
        page.wait_for_function("window.asked.some(([name, facts]) => facts.function === 2)")
        assert not problems


def test_reads_and_writes_are_checked_on_asking(browser: Any, tmp_path: Path) -> None:
    access = {"kernel": "k0", "way": "reads", "buffer": "x", "index": "in0[i0]", "range": [0, 63], "elements": 64}
    rows = [
        {**access, "how": "proved"},
        {**access, "index": "in0[i0 - 1]", "range": [-1, 62], "how": "masked"},
        {**access, "way": "writes", "index": "out0[i0 + 3]", "range": [3, 66], "how": "outside"},
    ]
    shared = [{"buffer": "y", "of": "x", "how": "in place", "after": "k0"}]
    with opened(browser, saved(tmp_path)) as (page, problems):
        page.evaluate(HOST, {"accesses": rows, "shared": shared, "timed": [], "arguments": []})
        show(page, "speed")
        page.get_by_role("button", name="check every read and write").click()
        panel = page.locator(".tc-panel-root:not([hidden])")
        panel.locator("text=1 outside of a buffer").wait_for()
        first = panel.locator("table[aria-label='Reads and writes of the kernels'] tbody tr").first.inner_text()
        assert "out0[i0 + 3]" in first and "3 … 66" in first and "outside of its buffer" in first
        words = panel.locator("table[aria-label='Buffers that share memory'] tbody").inner_text()
        assert "k0 reads each element before it writes it there" in words
        assert page.evaluate("window.asked.some(([name, facts]) => name === 'memory' && facts.graph === 0)")
        assert not problems


def test_where_nothing_has_a_gain_that_is_said(browser: Any, tmp_path: Path) -> None:
    for action, said in (
        ("", "No change is known that would make it faster."),
        ("write torch.where", "What the changes below would gain is not known."),
    ):
        report = sample()
        report.answers = [s.Answer("90 % of the program's own 1.0 s is 3 compiled kernels", share=0.9)]
        report.findings = [s.Finding("warning", "line 3: a break", action=action)]
        with opened(browser, saved(tmp_path, report)) as (page, problems):
            assert said in page.locator(".tc-panel-root").first.inner_text()
            assert not problems


def test_a_cost_that_few_looks_saw_says_its_bounds(browser: Any, tmp_path: Path) -> None:
    report = sample()
    line = (report.source.first_line or 1) + 1
    row = s.WallPart("torch", "sum", 1e-3, file=report.source.file, line=line, looks=2)
    for looks, told in ((4, True), (4000, False)):
        row.looks = looks // 2
        report.wall = s.Wall(2e-3, how="sampled", samples=looks, looks=looks, parts=[row])
        with opened(browser, saved(tmp_path, report)) as (page, _):
            words = page.locator(".tc-glance").inner_text()
            assert ("few looks: " in words) is told, words
