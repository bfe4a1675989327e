"""The code that a report is about, as text."""

from __future__ import annotations

import inspect
import tokenize
from typing import Any

from ..base.labels import cell_number, label
from ..base.source_text import source_lines
from .schema import CellSource

__all__ = ["code_at", "source_of"]


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
