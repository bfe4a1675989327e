"""Whether Python finds a module: what `importlib.util.find_spec` is mostly asked, in every call of some libraries."""

from __future__ import annotations

import importlib.util
import os
import sys

__all__ = ["is_found"]

_known: dict[str, tuple[tuple, bool | None]] = {}  # name -> (what the answer was found under, the answer)


def is_found(name: str) -> bool | None:
    """Whether `find_spec(name)` gives a spec; None where it raises, as of a module without one: no guard holds then. It
    is looked up anew where a folder of sys.path has changed, as the finders of importlib do it."""
    if name in sys.modules:
        return _asked(name)  # (it asks the module)
    under = (*sys.path, *map(_changed, sys.path), *map(id, sys.meta_path))
    known = _known.get(name)
    if known is None or known[0] != under:
        known = _known[name] = (under, _asked(name))
    return known[1]


def _asked(name: str) -> bool | None:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:
        return None


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return -1
