"""Iterators from outside that go through a list, a tuple, a range or a text: what is left of them is read without
advancing them.

The entry relies on what it took, and on the end where it came to it; then it advances the iterator as far as the
program did. Where the program changes what is gone through, and for other iterators, the graph is split: the iterator
is advanced by Python itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...guards import source as S
from ..machine.signals import Break

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["OutsideIterator", "is_native_iterator", "left_of", "outside_iterator"]

_KINDS = frozenset(map(type, (iter([]), iter(()), iter(range(0)), iter(range(1 << 70)), iter(""), iter(b""))))


_OF_LISTS = type(iter([]))


def left_of(iterator: Any) -> tuple:
    """What an iterator of such a kind has yet to give; it stays where it is."""
    _, (values, *_), *state = iterator.__reduce__()
    return tuple(values[state[0] :] if state and state[0] is not None else values)


class OutsideIterator:
    """Stands for the iterator `real` on the interpreted stack."""

    __slots__ = ("machine", "real", "left", "taken", "source")

    def __init__(self, machine: Machine, real: Any):
        self.machine, self.real = machine, real
        self.left, self.taken = left_of(real), 0
        self.source = S.asked(machine.world.sources[id(real)], left_of)

    def __iter__(self) -> "OutsideIterator":
        return self

    def __next__(self) -> Any:
        machine, world = self.machine, self.machine.world
        if type(self.real) is _OF_LISTS:
            self._rely_on_list()
        i, self.taken = self.taken, self.taken + 1
        machine.effects.call(next, [self.real, None], {})
        if i >= len(self.left):
            world.guard(self.source, "LEN", len(self.left), "the end of an iterator")
            raise StopIteration
        return world.load(self.left[i], S.item(self.source, i), "element of an iterator")

    def _rely_on_list(self) -> None:
        """The list is none of those that the program has changed so far."""
        world = self.machine.world
        values = self.real.__reduce__()[1][0]
        source = S.item(S.item(S.asked(world.sources[id(self.real)], _OF_LISTS.__reduce__), 1), 0)
        for known, shadow in world.shadows.items():
            if shadow.changed or shadow.blind:
                if known == id(values):
                    raise Break("iterator", "an iterator goes through a list that the program changes")
                world.differ(source, world.sources[known])


def is_native_iterator(value: Any) -> bool:
    """Whether this is an iterator of C, which iter() gives as it is."""
    cls = type(value)
    return cls.__module__ in ("builtins", "itertools") and hasattr(cls, "__next__")


def outside_iterator(machine: Machine, real: Any) -> OutsideIterator:
    """What stands for an iterator from outside. Breaks where nobody knows what is left of it."""
    made = machine.iterators.get(id(real))
    if made is None:
        if type(real) not in _KINDS:
            raise Break("iterator", "an iterator from outside is advanced", "make it a list first")
        if S.asked(machine.world.sources[id(real)], left_of) in machine.world.opts.unread:
            raise Break(
                "iterator",
                "an iterator goes through a list that had many lengths",
                "no change is needed: the loop runs as it is, and what it calls is compiled",
            )
        for other in machine.iterators.values():
            machine.world.differ(machine.world.sources[id(real)], machine.world.sources[id(other.real)])
        made = machine.iterators[id(real)] = OutsideIterator(machine, real)
    return made
