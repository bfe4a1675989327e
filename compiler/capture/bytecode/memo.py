"""What was worked out about code objects, remembered for as long as they live.

Code objects compare by value, so that the code of two cells can be equal: here they are told apart by identity. What is
remembered must not refer to the code object itself, or neither would ever go.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, MutableMapping
from types import CodeType
from typing import TypeVar

__all__ = ["CodeMemo"]

T = TypeVar("T")


class CodeMemo(MutableMapping[CodeType, T]):
    """A mapping from code objects, weak and by identity."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[CodeType], T]] = {}

    def __getitem__(self, code: CodeType) -> T:
        known = self._found.get(id(code))
        if known is None:
            raise KeyError(code)
        return known[1]

    def get(self, code: CodeType, default: T | None = None) -> T | None:  # type: ignore[override]
        known = self._found.get(id(code))
        return default if known is None else known[1]

    def __setitem__(self, code: CodeType, value: T) -> None:
        key, found = id(code), self._found

        def gone(_: object) -> None:
            found.pop(key, None)

        found[key] = weakref.ref(code, gone), value

    def __delitem__(self, code: CodeType) -> None:
        del self._found[id(code)]

    def __iter__(self) -> Iterator[CodeType]:
        """Those that live."""
        for ref, _ in list(self._found.values()):
            code = ref()
            if code is not None:
                yield code

    def __contains__(self, code: object) -> bool:
        return id(code) in self._found

    def __len__(self) -> int:
        return len(self._found)

    def clear(self) -> None:
        self._found.clear()
