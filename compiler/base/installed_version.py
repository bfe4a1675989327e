"""The installed version of tcompile, as reports and reproducers name it."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata

__all__ = ["version"]


@lru_cache(maxsize=1)
def version() -> str:
    try:
        return metadata.version("tcompile")
    except metadata.PackageNotFoundError:
        return "source tree"
