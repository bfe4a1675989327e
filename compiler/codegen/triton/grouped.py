"""Products of groups (product_groups.py) in tiles: a tile lies within one group, whose rows may begin anywhere.

Where the groups end is known on the device alone. The grid has as many tiles as there may be, and each program counts,
from the ends, which group and which of its tiles are its own; programs beyond the last tile end at once. What lies
behind the last group is a group more, whose sum is empty. Of weights' gradients the sum itself is over one group: a
loop between two ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...lowering.product_groups import GROUP, Ends
from ...lowering.ir import Axis, numel
from ...symbolic.expr import Expr, as_expr, integer, minimum, symbol

if TYPE_CHECKING:
    from .printer import Printer

__all__ = ["Groups", "flat", "most_tiles", "print_tile", "print_bounds"]


@dataclass(frozen=True)
class Groups:
    """What of a product is in groups: its rows ("y"), its columns ("x") or what is summed ("r": that of group `which`
    alone).
    """

    ends: Ends
    dim: str
    which: Expr | None = None


def flat(axes: tuple[Axis, ...]) -> Expr:
    """The flat index over axes."""
    expr: Expr = integer(0)
    for axis in axes:
        expr = expr * as_expr(axis.size) + axis.symbol
    return expr


def most_tiles(ends: Ends, expr: Expr, block: int) -> Expr:
    """How many tiles n rows may have, each within one group or behind the last."""
    return minimum(expr, (expr + (ends.count + 1) * (block - 1)) // block)


def _ends(printer: Printer, ends: Ends, lane: str, mask: str, n: str) -> str:
    """Where a group ends, or 0 where the mask is off: never outside of the rows, whatever the program gives."""
    text = printer._t(ends.index.subs({"lane": symbol(lane)}))
    if ends.count == 1 and lane != str(GROUP):  # (an index without a lane)
        text = f"{text} + 0 * {lane}"
    return f"tl.minimum(tl.maximum(tl.load({ends.buffer.name} + ({text}){mask}), 0).to({printer.itype}), {n})"


def print_tile(
    printer: Printer, groups: Groups, axes: tuple[Axis, ...], tile: str, position: str, masks: dict[str, str]
) -> list[str]:
    """What Printer._dim prints, of tile number `tile`, and its group."""
    dim, B, count = groups.dim, f"{groups.dim.upper()}BLOCK", groups.ends.count
    lanes = 1 << count.bit_length()  # (one more than groups, at least)
    masks[dim] = f"{dim}mask"
    return [
        f"{dim}numel = {printer._t(numel(axes))}",
        f"lane = tl.arange(0, {lanes})",
        "before = lane - 1",
        (
            f"ends = tl.where(lane < {count},"
            f" {_ends(printer, groups.ends, 'lane', f', lane < {count}, other=0', f'{dim}numel')}, {dim}numel)"
        ),
        "begins = "
        + _ends(printer, groups.ends, "before", f", (lane > 0) & (lane <= {count}), other=0", f"{dim}numel"),
        f"tiles = tl.where(lane <= {count}, tl.maximum(ends - begins, 0) + {B} - 1, 0) // {B}",
        "last = tl.cumsum(tiles, 0)",
        f"{GROUP} = tl.sum((last <= {tile}).to(tl.int32), 0)",
        f"if {GROUP} > {count}:",
        "    return",
        f"{dim}end = tl.sum(tl.where(lane == {GROUP}, ends, 0), 0)",
        f"{dim}begin = tl.sum(tl.where(lane == {GROUP}, begins + ({tile} - last + tiles) * {B}, 0), 0)",
        f"{dim}index = {dim}begin + tl.arange(0, {B}){position}",
        f"{dim}mask = {dim}index < {dim}end",
        f"rend = tl.where({GROUP} < {count}, rnumel, 0)",
        *printer._axes(axes, dim),
    ]


def print_bounds(printer: Printer, groups: Groups) -> list[str]:
    """Between which elements group `which` is summed."""
    assert groups.which is not None
    which = f"({printer._t(groups.which)})"
    lines = [f"{GROUP} = {which}", f"before = {GROUP} - 1"]
    lines.append(f"rbegin = {_ends(printer, groups.ends, 'before', f', {GROUP} > 0, other=0', 'rnumel')}")
    return [*lines, f"rend = {_ends(printer, groups.ends, str(GROUP), '', 'rnumel')}"]
