"""Marks at the lines of a cell: drawn from the saved outputs, without a kernel; gone from a line that was edited."""

from __future__ import annotations

import pytest

from . import notebooks
from .conftest import Lab, Server


@pytest.fixture(scope="module")
def sample(server: Server) -> str:
    return server.add("gutter.ipynb", notebooks.with_sample())


def marks(lab: Lab) -> dict[str, int]:
    return lab.page.evaluate("""() => {
        const found = {};
        for (const mark of document.querySelectorAll('.tc-cm-gutter .tc-mark')) {
            const kind = [...mark.classList].find(c => /^tc-mark-(captured|eager|break|guard)$/.test(c)).slice(8);
            found[kind] = (found[kind] ?? 0) + 1;
        }
        return found;
    }""")


def test_marks_on_reopening(lab: Lab, sample: str) -> None:
    lab.open(sample)
    lab.page.wait_for_selector(".tc-cm-gutter .tc-mark-break")
    assert marks(lab) == {"captured": 6, "break": 1, "guard": 1}
    wedge = lab.page.locator(".tc-cm-gutter .tc-mark-break")
    assert "s.item()" in wedge.get_attribute("title")
    # Beside the very line: same height as the text that breaks.
    line = lab.page.locator(".cm-line", has_text="s.item()")
    assert abs(wedge.bounding_box()["y"] - line.bounding_box()["y"]) < 6
    assert lab.page.locator(".jp-Cell").first.locator(".tc-mark").count() == 0
    lab.shot("gutter")
    lab.check()


def test_click_opens_the_place(lab: Lab, sample: str) -> None:
    lab.open(sample)
    lab.page.wait_for_selector(".tc-cm-gutter .tc-mark-break")
    lab.page.click(".tc-cm-gutter .tc-mark-break")
    lab.page.wait_for_selector(".tc-card-break.tc-selected")
    lab.check()


def test_editing_a_line_takes_its_mark_away(lab: Lab, sample: str) -> None:
    lab.open(sample)
    lab.page.wait_for_selector(".tc-cm-gutter .tc-mark-break")
    lab.page.locator(".cm-line", has_text="s.item()").click()
    lab.page.keyboard.press("End")
    lab.page.keyboard.type("  # mended")
    lab.page.wait_for_function("document.querySelectorAll('.tc-cm-gutter .tc-mark-break').length === 0")
    assert marks(lab) == {"captured": 6, "guard": 1}
    # A new line above shifts the marks with their lines.
    lab.page.locator(".cm-line", has_text="h = x").click()
    lab.page.keyboard.press("Home")
    lab.page.keyboard.press("Enter")
    ring = lab.page.locator(".tc-cm-gutter .tc-mark-guard").bounding_box()
    assert abs(ring["y"] - lab.page.locator(".cm-line", has_text="torch.randn").bounding_box()["y"]) < 6
    lab.check()


def test_clearing_the_output_clears_the_marks(lab: Lab, sample: str) -> None:
    lab.open(sample)
    lab.page.wait_for_selector(".tc-cm-gutter .tc-mark-break")
    lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.widgets[1].model.outputs.clear()")
    lab.page.wait_for_function("document.querySelectorAll('.tc-cm-gutter .tc-mark').length === 0")
    lab.check()
