"""Which dialect of bytecode this process speaks."""

from __future__ import annotations

import sys
import sysconfig
from types import ModuleType

from . import v311, v312, v313, v314

__all__ = ["VERSION", "DIALECT", "BRANCHES_ON_BOOL", "NULL_FIRST", "UnsupportedPython"]


class UnsupportedPython(ImportError):
    """This interpreter's bytecode is not known."""


_DIALECTS: dict[tuple[int, int], ModuleType] = {(3, 11): v311, (3, 12): v312, (3, 13): v313, (3, 14): v314}
VERSION: tuple[int, int] = sys.version_info[:2]
if VERSION not in _DIALECTS or sys.implementation.name != "cpython":
    raise UnsupportedPython(
        f"tcompile knows the bytecode of CPython 3.11 to 3.14; this is {sys.implementation.name} "
        f"{VERSION[0]}.{VERSION[1]}"
    )
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise UnsupportedPython(
        f"tcompile does not run on the free-threaded build of Python ({sys.executable}): guards and entries rely on the"
        " interpreter's lock, also where PYTHON_GIL=1 has it. Use the ordinary build of Python"
        f" {VERSION[0]}.{VERSION[1]}."
    )
DIALECT = _DIALECTS[VERSION]
BRANCHES_ON_BOOL: bool = DIALECT.BRANCHES_ON_BOOL  # POP_JUMP_IF_TRUE / FALSE read a bool, and any other object as one
NULL_FIRST: bool = DIALECT.NULL_FIRST  # a call sequence is `NULL callable` (up to 3.12), not `callable NULL` (3.13)
