"""When each block of memory is in use over a list of steps, and how many bytes are alive at each step.

Liveness is per block: a view keeps its base alive, and so does a library call's result that may lie in its arguments.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Callable, Mapping, Sequence

from ...lowering.ir import Buffer
from ...lowering.lowered import Extern, LoweredGraph, View
from ...ops.collectives import communicates
from ...symbolic.expr import Expr, integer
from ..domain import size_hint
from ..inline import buffers_read
from ..schedule import Launch

__all__ = ["Liveness", "may_alias", "nbytes", "outlive", "output_buffers", "result_buffers", "sizes"]


def nbytes(buffer: Buffer) -> Expr:
    """Bytes of memory that a buffer spans: to the last element that its strides reach."""
    if any(isinstance(size, int) and size == 0 for size in buffer.shape):
        return integer(0)
    return buffer.reach * buffer.dtype.itemsize


def sizes(hints: Mapping[str, int]) -> Callable[[Buffer], int]:
    """How many bytes a buffer has at the hints, looked at once for each."""
    known = dict(hints)
    return cache(lambda b: max(0, size_hint(nbytes(b), known)))


def may_alias(extern: Extern, k: int) -> bool:
    returns = extern.op._schema.returns
    elsewhere = communicates(extern.op) and extern.out_variant is None
    return elsewhere or k >= len(returns) or returns[k].alias_info is not None


def outlive(lowered: LoweredGraph) -> list[Buffer]:
    """Buffers whose memory is not the plan's to give away: results, what is copied into mutated inputs, inputs."""
    return [*output_buffers(lowered), *(b for b in lowered.inputs if isinstance(b, Buffer))]


def output_buffers(lowered: LoweredGraph) -> list[Buffer]:
    """Buffers that outlive the steps: results and what is copied into mutated inputs."""
    return [*(buffer for _, buffer in lowered.mutations), *result_buffers(lowered)]


def result_buffers(lowered: LoweredGraph) -> list[Buffer]:
    """The buffers behind the graph's results."""
    values = (
        output.value[0] if isinstance(output.value, tuple) and output.value else output.value
        for output in lowered.outputs
    )
    return [value for value in values if isinstance(value, Buffer)]


class Liveness:
    """Of a graph's steps (launches, library calls, views): where each block of memory is first and last used.

    base: view -> what it is a view of. aliases: a library call's result that may lie in its arguments -> those.
    first, last_use: block -> place of a step. pinned: blocks that outlive the steps. given: input -> place of its last
    use, of those that are free then: what forward keeps is most of what is alive when backward begins.
    """

    def __init__(self, steps: Sequence[Any], lowered: LoweredGraph):
        self.steps, self.lowered = list(steps), lowered
        self.base: dict[Buffer, Buffer] = {}
        self.aliases: dict[Buffer, list[Buffer]] = {}
        self.last_use: dict[Buffer, int] = {}
        self.first: dict[Buffer, int] = {}
        self._follow()
        shown = {
            output.value[0] if output.kind == "view" else output.value
            for output in lowered.outputs
            if output.kind in ("input", "view")
        }
        place = {b: i for i, b in enumerate(lowered.inputs) if isinstance(b, Buffer)}
        self.given = {b: self.last_use[b] for b in lowered.given if b in self.last_use and place[b] not in shown}
        for b in outlive(lowered):
            self._touch(b, len(self.steps))
        self.pinned = {self.root(b) for b in outlive(lowered)}
        for b in list(self.pinned):
            self.pinned.update(self.root(x) for x in self.aliases.get(b, ()))

    def root(self, buffer: Buffer) -> Buffer:
        while buffer in self.base:
            buffer = self.base[buffer]
        return buffer

    def _touch(self, buffer: Buffer, i: int) -> None:
        stack = [buffer]
        while stack:
            root = self.root(stack.pop())
            self.last_use[root] = i
            stack.extend(self.aliases.get(root, ()))

    def _follow(self) -> None:
        exists = {b for b in self.lowered.inputs if isinstance(b, Buffer)}
        for i, step in enumerate(self.steps):
            if isinstance(step, View):
                self.base[step.buffer] = step.base
                self._touch(step.buffer, i)
                if step.base not in exists:  # a library call is to write it under this view's shape
                    self.first.setdefault(self.root(step.base), i)
                continue
            exists.update(output for output in step.outputs if output is not None)
            for b in step.inputs if isinstance(step, Launch) else buffers_read(step):
                self._touch(b, i)
            read = [self.root(b) for b in buffers_read(step)] if isinstance(step, Extern) else []
            for k, b in enumerate(step.outputs):
                if b is not None:
                    if isinstance(step, Extern) and may_alias(step, k):
                        self.aliases[b] = read
                    self._touch(b, i)
                    self.first.setdefault(self.root(b), i)

    def bytes_alive(self, size_of: Callable[[Buffer], int]) -> list[int]:
        """Bytes alive while each step runs; of inputs those alone that are free after their last use. A kernel's result
        is taken to lie where one of its arguments of its size ends.
        """
        inputs = {b for b in self.lowered.inputs if isinstance(b, Buffer)}
        change = [0] * (len(self.steps) + 1)
        ends: dict[int, list[int]] = {}
        size = {b: size_of(b) for b in self.first if b not in inputs}
        for b, at in self.given.items():
            n = size_of(b)
            change[0] += n
            change[at + 1] -= n
        for b, n in size.items():
            change[self.first[b]] += n
            if b not in self.pinned and self.last_use[b] < len(self.steps):
                change[self.last_use[b] + 1] -= n
                ends.setdefault(self.last_use[b], []).append(n)
        alive, total = [], 0
        for i, step in enumerate(self.steps):
            total += change[i]
            alive.append(total)
            if isinstance(step, Launch) and i in ends:
                free = ends[i]
                for b in step.outputs:
                    if self.first.get(b) == i and size[b] in free:
                        free.remove(size[b])
                        alive[i] -= size[b]
        return alive
