"""Facts of a Schedule for the report: lifetimes of buffers, library calls with their reasons, refusals to fuse."""

from __future__ import annotations

from typing import Any, Sequence

from .graph_nodes import own_line
from ..base.labels import label
from .memory_timeline import plan_live, thinned
from .schema import Kernel, MemoryBuffer, Partition, PartitionValue

__all__ = ["partition_facts", "plan_facts", "kernels_of_nodes"]


def partition_facts(p: Any, graph: int | None) -> Partition:
    """An autograd.partition.Partition as the report tells it."""

    def value(v: Any) -> PartitionValue:
        file, line = own_line(v.stack)
        shape = [n if type(n) is int else str(n) for n in v.shape]
        return PartitionValue(
            v.name, v.op, v.kind, shape, v.dtype, v.bytes, v.module, label(file) if file else "", line
        )

    return Partition(
        graph,
        saved_bytes=p.saved_bytes,
        read_bytes=p.read_bytes,
        eager_bytes=p.eager_bytes,
        budget=p.budget,
        saved=sorted(map(value, p.saved), key=lambda v: -v.bytes),
        recomputed=[value(v) for v in p.recomputed],
        inputs=[p.forward.inputs[i].name for i in p.saved_inputs],
    )


def plan_facts(schedule: Any) -> dict[str, Any]:
    """`externs` (op, reason, lines), `unfused`, and `memory` with bytes at the sizes of the
    first call and buffers in steps of the plan."""
    from ..fusion.schedule import Alloc, Extern, Free, Launch

    hints = schedule.hints
    start: dict[str, int] = {}
    end: dict[str, int] = {}
    buffers: dict[str, Any] = {}
    reuse: dict[str, str] = {}
    externs: list[tuple] = []
    for i, step in enumerate(schedule.steps):
        if isinstance(step, Alloc):
            start[step.buffer.name], buffers[step.buffer.name] = i, step.buffer
            if step.reuse is not None:
                reuse[step.buffer.name] = step.reuse.name
                end[step.reuse.name] = i
        elif isinstance(step, Free):
            end[step.buffer.name] = i
        elif isinstance(step, Extern):
            externs.append((step.shown_name(), step.reason, [tuple(x[:2]) for x in step.lines]))
            for b in step.outputs:
                if b is not None and b.name not in buffers:
                    start[b.name], buffers[b.name] = i, b
    last = len(schedule.steps)
    outputs = {o.value.name for o in schedule.outputs if o.kind == "buffer" and hasattr(o.value, "name")}
    rows = [
        MemoryBuffer(
            name,
            buffer_bytes(b, hints),
            start[name],
            end.get(name, last),
            reuse.get(name, ""),
            "output" if name in outputs else b.kind,
        )
        for name, b in buffers.items()
    ]
    live = plan_live(rows, last)
    peak = live.index(max(live)) if live else 0
    at = next((step for step in schedule.steps[peak:] if isinstance(step, (Launch, Extern))), None)
    return {
        "externs": externs,
        "unfused": schedule.unfused,
        "memory": {
            "peak_bytes": _value(schedule.peak_bytes, hints),
            "without_reuse_bytes": sum(r.bytes for r in rows),
            "steps": last,
            "live": thinned(live),
            "peak_at": at.kernel.name if isinstance(at, Launch) else at.shown_name() if at is not None else "",
            "peak_line": _line(at.kernel.lines if isinstance(at, Launch) else at.lines if at is not None else ()),
            "buffers": rows,
        },
    }


def _line(lines: Any) -> list:
    """`[file, line]` of the first of a step's lines of the user's code; empty where it has none."""
    return next(([label(str(x[0])), int(x[1])] for x in lines), [])


def buffer_bytes(buffer: Any, hints: dict[str, int]) -> int:
    n = 1
    for d in buffer.shape:
        n *= _value(d, hints) or 0
    return n * buffer.dtype.itemsize


def _value(x: Any, hints: dict[str, int]) -> int | None:
    if isinstance(x, int):
        return x
    try:
        return int(x.eval(hints))
    except (KeyError, AttributeError, ZeroDivisionError):  # a size that no hint is known for
        return None


def kernels_of_nodes(launches: list[tuple[int, Sequence[str]]], kernels: Sequence[Kernel]) -> dict[str, int]:
    """Which kernel each node belongs to, from (kernel, nodes it computes) in order: the first, since later ones compute
    it again. A copy of a product's operand has the product's name, and comes before the kernel that multiplies.
    """
    kernel_of: dict[str, int] = {}
    copies = {k for k, nodes in launches if len(nodes) == 1 and not kernels[k].flops}
    for k, nodes in launches:
        for node in nodes:
            if kernel_of.setdefault(node, k) in copies and k not in copies:
                kernel_of[node] = k
    return kernel_of
