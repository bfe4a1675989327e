"""Lines of source files by name. A file's name may be anything: code made at run time names what is no file."""

from __future__ import annotations

import linecache

__all__ = ["source_line", "source_lines"]


def source_lines(file: str) -> list[str]:
    """The lines of a file or a cell; none where there is no such file."""
    try:
        return linecache.getlines(file)
    except ValueError:  # a name with NUL or with a surrogate
        return []


def source_line(file: str, line: int) -> str:
    """One line, counted from 1, with its line end; "" where there is none."""
    lines = source_lines(file)
    return lines[line - 1] if 1 <= line <= len(lines) else ""
