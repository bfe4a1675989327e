"""The code that a report is about, as text."""

from __future__ import annotations

import inspect
from typing import Any

from ..base.labels import label
from .schema import CellSource

__all__ = ["source_of"]


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
