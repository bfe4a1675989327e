"""Rows of an earlier report under this one's name of a file: a cell that is run again as it was is `In[4]` now, and no
longer `In[2]`.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from operator import is_ as _is
from typing import Any

__all__ = ["relabelled"]

_PLAIN = frozenset((int, float, bool, type(None)))


def relabelled(x: Any, old: str, new: str, unnamed: dict[int, Any] | None = None) -> Any:
    """`x` with `new` wherever it is `old`, at any depth of rows, lists and tables. What holds no `old` stays the same
    object; so does what never gets into the JSON. `unnamed` keeps the rows without `old` from one run of a cell to the
    next, by their id: a run takes over what the runs before it took over, and most rows are of library code."""
    return x if old == new else _relabelled(x, old, new, {} if unnamed is None else unnamed)


def _relabelled(x: Any, old: str, new: str, unnamed: dict[int, Any]) -> Any:
    kind = type(x)
    if kind in _PLAIN:
        return x
    if kind is str:
        return new if x == old else x
    if kind is list or kind is tuple:
        if not x or type(x[0]) in _PLAIN:  # a column of numbers
            return x
        rows = [_relabelled(v, old, new, unnamed) for v in x]
        return x if all(map(_is, rows, x)) else kind(rows)
    if kind is dict:
        named = {k: _relabelled(v, old, new, unnamed) for k, v in x.items()}
        return x if all(map(_is, named.values(), x.values())) else named
    if id(x) in unnamed:
        return x
    changed = {}
    for name in _fields(kind):
        value = getattr(x, name)
        if (then := _relabelled(value, old, new, unnamed)) is not value:
            changed[name] = then
    if changed:
        return replace(x, **changed)
    unnamed[id(x)] = x
    return x


_names: dict[type, tuple[str, ...]] = {}


def _fields(kind: Any) -> tuple[str, ...]:
    """The fields of a row that get into the JSON; of other classes none."""
    found = _names.get(kind)
    if found is None:
        shown = (f.name for f in fields(kind) if f.compare and f.init) if is_dataclass(kind) else ()
        found = _names[kind] = tuple(shown)
    return found
