"""The C extension, or None.

In: nothing. Out: `native`, the extension module (guard program, dispatcher, frame hook, launcher) or None, and
`why_missing`, one sentence for the user where it is None. Everything that uses it has a pure-Python path of the same
behaviour; `TCOMPILE_NATIVE=0` chooses that path.
"""
from __future__ import annotations

import os
from types import ModuleType

from .. import events

__all__ = ["native", "why_missing", "say_missing"]

native: ModuleType | None = None
why_missing: str | None = None
_said = False

if os.environ.get("TCOMPILE_NATIVE", "1") == "0":
    why_missing = "the C extension is switched off by TCOMPILE_NATIVE=0"
else:
    try:
        from . import _native as native  # type: ignore[attr-defined, no-redef]
    except ImportError as error:
        why_missing = (f"the C extension of tcompile does not load ({error}); guards run in Python and cells cannot see "
                       f"into library code. Build it by: python {os.path.join(os.path.dirname(__file__), 'build.py')}")


def say_missing() -> None:
    """State the missing extension as a fallback event, once in a process."""
    global _said
    if native is None and not _said:
        _said = True
        events.emit("fallback", what="native", reason=why_missing, count=1)
