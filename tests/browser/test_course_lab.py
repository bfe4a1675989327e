"""A course lab as a student meets it: started by the command, run in JupyterLab, answered wrong, half and right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Lab, Server

HALF = 'predicted_kernels = {"chain": 1, "softmax": 2, "total": 1, "both": 2}'
WRONG = "def traffic(report):\n    return 1 // 0"
ENDLESS = "def traffic(report):\n    while True:\n        pass"
ANSWER = "def traffic(report):\n    return sum((k.bytes or 0) * k.launches for k in report.kernels)"


@pytest.fixture(scope="module")
def student(server: Server, browser: Any) -> Iterator[Lab]:
    command = [sys.executable, "-m", "tcompile", "lab", "--lang", "en", "start", "1", "--into", str(server.root)]
    subprocess.run(command, check=True, timeout=60)
    page = Lab(browser, server, width=1100, height=5000)  # tall: cells out of view are not in the page
    page.open("lab01.ipynb", kernel=True)
    yield page
    page.context.close()


def run_all(lab: Lab) -> None:
    lab.page.evaluate("() => { void window.jupyterapp.commands.execute('notebook:run-all-cells'); }")


def run(lab: Lab, name: str, source: str | None = None) -> str:
    """Run the cell of this name (with a source of its own), and give what it showed."""
    return lab.page.evaluate(
        """async ([name, source]) => {
        const notebook = window.jupyterapp.shell.currentWidget.content;
        const at = notebook.widgets.findIndex(w => w.model.sharedModel.getId() === name);
        if (source !== null) notebook.widgets[at].model.sharedModel.setSource(source);
        notebook.activeCellIndex = at;
        await window.jupyterapp.commands.execute('notebook:run-cell');
        return JSON.stringify(notebook.widgets[at].model.outputs?.toJSON() ?? []);
    }""",
        [name, source],
    )


def test_all_cells_of_a_fresh_lab(student: Lab) -> None:
    """They stop where an answer is needed, in words and without a traceback."""
    run_all(student)
    told = student.page.wait_for_selector("text=needs an exercise above it", timeout=90_000)
    assert told.is_visible()
    assert student.page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']").count() == 0
    assert student.page.locator(".jp-Notebook b", has_text="traffic: open").count() == 1
    student.shot("course-fresh")
    student.check()


def test_answers_and_what_is_said_of_them(student: Lab, server: Server) -> None:
    run(student, "exercise-traffic", WRONG)
    assert "ZeroDivisionError" in run(student, "check-traffic") and "line 2" in run(student, "check-traffic")
    run(student, "exercise-predicted_kernels", HALF)
    assert "predicted_kernels['softmax']` should be 1; yours is 2" in run(student, "check-predicted_kernels")
    run(student, "exercise-traffic", ANSWER)
    assert "traffic: solved" in run(student, "check-traffic")
    assert "data:image/svg+xml" in run(student, "show-traffic_picture")
    reached = json.loads((server.root / ".tcompile-labs.json").read_text())["1"]["exercises"]
    assert reached["traffic"] == [3.0, 3.0] and reached["predicted_kernels"][0] == 0
    assert "data:image/svg+xml" in run(student, "check-board")
    student.shot("course-answered")
    student.check()


def test_an_endless_answer_is_interrupted(student: Lab) -> None:
    """By the student, who need not wait for the limit; the kernel and the lab's names stay."""
    run(student, "exercise-traffic", ENDLESS)
    student.page.evaluate("() => { window.tcDone = false; }")
    student.page.evaluate("""() => {
        const notebook = window.jupyterapp.shell.currentWidget.content;
        const at = w => notebook.widgets.findIndex(c => c.model.sharedModel.getId() === w);
        notebook.activeCellIndex = at('check-traffic');
        window.jupyterapp.commands.execute('notebook:run-cell').finally(() => { window.tcDone = true; });
    }""")
    student.page.wait_for_timeout(1000)
    assert student.page.evaluate("window.tcDone") is False
    student.command("notebook:interrupt-kernel")
    student.page.wait_for_function("window.tcDone", timeout=20_000)
    run(student, "exercise-traffic", ANSWER)
    assert "traffic: solved" in run(student, "check-traffic")
    student.check()
