"""Reductions over rows, all columns at once (`x.sum(0)`): long ones in two phases.

    NAME_rows   an item adds up a chunk of the rows, whole rows at a time, and writes its sums to scratch
    NAME        the chunks' sums are combined, always in the same order, and what follows the reduction is computed

Threads share the rows instead of the columns: memory is read from end to end, few columns still keep every thread busy,
and sums of many rows are more exact. How the rows are cut depends on their number alone, not on threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lowering.ir import numel
from ...symbolic.expr import ZERO, Expr, as_expr, ceildiv, integer, maximum, minimum
from .dtypes import ctype
from .prims import Operand, expression, reduce_identity

if TYPE_CHECKING:
    from .printer import _Printer

__all__ = ["column_phases"]

MOST_CHUNKS = 32
CHUNK_ELEMENTS = 65536
_COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def column_phases(p: "_Printer") -> list[tuple[str, str, Expr, Expr]]:
    """(symbol, text, items, picoseconds of an item) of both phases; `p.scratch_bytes` is what they share."""
    lay, kernel = p.layout, p.k
    stage, loops, axis = kernel.stages[0], lay.stages[0], lay.stages[0].scalar[0]
    v, columns, groups = lay.vector.symbol.name, as_expr(lay.vector.size), numel(lay.items)
    blocks = ceildiv(columns, lay.block)
    rows = as_expr(axis.size)
    chunks = maximum(
        integer(1),
        minimum(minimum(rows, integer(MOST_CHUNKS)), ceildiv(numel(stage.axes) * columns, integer(CHUNK_ELEMENTS))),
    )
    p.scratch_bytes = ZERO
    at: dict[str, Expr] = {}
    for acc in stage.accs:
        at[acc.name] = p.scratch_bytes
        p.scratch_bytes = p.scratch_bytes + chunks * groups * columns * integer(8)
    group: Expr = ZERO
    for item in lay.items:
        group = group * as_expr(item.size) + item.symbol
    p.local_lines = []

    def part(name: str, element: str) -> str:
        """Where one chunk's results of this block lie."""
        return (
            f"({element} *)(scratch + {p._c(at[name])}) + (chunk * ({p._c(groups)}) + {p._c(group)}) * {p._c(columns)}"
            f" + {v}_begin"
        )

    elements = {acc.name: ctype(acc.dtype).scalar for acc in stage.accs}
    body = [
        f"    const i64 per_chunk = ({p._c(rows)} + chunks - 1) / chunks;",
        f"    const i64 chunk_begin = chunk * per_chunk < {p._c(rows)} ? chunk * per_chunk : {p._c(rows)};",
        f"    const i64 chunk_end = chunk_begin + per_chunk < {p._c(rows)} ? chunk_begin + per_chunk : {p._c(rows)};",
        *p._stage(0, stage, loops, None, axis),
    ]
    for name, element in elements.items():
        body += [
            f"    {element} *{name}_part = {part(name, element)};",
            f"    for (i64 k = 0; k < {v}_end - {v}_begin; ++k) {name}_part[k] = {name}[k];",
        ]
    head = f"    const i64 chunks = {p._c(chunks)};"
    first = p._function(f"{p.name}_rows", [head, *p._items_loop(blocks, body, [("chunk", chunks)])])

    p.top, p.scope.names, p.scope.levels = [], {}, {}
    body = []
    for acc in stage.accs:
        name, element, ct = acc.name, elements[acc.name], ctype(acc.dtype)
        combined = expression(
            p.s, _COMBINE[acc.op], ct, [Operand(f"{name}[k]", ct, False), Operand("part[k]", ct, False)]
        )
        body += [
            f"    {element} {name}[{lay.block}] __attribute__((aligned(64)));",
            f"    for (i64 k = 0; k < {lay.block}; k++) {name}[k] = {reduce_identity(acc.op, ct)};",
            "    for (i64 chunk = 0; chunk < chunks; ++chunk) {",
            f"        const {element} *part = {part(name, element)};",
            f"        for (i64 k = 0; k < {v}_end - {v}_begin; ++k) {name}[k] = {combined};",
            "    }",
        ]
    for i, st in enumerate(kernel.stages[1:], 1):
        body += p._stage(i, st, lay.stages[i])
    second = p._function(p.name, [head, *p._items_loop(blocks, body)])
    width = minimum(columns, integer(lay.block))
    per_element = integer(max(1, round(lay.stage_ns[0] * 1000)))
    return [
        (f"{p.name}_rows", first, chunks * groups * blocks, ceildiv(numel(stage.axes), chunks) * width * per_element),
        (p.name, second, groups * blocks, chunks * width * integer(100)),
    ]
