"""Triton kernels of a lab: in Triton's interpreter, so that no GPU is needed, with every place that they touch counted.

Import it before triton: the interpreter is chosen when triton is imported.

    with watch() as seen:
        launch(x)
    seen.loaded, seen.stored, seen.programs, seen.largest

A load or a store outside of the tensors that a launch was given raises IndexError, and says which program did it.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Iterator

import torch

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"
try:
    import triton
    import triton.language as tl
    from triton.runtime import interpreter
except ImportError as e:
    raise ImportError("this lab needs triton: pip install triton (Linux)") from e

from .pictures import COLOURS, GREY, Picture, rect, svg, text
from .testing import unsolved_said

__all__ = ["Seen", "places", "tl", "triton", "watch"]


@dataclass
class Seen:
    """What launches did: elements loaded and stored, programs run, elements of the largest block loaded at once, and
    (program, "load" or "store", places from the tensor's first element) of the first accesses."""

    loaded: int = 0
    stored: int = 0
    programs: int = 0
    largest: int = 0
    log: list[tuple] = field(default_factory=list)


@contextmanager
def watch() -> Iterator[Seen]:
    """Count what Triton kernels touch inside of a with-block."""
    if not _interprets():
        raise RuntimeError("triton was imported before the lab was: restart the kernel, and run the first cells again")
    seen = Seen()
    spans: list[tuple] = []
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    load, store, run = builder.create_masked_load, builder.create_masked_store, executor.__call__
    index = builder.set_grid_idx

    def note(self: Any, what: str, pointers: Any, mask: Any) -> int:
        places = pointers.data[mask.data]
        width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        if places.size:
            low, high = int(places.min()), int(places.max()) + width
            home = [s for s in spans if s[0] <= low < s[1]]
            if not any(high <= end for _, end, _ in home):
                start, end, name = home[0] if home else (low, low, "its tensors")
                raise IndexError(f"program {self.grid_idx} {what}s outside of {name}: {(high - end) // width} too far")
            if len(seen.log) < 4096:
                seen.log.append((self.grid_idx, what, home[0][2], [int(p - home[0][0]) // width for p in places.flat]))
        seen.largest = max(seen.largest, int(pointers.data.size))
        return int(places.size)

    def watched_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        seen.loaded += note(self, "load", pointers, mask)
        return load(self, pointers, mask, *rest)

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        seen.stored += note(self, "store", pointers, mask)
        return store(self, pointers, value, mask, *rest)

    def watched_index(self: Any, *at: int) -> Any:
        seen.programs += 1
        return index(self, *at)

    def watched_run(self: Any, *args: Any, **more: Any) -> Any:
        given = [*zip(self.arg_names, args), *more.items()]
        spans[:] = [
            (
                t.data_ptr(),
                t.data_ptr() + (1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))) * t.itemsize,
                name,
            )
            for name, t in given
            if isinstance(t, torch.Tensor) and t.numel()
        ]
        try:
            return run(self, *args, **more)
        except interpreter.InterpreterError as e:
            with unsolved_said():
                raise e.__cause__ or e

    changed = {"create_masked_load": watched_load, "create_masked_store": watched_store, "set_grid_idx": watched_index}
    for name, function in changed.items():
        setattr(builder, name, function)
    executor.__call__ = watched_run
    try:
        yield seen
    finally:
        builder.create_masked_load, builder.create_masked_store, builder.set_grid_idx = load, store, index
        executor.__call__ = run


def _interprets() -> bool:
    return isinstance(triton.jit(_nothing), interpreter.InterpretedFunction)


def _nothing() -> None:
    """Is made a kernel of, to see whether Triton interprets."""


def places(seen: Seen, tensor: str, what: str = "load", columns: int = 16) -> Picture:
    """The places of a tensor that programs touched: a square each, coloured by program, with how often."""
    touched: dict[int, list[tuple]] = {}
    for program, kind, name, at in seen.log:
        if kind == what and name == tensor:
            for p in at:
                touched.setdefault(p, []).append(program)
    programs = list(dict.fromkeys(program for program, *_ in seen.log))
    shapes = [text(4, 14, f"{tensor}: {what}s of {len(programs)} programs")]
    for p, by in sorted(touched.items()):
        x, y = 4 + 26 * (p % columns), 22 + 26 * (p // columns)
        shapes.append(rect(x, y, 24, 24, COLOURS[programs.index(by[0]) % len(COLOURS)], f"{p}: programs {by}"))
        shapes.append(text(x + 12, y + 16, len(by), "white", "middle"))
    height = 30 + 26 * (max(touched, default=0) // columns + 1)
    shapes.append(text(4, height + 12, "colour: the first program; number: how often", GREY))
    words = f"{tensor}: {len(touched)} places, {sum(map(len, touched.values()))} {what}s, {len(programs)} programs"
    return Picture(svg(30 + 26 * columns, height + 20, shapes), words)
