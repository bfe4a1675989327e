"""Kernels whose text does not name the extent of their outermost loop, nor where in a buffer they write.

`open_extent(launch)` makes the size of a kernel's first axis a parameter, `extent`, whether it is a number, a size
symbol or a product of some. A batch of 3, a batch of 64 and a batch of any size then are one text, and one compiled
library: promotion to a dynamic size, another batch size or another number of rows starts no compiler. What the loops
gain from a constant extent is small, because the launcher splits this axis among threads anyway. Offsets of results
inside a larger buffer become parameters as well, so that the steps of a loop whose results are stacked share their
kernels.
"""

from __future__ import annotations

from dataclasses import replace

from ...fusion.schedule import Launch
from ...lowering.ir import Axis, Stage, Store
from ...symbolic.expr import Expr, as_expr, integer, symbol
from ..kernel_sources import NUMBER

__all__ = ["open_extent", "pass_numbers", "EXTENT"]

EXTENT = "extent"


def open_extent(launch: Launch) -> None:
    """Give the launch a kernel with an open extent, where it has outer axes."""
    kernel = launch.kernel
    if not kernel.outer or any(size.name == EXTENT for size in kernel.sizes):
        return
    first = kernel.outer[0]
    size = as_expr(first.size)
    formal = {size.name: actual for size, actual in zip(kernel.sizes, launch.sizes)}
    try:
        hint = int(size.eval(kernel.hints))
    except KeyError:  # a size that is only known while the program runs
        hint = None
    extent = symbol(EXTENT)
    stages, offsets = _open_offsets(kernel.stages)
    hints = {**kernel.hints, **{s.name: n for s, n in offsets}}
    launch.kernel = replace(
        kernel,
        outer=(Axis(first.symbol, extent), *kernel.outer[1:]),
        stages=stages,
        sizes=[extent, *(s for s, _ in offsets), *kernel.sizes],
        hints=hints if hint is None else {**hints, EXTENT: hint},
    )
    launch.sizes = [size.subs(formal), *(integer(n) for _, n in offsets), *launch.sizes]


def pass_numbers(launch: Launch, numbers: tuple[int, ...]) -> None:
    """Have the launch pass what the kernel's text left open (`KernelSource.numbers`), before its sizes."""
    kernel = launch.kernel
    own = [size for size in kernel.sizes if not size.name.startswith(NUMBER)]
    names = [f"{NUMBER}{i}" for i in range(len(numbers))]
    passed = len(kernel.sizes) - len(own)  # (by an earlier generation of this schedule)
    launch.kernel = replace(
        kernel, sizes=[*map(symbol, names), *own], hints={**kernel.hints, **dict(zip(names, numbers))}
    )
    launch.sizes = [*map(integer, numbers), *launch.sizes[passed:]]


def _open_offsets(stages: list[Stage]) -> tuple[list[Stage], list[tuple[Expr, int]]]:
    """The stages with a symbol for each constant offset of a plain store, and what these symbols stand for."""
    offsets: list[tuple[Expr, int]] = []

    def opened(store: Store) -> Store:
        start = store.index.const_term
        if store.mode != "set" or store.positions or store.buffer.scope != "global" or not start:
            return store
        offsets.append((symbol(f"offset{len(offsets)}"), start))
        return replace(store, index=store.index - start + offsets[-1][0])

    return [replace(st, stores=[opened(store) for store in st.stores]) for st in stages], offsets
