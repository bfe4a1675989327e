"""A puzzle in JupyterLab: the picture follows what is typed, steps through programs, and its controls have names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from . import notebooks
from .conftest import Lab, Server

pytest.importorskip("ipywidgets")
START = "import tcompile.labs\n\ncourse = tcompile.labs.open(12)"
CASE = """import torch
from tcompile.labs.puzzles import Case


def rows_case(n, m):
    x = torch.arange(float(n * m)).reshape(n, m)
    return Case(n, {"x": x}, {"out": x * 2})"""
STUB = "def double_rows(p, x, out):\n    out[p, 0] = x[p, 0] * 2"
RIGHT = "def double_rows(p, x, out):\n    for j in range(x.shape[1]):\n        out[p, j] = x[p, j] * 2"


@pytest.fixture(scope="module")
def puzzle(server: Server, browser: Any) -> Iterator[Lab]:
    texts = (START, CASE, STUB, "course.puzzle(double_rows, rows_case, n=4, m=6)", 'course.check("double_rows")')
    cells = [notebooks.code_cell(text, 0) for text in texts]
    for i, cell in enumerate(cells):
        cell.update(execution_count=None, id=f"cell{i}")
    page = Lab(browser, server, width=1200, height=1100)
    page.open(server.add("puzzle.ipynb", notebooks.notebook(*cells)), kernel=True)
    page.command("notebook:run-all-cells")
    page.page.wait_for_selector(".tc-puzzle svg", timeout=120_000)
    yield page
    page.context.close()


def typed(lab: Lab, text: str) -> None:
    lab.page.fill(".tc-puzzle-code textarea", text)


def says(lab: Lab, words: str) -> None:
    lab.page.wait_for_selector(f".tc-puzzle-verdict:has-text({words!r})", timeout=20_000)


@pytest.mark.timeout(300)
def test_the_picture_follows_what_is_typed(puzzle: Lab) -> None:
    says(puzzle, "never written")
    puzzle.shot("puzzle-open", puzzle.page.locator(".tc-puzzle"))
    typed(puzzle, RIGHT)
    says(puzzle, "Solved")
    puzzle.shot("puzzle-solved", puzzle.page.locator(".tc-puzzle"))
    typed(puzzle, RIGHT.replace("range(x.shape[1])", "range(9)"))
    says(puzzle, "outside of x")
    puzzle.shot("puzzle-outside", puzzle.page.locator(".tc-puzzle"))
    typed(puzzle, "def double_rows(p, x, out):\n    while True:\n        pass")
    says(puzzle, "did not end")
    typed(puzzle, "def double_rows(p, x, out)\n    pass")
    says(puzzle, "SyntaxError")
    typed(puzzle, RIGHT)
    says(puzzle, "Solved")
    puzzle.check()


@pytest.mark.timeout(300)
def test_keys_step_through_programs_and_controls_have_names(puzzle: Lab) -> None:
    typed(puzzle, RIGHT)
    says(puzzle, "Solved")
    page = puzzle.page
    faint = "() => document.querySelectorAll(\".tc-puzzle svg rect[fill-opacity='0.2']\").length"
    assert page.evaluate(faint) == 0
    page.focus(".tc-puzzle input[type=number]")
    page.keyboard.press("ArrowUp")
    page.wait_for_function(f"({faint})() > 0")
    puzzle.shot("puzzle-one-program", page.locator(".tc-puzzle"))
    unnamed = page.evaluate("""() => [...document.querySelectorAll(
        '.tc-puzzle button, .tc-puzzle textarea, .tc-puzzle input, .tc-puzzle select')].filter(e => !(
            e.getAttribute('aria-label') || e.title || e.textContent.trim() || (e.labels && [...e.labels].some(
                l => l.textContent.trim())))).map(e => e.outerHTML.slice(0, 200))""")
    assert not unnamed, unnamed
    assert page.get_attribute(".tc-puzzle svg", "aria-label")
    puzzle.theme("JupyterLab Dark")
    puzzle.shot("puzzle-dark", page.locator(".tc-puzzle"))
    puzzle.theme("JupyterLab Light")
    puzzle.check()
