"""A student's notebook as cells to run, whatever else stands in it. Needs no torch.

Given cells come from the lab, not from the submission. Exercises are found by the cell's metadata, or by its first line
(`# exercise: name`) where a tool has dropped these. Cells that show or check are left out; cells of the student's own
run, in order, without the statements that use `course`.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any, Iterator

from .library import BuiltLab
from .words import say

__all__ = ["NotALab", "cells_of", "plain_python", "read_notebook"]

_MARK = re.compile(r"^\s*# exercise: *([\w-]+)")
_PYTHON = ("%%tcompile", "%%time", "%%capture", "%%prun")  # cell magics with Python of the student's below them
_MOST = 256 << 20  # bytes of a notebook


class NotALab(Exception):
    """The file is no notebook of a lab."""


def read_notebook(path: Path) -> tuple[dict, int, str]:
    """The notebook, the number of its lab and its language."""
    try:
        if not path.is_file():
            raise OSError("a folder, a pipe or a device")
        if path.stat().st_size > _MOST:
            raise OSError(f"more than {_MOST >> 20} MB")
        data = json.loads(path.read_text(encoding="utf-8"))
        facts = data["metadata"].get("tcompile_lab") or {}
        cells = data["cells"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise NotALab(say("not_a_lab", file=path.name, reason=f"{type(e).__name__}: {e}")) from None
    if not isinstance(facts, dict) or not isinstance(cells, list):
        raise NotALab(say("not_a_lab", file=path.name, reason="metadata"))
    number = facts.get("number") or _number_by_call(cells)
    if not isinstance(number, int):
        raise NotALab(say("not_a_lab", file=path.name, reason="metadata.tcompile_lab.number"))
    return data, number, facts.get("language", "en")


def _source(cell: dict) -> str:
    text = cell.get("source", "")
    return "".join(map(str, text)) if isinstance(text, list) else str(text)


def _mark_of(cell: dict) -> tuple[str, str]:
    """Kind and name by the cell's metadata, whatever stands there."""
    facts: Any = cell.get("metadata")
    facts = facts.get("tcompile_lab") if isinstance(facts, dict) else None
    facts = facts if isinstance(facts, dict) else {}
    return str(facts.get("kind", "own")), str(facts.get("name", ""))


def _number_by_call(cells: list) -> int | None:
    for cell in cells:
        found = re.search(r"tcompile\.labs\.open\((\d+)\)", _source(cell)) if isinstance(cell, dict) else None
        if found:
            return int(found[1])
    return None


def cells_of(notebook: dict, lab: BuiltLab) -> Iterator[tuple[str, str, str]]:
    """(kind, name, source) of the cells to run, in order; kind is given, exercise or own."""
    given = dict(lab.facts["given"])
    exercises = {e["name"] for e in lab.facts["exercises"]}
    own = 0
    for cell in notebook["cells"]:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        text = _source(cell)
        kind, name = _mark_of(cell)
        mark = _MARK.match(text)
        if kind == "own" and mark and mark[1] in exercises:
            kind, name = "exercise", mark[1]
        if kind == "given":
            if name in given:
                yield "given", name, given.pop(name)
        elif kind == "exercise" and name in exercises:
            yield "exercise", name, text
        elif kind == "own":
            own += 1
            yield "own", f"own-{own}", _without_course(plain_python(text))
    # given cells that were deleted come last: what tests need of them is there
    yield from (("given", name, text) for name, text in given.items())


def plain_python(text: str) -> str:
    """A cell without IPython's own syntax: lines with magics or shell commands become comments."""
    lines = text.splitlines()
    if lines and lines[0].startswith("%%"):
        if not lines[0].startswith(_PYTHON):
            return ""
        lines[0] = "# " + lines[0]
    return "\n".join("# " + x if x.lstrip().startswith(("%", "!")) else x for x in lines)


def _without_course(text: str) -> str:
    """Python whose statements with `course` are blank lines: pictures and checks are the notebook's."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return text  # running it says what is wrong
    lines = text.split("\n")
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        if any(isinstance(node, ast.Name) and node.id == "course" for node in ast.walk(statement)):
            rows = range(statement.lineno - 1, statement.end_lineno or statement.lineno)
            lines[rows.start : rows.stop] = [""] * len(rows)
    return "\n".join(lines)
