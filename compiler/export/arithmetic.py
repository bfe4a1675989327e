"""Bounds on what a graph computes with Python's own numbers and lists.

torch bounds its tensors; `operator.pow` of two ints, a shift, a product or a list repeated does not: `pow(10, 10 ** 9)`
takes minutes and gigabytes. So each node of a graph out of a file gets a kind, and arithmetic that may be on numbers
must stay within `_MOST_BITS`. Arithmetic on lists and texts is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import torch.fx

from ..errors import ExportError
from . import safe_operators

__all__ = [
    "Kind",
    "TENSOR",
    "NUMBER",
    "DIMENSION",
    "EITHER",
    "SIZE",
    "SEVERAL",
    "OTHER",
    "kind_of",
    "kind_of_call",
    "check_windows",
]

_MOST_BITS = 1024
_GREATEST_POWER = 64


@dataclass(frozen=True)
class Kind:
    """What a value is. `bits` bounds its whole numbers; of a tensor they are torch's."""

    name: str
    bits: int = 0


TENSOR, SEVERAL = Kind("tensor"), Kind("several tensors")
NUMBER, DIMENSION, SIZE = Kind("number", 64), Kind("number", 40), Kind("size", 40)
EITHER, OTHER = Kind("tensor or number", 64), Kind("other")
_ELEMENTS = {SIZE.name: DIMENSION, SEVERAL.name: TENSOR, TENSOR.name: TENSOR}

_POWERS = frozenset(("pow", "ipow", "rpow"))
_SHIFTS = frozenset(("lshift", "ilshift", "rlshift"))
_PRODUCTS = frozenset(("mul", "imul", "rmul", "multiply"))
_SUMS = frozenset(
    """add iadd radd sub isub rsub neg pos abs invert invert_ rshift irshift and or xor iand ior ixor floordiv ifloordiv
    rfloordiv mod imod rmod truediv itruediv rtruediv""".split()
)
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "not", "contains", "index"))
_SELECTING = frozenset(("max", "min", "median", "nanmedian"))  # give values and indices where they are told a dimension


def kind_of(value: Any, kinds: Mapping[torch.fx.Node, Kind]) -> Kind:
    """Of an argument: a node, or a constant."""
    if isinstance(value, torch.fx.Node):
        return kinds[value]
    if isinstance(value, int):
        return Kind(NUMBER.name, value.bit_length())
    return NUMBER if isinstance(value, (float, complex)) else OTHER


def kind_of_call(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], kinds: Mapping[torch.fx.Node, Kind]
) -> Kind:
    """What a call of the operator or method `name` gives. ExportError where it may be a number or list beyond all
    bounds.
    """
    operands = [kind_of(a, kinds) for a in (*args, *kwargs.values())]
    base = safe_operators.base_name(name)
    if name.startswith("_foreach_"):
        return SEVERAL
    if base == "getitem":
        of, at = (*operands, OTHER, OTHER)[:2]
        return of if of is SIZE and at.name != NUMBER.name else _ELEMENTS.get(of.name, EITHER)
    if base in safe_operators.NUMBERS:
        if base in ("size", "stride", "broadcast_shapes", "dim", "numel"):
            return SIZE if base not in ("dim", "numel") and len(operands) < 2 else DIMENSION
        return Kind(NUMBER.name, max([NUMBER.bits, *[operand.bits for operand in operands]]))
    if base in _COMPARISONS:
        return EITHER
    if base in _POWERS | _SHIFTS | _PRODUCTS | _SUMS:
        if any(operand.name in (SIZE.name, SEVERAL.name, OTHER.name) for operand in operands[:2]):
            raise ExportError(f"the file's graph calls {name} of something that is neither a tensor nor a number")
        if TENSOR in operands:
            return TENSOR
        return Kind(
            EITHER.name if any(operand.name == EITHER.name for operand in operands) else NUMBER.name,
            _bits(base, args, operands),
        )
    if base == "where" and len(operands) == 1 or base.startswith("atleast_") and operands and operands[0] is not TENSOR:
        return SEVERAL
    if (
        base in safe_operators.SEVERAL
        or kwargs.get("return_indices")
        or base in _SELECTING
        and ("dim" in kwargs or len(operands) > 1 and operands[1] is not TENSOR)
    ):
        return SEVERAL
    return TENSOR


def _bits(base: str, args: Sequence[Any], operands: Sequence[Kind]) -> int:
    bits = [operand.bits for operand in operands] or [0]
    if base in _POWERS or base in _SHIFTS:
        by = args[0 if base.startswith("r") else -1] if args else None
        if isinstance(by, float):
            return bits[0]
        if not isinstance(by, int) or abs(by) > _GREATEST_POWER:
            raise ExportError(f"the file's graph takes {base} of numbers by a value that may exceed {_GREATEST_POWER}")
        most = max(bits) * max(1, abs(by)) if base in _POWERS else max(bits) + abs(by)
    else:
        most = sum(bits) if base in _PRODUCTS else max(bits) + 1
    if most > _MOST_BITS:
        raise ExportError(f"the file's graph computes a number of {most} bits")
    return most


# --- numbers with which operators compute before they look at sizes
_WIDEST = 2**20  # a window, step or margin that is a constant
_WIDEST_BITS = 48  # one that is computed of sizes
_SCALES = (2.0**-20, 2.0**20)


def check_windows(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], kinds: Mapping[torch.fx.Node, Kind]
) -> None:
    """That windows and scales are no larger than arithmetic on 64 bits can hold: torch takes others for what they
    overflow to.
    """
    base = safe_operators.base_name(name)
    if base not in safe_operators.WINDOWS and base not in safe_operators.SCALES:
        return
    for at, value in (*enumerate(args), *kwargs.items()):
        for v in _leaves(value):
            kind = kind_of(v, kinds)
            size = at == 1 or at in ("size", "output_size", "input_size")
            if isinstance(v, torch.fx.Node):
                fits = kind.bits <= _WIDEST_BITS and (base in safe_operators.WINDOWS or kind is TENSOR or size)
            elif isinstance(v, float):
                fits = base not in safe_operators.SCALES or v == 0 or _SCALES[0] <= abs(v) <= _SCALES[1]
            else:
                fits = not isinstance(v, int) or abs(v) <= _WIDEST
            if not fits:
                raise ExportError(
                    f"the file calls {name} with a window or scale of {str(v)[:40]}, which is too large or not a"
                    " constant"
                )


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]
