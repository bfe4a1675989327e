"""Gradients of a window's weights, as Triton: for each tap, the sum over pixels of what the tap met times the gradient.

    for parts, taps, channels: f(sum over images, rows, columns of A[part, pixel * step + tap, ...] * B[part, pixel])

`find_window_gradients` recognises such a kernel by its structure, as windows.py does: A slides along rows and taps, and
the taps do not matter to B. A program has all taps of a band of rows in registers: each row of A is read once for each
tap along the columns, and multiplied with all rows of B that met it.

On an H200, cuDNN took 0.8 to 1.9 times as long as text of this form, with the best of some tiles and up to five taps in
a direction. It takes 0.5 s in each process to build its kernel.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ....lowering.ir import Axis, Kernel, Value, numel, symbols_of
from ....symbolic.expr import as_expr, ceildiv, integer
from ...sums import sum_of_products
from ..dtypes import ttype
from ..layout import Choices, Layout, at_hints, pow2
from ..prims import Operand
from ..values import Names
from .windows import Tiles, at_places, slides_by

if TYPE_CHECKING:
    from ...kernel_sources import Function
    from ..printer import Printer

__all__ = [
    "WindowGradients",
    "find_window_gradients",
    "print_window_gradients",
    "window_gradients_choices",
    "window_gradients_layout",
]

MOST_TAPS = 25  # sums that registers hold
MOST_ROWS = 8


@dataclass
class WindowGradients:
    """`image`: what the taps met; `gradient`: of the results. `tap` and `row` are those along which the image slides,
    `across` the other taps; `images` and `columns` are summed, too."""

    image: Value
    gradient: Value
    acc: str
    tap: Axis
    row: Axis
    step: int
    across: tuple[Axis, ...]
    images: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    channels: tuple[Axis, ...]
    parts: tuple[Axis, ...]


def find_window_gradients(kernel: Kernel) -> WindowGradients | None:
    """What makes this kernel (without local buffers) a sum of gradients over windows, or None."""
    sums = sum_of_products(kernel)
    if sums is None or sums[1].running or len(kernel.outer) < 2 or kernel.checks:
        return None
    first, acc = sums
    *outer, channels = kernel.outer
    for image, gradient in (acc.value.args, acc.value.args[::-1]):
        fixed = symbols_of([gradient])
        taps = [axis for axis in outer if axis.symbol.name not in fixed]
        if not taps or channels.symbol.name not in fixed or not _few(taps, MOST_TAPS):
            continue
        for tap, row in itertools.product(taps, first.axes):
            step = slides_by(image, row, tap) if _few([row], MOST_ROWS) else 0
            if step:
                others = [axis for axis in first.axes if axis is not row]
                return WindowGradients(
                    image,
                    gradient,
                    acc.name,
                    tap,
                    row,
                    step,
                    tuple(axis for axis in taps if axis is not tap),
                    tuple(others[:-1]),
                    tuple(others[-1:]),
                    (channels,),
                    tuple(axis for axis in outer if axis not in taps),
                )
    return None


def _few(axes: list[Axis], most: int) -> bool:
    n = numel(axes)
    return n.is_const and n.value <= most


def window_gradients_layout(kernel: Kernel, found: WindowGradients) -> Layout:
    """A warp a tile, with few elements a thread: each has a sum for every tap."""
    channels = at_hints(numel(found.channels), kernel.hints)
    columns = at_hints(numel(found.columns), kernel.hints)
    many = numel((found.tap, *found.across)).value > 9
    lay = Layout("window gradients", found.channels, found.columns, warps=1)
    lay.xblock = max(8, min(16 if many else 32, pow2(channels)))
    lay.yblock = max(1, min((64 if many else 128) // lay.xblock, pow2(columns)))
    return lay


def window_gradients_choices() -> list[Choices]:
    """Tiles that a search tries beside the rules'."""
    return [
        Choices(xblock=x, yblock=y, warps=w) for x, y, w in ((32, 4, 1), (32, 8, 2), (16, 4, 1), (16, 8, 2), (64, 4, 2))
    ]


def print_window_gradients(printer: Printer, found: WindowGradients) -> tuple[Function, str]:
    lay, t = printer.lay, printer._t
    xblocks = ceildiv(numel(found.channels), integer(lay.xblock))
    masks: dict[str, str] = {}
    body = [
        f"tile = {printer._pid('tl.program_id(0)')}",
        *printer._dim("x", found.channels, lay.xblock, f"(tile % ({t(xblocks)})) * XBLOCK", "[None, :]", masks),
        f"zindex = tile // ({t(xblocks)})",
        *printer._axes(found.parts, "z"),
    ]
    taps = list(itertools.product(range(_size(found.tap)), *(range(_size(axis)) for axis in found.across)))
    sums = {tap: "_".join([found.acc, *map(str, tap)]) for tap in taps}
    body += [f"{name} = tl.zeros([YBLOCK, XBLOCK], tl.float32)" for name in sums.values()]
    names = Names(origins=printer.origins)
    columns = printer._dim("y", found.columns, lay.yblock, "yoffset", "[:, None]", masks)
    added = [*columns, *_added(printer, found, sums, names, masks)]
    added = [f"for yoffset in range(0, {t(numel(found.columns))}, YBLOCK):", *(f"    {line}" for line in added)]
    for axis in reversed(found.images):
        added = [f"for {axis.symbol} in range({t(axis.size)}):", *(f"    {line}" for line in added)]
    body += added
    inside = {dim: mask for dim, mask in masks.items() if dim == "x"}
    for tap, name in sums.items():
        body += [f"{axis.symbol} = {at}" for axis, at in zip((found.tap, *found.across), tap)]
        total = f"{name}_total"
        body.append(f"{total} = tl.sum({name}, 0)[None, :]")
        printer.accs[found.acc] = Operand(total, ttype(torch.float32), frozenset("x"))
        here = Names(counts=names.counts, origins=names.origins)
        for stage in printer.k.stages[1:]:
            body += printer._straight(stage, here, inside)
    grid = xblocks * numel(found.parts)
    return printer._function(printer.name, body, grid, {"XBLOCK": lay.xblock, "YBLOCK": lay.yblock})


def _size(axis: Axis) -> int:
    return int(as_expr(axis.size).value)


def _added(
    printer: Printer, found: WindowGradients, sums: dict[tuple, str], names: Names, masks: dict[str, str]
) -> list[str]:
    """What a piece of the columns adds: each row of the image to the taps that met it in a row of the gradient."""
    rows, taps, step = _size(found.row), _size(found.tap), found.step
    row, tap = found.row.symbol.name, found.tap.symbol.name
    tiles = Tiles(printer, found.columns, found.channels, found.images, masks)
    lines: list[str] = []
    gradients = []
    for n in range(rows):
        more, text = tiles.read(names, at_places(found.gradient, {row: integer(n)}), f"made_{n}")
        lines += more
        gradients.append(text)
    for others in itertools.product(*(range(_size(axis)) for axis in found.across)):
        places = {axis.symbol.name: integer(at) for axis, at in zip(found.across, others)}
        for n in range((rows - 1) * step + taps):
            value = at_places(found.image, {**places, row: integer(0), tap: integer(n)})
            more, text = tiles.read(names, value, f"there_{'_'.join(map(str, (n, *others)))}")
            lines += more
            for k in range(rows):
                if text != "0.0" and 0 <= n - k * step < taps:
                    lines.append(f"{sums[(n - k * step, *others)]} += {text} * {gradients[k]}")
    return lines
