"""The order of the finished kernels and library calls that needs least memory: what frees more than it takes comes
before the peak, what takes more than it frees comes behind it.

A network with a shortcut shows why. The shortcut's convolution makes a small result of a large input; called last, it
keeps that input alive beside everything that the other branch makes. A list scheduler for register pressure moves
instructions for the same reason.

Only the step at the peak is looked at, again and again, until nothing more can be had. Elsewhere the order stays, which
fusion chose so that readers come close behind writers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

from ...lowering.ir import Buffer
from ...lowering.lowered import Extern, LoweredGraph, View
from ...ops.collectives import communicates
from ..inline import buffers_read, does_more
from ..schedule import Launch
from .liveness import Liveness, may_alias, sizes

__all__ = ["NO_PEAK", "lower_peak"]

REACH = 64  # steps from the peak within which a step is moved
MOST = 8  # steps that are moved together: a call and what it needs
ROUNDS = 64
TRIED = 4  # moves of a round that are looked at closely
SMALL_BYTES = 1 << 16  # no move for less
NO_PEAK = 1 << 20  # of memory, below which no order is better than another


@dataclass(frozen=True)
class _Move:
    steps: tuple[int, ...]  # their places, in order
    to: int  # the place before which they come
    gain: int  # bytes that are no longer alive at the peak

    def apply(self, steps: Sequence[Any]) -> list[Any]:
        taken = [steps[step] for step in self.steps]
        rest = set(self.steps)
        before = [step for i, step in enumerate(steps) if i < self.to and i not in rest]
        behind = [step for i, step in enumerate(steps) if i >= self.to and i not in rest]
        return [*before, *taken, *behind]


def lower_peak(
    steps: Sequence[Any], lowered: LoweredGraph, hints: Mapping[str, int], updated: Mapping[Buffer, int]
) -> list[Any]:
    """The same steps in an order whose peak is no higher. `updated`: buffers that are an input already
    (updated_inputs.py).
    """
    over = {b: lowered.inputs[i] for b, i in [*((buffer, i) for i, buffer in lowered.mutations), *updated.items()]}
    order = _Order(list(steps), _Facts(steps, lowered, hints, over))
    for _ in range(ROUNDS):
        if not order.steps or max(order.alive) < NO_PEAK:
            break
        found = sorted(order.moves(), key=lambda m: -m.gain)[:TRIED]
        tried = (_Order(module.apply(order.steps), order.facts) for module in found)
        better = next((o for o in tried if o.is_lower(order)), None)
        if better is None:
            break
        order = better
    return order.steps


class _Facts:
    """What holds of steps and buffers in any order.

    over: buffer -> the graph's input that it is written over. named: of each step by its id, what it reads. reads,
    writes: the blocks of memory. may_move: ids of steps.
    """

    def __init__(
        self, steps: Sequence[Any], lowered: LoweredGraph, hints: Mapping[str, int], over: Mapping[Buffer, Buffer]
    ):
        self.lowered, self.size = lowered, sizes(hints)
        root = Liveness(steps, lowered).root
        self.named = {id(step): _read(step) for step in steps}
        self.reads = {key: set(map(root, names)) for key, names in self.named.items()}
        self.writes = {id(step): {root(x) for b in _written(step) for x in (b, over.get(b, b))} for step in steps}
        self.may_move = {id(step) for step in steps if _may_move(step)}


class _Order:
    """An order of the steps: what is alive when, who reads and who writes each block of memory."""

    def __init__(self, steps: list[Any], facts: _Facts):
        self.steps, self.facts = steps, facts
        self.live = Liveness(steps, facts.lowered)
        self.alive = self.live.bytes_alive(facts.size)

    def is_lower(self, other: _Order) -> bool:
        """Whether the peak is lower, or as high at fewer steps."""
        mine, others = max(self.alive), max(other.alive)
        return mine < others or mine == others and self.alive.count(mine) < other.alive.count(others)

    def moves(self) -> Iterator[_Move]:
        """Every move of a step near the peak over it that frees memory there."""
        facts, n = self.facts, len(self.steps)
        peak = max(range(n), key=self.alive.__getitem__)
        reads, writes = ([of[id(step)] for step in self.steps] for of in (facts.reads, facts.writes))
        readers: dict[Buffer, list[int]] = {}
        writers: dict[Buffer, list[int]] = {}
        for i in range(n):
            for b in reads[i]:
                readers.setdefault(b, []).append(i)
            for b in writes[i]:
                writers.setdefault(b, []).append(i)
        alone = [
            id(step) in facts.may_move and all(writers[b] == [i] and self.live.first.get(b) == i for b in writes[i])
            for i, step in enumerate(self.steps)
        ]
        for at in range(peak + 1, min(n, peak + REACH)):
            group = self._needed(at, peak, reads, writes, alone)
            if group and (gain := self._freed(group, peak, reads, writes, readers)) >= SMALL_BYTES:
                yield _Move(group, peak, gain)
        for at in range(max(0, peak - REACH), peak):
            later = min((r for b in writes[at] for r in readers.get(b, ()) if r != at), default=n)
            if not alone[at] or isinstance(self.steps[at], View) or not peak < later <= n:
                continue
            if any(not reads[at].isdisjoint(writes[j]) for j in range(at + 1, min(later, n))):
                continue
            made = sum(self.facts.size(b) for b in writes[at])
            held = sum(self.facts.size(b) for b in reads[at] if self._end(b) < peak)
            if made - held >= SMALL_BYTES:
                yield _Move((at,), later, made - held)

    def _needed(
        self, at: int, peak: int, reads: list[set[Buffer]], writes: list[set[Buffer]], alone: list[bool]
    ) -> tuple[int, ...]:
        """The steps from the peak on that have to come with step `at` where it comes before the peak; none where one of
        them may not.
        """
        wanted, group = set(reads[at]), [at]
        if not alone[at]:
            return ()
        for i in range(at - 1, peak - 1, -1):
            if writes[i].isdisjoint(wanted) and not (isinstance(self.steps[i], View) and self._shows(i, group)):
                continue
            if i == peak or not alone[i] or len(group) == MOST:
                return ()
            group.append(i)
            wanted |= reads[i]
        return tuple(reversed(group))

    def _shows(self, i: int, group: Sequence[int]) -> bool:
        """Whether a step of the group reads what view i makes a name for."""
        name = self.steps[i].buffer
        return any(name in self.facts.named[id(self.steps[j])] for j in group)

    def _freed(
        self,
        group: tuple[int, ...],
        peak: int,
        reads: list[set[Buffer]],
        writes: list[set[Buffer]],
        readers: dict[Buffer, list[int]],
    ) -> int:
        """Bytes that are no longer alive at the peak where the group comes before it."""
        inside = set(group)
        freed = kept = 0
        for b in {b for i in group for b in reads[i]}:
            here = b in self.live.given or self.live.first.get(b, peak) < peak and b not in self.live.pinned
            if here and all(r < peak or r in inside for r in readers[b]) and self._end(b) in inside:
                freed += self.facts.size(b)
        for b in {b for i in group for b in writes[i]}:
            if b in self.live.pinned or self.live.last_use[b] not in inside:
                kept += self.facts.size(b)
        return freed - kept

    def _end(self, buffer: Buffer) -> int:
        """The step after which the memory is free; the number of steps, where there is none."""
        if buffer in self.live.given:
            return self.live.given[buffer]
        return self.live.last_use[buffer] if buffer in self.live.first else len(self.steps)


def _read(step: Any) -> list[Buffer]:
    return list(step.inputs) if isinstance(step, Launch) else buffers_read(step)


def _written(step: Any) -> list[Buffer]:
    """What a step makes or may change. (A view makes a name, no memory.)"""
    if isinstance(step, View):
        return []
    made = [output for output in step.outputs if output is not None]
    return [*made, *buffers_read(step)] if isinstance(step, Extern) and does_more(step) else made


def _may_move(s: Any) -> bool:
    """Whether a step does nothing but make memory of its own."""
    if isinstance(s, View):
        return True
    if isinstance(s, Launch):
        return not s.kernel.checks
    own = not any(output is not None and may_alias(s, k) for k, output in enumerate(s.outputs))
    return own and not does_more(s) and not communicates(s.op)
