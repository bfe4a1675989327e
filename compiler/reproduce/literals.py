"""Values as Python text that means them again."""

from __future__ import annotations

import math
import types
from typing import Any, Callable

import torch

from ..errors import ReproduceError

__all__ = ["literal", "is_literal"]

_ATOMS = (bool, int, str, bytes, type(None), type(Ellipsis))


def literal(value: Any, name_of: Callable[[Any], str | None] | None = None) -> str:
    """`name_of` gives the text of what is written by name (nodes, functions), or None. ReproduceError for the rest."""
    named = name_of(value) if name_of is not None else None
    if named is not None:
        return named
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if type(value) is complex:
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if type(value) in _ATOMS:
        return "..." if value is ... else repr(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return repr(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, slice):
        return f"slice({', '.join(literal(v, name_of) for v in (value.start, value.stop, value.step))})"
    if isinstance(value, torch.Size) or type(value) is tuple:
        inside = ", ".join(literal(item, name_of) for item in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, (list, set)) and value:
        inside = ", ".join(literal(item, name_of) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"{{{inside}}}"
    if isinstance(value, (list, set)):
        return "[]" if isinstance(value, list) else "set()"
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{literal(key, name_of)}: {literal(item, name_of)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise ReproduceError(f"the size {value} varies: give it as an input")
    what = "a function" if isinstance(value, types.FunctionType) else f"a {type(value).__name__}"
    raise ReproduceError(f"{what} can't be written as Python text: {value!r:.80}")


def is_literal(value: Any) -> bool:
    try:
        literal(value)
    except ReproduceError:
        return False
    return True
