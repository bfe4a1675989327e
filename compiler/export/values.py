"""Constants and size expressions as plain JSON values, and back."""
from __future__ import annotations

import math
from typing import Any, Mapping

import torch

from ..errors import ExportError
from ..symbolic.expr import Expr

__all__ = ["encode", "decode", "encode_expr", "evaluate", "symbols_of"]

_NAMED: dict[str, Any] = {str(v): v for v in vars(torch).values() if isinstance(v, (torch.dtype, torch.layout, torch.memory_format))}


def encode(value: Any) -> Any:
    """A constant: numbers, strings, None, torch's dtypes, devices and layouts, slices, and lists, tuples and dicts of them."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if value is ...:
        return {"ellipsis": 1}
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return {"torch": str(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, slice):
        return {"slice": [encode(value.start), encode(value.stop), encode(value.step)]}
    if isinstance(value, torch.Size):
        return {"size": list(value)}
    if type(value) is range:
        return {"range": [value.start, value.stop, value.step]}
    if type(value) is list:
        return [encode(v) for v in value]
    if type(value) in (tuple, set, frozenset):
        return {type(value).__name__: [encode(v) for v in value]}
    if type(value) is dict:
        return {"dict": [[encode(k), encode(v)] for k, v in value.items()]}
    raise ExportError(f"a constant of type {type(value).__name__} cannot be saved in an exported program")


def decode(value: Any) -> Any:
    """What `encode` gave, read back. ExportError for anything else."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [decode(v) for v in value]
    if isinstance(value, dict) and len(value) == 1:
        (kind, of), = value.items()
        if kind == "float" and of in ("inf", "-inf", "nan"):
            return float(of)
        if kind == "complex":
            return complex(*of)
        if kind == "ellipsis":
            return ...
        if kind == "torch" and of in _NAMED:
            return _NAMED[of]
        if kind == "device" and isinstance(of, str):
            return torch.device(of)
        if kind == "slice":
            return slice(*(decode(v) for v in of))
        if kind == "size":
            return torch.Size(of)
        if kind == "range":
            return range(*of)
        if kind in ("tuple", "set", "frozenset"):
            return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](decode(v) for v in of)
        if kind == "dict":
            return {decode(k): decode(v) for k, v in of}
    raise ExportError(f"the file holds a value that is none: {str(value)[:80]}")


# --- sizes: ["sym", "s0"], ["add", a, b, ...], numbers as themselves
def encode_expr(e: Any) -> Any:
    if not isinstance(e, Expr):
        return int(e)
    if e.is_const:
        return e.value
    op: str = e.op  # type: ignore[attr-defined]
    if op == "sym":
        return ["sym", next(iter(e.symbol_names()))]
    return [op, *(encode_expr(a) for a in e.args)]


_OPERATIONS: dict[str, Any] = {
    "add": lambda *a: sum(a), "mul": lambda *a: math.prod(a), "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b,
    "lshift": lambda a, b: a << b, "bitand": lambda a, b: a & b, "min": lambda *a: min(a), "max": lambda *a: max(a), "ite": lambda c, a, b: a if c else b, "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b, "le": lambda a, b: a <= b, "and": lambda *a: all(a), "or": lambda *a: any(a),
}


def evaluate(e: Any, sizes: Mapping[str, int]) -> Any:
    """The value of an encoded expression."""
    if isinstance(e, (bool, int)):
        return e
    op, *args = e
    if op == "sym":
        return sizes[args[0]]
    if op not in _OPERATIONS:
        raise ExportError(f"the file holds an unknown size expression {op!r}")
    return _OPERATIONS[op](*(evaluate(a, sizes) for a in args))


def symbols_of(e: Any) -> set[str]:
    if isinstance(e, (bool, int)):
        return set()
    return {e[1]} if e[0] == "sym" else set().union(*map(symbols_of, e[1:]))
