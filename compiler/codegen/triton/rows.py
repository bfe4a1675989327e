"""Kernels that reduce rows and sum columns in one pass: each program goes through a run of rows, XBLOCK at a time,
keeps the sums of its columns in registers and leaves them at the end."""

from __future__ import annotations

from typing import Any

from ...lowering.ir import numel
from ...symbolic.expr import integer
from .dtypes import ttype
from .layout import runs_of
from ..guarded import stored
from .values import Names

__all__ = ["print_rows"]


def print_rows(printer: Any) -> tuple[Any, str]:
    p, lay, kernel = printer, printer.lay, printer.k
    n = runs_of(kernel)
    rows = numel(lay.x) // n
    masks: dict[str, str] = {}
    names = Names(origins=p.origins)
    before = [f"pid = {p._pid('tl.program_id(0)')}", *p._dim("r", p.reduced, lay.rblock, "0", "[None, :]", masks)]
    body: list[str] = []
    after = ["xindex = pid * ROWS", *p._axes(lay.x, "x")]
    tile = frozenset("xr")
    p._lies("x", lay.x, lay.xblock, "(pid * ROWS + xoffset)", "[:, None]")
    for stage in kernel.stages:
        values = p._values(stage, names, masks)
        values.looped = frozenset("x")
        values.emit(p._roots(stage))
        p._fold_tiles(stage.accs, values, masks, values.inside)
        for store in stage.stores:
            if store.mode != "rows":
                values.store(store.buffer, store.index, store.value, store.mode, tile if stage.axes else tile - {"r"})
                continue
            total = f"sum_{store.buffer.name}"
            before.append(f"{total} = tl.zeros([XBLOCK, RBLOCK], {ttype(store.buffer.dtype).held})")
            values.inside.append(f"{total} += {p._tile(values.operand(stored(store.value)), None, {}, tile)}")
            after.append(
                f"tl.store({store.buffer.name} + ({values.index(store.index)}), tl.sum({total}, 0)[None, :]"
                + (f", {masks['r']})" if "r" in masks else ")")
            )
        before += values.outside
        body += values.inside
    head = ["xindex = pid * ROWS + xoffset + tl.arange(0, XBLOCK)[:, None]", *p._axes(lay.x, "x")]
    text = [
        *before,
        "for xoffset in tl.range(0, ROWS, XBLOCK, num_stages=STAGES):",
        *(f"    {line}" for line in [*head, *body]),
        *after,
    ]
    constants = {"XBLOCK": lay.xblock, "RBLOCK": lay.rblock, "ROWS": int(rows.value), "STAGES": lay.stages}
    return p._function(p.name, text, integer(n), constants)
