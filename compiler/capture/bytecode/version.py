"""Which dialect of bytecode this process speaks."""
from __future__ import annotations

import sys
from types import ModuleType

from . import v311, v312, v313

__all__ = ["VERSION", "DIALECT", "NULL_FIRST", "UnsupportedPython"]


class UnsupportedPython(ImportError):
    """This interpreter's bytecode is not known."""


_DIALECTS: dict[tuple[int, int], ModuleType] = {(3, 11): v311, (3, 12): v312, (3, 13): v313}
VERSION: tuple[int, int] = sys.version_info[:2]
if VERSION not in _DIALECTS or sys.implementation.name != "cpython":
    raise UnsupportedPython(f"tcompile knows the bytecode of CPython 3.11, 3.12 and 3.13; this is {sys.implementation.name} "
                            f"{VERSION[0]}.{VERSION[1]}")
DIALECT = _DIALECTS[VERSION]
NULL_FIRST: bool = DIALECT.NULL_FIRST       # a call sequence is `NULL callable` (up to 3.12), not `callable NULL` (3.13)
