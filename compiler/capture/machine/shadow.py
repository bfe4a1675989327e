"""What capture knows of a container from outside that the program has read whole or written to."""

from __future__ import annotations

from typing import Any

from .stack_values import MISSING

__all__ = ["Shadow"]


class Shadow:
    """One for each such container (`World.shadows`). Writes that need no reading are kept apart until it is read."""

    __slots__ = ("value", "blind", "keys", "changed")

    def __init__(self) -> None:
        self.value: Any = None  # the inside copy; None until it is needed
        self.blind: list[tuple[str, list]] = []  # writes done without reading
        self.keys: dict | None = None  # a dict's keys, where they were iterated over without reading the values
        self.changed = False  # written to, so that the container itself is not what the program sees

    def count(self, base: type) -> int | None:
        """How many items were added without reading the container; None where that hangs on what it holds."""
        if self.value is not None or self.blind and base is dict:
            return None
        return sum(1 if name.startswith("append") else len(args[0]) for name, args in self.blind)

    def given(self, base: type, key: Any) -> Any:
        """What a dict that was not read yet was given under a key, or a list as its last but so many; MISSING."""
        if self.value is not None:
            return MISSING
        if base is dict:
            return self._set(key)
        return self._added(-key) if base is list and type(key) is int and key < 0 else MISSING

    def just_set(self, key: Any) -> Any:
        """What a container was given last, if that was under this very key."""
        name, args = self.blind[-1] if self.value is None and self.blind else ("", [None])
        return args[1] if name == "__setitem__" and args[0] is key else MISSING

    def _set(self, key: Any) -> Any:
        for name, args in reversed(self.blind):
            if name == "__setitem__" and args[0] is key or type(args[0]) is type(key) and args[0] == key:
                return args[1]
        return MISSING

    def _added(self, from_end: int) -> Any:
        for name, args in reversed(self.blind):
            added = args if name == "append" else args[0]
            if not isinstance(added, (list, tuple)):
                break
            if from_end <= len(added):
                return added[-from_end]
            from_end -= len(added)
        return MISSING
