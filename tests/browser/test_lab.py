"""JupyterLab around the reports, with a kernel: badge, toolbar switch, side panel, palette, hover help, controls of a
report.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from . import notebooks
from .conftest import Lab, Server

SETUP = "%load_ext tcompile\nimport torch\nx = torch.randn(64, 256)\nk = torch.ones(256)"
CELL = "%%tcompile time=100ms\ny = torch.relu(x * 2 + k).sum(-1)"
PLAIN = "z = torch.tanh(x) + 1"
BREAKS = """%%tcompile time=off
def step(h):
    if h.sum() > 0:
        r = h + 1
    else:
        r = h - 1
    return r
w = step(x)"""
LONG = "%%tcompile time=300s\nv = torch.softmax(torch.ones(3000, 3000) * 3, -1).sum(0)"


@pytest.fixture(scope="module")
def running(server: Server, browser: Any) -> Iterator[Lab]:
    """One notebook with a kernel for all of these: a kernel takes seconds to start."""
    cells = [notebooks.code_cell(text, 0) for text in (SETUP, CELL, PLAIN, BREAKS, LONG)]
    for i, cell in enumerate(cells):
        cell.update(execution_count=None, id=f"cell{i}")
    page = Lab(browser, server, width=1600, height=1300)
    page.open(server.add("lab.ipynb", notebooks.notebook(*cells)), kernel=True)
    yield page
    page.context.close()


def run(lab: Lab, index: int) -> None:
    lab.page.evaluate(
        """async i => {
        const notebook = window.jupyterapp.shell.currentWidget.content;
        notebook.activeCellIndex = i;
        await window.jupyterapp.commands.execute('notebook:run-cell');
    }""",
        index,
    )


SET_SOURCE = """([i, text]) =>
    window.jupyterapp.shell.currentWidget.content.widgets[i].model.sharedModel.setSource(text)"""


def source(lab: Lab, index: int) -> str:
    return lab.page.evaluate(
        "i => window.jupyterapp.shell.currentWidget.content.widgets[i].model.sharedModel.getSource()", index
    )


def test_panel_says_what_is_missing_and_follows_the_kernel(running: Lab) -> None:
    running.command("tcompile:show-panel")
    running.page.wait_for_selector(".tc-side >> text=not loaded in this kernel")
    run(running, 0)
    running.page.wait_for_selector(".tc-side >> text=Nothing is compiled yet", timeout=90_000)
    run(running, 1)
    running.page.wait_for_selector(".tc-side-row >> text=the cell's top level", timeout=60_000)
    row = running.page.locator(".tc-side-row").first.inner_text()
    assert "1 entry" in row and "●" in row
    assert "kernel" in running.page.locator(".tc-side-foot").inner_text()
    running.check()


def test_badge(running: Lab) -> None:
    # (there is one from when the timing begins)
    badge = running.page.wait_for_selector(".tc-cell-badge:has-text('×')", timeout=60_000)
    assert "●" in badge.inner_text() and "×" in badge.inner_text()
    assert running.page.locator(".tc-cell-badge").count() == 1
    badge.click()
    running.page.wait_for_selector(".tc-open")
    running.shot("lab-panel")
    running.check()


def test_a_cell_that_ran_again_has_one_row_with_its_first_line(running: Lab) -> None:
    row = running.page.locator(".tc-side-row", has_text="y = torch.relu")
    run(running, 1)  # the same code: its entry serves again
    running.page.wait_for_timeout(500)
    assert row.count() == 1 and not running.page.locator(".tc-side-replaced").count()
    text = source(running, 1)
    running.page.evaluate(SET_SOURCE, [1, text.replace("x * 2", "x * 3")])
    run(running, 1)
    folded = running.page.wait_for_selector(".tc-side-replaced summary", timeout=60_000)
    assert "ran again" in folded.inner_text() and row.locator("visible=true").count() == 1
    running.page.evaluate(SET_SOURCE, [1, text])
    running.check()


def test_toolbar_switch_writes_a_comment_that_compiles(running: Lab) -> None:
    running.page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 2; }")
    switch = running.page.locator(".tc-cell-switch-button")
    assert switch.get_attribute("aria-pressed") == "false"
    switch.click()
    assert source(running, 2) == "# tcompile: mode=default\n" + PLAIN
    running.page.select_option(".tc-cell-switch-mode", "max-autotune")
    assert source(running, 2).startswith("# tcompile: mode=max-autotune\n")
    run(running, 2)
    running.page.wait_for_function("document.querySelectorAll('.tc-cell-badge').length === 2", timeout=60_000)
    running.page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 2; }")
    switch.click()
    assert source(running, 2) == PLAIN
    running.check()


def test_hover_help(running: Lab) -> None:
    line = running.page.locator(".cm-line", has_text="%%tcompile time=100ms")
    box = line.bounding_box()
    assert box is not None
    running.page.mouse.move(box["x"] + 100, box["y"] + box["height"] / 2)
    running.page.wait_for_selector(".tc-option-help >> text=seconds of timing")
    running.check()


@pytest.mark.parametrize(
    "line, words",
    [("%%tcompile mode=max-a", ["max-autotune", "max-autotune-no-cudagraphs"]), ("# tcompile: back", ["backend="])],
)
def test_completion_of_options(running: Lab, line: str, words: list[str]) -> None:
    """What Tab offers after the magic: options, and nothing of Python's."""
    page = running.page
    before = source(running, 2)
    page.evaluate(
        """line => {
        const notebook = window.jupyterapp.shell.currentWidget.content;
        notebook.activeCellIndex = 2;
        notebook.mode = 'edit';
        const editor = notebook.activeCell.editor;
        notebook.activeCell.model.sharedModel.setSource(line + '\\n' + notebook.activeCell.model.sharedModel.getSource());
        editor.focus();
        editor.setCursorPosition({line: 0, column: line.length});
    }""",
        line,
    )
    page.keyboard.press("Tab")
    page.wait_for_selector(".jp-Completer .jp-Completer-match", timeout=20_000)
    offered = page.locator(".jp-Completer .jp-Completer-match").all_inner_texts()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.evaluate(
        "text => window.jupyterapp.shell.currentWidget.content.activeCell.model.sharedModel.setSource(text)", before
    )
    assert [word for word in offered if word in words] == words and "abs" not in offered, offered
    running.check()


def test_controls_ask_the_kernel(running: Lab) -> None:
    page = running.page
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
    report = page.locator(".tc-report.tc-open").first
    report.locator(".tc-tab:has-text('speed')").click()
    page.wait_for_selector("text=Ask the kernel", timeout=30_000)
    controls = report.locator(".tc-controls")
    controls.locator("button:has-text('sweep')").click()
    page.wait_for_selector(".tc-map-cell", timeout=60_000)
    assert "compilation" in controls.inner_text()
    controls.locator("label:has-text('own kernel') input").check()
    controls.locator("button:has-text('compile and time')").click()
    page.wait_for_selector("text=disable_fusion=true", timeout=60_000)
    running.shot("lab-controls", report)
    controls.locator("button:text-is('time again')").click()
    page.wait_for_function("!document.querySelector('.tc-controls .tc-map-cell')", timeout=60_000)  # drawn anew
    assert report.locator(".tc-tab[aria-selected=true]").inner_text().lower().startswith("speed")
    running.check()


def test_bytecode_beside_the_code(running: Lab) -> None:
    page = running.page
    report = page.locator(".tc-report.tc-open").first
    report.locator(".tc-tab:has-text('code')").click()
    report.locator(".tc-segment:has-text('Bytecode')").click()
    pane = report.locator(".tc-pane:has(strong:text-is('Bytecode'))")
    assert "LOAD_" in pane.inner_text()
    report.locator(".tc-pane:has(strong:text-is('Cell')) .tc-line[data-line='2']").click()
    assert pane.locator(".tc-line.tc-selected").count() > 3
    running.shot("lab-code", report)
    report.locator(".tc-tab:has-text('graph')").click()
    report.locator(".tc-passes summary").click()
    assert "operation" in report.locator(".tc-passes").inner_text()
    slider = report.locator(".tc-passes input")
    slider.press("Home")
    slider.press("ArrowRight")  # not the notebook's: it would open a heading
    assert slider.input_value() == "1"
    running.shot("lab-passes", report)
    running.check()


def test_a_split_is_forced_and_timed(running: Lab) -> None:
    page = running.page
    report = page.locator(".tc-report.tc-open").first
    report.locator(".tc-tab:has-text('graph')").click()
    report.locator(".tc-search input").fill("relu")
    report.locator(".tc-search input").press("Enter")
    details = report.locator(".tc-graph-details")
    details.locator(".tc-links .tc-link", has_text="sum").first.click()
    assert "They are in one kernel" in details.inner_text()
    details.locator("button:has-text('keep them apart, and time it')").click()
    page.wait_for_selector("text=They are in two kernels now", timeout=60_000)
    assert "%%tcompile force_split=relu:sum" in details.inner_text() and "as it was" in details.inner_text()
    running.shot("lab-force-split", report)
    running.check()


def test_would_it_recompile(running: Lab) -> None:
    page = running.page
    report = page.locator(".tc-report.tc-open").first
    report.locator(".tc-tab:has-text('guards')").click()
    page.wait_for_selector("text=Would this recompile?", timeout=30_000)
    shape = report.locator("input[aria-label='Shape of x']")
    ask = report.locator("div:has(> .tc-form) ~ div button:has-text('ask')")
    ask.click()
    page.wait_for_selector("text=● no")
    shape.fill("7, 256")
    ask.click()
    page.wait_for_selector("text=▲ yes")
    running.shot("lab-forecast", report)
    running.check()


def test_numerics_on_asking(running: Lab) -> None:
    page = running.page
    report = page.locator(".tc-report.tc-open").first
    report.locator(".tc-tab:has-text('more')").click()
    report.locator("button:has-text('compare every node')").click()
    page.wait_for_selector(".tc-report.tc-open >> text=none differs from eager", timeout=60_000)
    running.shot("lab-numerics", report)
    running.check()


def test_a_remedy_is_applied_to_the_cell(running: Lab) -> None:
    page = running.page
    run(running, 3)
    head = page.locator(".jp-Cell").nth(3).locator(".tc-head")
    head.wait_for(timeout=60_000)
    page.wait_for_timeout(500)
    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 3; }")
    head.click()
    finding = page.locator(".jp-Cell").nth(3).locator(".tc-finding").first
    finding.locator("summary").click()
    running.shot("lab-fix", page.locator(".jp-Cell").nth(3))
    finding.locator("button:has-text('apply')").click()
    assert "torch.where" in source(running, 3) and "if h.sum()" not in source(running, 3)
    run(running, 3)
    page.wait_for_function(
        """() => [...document.querySelectorAll('.jp-Cell')][3].querySelector('.tc-head')?.innerText.includes('0 breaks')""",
        timeout=60_000,
    )
    page.locator(".jp-Cell").nth(3).locator(".tc-report >> text=Since the last run").wait_for()
    running.shot("lab-since", page.locator(".jp-Cell").nth(3))
    running.check()


def test_stop_ends_the_timing_and_keeps_the_result(running: Lab) -> None:
    page = running.page
    # cells out of view are not in the page
    page.evaluate("() => window.jupyterapp.shell.currentWidget.content.scrollToItem(4)")
    running.page.evaluate("""() => {
        window.jupyterapp.shell.currentWidget.content.activeCellIndex = 4;
        void window.jupyterapp.commands.execute('notebook:run-cell');  // not waited for: it is to be stopped
    }""")
    cell = page.locator(".jp-Cell", has_text="time=300s")
    stop = cell.locator(".tc-progress button")
    stop.wait_for(timeout=60_000)
    words = cell.locator(".tc-progress")
    page.wait_for_function("document.querySelector('.tc-progress')?.innerText.includes('timing')", timeout=60_000)
    assert "compiled" in words.inner_text() and "result stays" in stop.get_attribute("title")
    running.shot("lab-progress", cell)
    stop.click()
    cell.locator(".tc-head").wait_for(timeout=60_000)
    assert "compiled" in cell.locator(".tc-head").inner_text() and cell.locator(".tc-progress").count() == 0
    assert cell.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    run(running, 2)  # the next cell runs: nothing was interrupted but the timing
    page.wait_for_function(
        "!!window.jupyterapp.shell.currentWidget.content.widgets[2].model.executionCount", timeout=60_000
    )
    assert page.evaluate(
        "() => !window.jupyterapp.shell.currentWidget.content.widgets[2].model.outputs.toJSON().some(o => o.output_type === 'error')"
    )
    running.check()


def test_progress_that_was_saved_becomes_the_report(lab: Lab, server: Server) -> None:
    """A kernel that ended while it timed a cell left the line of progress behind, and with it the report: a reader sees
    the report.
    """
    report = notebooks.sample_report()
    output = notebooks.report_output(report)
    output["data"]["application/vnd.tcompile.progress.v1+json"] = {
        "text": "timing forward",
        "phase": "timing",
        "line": report["summary"]["line"],
    }
    alone = {
        "output_type": "display_data",
        "metadata": {},
        "data": {
            "text/plain": "compiling",
            "application/vnd.tcompile.progress.v1+json": {"text": "compiling f", "phase": "running", "line": ""},
        },
    }
    lab.open(
        server.add(
            "progress.ipynb",
            notebooks.notebook(notebooks.code_cell("a", 1, [output]), notebooks.code_cell("b", 2, [alone])),
        )
    )
    lab.page.locator(".jp-Cell").nth(0).locator(".tc-head").wait_for()
    second = lab.page.locator(".jp-Cell").nth(1).locator(".tc-progress")
    second.wait_for()
    assert "not finished" in second.inner_text() and not second.locator("button").is_visible()
    lab.check()


def test_palette_and_settings(running: Lab) -> None:
    page = running.page
    assert page.evaluate("() => window.jupyterapp.commands.hasCommand('tcompile:toggle-cell')")
    running.command("tcompile:compile-all-cells")
    page.wait_for_function("document.querySelector('.tc-side-switch input').checked", timeout=20_000)
    running.command("tcompile:compile-no-cells")
    page.wait_for_function("!document.querySelector('.tc-side-switch input').checked", timeout=20_000)
    page.evaluate(
        """() => fetch('/lab/api/settings/tcompile-lab:plugin').then(r => r.json()).then(s => { window.tcSchema = s.schema; })"""
    )
    page.wait_for_function("window.tcSchema && window.tcSchema.properties.badges")
    running.check()
