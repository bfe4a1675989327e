"""A scan along the axis on which its data lies one behind the other: a plain loop that carries the result so far."""

from __future__ import annotations

from typing import Any

from ...lowering.ir import Acc, Stage
from .dtypes import CType, ctype
from .prims import Operand, conversion, reduce_identity, reduce_update
from .support import Support
from ..guarded import stored
from .values import LEVEL_ITEM, LEVEL_LOOP, StageValues

__all__ = ["scan_loop"]


def scan_loop(printer: Any, stage: Stage, axis_level: dict[str, int]) -> list[str]:
    """Lines of a stage whose accumulators are running, for one item."""
    (axis,) = stage.axes
    support: Support = printer.s
    axis_level[axis.symbol.name] = LEVEL_LOOP
    names = {a.name for a in stage.accs}

    def so_far(name: str) -> tuple[str, int]:
        return (name, LEVEL_LOOP) if name in names else printer._acc_operand(name)

    values = StageValues(printer.scope, axis_level, None, printer._locate, so_far)
    values.emit([a.value for a in stage.accs])
    body = values.lines.pop(LEVEL_LOOP, [])
    declared = []
    for acc in stage.accs:
        ct = ctype(acc.folded)
        first = reduce_identity(acc.op, ct)
        declared += (
            [f"{ct.scalar} {acc.name}_best = {first};", f"i64 {acc.name} = 0;"]
            if acc.is_position
            else [f"{ct.scalar} {acc.name} = {first};"]
        )
        body += _update(support, acc, ct, values.operand(acc.value), axis.symbol.name)
    for st in stage.stores:
        values.emit([*st.positions, stored(st.value)])
        body += values.lines.pop(LEVEL_LOOP, [])
        body += [text for _, text in values.store(st, False)]
    lines = [
        *printer._take_outer(values),
        *declared,
        f"for (i64 {axis.symbol} = 0; {axis.symbol} < {printer._c(axis.size)}; ++{axis.symbol}) {{",
        *(f"    {t}" for t in body),
        "}",
    ]
    printer.scope.leave(LEVEL_ITEM)
    return [f"    {line}" for line in lines]


def _update(support: Support, acc: Acc, ct: CType, x: Operand, position: str) -> list[str]:
    if x.ct != ct:
        x = Operand(f"({conversion(support, x, ct)})", ct, False)
    if not acc.is_position:
        return [f"{acc.name} = {reduce_update(support, acc.op, Operand(acc.name, ct, False), x)};"]
    best = f"{acc.name}_best"
    better = f"{x.text} {acc.better}= {best}" + (f" || {x.text} != {x.text}" if ct.is_float else "")
    return [f"if ({better}) {best} = {x.text}, {acc.name} = {position};"]
