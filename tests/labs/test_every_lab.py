"""What each lab must keep: its solution passes everything, and the student's version fails where it should."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tcompile.labs.grader import grade
from tcompile.labs.library import labs
from tests.kernels import notebook_client

LABS = labs()
# `make test` takes one lab; `make labs` sets this and takes them all.
CHOSEN = LABS if os.environ.get("TCOMPILE_LABS") == "all" else [lab for lab in LABS if lab.number == 1]
each = pytest.mark.parametrize("lab", CHOSEN, ids=lambda lab: f"lab{lab.number:02d}")


@each
def test_the_solution_passes(lab) -> None:
    result = grade(lab.instructor / "solution.en.ipynb")
    failed = [f"{t.test}: {t.message}" for t in result.tests if t.message]
    assert result.status == "graded" and not failed, "\n".join([result.message, *failed])
    assert any(t.hidden for t in result.tests) and result.points == result.of > 0
    assert all(e["challenge"] is False for e in lab.facts["exercises"]) or result.score, result.score_message


@each
def test_the_students_version_fails_each_exercise(lab) -> None:
    result = grade(lab.folder / "lab.zh.ipynb")
    assert result.status == "graded", result.message
    for e in lab.facts["exercises"]:
        public = [t for t in result.tests if t.exercise == e["name"] and not t.hidden]
        assert any(t.message for t in public), f"{e['name']} passes unsolved"
        assert any(t.message for t in result.tests if t.exercise == e["name"] and t.hidden), e["name"]
    assert result.points == 0, [t.test for t in result.tests if not t.message]


def test_labs_are_numbered_in_order() -> None:
    numbers = [lab.number for lab in LABS]
    assert numbers == sorted(set(numbers))
    assert all(Path(lab.folder).name.startswith(f"{lab.number:02d}_") for lab in LABS)


@pytest.mark.skipif(os.environ.get("TCOMPILE_LABS") != "all", reason="make labs runs it")
@each
def test_the_solution_s_notebook_runs_and_shows_pictures(lab, tmp_path: Path) -> None:
    """Every cell, in a kernel, in under three minutes; the checks in it pass."""
    nbformat, _ = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(lab.instructor / "solution.zh.ipynb", as_version=4)
    notebook_client(notebook, timeout=180, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = {
        c["id"]: "".join(o.get("data", {}).get("text/html", "") for o in c.outputs)
        for c in notebook.cells
        if c.cell_type == "code"
    }
    assert any("data:image/svg+xml" in html for name, html in shown.items() if name.startswith("show-"))
    for e in lab.facts["exercises"]:
        assert "#2aa198" in shown[f"check-{e['name']}"], (e["name"], shown[f"check-{e['name']}"])
    assert (tmp_path / ".tcompile-labs.json").exists()
