"""Kernels whose text does not name the extent of their outermost loop.

`open_extent(launch)` makes the size of a kernel's first axis a parameter, `extent`, whether it is a number, a size symbol or a product of
some. A batch of 3, a batch of 64 and a batch of any size then are one text, and one compiled library: promotion to a dynamic
size, another batch size or another number of rows starts no compiler. What the loops gain from a constant extent is small, because
the launcher splits this axis among threads anyway.
"""
from __future__ import annotations

from dataclasses import replace

from ...fusion.schedule import Launch
from ...lowering.ir import Axis
from ...symbolic.expr import as_expr, symbol

__all__ = ["open_extent", "EXTENT"]

EXTENT = "extent"


def open_extent(launch: Launch) -> None:
    """Give the launch a kernel with an open extent, where it has outer axes."""
    k = launch.kernel
    if not k.outer or any(s.name == EXTENT for s in k.sizes):
        return
    first = k.outer[0]
    size = as_expr(first.size)
    formal = {s.name: actual for s, actual in zip(k.sizes, launch.sizes)}
    try:
        hint = int(size.eval(k.hints))
    except KeyError:                         # a size that is only known while the program runs
        hint = None
    extent = symbol(EXTENT)
    launch.kernel = replace(k, outer=(Axis(first.symbol, extent), *k.outer[1:]), sizes=[extent, *k.sizes],
                            hints=k.hints if hint is None else {**k.hints, EXTENT: hint})
    launch.sizes = [size.subs(formal), *launch.sizes]
