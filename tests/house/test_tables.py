"""Lists that stand in several files hold the same names: whoever adds a row hears where the others are."""

from __future__ import annotations

import ast
import re

import pytest

from tcompile.compiler import events
from tcompile.compiler.guards import guard

from .test_imports import ROOT

GUARD_FILES = [
    "compiler/guards/guard_code.py",
    "compiler/guards/guard_plan.py",
    "compiler/guards/python_program.py",
    "compiler/guards/explain.py",
    "compiler/report/words.py",
    "compiler/frontend/entries/guard_filter.py",
    "labextension/src/views/guards.ts",
]


@pytest.mark.parametrize("path", GUARD_FILES)
def test_a_file_knows_every_kind_of_guard(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert path.removeprefix("compiler/").removeprefix("guards/") in (guard.__doc__ or "")
    missing = [kind for kind in guard.KINDS if not re.search(rf"\b{kind}\b", text)]
    assert not missing, f"{path} does not name {', '.join(missing)}"


def test_python_and_javascript_have_the_same_tabs() -> None:
    from tcompile.kernel_magics.widgets import TABS, VIEWS

    text = (ROOT / "labextension" / "src" / "report.ts").read_text(encoding="utf-8")
    (found,) = re.findall(r"^const TABS = \[([^\]]*)\]", text, re.MULTILINE)
    tabs = [name.strip(" '\n") for name in found.split(",")]
    assert [tab for tab in tabs if tab != "ranks"] == list(TABS)  # (only reports of several ranks have that one)
    assert len(VIEWS) == 1 + len(TABS)


def emitted() -> dict[str, str]:
    """Kinds of events that code states by a literal, and a file of each."""
    found: dict[str, str] = {}
    for path in [*(ROOT / "compiler").rglob("*.py"), *(ROOT / "kernel_magics").rglob("*.py")]:
        for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = "emit" if path.name == "events.py" else "events.emit"
            if isinstance(n, ast.Call) and ast.unparse(n.func) == name and n.args:
                if isinstance(n.args[0], ast.Constant):
                    found[n.args[0].value] = str(path.relative_to(ROOT))
    return found


def test_every_event_is_declared() -> None:
    stated = emitted()
    assert len(stated) > 20
    rows = (events.__doc__ or "").partition("may rely on):")[2]
    declared = set(re.findall(r"^  (\w+) ", rows, re.MULTILINE)) | set(re.findall(r" {2,}(\w+) {2,}\w", rows))
    missing = {kind: path for kind, path in stated.items() if kind not in declared}
    assert not missing, f"the docstring of events.py does not name {missing}"


def test_the_report_listens_to_events_that_exist() -> None:
    from tcompile.compiler.report.builder import ReportBuilder

    handlers = {name.removeprefix("_on_") for name in vars(ReportBuilder) if name.startswith("_on_")}
    assert len(handlers) > 15 and handlers <= {*emitted(), "fallback", "stage"}
