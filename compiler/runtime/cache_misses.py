"""Why the disk cache had no kernel: what differs from the latest kernel of the same name.

Beside each kernel's files lies a note of the parts that its key is made of. A miss compares with it and says which part
is another one, so that a reader learns whether the code changed, the compiler, or the machine.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter

from .cache import KernelCache, key_parts

__all__ = ["note_name", "remember", "why_missing"]

_WORDS = {
    "flags": "compiler flags",
    "compiler": "compiler",
    "machine": "processor",
    "version": "version of tcompile",
    "format": "format of the cache",
}
_LONGEST = 120  # characters of a line of source that are quoted


def note_name(name: str) -> str:
    return "latest-" + hashlib.sha256(name.encode()).hexdigest()[:16]


def remember(cache: KernelCache, name: str, key: str, source: str, flags: tuple[str, ...], compiler: str) -> None:
    """Note the parts of the key of a kernel that was compiled just now."""
    cache.put_note(
        note_name(name), json.dumps({"key": key, "parts": key_parts(flags, compiler), "lines": source.count("\n") + 1})
    )


def why_missing(cache: KernelCache, name: str, source: str, flags: tuple[str, ...], compiler: str) -> str:
    """One phrase: which part of the key differs from that of the latest kernel of this name. Never raises: a note that
    can't be read counts as none."""
    try:
        note = json.loads(cache.get_note(note_name(name)) or "null")
        old = note["parts"] if note else None
    except (ValueError, TypeError, KeyError):
        old = None
    if not isinstance(old, dict):
        return "no kernel of this name was compiled before"
    new = key_parts(flags, compiler)
    changed = [
        f"{words} {_change(str(old.get(part)), new[part], part == 'flags')}"
        for part, words in _WORDS.items()
        if old.get(part) != new[part]
    ]
    before = cache.source(str(note.get("key")))
    if before is None:
        return "; ".join(changed) or "the latest kernel of this name is not in the cache any more"
    if before != source:
        changed.insert(0, _difference(before, source))
    return "differs from the latest kernel of this name: " + ("; ".join(changed) or "its files were removed or damaged")


def _difference(before: str, after: str) -> str:
    """How many lines differ, and the first of them."""
    old, new = before.splitlines(), after.splitlines()
    had = Counter(old)
    fresh = []
    for line in new:
        if had[line]:
            had[line] -= 1
        else:
            fresh.append(line)
    if not fresh:
        return f"the source ({len(old)} → {len(new)} lines)"
    return f"{len(fresh)} of {len(new)} lines of the source, first `{fresh[0].strip()[:_LONGEST]}`"


def _change(before: str, after: str, words: bool) -> str:
    """A part of the key, before and now; of one that is made of `words` those that differ."""
    if not words:
        return f"{_short(before)} → {_short(after)}"
    old, new = before.split(), after.split()
    return " → ".join(
        _short(" ".join(w for w in mine if w not in other) or "none") for mine, other in ((old, new), (new, old))
    )


def _short(text: str) -> str:
    return f"`{text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'}`"
