"""The code that a report is about, as text."""

from __future__ import annotations

import ast
import inspect
import sys
import tokenize
from typing import Any

from ..base.labels import cell_number, label
from ..base.source_text import source_lines
from .schema import CellSource

__all__ = ["code_at", "line_on_stack", "runs_often", "source_of"]


def source_of(fn: Any) -> CellSource:
    """The code of a function, or of a module's `forward`; empty where its text is not known."""
    code = getattr(inspect.unwrap(getattr(fn, "forward", fn)), "__code__", None)
    if code is None:
        return CellSource()
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError, ValueError):
        return CellSource()
    return CellSource("".join(lines), label(code.co_filename), first)


def code_at(file: str, line: int) -> CellSource:
    """The whole of a cell, or the function that begins at a line of a file; empty where the text is not known."""
    lines = source_lines(file)
    if cell_number(label(file)) is None:
        try:
            lines = inspect.getblock(lines[line - 1 :])
        except (SyntaxError, tokenize.TokenError):
            lines = []
    return CellSource("".join(lines), label(file), line) if lines else CellSource()


_ON_ONE_LINE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")  # its first line is where it stands


def line_on_stack(cell: str) -> int | None:
    """The line of a cell that is running; None where it is not known: the code of an entry has the cell's first."""
    frame = sys._getframe(1) if cell_number(cell) is not None else None
    while frame is not None and label(frame.f_code.co_filename) != cell:
        frame = frame.f_back
    if frame is None or frame.f_lineno <= frame.f_code.co_firstlineno and frame.f_code.co_name not in _ON_ONE_LINE:
        return None
    return frame.f_lineno


def runs_often(file: str, line: int) -> bool:
    """Whether a line of a cell stands in a loop of it, or its text is not known."""
    try:
        nodes = ast.walk(ast.parse("".join(source_lines(file)) or "("))
    except (SyntaxError, ValueError):
        return True
    loops = (n for n in nodes if isinstance(n, (ast.For, ast.AsyncFor, ast.While)))
    return any(n.lineno <= line <= (n.end_lineno or n.lineno) for n in loops)
