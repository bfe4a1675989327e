"""Constants and size expressions as plain JSON values, and back."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any, Callable, Collection, Mapping

import torch

from ..errors import ExportError
from ..symbolic.expr import Expr, as_expr, symbol
from ..symbolic.walk import BUILDERS

__all__ = ["encode", "decode", "distinct", "encode_expr", "decode_expr", "evaluate", "check_expr"]

# torch's values by name: dtypes of plain numbers (quantized ones and those of bits hold what no operator checks), dense
# tensors alone.
_DTYPES = re.compile(r"torch\.(bool|u?int(8|16|32|64)|b?float(16|32|64|8_\w+)|complex(32|64|128))")
_NAMED: dict[str, Any] = {
    str(v): v for v in vars(torch).values() if isinstance(v, torch.dtype) and _DTYPES.fullmatch(str(v))
}
_NAMED.update({str(v): v for v in vars(torch).values() if isinstance(v, torch.memory_format) or v is torch.strided})


def encode(value: Any) -> Any:
    """A constant: numbers, strings, None, torch's dtypes, devices and layouts, slices, and lists, tuples and dicts of
    them.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) is complex:
        return {"complex": [encode(value.real), encode(value.imag)]}
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
        return [encode(item) for item in value]
    if type(value) in (tuple, set, frozenset):
        return {type(value).__name__: [encode(item) for item in value]}
    if type(value) is dict:
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    raise ExportError(f"a constant of type {type(value).__name__} cannot be saved in an exported program")


def decode(value: Any) -> Any:
    """What `encode` gave, read back. ExportError for anything else."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -_LARGEST_INT <= value < _LARGEST_INT:
            raise ExportError(f"the file holds a whole number of {value.bit_length()} bits")
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str):
        if len(value) > _LONGEST_TEXT:
            raise ExportError(f"the file holds a string of {len(value)} characters as a value")
        return value
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict) and len(value) == 1:
        ((kind, of),) = value.items()
        read = _READ.get(kind)
        if read is not None:
            try:
                return read(of)
            except (TypeError, ValueError, KeyError, RuntimeError, OverflowError) as e:
                if isinstance(e, ExportError):
                    raise
    raise ExportError(f"the file holds an invalid value: {str(value)[:80]!a}")


def distinct(keys: list) -> list:
    """Keys of a set or dict. Hashes of numbers and tuples can be foreseen, and a table whose keys share one takes time
    that grows with their square.
    """
    if len(keys) > _MOST_ALIKE and max(Counter(map(hash, keys)).values()) > _MOST_ALIKE:
        raise ExportError("the file holds keys that were made to collide")
    return keys


def _whole(values: Any) -> list[int]:
    values = [decode(value) for value in values]
    if any(type(value) is not int for value in values):
        raise TypeError("whole numbers")
    return values


def _range(of: Any) -> range:
    made = range(*_whole(of))
    if len(made) > _LONGEST_RANGE:
        raise ValueError("a range")
    return made


def _number(of: Any) -> float:
    value = decode(of)
    if type(value) not in (int, float):
        raise TypeError("a number")
    return float(value)


def _device(of: Any) -> torch.device:
    if not (isinstance(of, str) and _DEVICE.fullmatch(of)):
        raise ValueError("a device")
    return torch.device(of)


_LARGEST_INT = 2**64
_LONGEST_TEXT = 1 << 16
_LONGEST_RANGE = 1 << 20
_MOST_ALIKE = 64
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|meta)(:[0-9]{1,3})?")
_READ: dict[str, Callable] = {
    "float": lambda of: {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[of],
    "complex": lambda of: complex(*[_number(v) for v in of]),
    "ellipsis": lambda of: ...,
    "torch": lambda of: _NAMED[of],
    "device": _device,
    "slice": lambda of: slice(*[decode(v) for v in of]),
    "size": lambda of: torch.Size(_whole(of)),
    "range": _range,
    "tuple": lambda of: tuple([decode(v) for v in of]),
    "set": lambda of: set(distinct([decode(v) for v in of])),
    "frozenset": lambda of: frozenset(distinct([decode(v) for v in of])),
    "dict": lambda of: dict(zip(distinct([decode(k) for k, _ in of]), [decode(v) for _, v in of])),
}


# --- sizes: ["sym", "s0"], ["add", a, b, ...], numbers as themselves
def encode_expr(e: Any) -> Any:
    if not isinstance(e, Expr):
        return int(e)
    if e.is_const:
        return e.value
    op: str = e.op  # type: ignore[attr-defined]
    if op == "sym":
        return ["sym", next(iter(e.symbol_names()))]
    return [op, *(encode_expr(arg) for arg in e.args)]


def decode_expr(e: Any) -> Expr:
    """What `encode_expr` gave, of a text that is trusted."""
    if not isinstance(e, list):
        return as_expr(e)
    return symbol(e[1]) if e[0] == "sym" else BUILDERS[e[0]](*map(decode_expr, e[1:]))


def _shift(a: int, b: int) -> int:
    if not 0 <= b < 64:
        raise ExportError(f"a size expression shifts by {b}")
    return a << b


# Operation -> what it computes, the least and the greatest number of its operands.
_OPERATIONS: dict[str, tuple[Callable, int, float]] = {
    "add": (lambda *a: sum(a), 1, math.inf),
    "mul": (lambda *a: _times(a), 1, math.inf),
    "floordiv": (lambda a, b: a // b, 2, 2),
    "mod": (lambda a, b: a % b, 2, 2),
    "lshift": (_shift, 2, 2),
    "bitand": (lambda a, b: a & b, 2, 2),
    "min": (min, 2, math.inf),
    "max": (max, 2, math.inf),
    "ite": (lambda c, a, b: a if c else b, 3, 3),
    "eq": (lambda a, b: a == b, 2, 2),
    "ne": (lambda a, b: a != b, 2, 2),
    "le": (lambda a, b: a <= b, 2, 2),
    "and": (lambda *a: all(a), 1, math.inf),
    "or": (lambda *a: any(a), 1, math.inf),
}
_LARGEST_SIZE = 2**128  # of what an expression computes on the way


def _times(factors: tuple) -> int:
    product = 1
    for factor in factors:
        product *= factor
        if abs(product) > _LARGEST_SIZE:
            raise ExportError("a size expression gives a number beyond 128 bits")
    return product


def evaluate(e: Any, sizes: Mapping[str, int]) -> Any:
    """The value of an encoded expression."""
    if isinstance(e, (bool, int)):
        return e
    op, *args = e
    if op == "sym":
        return sizes[args[0]]
    if op not in _OPERATIONS:
        raise ExportError(f"the file holds an unknown size expression {str(op)[:40]!r}")
    try:
        return _OPERATIONS[op][0](*[evaluate(arg, sizes) for arg in args])
    except ZeroDivisionError:
        raise ExportError("a size expression divides by zero") from None


def check_expr(e: Any, known: Collection[str]) -> None:
    """That `evaluate` can compute it, given the sizes that are known."""
    if isinstance(e, bool) or isinstance(e, int) and abs(e) <= _LARGEST_INT:
        return
    if not isinstance(e, list) or not e:
        raise ExportError(f"the file holds an invalid size: {str(e)[:80]!a}")
    op, *args = e
    if op == "sym":
        if len(args) != 1 or not isinstance(args[0], str) or args[0] not in known:
            raise ExportError(f"the file uses a size that no argument gives: {str(args)[:80]!a}")
        return
    if not isinstance(op, str) or op not in _OPERATIONS or not _OPERATIONS[op][1] <= len(args) <= _OPERATIONS[op][2]:
        raise ExportError(f"the file holds an unknown size expression {str(op)[:40]!a} of {len(args)} operands")
    for arg in args:
        check_expr(arg, known)
