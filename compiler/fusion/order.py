"""The order in which grouping sees the steps: library calls as early as they were, loop nests as late as they are
needed.

In `silu(x @ a) * (x @ b)` the silu comes before the second product; held back until the multiplication it becomes that
one's neighbour, and they share a kernel. What is held back keeps its inputs alive, so it is not held longer than a few
library calls or products, unless its result needs more memory than they do: a copy of a weight, a part of a `cat`.
"""

from __future__ import annotations

from collections import deque
from typing import Container, Mapping, Sequence

import torch

from ..lowering.ir import Buffer, LoopNest, has_op, loads
from ..lowering.lowered import Extern, LoweredStep, View
from .domain import size_hint
from .inline import buffers_read
from .memory.liveness import nbytes

__all__ = ["sink"]

PATIENCE = 4  # library calls and products that a nest may be held back for
SMALL = 64  # elements


def buffers_loaded(nest: LoopNest) -> list[Buffer]:
    """What has to be there before a nest runs: what it loads, and what it writes over."""
    return [value.attr[0] for value in loads([nest.value])] + [nest.buffer] * nest.onto


def _small(nest: LoopNest) -> bool:
    """So few elements that a kernel of many more would not take it in."""
    total = 1
    for axis in nest.domain:
        total = total * axis.size if type(axis.size) is int else SMALL + 1
    return total <= SMALL


def _draws_words(nest: LoopNest) -> bool:
    """Whether a nest makes the bits of a dropout: a kernel of its own, which as a call would stand between two
    nests.
    """
    return nest.buffer.dtype is torch.int32 and has_op([nest.value], "keep_word")


def _is_first(nest: LoopNest, reads: list[Buffer], made: Container[Buffer]) -> bool:
    """Whether a nest reads nothing that a step makes, and is worth a place of its own."""
    return nest.reduce_op is None and not _small(nest) and not any(read in made for read in reads)


def _lets_go(step: LoweredStep, reads: list[Buffer], made: Container[Buffer], hints: Mapping[str, int]) -> bool:
    """Whether running a step early frees at least as much memory as it takes, were it the last to read."""
    if isinstance(step, Extern):
        return True
    freed = sum(size_hint(nbytes(b), dict(hints)) for b in dict.fromkeys(reads) if b in made)
    return freed >= size_hint(nbytes(step.buffer), dict(hints))


def sink(steps: Sequence[LoweredStep], hints: Mapping[str, int]) -> list[LoweredStep]:
    """The same steps in another valid order."""
    reads: list[list[Buffer]] = [
        buffers_loaded(step) if isinstance(step, LoopNest) else buffers_read(step) for step in steps
    ]
    writers: dict[Buffer, list[int]] = {}
    held: deque[tuple[int, int]] = deque()  # (step, calls and products so far when it came)
    late: list[tuple[int, int]] = []  # those that come where they are read
    done = [False] * len(steps)
    first = [False] * len(steps)  # loop nests that read nothing that another one makes
    out: list[LoweredStep] = []
    calls = 0

    def emit(root: int) -> None:
        """Put out a step after everything that it needs; iterative, each step once, older steps first."""
        stack = [(root, False)]
        while stack:
            i, ready = stack.pop()
            if done[i]:
                continue
            if ready:
                done[i] = True
                out.append(steps[i])
                continue
            stack.append((i, True))
            needs = {w for b in reads[i] for w in writers.get(b, ()) if not done[w] and w < i}
            # what reads inputs alone comes last, beside its reader: in front it would open a kernel of its own
            stack.extend((w, False) for w in sorted(needs, key=lambda w: (first[w], w), reverse=True))

    for i, step in enumerate(steps):
        if (
            isinstance(step, Extern)
            or isinstance(step, View)
            and all(done[w] for w in writers.get(step.base, ()))
            or isinstance(step, LoopNest)
            and _draws_words(step)
        ):
            emit(i)  # (a view of what is there: between two nests it would keep them apart)
        else:
            held.append((i, calls))
            first[i] = isinstance(step, LoopNest) and _is_first(step, reads[i], writers)
        if isinstance(step, Extern) or isinstance(step, LoopNest) and step.product:
            calls += 1
            while held and (done[held[0][0]] or held[0][1] + PATIENCE <= calls):
                old = held.popleft()
                if done[old[0]] or _lets_go(steps[old[0]], reads[old[0]], writers, hints):
                    emit(old[0])
                else:
                    late.append(old)
        for b in (
            [step.buffer] if not isinstance(step, Extern) else [output for output in step.outputs if output is not None]
        ):
            writers.setdefault(b, []).append(i)
    rest = sorted([*late, *held])
    wanted = {w for i, _ in rest for b in reads[i] for w in writers.get(b, ()) if w < i}
    for i, _ in rest:
        if i not in wanted:  # the others come where they are read
            emit(i)
    return out
