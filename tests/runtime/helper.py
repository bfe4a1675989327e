"""Small schedules by hand: what fusion hands to code generation; and programs that stand for a compiler."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import torch

from tcompile.compiler.codegen.generate import generate
from tcompile.compiler.config import Options
from tcompile.compiler.fusion.schedule import Alloc, Launch, OutputSpec, Schedule
from tcompile.compiler.lowering.ir import Axis, Buffer, Kernel, Stage, Store, const, load, prim
from tcompile.compiler.runtime.build_graph import build
from tcompile.compiler.runtime.compiled_graph import CompiledGraph
from tcompile.compiler.symbolic.expr import symbol

i0, n0, s0 = symbol("i0"), symbol("n0"), symbol("s0")


def script(path: Path, text: str) -> str:
    """A program in the shell's language, as its path."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def flat(name: str, n: Any, dtype: torch.dtype = torch.float32, kind: str = "input") -> Buffer:
    return Buffer(name, dtype, (n,), (1,), kind=kind)


def add_constant(n: Any, value: float, dtype: torch.dtype = torch.float32) -> Kernel:
    """out0 = in0 + value"""
    size = n if isinstance(n, int) else n0
    a, o = flat("in0", size, dtype), flat("out0", size, dtype, "output")
    return Kernel(
        "add_constant",
        (Axis(i0, size),),
        [Stage((), [], [Store(o, i0, prim("add", load(a, i0), const(value, dtype)))])],
        [a],
        [o],
        sizes=[] if isinstance(n, int) else [n0],
        hints={"n0": 10},
    )


def chain_schedule(n: Any, *values: float) -> Schedule:
    """x + values[0] + values[1] + ..., one kernel each, with temporaries between."""
    x = flat("x", n)
    steps, last = [], x
    for k, v in enumerate(values):
        b = flat(f"buf{k}", n, kind="output" if k == len(values) - 1 else "temp")
        kernel = add_constant(n, v)
        steps += [Alloc(b), Launch(kernel, [last], [b], [] if isinstance(n, int) else [n])]
        last = b
    symbols = {} if isinstance(n, int) else {n.name: (0, "size", 0)}
    return Schedule(steps, [x], [OutputSpec("buffer", last)], symbols=symbols, hints={"s0": 10})


def compiled(schedule: Schedule, **options: Any) -> CompiledGraph:
    opts = Options.make(options=options or None)
    return build(generate(schedule, opts=opts), opts=opts)
