"""Where the kernels of a plan read and write: each index against the buffer that it goes into, and which buffers share
memory. What verifiers check of the loop IR (lowering/verify_loops.py) can be seen so, access by access."""

from __future__ import annotations

from typing import Any, Iterator

from ...fusion.domain import size_hint
from ...fusion.schedule import Alloc, Extern, Launch, Schedule, View
from ...lowering.ir import Buffer, loads
from ...lowering.verify_loops import index_range, span, unmasked
from ...symbolic.simplify import bounds

__all__ = ["accesses_of", "shared_memory"]


def accesses_of(schedule: Schedule) -> list[dict[str, Any]]:
    """A row for each place of a kernel that reads or writes a buffer. `how` says why it stays inside: "proved" (the
    range of the index, at the sizes of the first call), "masked" (it is read only where a condition holds), "by
    values" (the index is computed from data), "tiled" (a template goes over it, and masks the edges), "unknown" (no
    range is known), or "outside"."""
    out: list[dict[str, Any]] = []
    for step in schedule.steps:
        if isinstance(step, Launch):
            kernel = step.kernel
            actual = dict(zip((*kernel.inputs, *kernel.outputs), (*step.inputs, *step.outputs)))
            for way, formal, index, how, reach in _of_kernel(kernel):
                buffer = actual.get(formal)
                out.append(
                    {
                        "kernel": kernel.name,
                        "way": way,
                        "buffer": buffer.name if buffer is not None else f"{formal.name} (its own)",
                        "index": f"{formal.name}[{index}]",
                        "range": list(reach) if reach is not None else None,
                        "elements": span(formal, kernel.hints),
                        "how": how,
                    }
                )
    return out


def _of_kernel(k: Any) -> Iterator[tuple[str, Buffer, Any, str, tuple[int, int] | None]]:
    """Way, buffer, index, verdict and range of each access, each once."""
    seen: set[tuple] = set()
    outer = {a.symbol.name: size_hint(a.size, k.hints) for a in k.outer}
    for stage in k.stages:
        sizes = {**outer, **{axis.symbol.name: size_hint(axis.size, k.hints) for axis in stage.axes}}
        roots = stage.roots()
        strict = unmasked(roots)
        reads = [("reads", *load.attr, load.id in strict) for load in loads(roots)]
        writes = [("writes", store.buffer, store.index, True) for store in stage.stores]
        for way, b, index, always in (*reads, *writes):
            key = (way, b.name, str(index))
            if key not in seen:
                seen.add(key)
                yield way, b, index, *_verdict(k, b, index, sizes, always)
    if k.template is not None:
        for b, index in dict.fromkeys(load.attr[:2] for load in loads(k.template.roots())):
            if ("reads", b.name, str(index)) not in seen:
                yield "reads", b, index, "tiled", None


def _verdict(
    k: Any, buffer: Buffer, index: Any, sizes: dict[str, int], always: bool
) -> tuple[str, tuple[int, int] | None]:
    if any(name.startswith(("ind", "at")) for name in index.symbol_names()):
        return "by values", None
    at = index.subs({name: k.hints.get(name, 64) for name in index.symbol_names() if name not in sizes})
    reach = index_range(at, sizes)
    if reach is None and 0 not in sizes.values():  # remainders and quotients of axes, one by one: never too narrow
        lo, hi = bounds(at, {name: (0, size) for name, size in sizes.items()})
        reach = (lo, hi) if lo is not None and hi is not None else None
        if reach is not None and not 0 <= lo <= hi < span(buffer, k.hints):
            return ("masked" if not always else "unknown"), reach
    if reach is None:
        return ("masked" if not always else "unknown"), None
    inside = 0 <= reach[0] and reach[1] < span(buffer, k.hints)
    return "proved" if inside else "outside" if always else "masked", reach


def shared_memory(schedule: Schedule) -> list[dict[str, str]]:
    """Buffers that lie in the memory of others. `how`: a "view"; "reused", memory that nobody reads after the step
    `after`; "in place", the kernel `after` reads each element before it writes it there."""
    out = []
    taken: dict[Buffer, tuple[Buffer, dict[str, str]]] = {}
    last: dict[Buffer, str] = {}  # what read or wrote it last
    for step in schedule.steps:
        if isinstance(step, View):
            out.append({"buffer": step.buffer.name, "of": step.base.name, "how": "view", "after": ""})
        elif isinstance(step, Alloc) and step.reuse is not None:
            row = {
                "buffer": step.buffer.name,
                "of": step.reuse.name,
                "how": "reused",
                "after": last.get(step.reuse, ""),
            }
            taken[step.buffer] = step.reuse, row
            out.append(row)
        elif isinstance(step, Launch):
            for output in step.outputs:
                if output in taken and taken[output][0] in step.inputs:
                    taken[output][1].update(how="in place", after=step.kernel.name)
            last |= dict.fromkeys((*step.inputs, *step.outputs), step.kernel.name)
        elif isinstance(step, Extern):
            read = [arg for arg in step.args if isinstance(arg, Buffer)]
            last |= dict.fromkeys((*read, *(output for output in step.outputs if output is not None)), str(step.op))
    return out
