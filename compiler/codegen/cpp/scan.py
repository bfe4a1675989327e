"""A scan along the axis on which its data lies one behind the other: a plain loop that carries the result so far."""

from __future__ import annotations

from typing import Any

from ...lowering.ir import Acc, Stage
from .dtypes import CType, ctype
from .prims import Operand, conversion, reduce_identity, reduce_update
from .support import Support
from .values import LEVEL_ITEM, LEVEL_LOOP, StageValues, stored

__all__ = ["scan_loop"]


def scan_loop(printer: Any, stage: Stage, axis_level: dict[str, int]) -> list[str]:
    """Lines of a stage whose accumulators are running, for one item."""
    (axis,) = stage.axes
    s: Support = printer.s
    axis_level[axis.symbol.name] = LEVEL_LOOP
    names = {a.name for a in stage.accs}

    def so_far(name: str) -> tuple[str, int]:
        return (name, LEVEL_LOOP) if name in names else printer._acc_operand(name)

    values = StageValues(printer.scope, axis_level, None, printer._locate, so_far)
    values.emit([a.value for a in stage.accs])
    body = values.lines.pop(LEVEL_LOOP, [])
    declared = []
    for a in stage.accs:
        ct = _operand_type(a)
        first = reduce_identity(a.op, ct)
        declared += (
            [f"{ct.scalar} {a.name}_best = {first};", f"i64 {a.name} = 0;"]
            if a.op.startswith("arg")
            else [f"{ct.scalar} {a.name} = {first};"]
        )
        body += _update(s, a, ct, values.operand(a.value), axis.symbol.name)
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
    return [f"    {t}" for t in lines]


def _operand_type(a: Acc) -> CType:
    return ctype(a.value.dtype if a.op.startswith("arg") else a.dtype)


def _update(s: Support, a: Acc, ct: CType, x: Operand, position: str) -> list[str]:
    if x.ct != ct:
        x = Operand(f"({conversion(s, x, ct)})", ct, False)
    if not a.op.startswith("arg"):
        return [f"{a.name} = {reduce_update(s, a.op, Operand(a.name, ct, False), x)};"]
    best = f"{a.name}_best"
    better = f"{x.text} {'>=' if a.op == 'argmax' else '<='} {best}" + (
        f" || {x.text} != {x.text}" if ct.is_float else ""
    )
    return [f"if ({better}) {best} = {x.text}, {a.name} = {position};"]
