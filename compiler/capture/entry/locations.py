"""Where an instruction comes from, and whether that is the user's own code."""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
from typing import NamedTuple

__all__ = ["Position", "is_library_file"]


class Position(NamedTuple):
    file: str
    line: int
    col: int | None
    end_line: int | None
    end_col: int | None
    function: str
    library: bool


@functools.cache
def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {paths[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots.update(site.getsitepackages() if hasattr(site, "getsitepackages") else ())
    import torch

    roots.add(os.path.dirname(torch.__file__))
    roots.add(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))  # the compiler's own
    return tuple(
        sorted(os.path.join(os.path.realpath(root), "") for root in roots)
        + sorted(os.path.join(root, "") for root in roots)
    )


@functools.lru_cache(maxsize=4096)
def is_library_file(file: str) -> bool:
    """True for the standard library, installed packages and the compiler, whose lines a user cannot change."""
    return file.startswith(("<frozen", *_library_roots())) or file == "<string>" or _is_installed_elsewhere(file)


def _is_installed_elsewhere(file: str) -> bool:
    """Whether a file lies below a folder of sys.path that an installer filled: the user's own packages, another
    environment's, `pip install --target`.
    """
    if not os.path.isabs(file):
        return False
    return any(file.startswith(os.path.join(folder, "")) and _holds_packages(folder) for folder in sys.path if folder)


@functools.cache
def _holds_packages(folder: str) -> bool:
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False
