"""Rows of an earlier report under this one's name of a file: a cell that is run again as it was is `In[4]` now, and no
longer `In[2]`.
"""

from __future__ import annotations

import os
from dataclasses import fields, is_dataclass
from operator import is_ as _is
from typing import Any, Iterable, Sequence

from ...base.labels import cell_number, label

__all__ = ["cells_named", "relabelled", "row_with"]

Places = dict[int, tuple[Any, tuple[str, ...]]]  # id of a row -> the row, and the fields that hold the name

_PLAIN = frozenset((int, float, bool, type(None)))


def relabelled(x: Any, old: str, new: str, places: Places | None = None) -> Any:
    """`x` with `new` wherever it is `old`, at any depth of rows, lists and tables. What holds no `old` stays the same
    object; so does what never gets into the JSON. `places` keeps, by the id of a row, which of its fields hold `old`:
    each run of a cell takes over what the runs before it took over, and most rows are of library code."""
    return x if old == new else _relabelled(x, old, new, {} if places is None else places)


def _relabelled(x: Any, old: str, new: str, places: Places) -> Any:
    kind = type(x)
    if kind in _PLAIN:
        return x
    if kind is str:
        return new if x == old else x
    if kind is list or kind is tuple:
        if not x or type(x[0]) in _PLAIN:  # a column of numbers
            return x
        rows = [_relabelled(v, old, new, places) for v in x]
        return x if all(map(_is, rows, x)) else kind(rows)
    if kind is dict:
        named = {k: _relabelled(v, old, new, places) for k, v in x.items()}
        return x if all(map(_is, named.values(), x.values())) else named
    known = places.get(id(x))
    if known is not None:
        return _row_at(x, known[1], old, new, places) if known[1] else x
    changed = {}
    for name in _fields(kind):
        value = getattr(x, name)
        if (then := _relabelled(value, old, new, places)) is not value:
            changed[name] = then
    places[id(x)] = x, tuple(changed)
    return row_with(x, **changed) if changed else x


def _row_at(row: Any, names: tuple[str, ...], old: str, new: str, places: Places) -> Any:
    """A row whose fields of these names held `old` before."""
    made = row_with(row)
    values = made.__dict__
    for name in names:
        value = values[name]
        values[name] = new if value == old else _relabelled(value, old, new, places)
    return made


def row_with(row: Any, **changed: Any) -> Any:
    """As dataclasses.replace() does with rows, which have no code of their own, in a third of the time: each run of a
    cell makes dozens."""
    made = object.__new__(type(row))
    made.__dict__ = {**row.__dict__, **changed}
    return made


_names: dict[type, tuple[str, ...]] = {}


def _fields(kind: Any) -> tuple[str, ...]:
    """The fields of a row that get into the JSON; of other classes none."""
    found = _names.get(kind)
    if found is None:
        shown = (f.name for f in fields(kind) if f.compare and f.init) if is_dataclass(kind) else ()
        found = _names[kind] = tuple(shown)
    return found


def cells_named(source: str, lines: Iterable[Sequence]) -> str:
    """A kernel's text, whose comments name cells as people do, not by the file that holds a cell for the kernel
    process."""
    for file in {str(x[0]) for x in lines}:
        if cell_number(label(file)) is not None:
            source = source.replace(f"{os.path.basename(file)}:", f"{label(file)}:")
    return source
