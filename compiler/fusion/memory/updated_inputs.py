"""Updates of parts of an input are made in the input.

`cache.index_copy_(dim, at, new)` is, once functional, a copy of the whole input, the new part written over it, and a
copy back at the end. Where nothing else reads the input, both copies go: the part is written into the input itself.
A cache of keys and values is such an input: an update of one row moves one row.
"""

from __future__ import annotations

from collections import Counter

from ...lowering.ir import Buffer, LoopNest, has_op, loaded
from ...lowering.lowered import Extern, LoweredGraph, LoweredStep, View
from ...ops.raising import KEEP_BYTES, may_raise
from ..domain import size_hint
from ..inline import buffers_read
from .liveness import may_alias, nbytes, result_buffers
from .memory_plan import same_layout

__all__ = ["updated_inputs"]


def updated_inputs(lowered: LoweredGraph) -> tuple[list[LoweredStep], dict[Buffer, int]]:
    """(The steps without the copies; buffer -> the number of the input that it is, from its first write on)."""
    copies: set[int] = set()
    found: dict[Buffer, int] = {}
    if not lowered.mutations:
        return list(lowered.steps), found
    uses = _Uses(lowered)
    for i, buffer in lowered.mutations:
        x = lowered.inputs[i]
        first, *others = uses.writers.get(buffer, [None])
        if (
            isinstance(x, Buffer)
            and first is not None
            and others
            and _copies(first, x)
            and all(other.onto for other in others)
            and x.dtype == buffer.dtype
            and same_layout(x, buffer)
            and uses.is_only_updated(i, x, buffer)
        ):
            copies.add(id(first))
            found[buffer] = i
    return [step for step in lowered.steps if id(step) not in copies], found


def _copies(nest: LoopNest, buffer: Buffer) -> bool:
    """Whether a nest stores each element of x where x has it."""
    load = nest.value
    return nest.mode == "set" and not nest.reduce_axes and load.is_load and load.attr == (buffer, nest.index)


class _Uses:
    """Who writes and reads the buffers of a graph."""

    def __init__(self, lowered: LoweredGraph):
        self.lowered = lowered
        self.writers: dict[Buffer, list[LoopNest]] = {}
        self.last_write: dict[Buffer, int] = {}
        self.reads: dict[Buffer, list[int]] = {}
        self.results = {*result_buffers(lowered)}
        self.aliased: set[Buffer] = set()  # what a library call may hand out under another name
        self.sources = Counter(buffer for _, buffer in lowered.mutations)
        self.targets = Counter(i for i, _ in lowered.mutations)
        for at, step in enumerate(lowered.steps):
            if isinstance(step, LoopNest):
                self.writers.setdefault(step.buffer, []).append(step)
                self.last_write[step.buffer] = at
                read = loaded([step.value])
            else:
                read = {*buffers_read(step)}
                if isinstance(step, Extern) and any(
                    output is not None and may_alias(step, k) for k, output in enumerate(step.outputs)
                ):
                    self.aliased |= read
            for b in read:
                self.reads.setdefault(b, []).append(at)
        for view in reversed(
            [step for step in lowered.steps if isinstance(step, View)]
        ):  # a view of a view comes after it
            for seen in (self.results, self.aliased):
                if view.buffer in seen:
                    seen.add(view.base)

    def is_only_updated(self, i: int, buffer: Buffer, b: Buffer) -> bool:
        """Whether the input x may be b from b's first write on: nobody else looks at x, and b is no result."""
        return (
            self.sources[b] == self.targets[i] == 1
            and b not in self.results
            and buffer not in self.results
            and not {buffer, b} & self.aliased
            and len(self.reads[buffer]) == 1
            and all(at > self.last_write[b] for at in self.reads.get(b, ()))
            and (
                size_hint(nbytes(buffer), self.lowered.hints) > KEEP_BYTES
                or not any(map(_may_fail, self.lowered.steps))
            )
        )


def _may_fail(s: LoweredStep) -> bool:
    """Whether a step may raise for some values, and the call be run again on its inputs. Nothing runs after an
    assertion on a GPU.
    """
    if isinstance(s, LoopNest):
        return not s.on_gpu and has_op([s.value], "check_index")
    return isinstance(s, Extern) and may_raise(str(s.op))
