"""Sums over windows that slide, as Triton: depthwise convolutions of images whose channels lie side by side.

    for batch, row, columns, channels: f(sum over taps of A[batch, row * step + tap, ...] * B[taps, channels])

`find_windows` recognises such a kernel by its structure: where the row goes on by one and the tap back by the step, the
left factor stays what it is. So one element of A serves several rows of the result. A program makes ROWS of them: it
reads each row of the image once for each tap along the columns, and adds it to every sum whose window it lies in. What
follows the sum is computed on each row's tile before it is stored.

On an H200, cuDNN took 0.9 to 2.1 times as long as text of this form with the best of some tiles. It builds its kernels
anew in each process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ....lowering.ir import Axis, Kernel, Value, cast, index, numel, prim, symbols_of
from ....lowering.rewrite import Rewriter
from ....symbolic.expr import ONE, Expr, as_expr, ceildiv, integer, symbol
from ...sums import sum_of_products
from ..dtypes import ttype
from ..layout import Choices, Layout, at_hints, pow2
from ..prims import Operand
from ..values import Names, Values

if TYPE_CHECKING:
    from ...kernel_sources import Function
    from ..printer import Printer

__all__ = [
    "Tiles",
    "Windows",
    "at_places",
    "find_windows",
    "print_windows",
    "slides_by",
    "windows_choices",
    "windows_layout",
]

MOST_STEPS = 4
MOST_TAPS = 11  # along one direction: statements grow with those along the rows
TALL = 6  # taps along the rows from which more rows share what is read
LANES = 32


@dataclass
class Windows:
    """`image`: what slides, over all axes; `weight`: over taps and channels. `tap` is that of the rows, `across` the
    others, one by one."""

    image: Value
    weight: Value
    acc: str
    row: Axis
    tap: Axis
    step: int
    across: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    channels: tuple[Axis, ...]
    batch: tuple[Axis, ...]

    @property
    def taps(self) -> int:
        return int(as_expr(self.tap.size).value)


def find_windows(kernel: Kernel) -> Windows | None:
    """What makes this kernel (without local buffers) a sum over windows, or None."""
    sums = sum_of_products(kernel)
    if sums is None or sums[1].running or len(kernel.outer) < 2 or kernel.checks:
        return None
    first, acc = sums
    if any(not as_expr(axis.size).is_const or as_expr(axis.size).value > MOST_TAPS for axis in first.axes):
        return None
    *outer, channels = kernel.outer
    if any(store.index.coeff(channels.symbol.name) is not ONE for st in kernel.stages[1:] for store in st.stores):
        return None
    for image, weight in (acc.value.args, acc.value.args[::-1]):
        fixed = symbols_of([weight])
        if channels.symbol.name not in fixed or any(axis.symbol.name in fixed for axis in outer):
            continue
        for row in outer:
            for tap in first.axes:
                step = slides_by(image, row, tap)
                if step:
                    others = [axis for axis in outer if axis is not row]
                    across = tuple(axis for axis in first.axes if axis is not tap)
                    columns = tuple(others[-1:])
                    return Windows(
                        image, weight, acc.name, row, tap, step, across, columns, (channels,), tuple(others[:-1])
                    )
    return None


def slides_by(image: Value, row: Axis, tap: Axis) -> int:
    """By how many taps the windows of two neighbouring rows lie apart; 0: the image does not slide along them."""
    at, by = row.symbol, tap.symbol
    if not {at.name, by.name} <= symbols_of([image]):
        return 0
    for step in range(1, MOST_STEPS + 1):
        if at_places(image, {at.name: at + 1, by.name: by - step}) is image:
            return step
    return 0


def at_places(value: Value, places: dict[str, Expr]) -> Value:
    """The value where some axes are at these places."""
    return Rewriter(on_index=lambda e: e.subs(places))(value)


# ---- tiles
def windows_layout(kernel: Kernel, windows: Windows, processors: int) -> Layout:
    """Tiles by rules of thumb: a warp each, with fewer elements where more rows are added up at once."""
    rows, columns, channels, batch = (
        at_hints(numel(axes), kernel.hints)
        for axes in ((windows.row,), windows.columns, windows.channels, windows.batch)
    )
    tall = windows.taps >= TALL
    lay = Layout("windows", windows.channels, windows.columns, warps=1)
    lay.rblock = min(7 if tall else 4, max(rows, 1))
    wide, narrow = (64, 32)
    lay.xblock = wide if -channels % wide <= -channels % narrow and not tall else narrow
    lay.xblock = max(8, min(lay.xblock, pow2(channels)))
    lay.yblock = max(1, min((8 if tall else 16) * LANES // lay.xblock, pow2(columns)))

    def programs() -> int:
        return batch * -(-rows // lay.rblock) * -(-columns // lay.yblock) * -(-channels // lay.xblock)

    while lay.rblock > 1 and programs() < 4 * processors:
        lay.rblock = -(-lay.rblock // 2)
    return lay


def windows_choices(default: dict[str, Any]) -> list[Choices]:
    """Tiles that a search tries beside the rules'."""
    return [
        Choices(xblock=x, yblock=y, rblock=r, warps=w)
        for x, y, r, w in (
            (32, 8, 4, 1),
            (32, 16, 4, 1),
            (64, 4, 4, 1),
            (64, 16, 4, 4),
            (128, 4, 4, 2),
            (64, 8, 2, 2),
            (64, 8, 7, 2),
            (32, 16, 7, 1),
        )
    ]


# ---- text
def print_windows(printer: Printer, windows: Windows) -> tuple[Function, str]:
    lay, t = printer.lay, printer._t
    row, rows = windows.row, lay.rblock
    xblocks, yblocks = (
        ceildiv(numel(axes), integer(block))
        for axes, block in ((windows.channels, lay.xblock), (windows.columns, lay.yblock))
    )
    zblocks = ceildiv(as_expr(row.size), integer(rows))
    masks: dict[str, str] = {}
    body = [
        f"tile = {printer._pid('tl.program_id(0)')}",
        *printer._dim("x", windows.channels, lay.xblock, f"(tile % ({t(xblocks)})) * XBLOCK", "[None, :]", masks),
        f"tile = tile // ({t(xblocks)})",
        *printer._dim("y", windows.columns, lay.yblock, f"(tile % ({t(yblocks)})) * YBLOCK", "[:, None]", masks),
        f"tile = tile // ({t(yblocks)})",
        f"top = (tile % ({t(zblocks)})) * {rows}",
        f"zindex = tile // ({t(zblocks)})",
        *printer._axes(windows.batch, "z"),
    ]
    sums = [f"{windows.acc}_{n}" for n in range(rows)]
    body += [f"{name} = tl.zeros([YBLOCK, XBLOCK], tl.float32)" for name in sums]
    names = Names(origins=printer.origins)
    added = _added(printer, windows, sums, names, masks)
    for axis in reversed(windows.across):
        added = [f"for {axis.symbol} in range({t(axis.size)}):", *(f"    {line}" for line in added)]
    body += added
    for n, name in enumerate(sums):
        body.append(f"{row.symbol} = top + {n}")
        inside = dict(masks)
        if not _are_whole(row, rows):
            body.append(f"inside_{n} = {row.symbol} < {t(as_expr(row.size))}")
            inside["y"] = f"{masks['y']} & inside_{n}" if "y" in masks else f"inside_{n}"
        printer.accs[windows.acc] = Operand(name, ttype(torch.float32), frozenset("yx"))
        here = Names(counts=names.counts, origins=names.origins)  # (every value is one of this row)
        for stage in printer.k.stages[1:]:
            body += printer._straight(stage, here, inside)
    grid = xblocks * yblocks * zblocks * numel(windows.batch)
    return printer._function(printer.name, body, grid, {"XBLOCK": lay.xblock, "YBLOCK": lay.yblock})


def _are_whole(row: Axis, rows: int) -> bool:
    size = as_expr(row.size)
    return size.is_const and size.value % rows == 0


def _added(printer: Printer, windows: Windows, sums: list[str], names: Names, masks: dict[str, str]) -> list[str]:
    """What one position along the other taps adds to the sums: rows of the image, each to all whose window has it."""
    step, taps = windows.step, windows.taps
    row, tap = windows.row.symbol.name, windows.tap.symbol.name
    top = symbol("top")
    tiles = Tiles(printer, windows.columns, windows.channels, windows.across, masks)
    weights = [cast(at_places(windows.weight, {tap: integer(k)}), torch.float32) for k in range(taps)]
    lines, of_weight = tiles.statements(names, weights)
    last = (as_expr(windows.row.size) - 1) * step + taps  # rows that some window has
    for n in range((len(sums) - 1) * step + taps):
        value, condition = at_places(windows.image, {row: top, tap: integer(n)}), None
        if n >= taps and not _are_whole(windows.row, len(sums)):
            condition = prim("lt", index(top * step + n), index(last))
        more, text = tiles.read(names, value, f"there_{n}", condition)
        lines += more
        for k, name in enumerate(sums):
            if text != "0.0" and 0 <= n - k * step < taps:
                lines.append(f"{name} += {text} * {of_weight[n - k * step]}")
    names.forget("s")
    return lines


@dataclass
class Tiles:
    """Statements for tiles of `columns` x `channels`, all of them where the sums are added up. `steps`: axes that go on
    from step to step."""

    printer: Printer
    columns: tuple[Axis, ...]
    channels: tuple[Axis, ...]
    steps: tuple[Axis, ...]
    masks: dict[str, str]

    def read(self, names: Names, value: Value, there: str, condition: Value | None = None) -> tuple[list[str], str]:
        """(statements, text) of a value in float32, where its own condition and a further one hold; 0 elsewhere.
        `there`: a name for the mask."""
        own, value = _guarded(value)
        if condition is None or own is None:
            condition = own or condition
        else:
            condition = prim("logical_and", condition, own)
        masks, lines = self.masks, []
        if condition is not None:
            lines, (text,) = self.statements(names, [condition])
            lines.append(f"{there} = {' & '.join([masks[dim] for dim in 'yx' if dim in masks] + [text])}")
            masks = {"y" if self.columns else "x": there}
        here = Names(counts=names.counts, origins=names.origins)
        more, (text,) = self.statements(here, [cast(value, torch.float32)], masks)
        return [*lines, *more], text

    def statements(
        self, names: Names, roots: list[Value], masks: dict[str, str] | None = None
    ) -> tuple[list[str], list[str]]:
        """(what the roots need, their texts)."""
        dims = {axis.symbol.name: "x" for axis in self.channels} | {axis.symbol.name: "y" for axis in self.columns}
        values = Values(
            names,
            dims | {axis.symbol.name: "s" for axis in self.steps},
            self.masks if masks is None else masks,
            self.printer._shape,
            self.printer._acc,
            self.printer.need,
            self.printer.itype,
            backend=self.printer.target.backend,
            zero=frozenset("yx"),
        )
        values.outside = values.inside
        values.emit(roots)
        return values.inside, [values.operand(root).text for root in roots]


def _guarded(value: Value) -> tuple[Value | None, Value]:
    """(under which condition the value is read and not 0, the value)."""
    if value.op == "cast":
        condition, inner = _guarded(value.args[0])
        return condition, value if condition is None else cast(inner, value.dtype)
    if value.op == "masked" and value.args[2].is_const and value.args[2].attr == 0:
        return value.args[0], value.args[1]
    return None, value
