"""Several independent loops as one launch: each has a function, and the programs are divided among them.

Programs that draw random numbers come between those that copy, so that each keeps another part of a processor busy.
They take longer, so the last quarter of the launch has none.
"""

from __future__ import annotations

from typing import Any

from ...lowering.ir import Stage, has_op, loads, numel
from ...symbolic.expr import integer
from .values import Names

__all__ = ["print_horizontal"]


def _draws(stage: Stage) -> bool:
    return has_op(stage.roots(), "keep_word")


def print_horizontal(printer: Any) -> tuple[Any, str]:
    p, lay = printer, printer.lay
    counts: dict[str, int] = {}
    functions, body, begin = "", [f"pid = {p._pid('tl.program_id(0)')}"], 0
    last = len(p.k.stages) - 1
    stages = sorted(p.k.stages, key=_draws)
    sizes = [-(-int(numel(stage.axes).value) // lay.xblock) for stage in stages]
    total, drawing = sum(sizes), sum(size for stage, size in zip(stages, sizes) if _draws(stage))
    if 0 < drawing < total:
        among = max(drawing, total * 3 // 4)
        body += [
            (
                f"drawn = tl.minimum(pid.to(tl.int64) * {drawing} // {among}, {drawing}).to(tl.int32)  # programs"
                " before this one that draw"
            ),
            f"after = tl.minimum((pid + 1).to(tl.int64) * {drawing} // {among}, {drawing})",
            f"pid = tl.where(after > drawn, drawn + {total - drawing}, pid - drawn)",
        ]
    for n, (stage, size) in enumerate(zip(stages, sizes)):
        masks: dict[str, str] = {}
        lines = p._dim("x", stage.axes, lay.xblock, "pid * XBLOCK", "", masks)
        values = p._values(stage, Names(counts=counts, origins=p.origins), masks)
        values.inside = values.outside
        values.emit(p._roots(stage))
        for store in stage.stores:
            values.store(store.buffer, store.index, store.value, store.mode, frozenset("x"))
        buffers = dict.fromkeys(
            [x.attr[0].name for x in loads(stage.roots())] + [store.buffer.name for store in stage.stores]
        )
        head = f"{p.name}_{n}(%s, {', '.join(buffers)}, XBLOCK%s)"
        functions += "\n".join(
            [
                "@triton.jit",
                f"def {head % ('pid', ': tl.constexpr')}:",
                *(f"    {line}" for line in [*lines, *values.outside]),
                "",
                "",
                "",
            ]
        )
        end = begin + size
        body += [
            "else:" if n == last else f"{'elif' if n else 'if'} pid < {end}:",
            f"    {head % (f'pid - {begin}' if begin else 'pid', '')}",
        ]
        begin = end
    f, text = p._function(p.name, body, integer(begin), {"XBLOCK": lay.xblock})
    return f, functions + text
