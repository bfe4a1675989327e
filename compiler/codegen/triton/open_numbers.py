"""Numbers that a kernel's text leaves open: strides, offsets and sizes are arguments, so that the layers of a network
that differ in them alone share one compiled kernel.

Multiples of 16 alone are left open: the compiler is told that the argument is one, which is all that it makes of a
stride (whether neighbours lie together, and where 16 bytes begin). What indices are divided by stays a number, and so
do the rows that a program goes through, whose loops the compiler unrolls.
"""

from __future__ import annotations

import re
from typing import Any, Sequence

from ...symbolic.expr import ZERO, Expr, integer, mul_all, symbol
from ..kernel_sources import NUMBER

__all__ = ["KINDS", "MULTIPLE", "opened", "is_number", "own_sizes", "with_arguments"]

KINDS = ("pointwise", "tiled", "split")  # of layouts whose numbers are left open
MULTIPLE = 16
_MOST = 2**31
ARGUMENTS = 64  # that stand for numbers: a launch carries 4 KB of arguments, buffers among them
_MARK = "_open_"  # and a number: it stands in the text until all of it is there
_MARKED = re.compile(rf"\b{_MARK}(\d+)\b")


def opened(expr: Expr) -> Expr:
    """`expr` with marks for the factors of its terms and for what is added to them."""
    out: Expr = ZERO
    for coeff, atoms in expr.terms():
        number = symbol(f"{_MARK}{coeff}") if coeff % MULTIPLE == 0 and 0 < coeff < _MOST else integer(coeff)
        out = out + number * mul_all(atoms)
    return out


def is_number(name: str) -> bool:
    """Whether an argument of this name stands for a number."""
    return name.startswith(NUMBER)


def own_sizes(sizes: Sequence[Any]) -> list[Any]:
    """A kernel's sizes without those that stand for numbers (of an earlier generation of it)."""
    return [size for size in sizes if not is_number(str(size))]


def with_arguments(texts: Sequence[str]) -> tuple[list[str], tuple[int, ...]]:
    """The texts with names of arguments for the marks, and the numbers, in the order in which they are first met.
    The numbers beyond ARGUMENTS stay in the texts.
    """
    numbers: dict[str, str] = {}

    def name(m: re.Match[str]) -> str:
        if m[1] not in numbers and len(numbers) == ARGUMENTS:
            return m[1]
        return numbers.setdefault(m[1], f"{NUMBER}{len(numbers)}")

    done = [_MARKED.sub(name, text) for text in texts]
    return done, tuple(map(int, numbers))
