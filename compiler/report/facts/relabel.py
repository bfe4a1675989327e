"""Rows of an earlier report under this one's name of a file: a cell that is run again as it was is `In[4]` now, and no
longer `In[2]`.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

__all__ = ["relabelled"]


def relabelled(x: Any, old: str, new: str) -> Any:
    """`x` with `new` wherever it is `old`, at any depth of rows, lists and tables. What holds no `old` stays the same
    object; so does what never gets into the JSON."""
    if old == new:
        return x
    if isinstance(x, str):
        return new if x == old else x
    if isinstance(x, (list, tuple)):
        if not x or isinstance(x[0], (int, float)):  # a column of numbers
            return x
        rows = [relabelled(v, old, new) for v in x]
        return x if all(a is b for a, b in zip(rows, x)) else type(x)(rows)
    if isinstance(x, dict):
        named = {k: relabelled(v, old, new) for k, v in x.items()}
        return x if all(named[k] is v for k, v in x.items()) else named
    if is_dataclass(x) and not isinstance(x, type):
        values = {f.name: getattr(x, f.name) for f in fields(x) if f.compare and f.init}
        changed = {k: n for k, v in values.items() if (n := relabelled(v, old, new)) is not v}
        return replace(x, **changed) if changed else x
    return x
