"""Short names of files and frames: `In[3]` for a notebook cell, relative paths for the rest. Keeps reports small and
free of the writer's home directory."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from types import FunctionType
from typing import Any, Callable

__all__ = [
    "REST",
    "cell_name",
    "cell_number",
    "frame_line",
    "frame_words",
    "is_loop",
    "label",
    "set_cell_labels",
    "stage_name",
    "users_name",
]

REST = "rest_of_"  # how the parameter begins that holds what follows a break in a function that was called

# Installed by the notebook package: file name of a cell -> its execution count, or None.
_cells: Callable[[str], int | None] | None = None
# plain IPython numbers its cells; the rest is a hash of the text
_IPYTHON_CELL = re.compile(r"<ipython-input-\d+-(\w+)>")
_LABEL = re.compile(r"^In\[(\d+)\]$")


def set_cell_labels(number_of: Callable[[str], int | None] | None) -> None:
    """Install the function that knows which file names are notebook cells."""
    global _cells
    _cells = number_of


def label(file: str | None) -> str:
    if not file:
        return ""
    if _cells is not None:
        n = _cells(file)
        if n is not None:
            return f"In[{n}]"
    return _path_label(file, os.getcwd())


@lru_cache(maxsize=4096)
def cell_name(file: str) -> str:
    """The name of a file; a cell's without its number, so that one cell has one name however often it runs."""
    cell = _IPYTHON_CELL.fullmatch(file)
    return file if cell is None else cell[1]


def frame_words(name: str) -> str:
    """What a person calls a frame: `<module>.<loop at line 7>` is the loop at line 7."""
    if name == "<module>":
        return "the cell's top level"
    head, *loops = name.split(".<loop at line ")  # of loops in loops the line of the innermost tells which
    return (
        f"the loop at line {loops[-1].rstrip('>')}" + ("" if head == "<module>" else f" in {head}") if loops else name
    )


def users_name(function: Any, name: str) -> str:
    """What a frame is called of which `name` is the code's name. A decorator's wrapper has the name of the function
    that it wraps: `GPT2Model.forward`, and not `can_return_tuple.<locals>.wrapper`."""
    if isinstance(function, FunctionType) and hasattr(function, "__wrapped__") and not is_loop(name):
        return function.__qualname__ or name
    return name


def is_loop(name: str) -> bool:
    """Whether a frame is one turn of a loop."""
    return ".<loop at line " in name


def frame_line(name: str, line: int) -> int:
    """The line at which a frame begins: a loop's own, where the frame is a loop of a function that begins at `line`."""
    m = re.search(r"<loop at line (\d+)>$", name)
    return int(m.group(1)) if m else line


def cell_number(label_: str) -> int | None:
    """3 for `In[3]`."""
    m = _LABEL.match(label_)
    return int(m.group(1)) if m else None


@lru_cache(maxsize=4096)
def _path_label(file: str, cwd: str) -> str:
    if file.startswith("<") or not os.path.isabs(file):
        return file
    for root in sorted((p for p in sys.path if p and os.path.isabs(p)), key=len, reverse=True):
        if file.startswith(root.rstrip(os.sep) + os.sep) and os.path.normpath(root) != "/":
            return os.path.relpath(file, root)
    if file.startswith(cwd.rstrip(os.sep) + os.sep):
        return os.path.relpath(file, cwd)
    return os.path.basename(file)


def stage_name(stage: Any) -> str:
    """A stage of the report; of a replaced one also by whom, and how often that left the work to the compiler's own."""
    by = f"{stage.name} by {stage.by}" if stage.by else stage.name
    return f"{by} (declined {stage.declined} of {stage.count})" if stage.declined else by
