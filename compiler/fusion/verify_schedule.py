"""The rules of kernels and schedules as code."""

from __future__ import annotations

from typing import Any, Callable

import torch

from ..lowering.ir import REDUCE_OPS, SCAN_OPS, Buffer, Kernel, reduced_dtype
from ..lowering.templates import WORD
from ..lowering.verify_loops import check_bounds, require, span, unmasked, verify_values
from ..symbolic.expr import as_expr, mul_all
from .domain import size_hint
from .inline import buffers_read
from .schedule import Alloc, Extern, Free, Launch, Schedule, View

__all__ = ["verify_kernel", "verify_schedule"]


def verify_kernel(kernel: Kernel) -> None:
    """Accumulators and local buffers are made in an earlier stage than the one that uses them, every buffer and size is
    a parameter, indices are in bounds at the hints, dtypes fit."""
    where = f"kernel {kernel.name}"
    params = {*kernel.inputs, *kernel.outputs, *kernel.locals}
    sizes_known = {size.name for size in kernel.sizes}
    accs: dict[str, torch.dtype] = {}
    written: set[Buffer] = set()
    outer = {axis.symbol.name: size_hint(axis.size, kernel.hints) for axis in kernel.outer}
    for a in (*kernel.outer, *(axis for st in kernel.stages for axis in st.axes)):
        require(as_expr(a.size).symbol_names() <= sizes_known, f"{where}: axis {a} has a size that is no parameter")
    if kernel.template is not None:
        template = kernel.template
        require(
            as_expr(mul_all([axis.size for axis in template.outer]))
            is as_expr(mul_all([axis.size for axis in kernel.outer])),
            f"{where}: its axes are not the template's",
        )
        known = {*(axis.symbol.name for axis in template.axes), WORD.name, *sizes_known}
        for value in verify_values(template.roots(), where):
            require(
                not value.is_accumulator or value.attr.startswith("product"),
                f"{where}: {value!r} inside of its template",
            )
            if value.is_load:
                require(value.attr[0] in params, f"{where}: {value.attr[0]!r} is no parameter")
                unknown = {
                    name for name in value.attr[1].symbol_names() if name not in known and not name.startswith("ind")
                }
                require(not unknown, f"{where}: {value!r} uses {unknown}")
        accs.update(dict.fromkeys(template.results, torch.float32))
    for n, st in enumerate(kernel.stages):
        roots = st.roots()
        values = verify_values(roots, where)
        axes = {**outer, **{axis.symbol.name: size_hint(axis.size, kernel.hints) for axis in st.axes}}
        require(len(axes) == len(outer) + len(st.axes), f"{where}: an axis of stage {n} has the name of an outer one")
        strict = unmasked(roots)
        empty = 0 in axes.values()
        for value in values:
            if value.is_accumulator:
                running = next((acc.dtype for acc in st.accs if acc.running and acc.name == value.attr), None)
                require(
                    (running or accs.get(value.attr)) == value.dtype,
                    f"{where}: stage {n} uses {value.attr}, which no earlier stage makes",
                )
            elif value.op == "param":
                require((value.attr, value.dtype) in kernel.params, f"{where}: {value!r} is no parameter")
            elif value.is_load:
                buffer, expr = value.attr
                require(buffer in params, f"{where}: {buffer!r} is no parameter")
                require(
                    buffer.scope != "local" or buffer in written,
                    f"{where}: stage {n} reads {buffer.name}, which no earlier stage makes",
                )
                unknown = {
                    name
                    for name in expr.symbol_names()
                    if name not in axes and name not in sizes_known and not name.startswith("ind")
                }
                require(not unknown, f"{where}: {value!r} uses {unknown}")
                if value.id in strict and not empty:
                    check_bounds(where, buffer, expr, axes, kernel.hints, span(buffer, kernel.hints))
            elif value.op == "check_index":
                require(value.attr in kernel.checks, f"{where}: {value.attr!r} is not among its checks")
        for a in st.accs:
            require(a.op in (SCAN_OPS if a.running else REDUCE_OPS), f"{where}: no reduction {a.op!r}")
            require(a.name not in accs, f"{where}: {a.name} is made twice")
            require(bool(st.axes), f"{where}: {a.name} reduces over no axis")
            require(a.dtype == reduced_dtype(a.op, a.value.dtype), f"{where}: {a.name} is {a.dtype}")
        for store in st.stores:
            require(
                store.buffer in params and store.buffer not in kernel.inputs, f"{where}: stores to {store.buffer!r}"
            )
            require(store.value.dtype == store.buffer.holds, f"{where}: stores {store.value.dtype} to {store.buffer!r}")
            if not empty:
                check_bounds(where, store.buffer, store.index, axes, kernel.hints, span(store.buffer, kernel.hints))
        accs.update({acc.name: acc.dtype for acc in st.accs})
        written.update(store.buffer for store in st.stores)
    missing = [buffer.name for buffer in (*kernel.outputs, *kernel.locals) if buffer not in written]
    require(not missing, f"{where}: never stores to {missing}")


def verify_schedule(schedule: Schedule) -> None:
    """Every buffer is allocated and written before it is read, and not used after it was released or its memory given
    away.
    """
    memory = _Memory(schedule)
    for step in schedule.steps:
        known = [check for kind, check in _STEPS.items() if isinstance(step, kind)]
        require(bool(known), f"unknown step {step!r}")
        known[0](memory, step)
    for output in schedule.outputs:
        buffer = output.value[0] if isinstance(output.value, tuple) and output.value else output.value
        if isinstance(buffer, Buffer):
            memory.readable(buffer, "the graph's output")
    for _, buffer in schedule.mutations:
        memory.readable(buffer, "a mutation")


class _Memory:
    """What is known of buffers after some steps of a schedule."""

    def __init__(self, schedule: Schedule):
        self.ready = {buffer for buffer in schedule.inputs if isinstance(buffer, Buffer)}
        self.allocated: set[Buffer] = set()
        self.gone: set[Buffer] = set()
        self.base: dict[Buffer, Buffer] = {}

    def readable(self, buffer: Buffer, who: str) -> None:
        require(buffer in self.ready or buffer.kind == "constant", f"{who} reads {buffer!r}, which is not there yet")
        while buffer in self.base:
            buffer = self.base[buffer]
        require(buffer not in self.gone, f"{who} reads {buffer!r} after its memory was released")

    def written(self, buffer: Buffer) -> None:
        self.ready.add(buffer)
        while buffer in self.base:
            buffer = self.base[buffer]
            self.ready.add(buffer)

    def has_memory(self, buffer: Buffer) -> bool:
        return buffer in self.allocated or buffer in self.base

    def alloc(self, step: Alloc) -> None:
        self.allocated.add(step.buffer)
        if step.reuse is not None:
            require(
                step.reuse not in self.gone and step.reuse.kind not in ("input", "constant"),
                f"{step} takes memory that is not there",
            )

    def free(self, step: Free) -> None:
        there = step.buffer in self.ready and step.buffer not in self.gone
        require(there, f"free of {step.buffer!r}, which is not there")
        self.gone.add(step.buffer)

    def view(self, step: View) -> None:
        self.base[step.buffer] = step.base
        if step.base in self.allocated and step.base not in self.ready:
            return  # a name under which the next call writes it
        self.readable(step.base, f"view {step.buffer.name}")
        self.ready.add(step.buffer)

    def launch(self, step: Launch) -> None:
        kernel = step.kernel
        verify_kernel(kernel)
        pairs: list[tuple[Any, Any]] = [
            (kernel.inputs, step.inputs),
            (kernel.outputs, step.outputs),
            (kernel.sizes, step.sizes),
            (kernel.params, step.params),
        ]
        require(all(len(a) == len(b) for a, b in pairs), f"{kernel.name}: arguments do not fit its parameters")
        for formal, buffer in zip(kernel.inputs, step.inputs):
            self.readable(buffer, kernel.name)
            require(
                formal.dtype == buffer.dtype and formal.bits == buffer.bits,
                f"{kernel.name}: {formal!r} gets {buffer!r}",
            )
        for formal, buffer in zip(kernel.outputs, step.outputs):
            require(self.has_memory(buffer), f"{kernel.name} writes {buffer!r}, which has no memory")
            require(
                formal.dtype == buffer.dtype and formal.bits == buffer.bits,
                f"{kernel.name}: {formal!r} gets {buffer!r}",
            )
            self.written(buffer)

    def extern(self, step: Extern) -> None:
        for buffer in buffers_read(step):
            self.readable(buffer, str(step.op))
        for buffer in step.outputs:
            if buffer is not None:
                given = step.out_variant is None or self.has_memory(buffer)
                require(given, f"{step.op} writes {buffer!r}, which has no memory")
                self.written(buffer)


_STEPS: dict[type, Callable[[_Memory, Any], None]] = {
    Alloc: _Memory.alloc,
    Free: _Memory.free,
    View: _Memory.view,
    Launch: _Memory.launch,
    Extern: _Memory.extern,
}
