"""The quick start as a reader meets it: run in JupyterLab, saved, reopened without a kernel, exported offline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ARTIFACTS, ROOT, Lab, Server
from .notebooks import MIME
from .pages import cpu_ms

NOTEBOOK = ROOT / "notebooks" / "00_quickstart.ipynb"
TABS = ("overview", "code", "graph", "profile", "guards", "speed", "more")
BUDGET = 200_000


@pytest.fixture(scope="module")
def executed(server: Server, browser: object) -> Path:
    """Run All in the browser, then save: what the reader keeps."""
    shutil.copy(NOTEBOOK, server.root / NOTEBOOK.name)
    lab = Lab(browser, server, height=1400)
    try:
        lab.open(NOTEBOOK.name, kernel=True)
        lab.page.evaluate("""() => {
            const done = () => { window.everythingRan = true; };
            window.progress = new Set();
            new MutationObserver(() => {
                for (const words of document.querySelectorAll('.tc-progress-words')) {
                    window.progress.add(words.textContent.trim().split(' ')[0]);
                }
            }).observe(document.body, { childList: true, subtree: true, characterData: true });
            window.jupyterapp.commands.execute('notebook:run-all-cells').then(done, done);
        }""")
        try:
            lab.page.wait_for_function("window.everythingRan", timeout=300_000)
        except Exception:
            lab.shot("quickstart-stuck")
            raise
        lab.page.wait_for_timeout(1000)
        lab.shot("quickstart-after-run-all")
        assert {"compiling", "timing"} <= set(lab.page.evaluate("() => [...window.progress]")), (
            "no line lived while a cell ran"
        )
        lab.command("docmanager:save")
        lab.check()
    finally:
        lab.context.close()
    return server.root / NOTEBOOK.name


def reports(path: Path) -> list[dict]:
    cells = json.loads(path.read_text())["cells"]
    return [o["data"][MIME] for c in cells for o in c.get("outputs", []) if MIME in o.get("data", {})]


@pytest.mark.timeout(500)
def test_every_cell_ran_and_reported(executed: Path) -> None:
    cells = json.loads(executed.read_text())["cells"]
    cells = [c for c in cells if c["cell_type"] == "code" and "".join(c["source"]).strip()]
    assert all(c["execution_count"] for c in cells)
    for cell in cells:
        errors = [o for o in cell["outputs"] if o["output_type"] == "error"]
        if errors and "raises-exception" not in cell["metadata"].get("tags", []):
            pytest.fail(f"{''.join(cell['source'])}\n{errors[0]['ename']}: {errors[0]['evalue']}")
    assert reports(executed), "no cell of the quick start left a report"


@pytest.mark.timeout(500)
def test_reports_are_small(executed: Path) -> None:
    for report in reports(executed):
        assert len(json.dumps(report)) <= BUDGET * 1.02, report["title"]


@pytest.mark.timeout(500)
def test_reopened_without_a_kernel(executed: Path, lab: Lab) -> None:
    lab.page.set_viewport_size({"width": 1400, "height": 1600})
    lab.open(executed.name)
    heads = lab.page.locator(".tc-head")
    # Cells far below are drawn when they scroll into view.
    lab.page.wait_for_selector(".tc-head")
    lab.page.evaluate("""async () => {
        for (const cell of window.jupyterapp.shell.currentWidget.content.widgets) {
            cell.node.scrollIntoView();
            await new Promise(resolve => setTimeout(resolve, 60));
        }
    }""")
    assert heads.count() >= 1
    for i in range(heads.count()):
        heads.nth(i).scroll_into_view_if_needed()
        heads.nth(i).click()
        report = lab.page.locator(".tc-output").nth(i)
        for name in TABS:
            report.locator(f".tc-tab:has-text('{name}')").click()
            panel = report.locator(".tc-panel-root:not([hidden])")
            lab.page.wait_for_timeout(700 if name == "speed" else 200)
            assert len(panel.inner_text()) > 10, (i, name)
            lab.shot(f"quickstart-{i}-{name}", report)
        heads.nth(i).click()
    lab.check()


def everything_in_view(lab: Lab) -> None:
    """Cells far below are drawn when they scroll into view."""
    lab.page.wait_for_selector(".tc-head")
    lab.page.evaluate("""async () => {
        for (const cell of window.jupyterapp.shell.currentWidget.content.widgets) {
            cell.node.scrollIntoView();
            await new Promise(resolve => setTimeout(resolve, 60));
        }
    }""")


@pytest.mark.timeout(500)
def test_the_break_is_marked_at_its_line(executed: Path, lab: Lab) -> None:
    lab.open(executed.name)
    everything_in_view(lab)
    line = lab.page.locator(".cm-line", has_text="if h.sum() > threshold").first
    line.scroll_into_view_if_needed()
    at = line.bounding_box()
    marks = [m.bounding_box() for m in lab.page.locator(".tc-cm-gutter .tc-mark-break").all()]
    assert any(m and abs(m["y"] + m["height"] / 2 - at["y"] - at["height"] / 2) < 8 for m in marks), (at, marks)
    lab.check()


@pytest.mark.timeout(500)
def test_bert_draws_fast(executed: Path, lab: Lab) -> None:
    """From the notebook's model to the closed line, and from a click to each tab: below half a second of work."""
    lab.open(executed.name)
    everything_in_view(lab)
    cell = (
        "const cell = window.jupyterapp.shell.currentWidget.content.widgets"
        ".find(c => c.model.sharedModel.source.includes('-o bert_report'));"
    )
    lab.page.evaluate(
        f"() => {{ {cell} window.saved = cell.model.outputs.toJSON();"
        " cell.node.scrollIntoView(); cell.model.outputs.clear(); }"
    )
    fill = f"{cell} cell.model.outputs.fromJSON(window.saved);"
    wait = (
        "return new Promise(done => { const look = () => "
        "cell.node.querySelector('.tc-head') ? done() : setTimeout(look, 5); look(); })"
    )
    spent = {"closed": cpu_ms(lab.page, fill + wait)}
    lab.page.evaluate(f"() => {{ {cell} cell.node.querySelector('.tc-head').click(); }}")
    for name in ("overview", "code", "graph", "profile", "guards", "speed", "more"):
        tab = f"[...cell.node.querySelectorAll('.tc-tab')].find(e => e.textContent.startsWith('{name}'))"
        spent[name] = cpu_ms(lab.page, f"{cell} {tab}.click()")
    assert all(t < 500 for t in spent.values()), spent
    lab.check()


@pytest.mark.timeout(500)
@pytest.mark.parametrize("width, theme", [(1400, "JupyterLab Dark"), (660, "JupyterLab Light")])
def test_dark_and_narrow(executed: Path, browser: object, server: Server, width: int, theme: str) -> None:
    """The reports of the quick start in the dark theme, and where some 500 px are left for them: nothing runs out
    sideways.
    """
    lab = Lab(browser, server, width=width, height=1400)
    try:
        lab.open(executed.name)
        lab.theme(theme)
        everything_in_view(lab)
        heads = lab.page.locator(".tc-head")
        for i in range(heads.count()):
            heads.nth(i).scroll_into_view_if_needed()
            heads.nth(i).click()
            report = lab.page.locator(".tc-output").nth(i)
            for name in TABS:
                report.locator(f".tc-tab:has-text('{name}')").click()
                lab.page.wait_for_timeout(300 if name == "speed" else 80)
                panel = report.locator(".tc-panel-root:not([hidden])")
                out = panel.evaluate("""e => e.scrollWidth <= e.clientWidth + 1 ? [] : [...e.querySelectorAll('*')].filter(x =>
                    !x.closest('.tc-table-wrap') && x.getBoundingClientRect().right > e.getBoundingClientRect().right + 1).map(x => x.outerHTML.slice(0, 90))""")
                assert not out, (i, name, out[:6])
                lab.shot(f"quickstart-{i}-{name}-{width}", report)
            heads.nth(i).click()
        lab.check()
    finally:
        lab.context.close()


@pytest.mark.timeout(500)
def test_exported_without_a_network(executed: Path, tmp_path: Path, browser: object) -> None:
    """nbconvert's page shows each report's text, with scripts off and every request off the machine refused."""
    env = {**os.environ, "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    subprocess.run(
        [sys.executable, "-m", "nbconvert", "--to", "html", "--output-dir", str(tmp_path), str(executed)],
        check=True,
        env=env,
        capture_output=True,
        timeout=200,
    )
    page_file = next(tmp_path.glob("*.html"))
    context = browser.new_context(java_script_enabled=False, offline=True, viewport={"width": 1200, "height": 1600})
    page = context.new_page()
    page.goto(page_file.as_uri())
    text = page.inner_text("body")
    for report in reports(executed):
        assert report["summary"]["status"] in text.lower(), report["title"]
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / "quickstart-nbconvert.png", full_page=True)
    context.close()
