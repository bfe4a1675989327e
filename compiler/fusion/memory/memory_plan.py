"""The memory plan: which buffers are allocated when, in whose memory, and when they are released.

Liveness is per block of memory: a view keeps its base alive. A temporary may take the memory of a temporary that is
dead by
then: one that dies in the same kernel and is read there at exactly the index that is written (in place), or one of
equal size. Memory of graph inputs, constants and outputs is never given to anything else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

import torch

from ...lowering.ir import Buffer, Kernel, Value, loads, walk
from ...lowering.lowered import Extern, LoweredGraph, View
from ...lowering.ref import all_same, same
from ...ops.collectives import communicates, waits
from ...ops.raising import KEEP_BYTES, may_raise
from ...symbolic.expr import Expr, integer
from ..domain import size_hint
from ..inline import buffers_read
from ..schedule import Alloc, Free, Launch, Step
from .liveness import Liveness, may_alias, nbytes, result_buffers, sizes

KEPT_BYTES = 1 << 20  # of a GPU's block that is kept between two uses in any case
# calls whose results are memory of their own, which nothing else knows: kernels behind them may write over it
_FRESH = frozenset(("aten.convolution.default", "aten.convolution_backward.default"))

__all__ = ["plan_memory", "same_index", "same_layout"]


def plan_memory(
    steps: Sequence[Any], lowered: LoweredGraph, hints: dict[str, int], updated: dict[Buffer, int]
) -> tuple[list[Step], int, list[tuple[int, Buffer]], list[int]]:
    """(steps with allocations, peak bytes at the hints, mutations left to copy at the end, inputs that kernels
    write). `updated`: buffers that are an input already (updated_inputs.py).
    """
    return _Planner(steps, lowered, hints, updated).run()


def _may_fail(step: Any) -> bool:
    """Whether a step may raise for some values."""
    if isinstance(step, Launch):
        return bool(step.kernel.checks)
    return isinstance(step, Extern) and may_raise(str(step.op))


class _Planner(Liveness):
    def __init__(self, steps: Sequence[Any], lowered: LoweredGraph, hints: dict[str, int], updated: dict[Buffer, int]):
        super().__init__(steps, lowered)
        self.hints, self.updated, self.size = hints, updated, sizes(hints)
        calls = [step for step in self.steps if isinstance(step, Extern) and communicates(step.op)]
        self.exchanged = {buffer for call in calls for buffer in call.begins_as()}  # what collectives write in place
        # what a wait gives -> the result that it waits for, in whose memory it lies
        self.waited = {
            call.outputs[0]: buffer
            for call in calls
            if waits(call.op)
            for buffer in buffers_read(call)
            if buffer in self.exchanged
        }
        self.waits: dict[Buffer, list[Buffer]] = {}  # the other way round
        for given, buffer in self.waited.items():
            self.waits.setdefault(buffer, []).append(given)

    def run(self) -> tuple[list[Step], int, list[tuple[int, Buffer]], list[int]]:
        in_place, mutations = self.mutations_in_place()
        steps, peak = self.emit(self.choose_reuse(in_place), in_place)
        # who asks next gets memory that is dead, also between two uses of one size: of torch's allocator on a GPU, of
        # the plan's own block on a CPU
        others, least = self.emit(self.choose_reuse(in_place, keep=False), in_place)
        if least < peak:
            steps, peak = others, least
        return steps, peak, mutations, sorted({*in_place.values()})

    # ---- mutated inputs
    def life_of_buffers(self) -> tuple[dict[Buffer, int], dict[Buffer, list[int]], set[Buffer]]:
        """(the step that makes each buffer, -1 where several do; the steps that read it; the buffers that are seen
        under another name, by a view or by what a library call gave).
        """
        made: dict[Buffer, int] = {}
        reads: dict[Buffer, list[int]] = {}
        viewed: set[Buffer] = set()
        for i, step in enumerate(self.steps):
            if isinstance(step, Extern) and step.begins_as():
                made.update((output, i) for output in step.outputs if output is not None)
            if isinstance(step, Launch):
                for buffer in step.outputs:
                    made[buffer] = -1 if buffer in made else i  # several kernels write it: leave it alone
                for buffer in step.inputs:
                    reads.setdefault(buffer, []).append(i)
            else:
                if isinstance(step, View):
                    viewed.add(step.base)
                elif any(
                    may_alias(step, k)
                    for k, buffer in enumerate(step.outputs)
                    if buffer is not None and buffer not in self.waited
                ):
                    viewed.update(buffers_read(step))
                for buffer in buffers_read(step):
                    reads.setdefault(buffer, []).append(i)
        return made, reads, viewed

    def mutations_in_place(self) -> tuple[dict[Buffer, int], list[tuple[int, Buffer]]]:
        """Buffers that may be computed right in the mutated input: same layout, and nothing reads the input
        afterwards.
        """
        in_place = dict(self.updated)
        left: list[tuple[int, Buffer]] = []
        self.made, self.reads, self.viewed = self.life_of_buffers()
        self.returned = {*result_buffers(self.lowered)}
        # a failing graph leaves its inputs as they were
        last = max((i for i, step in enumerate(self.steps) if _may_fail(step)), default=-1)
        sources = [self.waited.get(written, written) for _, written in self.lowered.mutations]
        targets = [i for i, _ in self.lowered.mutations]
        for i, buffer in self.lowered.mutations:
            if buffer in self.updated:
                continue
            given, result = self.lowered.inputs[i], self.waited.get(buffer, buffer)
            alone = sources.count(result) == targets.count(i) == 1 and not self._is_seen(buffer)
            there = self._computed_in(given, result) if alone and self._fits(result, given, last) else []
            in_place.update((made, i) for made in there if self._fits(made, given, last))
            if not there:
                left.append((i, buffer))
        return in_place, left

    def _fits(self, buffer: Buffer, given: Any, last: int) -> bool:
        """Whether `buffer` may lie in the memory of the input `given`, if nobody reads that any more. `last`: the
        last step that may fail."""
        made_at = self.made.get(buffer, -1)
        return (
            made_at >= 0
            and (made_at > last or self.size(buffer) > KEEP_BYTES)
            and not self._is_seen(buffer)
            and isinstance(given, Buffer)
            and given not in self.viewed
            and given.dtype == buffer.dtype
            and same_layout(given, buffer)
        )

    def _is_seen(self, buffer: Buffer) -> bool:
        """Whether a buffer is a result, or is seen under another name."""
        return buffer in self.returned or buffer in self.viewed

    def _computed_in(self, given: Buffer, buffer: Buffer) -> list[Buffer]:
        """What is computed in the memory of the input `given`, so that it holds `buffer` in the end: the buffer, what
        a collective writes it over, and what a collective that reads the input last makes of it. Nothing where a step
        reads the input too late."""
        if not self._is_read_before(given, buffer):
            return []
        there, step = [buffer], self.steps[self.made[buffer]]
        begun = step.begins_as().get(buffer) if buffer in self.exchanged else None
        if begun in self.made and self.reads[begun] == [self.made[buffer]] and self._is_read_before(given, begun):
            there.append(begun)
        last = max(self.reads.get(given, ()), default=-1)
        out = next((out for out in self.steps[last].outputs if out in self.exchanged), None) if last >= 0 else None
        if out is not None and last < self.made[there[-1]] and self._reads_as_it_writes(last, given, out):
            if all(self._is_read_before(name, there[-1]) for name in (out, *self.waits.get(out, ()))):
                there.append(out)
        return there

    def _is_read_before(self, given: Buffer, buffer: Buffer) -> bool:
        """Whether nothing reads the input once the buffer lies in its memory."""
        made_at = self.made[buffer]
        return all(
            read_at < made_at or read_at == made_at and self._reads_as_it_writes(made_at, given, buffer)
            for read_at in self.reads.get(given, ())
        )

    def _reads_as_it_writes(self, k: int, buffer: Buffer, other: Buffer) -> bool:
        """Whether step k, which reads `buffer` and makes `other`, may have both in one place."""
        step = self.steps[k]
        if isinstance(step, Extern):
            return step.begins_as().get(other) is buffer and buffers_read(step).count(buffer) == 1
        return same_index(step.kernel, step.inputs.index(buffer), step.outputs.index(other), other.on_gpu)

    # ---- what takes whose memory
    def choose_reuse(self, in_place: dict[Buffer, int], keep: bool = True) -> dict[Buffer, Buffer]:
        """buffer -> the dead buffer whose memory it takes. `keep`: whether all memory is kept from its death until a
        buffer of its size wants it; else small memory of a GPU alone.
        """
        reuse: dict[Buffer, Buffer] = {}
        dead: dict[Expr, list[Buffer]] = {}
        room: dict[Buffer, Expr] = {}  # bytes of the block that a buffer lies in
        dies: dict[int, list[Buffer]] = {}
        taken: set[Buffer] = set()
        aliased = {self.root(x) for xs in self.aliases.values() for x in xs} | set(self.aliases)
        kept = self.pinned | self.exchanged | aliased  # whose memory is not given to others
        for buffer, i in self.last_use.items():
            dies.setdefault(i, []).append(buffer)
        for i, step in enumerate(self.steps):
            for buffer in self.allocated(step, i):
                if buffer in in_place:
                    continue
                room[buffer] = nbytes(buffer)
                if buffer in aliased and buffer not in self.exchanged or buffer in self.pinned and not buffer.on_gpu:
                    continue  # (large results of the CPU lie in memory that is kept: runtime/output_pool.py)
                old = self.overwritten(step, buffer, i, taken, room)
                waited = keep or buffer.on_gpu and size_hint(room[buffer], self.hints) <= KEPT_BYTES
                if old is None and buffer not in kept and waited:
                    old = self.take(dead, room[buffer])
                if old is not None:
                    reuse[buffer] = old
                    room[buffer] = room[old]
                    taken.add(old)
            if isinstance(step, Extern) and step.out_variant is None and str(step.op) in _FRESH:
                room |= {
                    output: nbytes(output)
                    for output in step.outputs
                    if output is not None and self.is_read(output, i) and _is_dense(output)
                }
            for buffer in dies.get(i, ()):
                if buffer in room and buffer not in kept and buffer not in taken:
                    dead.setdefault(room[buffer], []).append(buffer)
        return reuse

    def is_read(self, buffer: Buffer, i: int) -> bool:
        """Whether a result of step i lies on a GPU and is read. What nothing reads an operator may leave out."""
        return buffer.on_gpu and self.last_use[buffer] > i

    def take(self, dead: dict[Expr, list[Buffer]], want: Expr) -> Buffer | None:
        same = dead.get(want)
        if same:
            return same.pop()
        if want.is_const:  # the smallest static block that is not more than twice as large
            sizes = sorted(
                key.value
                for key, bs in dead.items()
                if bs and key.is_const and want.value <= key.value <= 2 * want.value
            )
            if sizes and want.value:
                return dead[integer(sizes[0])].pop()
        return None

    def overwritten(
        self, step: Step, buffer: Buffer, i: int, taken: set[Buffer], room: dict[Buffer, Expr]
    ) -> Buffer | None:
        """What step i reads for the last time and `buffer` takes over; a result of the graph over its dtype alone."""
        old = None
        if isinstance(step, Launch):
            old = self.in_place_input(step, buffer, i, taken, room)
        elif isinstance(step, Extern):
            old = self.written_input(step, buffer, i, taken, room)
        return None if old is not None and buffer in self.pinned and old.dtype != buffer.dtype else old

    def in_place_input(
        self, launch: Launch, buffer: Buffer, i: int, taken: set[Buffer], room: dict[Buffer, Expr]
    ) -> Buffer | None:
        output = launch.outputs.index(buffer)
        for k, given in enumerate(launch.inputs):
            if (
                given in room
                and self.last_use[given] == i
                and given not in self.pinned
                and given not in taken
                and room[given] is room[buffer]
                and given not in launch.outputs
                and given.dtype.itemsize == buffer.dtype.itemsize
                and same_index(launch.kernel, k, output, buffer.on_gpu)
            ):
                return given
        return None

    def written_input(
        self, extern: Extern, buffer: Buffer, i: int, taken: set[Buffer], room: dict[Buffer, Expr]
    ) -> Buffer | None:
        """The buffer as whose values `buffer` begins, where the call is the last to look at it."""
        begun = extern.begins_as().get(buffer)
        dies = begun in room and self.last_use[begun] == i and begun not in self.pinned and begun not in taken
        alone = (
            dies
            and buffers_read(extern).count(begun) == 1
            and same_layout(begun, buffer)
            and begun.dtype == buffer.dtype
        )
        return begun if alone else None

    def allocated(self, step: Any, i: int) -> list[Buffer]:
        """Buffers that the plan allocates for step i."""
        if isinstance(step, View):
            outs = [step.base]
        elif isinstance(step, Launch) or step.out_variant is not None:
            outs = [output for output in step.outputs if output is not None and output not in self.base]
        else:
            return []
        return [out for out in outs if self.first.get(out) == i]

    # ---- the steps
    def emit(self, reuse: dict[Buffer, Buffer], in_place: dict[Buffer, int]) -> tuple[list[Step], int]:
        taken = set(reuse.values())
        dies: dict[int, list[Buffer]] = {}
        for buffer, i in self.last_use.items():
            if buffer in self.first and buffer not in taken and buffer not in self.pinned and buffer not in in_place:
                dies.setdefault(i, []).append(buffer)
        views: dict[Buffer, list[Buffer]] = {}  # names of a block that go with it
        for view in self.base:
            views.setdefault(self.root(view), []).append(view)
        handed: dict[int, list[Buffer]] = {}
        for buffer in dict.fromkeys(reuse.values()):  # (a set's order would differ from process to process)
            handed.setdefault(self.last_use[buffer], []).append(buffer)
        out: list[Step] = []
        live = peak = 0
        size: dict[Buffer, int] = {}
        for i, step in enumerate(self.steps):
            for buffer in self.allocated(step, i):
                if buffer in in_place:
                    out.append(View(buffer, self.lowered.inputs[in_place[buffer]], 0))
                    continue
                old = reuse.get(buffer)
                out.append(Alloc(buffer, old))
                size[buffer] = size.pop(old) if old is not None else self.size(buffer)
                live += size[buffer] if old is None else 0
            if isinstance(step, Extern) and step.out_variant is None:
                for buffer in step.outputs:
                    if buffer is not None and buffer not in self.waited:
                        size[buffer] = self.size(buffer)
                        live += size[buffer]
            peak = max(peak, live)
            if isinstance(step, Extern) and (begins := step.begins_as()):
                inputs = {key: self.lowered.inputs[value] for key, value in in_place.items()}
                here = inputs | reuse
                out.extend(
                    _copied(x, buffer, step)
                    for buffer, x in begins.items()
                    if here.get(buffer) not in (x, inputs.get(x, x))
                )
                step = replace(
                    step, kwargs={name: value for name, value in step.kwargs.items() if name not in step.out_names}
                )
            out.append(step)
            for buffer in (*dies.get(i, ()), *handed.get(i, ())):
                out.extend(Free(view) for view in views.get(buffer, ()))
            for buffer in dies.get(i, ()):
                out.append(Free(buffer))
                live -= size.pop(buffer, 0)
        return out, peak


def _copied(buffer: Buffer, to: Buffer, extern: Extern) -> Extern:
    clone = torch.ops.aten.clone
    return Extern(
        clone.default,
        (buffer,),
        {},
        [to],
        clone.out,
        ("out",),
        f"what {extern.shown_name()} writes to",
        extern.origin,
        extern.lines,
    )


def _is_dense(buffer: Buffer) -> bool:
    """Whether elements fill all bytes that the buffer spans."""
    stride = integer(buffer.dtype.itemsize)
    for size in buffer.shape:
        stride = stride * size
    return nbytes(buffer) is stride


def same_layout(buffer: Buffer, other: Buffer) -> bool:
    return all_same(buffer.shape, other.shape) and all(
        same(stride, y) for size, stride, y in zip(buffer.shape, buffer.stride, other.stride) if size != 1
    )


def same_index(kernel: Kernel, i: int, o: int, on_gpu: bool = False) -> bool:
    """Whether output o may lie in the memory of input i: every read of the input is at the index of the one store to
    the output, and in no later pass than the store's. Kernels of a GPU have no memory of their own for locals: a pass
    that reads one computes it again, with all the reads that it is made of. What they make of results alone may be made
    before other stages (codegen/triton/split.py): of its inputs' memory no other stage may read.
    """
    x, y = kernel.inputs[i], kernel.outputs[o]
    if kernel.template is not None and any(value.attr[0] is x for value in loads(kernel.template.roots())):
        return False  # (other programs read it as well)
    only = _only_store(kernel, y)
    if only is None:
        return False
    at, stored_in = only
    made_of_x: set[int] = set()  # ids of locals that are computed from reads of x

    def reads_x(value: Value) -> bool:
        return value.is_load and (value.attr[0] is x or id(value.attr[0]) in made_of_x)

    alone = on_gpu and not kernel.stages[stored_in].axes
    for k, st in enumerate(kernel.stages):
        too_late = k > stored_in or alone and k != stored_in
        for v in filter(reads_x, walk(st.roots())):
            elsewhere = v.attr[0] is x and (v.attr[1] is not at or bool(v.args))
            if elsewhere or too_late:
                return False
        for made in st.stores if on_gpu else ():
            if made.buffer.scope == "local" and any(map(reads_x, walk([made.value]))):
                made_of_x.add(id(made.buffer))
    return True


def _only_store(kernel: Kernel, buffer: Buffer) -> tuple[Expr, int] | None:
    """(index, number of the stage) of the one store to `buffer`; None where there is none, are several, or one adds."""
    stores = [(store, k) for k, st in enumerate(kernel.stages) for store in st.stores if store.buffer is buffer]
    if len(stores) != 1 or stores[0][0].mode != "set":
        return None
    return stores[0][0].index, stores[0][1]
