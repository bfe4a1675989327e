"""Several independent loops as one launch: each has a function, and the programs are divided among them.

What is read streams through the cache once; what is written is to be there when its readers come.
"""
from __future__ import annotations

from typing import Any

from ...lowering.ir import walk
from ...symbolic.expr import integer
from .layout import numel
from .values import Names

__all__ = ["print_horizontal"]


def print_horizontal(printer: Any) -> tuple[Any, str]:
    p, lay = printer, printer.lay
    counts: dict[str, int] = {}
    functions, body, begin = "", [f"pid = {p._pid('tl.program_id(0)')}"], 0
    last = len(p.k.stages) - 1
    for n, stage in enumerate(p.k.stages):
        masks: dict[str, str] = {}
        lines = p._dim("x", stage.axes, lay.xblock, "pid * XBLOCK", "", masks)
        v = p._values(stage, Names(counts=counts, origins=p.origins), masks)
        v.policy = lambda b, dims: "evict_first" if dims else ""
        v.inside = v.outside
        v.emit(p._roots(stage))
        for s in stage.stores:
            v.store(s.buffer, s.index, s.value, s.mode, frozenset("x"))
        buffers = dict.fromkeys([x.attr[0].name for x in walk(stage.roots()) if x.op == "load"] + [s.buffer.name for s in stage.stores])
        head = f"{p.name}_{n}(%s, {', '.join(buffers)}, XBLOCK%s)"
        functions += "\n".join(["@triton.jit", f"def {head % ('pid', ': tl.constexpr')}:", *(f"    {line}" for line in [*lines, *v.outside]), "", "", ""])
        end = begin + -(-int(numel(stage.axes).value) // lay.xblock)
        body += ["else:" if n == last else f"{'elif' if n else 'if'} pid < {end}:", f"    {head % (f'pid - {begin}' if begin else 'pid', '')}"]
        begin = end
    f, text = p._function(p.name, body, integer(begin), {"XBLOCK": lay.xblock})
    return f, functions + text
