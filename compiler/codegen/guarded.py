"""The order in which the values of a kernel are printed, and the conditions under which each may be evaluated.

A load below `masked(cond, a, b)` must happen only where cond holds: values are keyed by their *guard*, the tuple of
conditions around them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Container, Iterable

import torch

from ..lowering.ir import Value, walk

__all__ = ["FreshNames", "Guard", "GuardedValues", "stored"]

Guard = tuple  # of Values, outermost condition first


def stored(value: Value) -> Value:
    """What has to be computed for a store of `value`: the store itself rounds to a low precision type."""
    rounds = value.is_float_cast and value.dtype.itemsize <= 2
    return value.args[0] if rounds and value.args[0].dtype == torch.float32 else value


@dataclass(kw_only=True)
class FreshNames:
    """Counts for new names of variables, and what each stands for."""

    counts: dict[str, int] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)  # variable -> aten node, for readers

    def fresh(self, stem: str) -> str:
        n = self.counts.get(stem, 0)
        self.counts[stem] = n + 1
        return f"{stem}_{n}"


class GuardedValues:
    """What the printers of both languages (cpp/values.py, triton/values.py) are built on. `known` has the keys of what
    stands already.
    """

    CARE: frozenset[str]  # operators that must not be evaluated where nobody wants their value

    def __init__(self, known: Container[tuple]):
        self._known = known
        self._careful: dict[int, bool] = {}

    def key(self, value: Value, guard: Guard) -> tuple:
        return (value.id, tuple(g.id for g in guard))

    def guard_of(self, value: Value, guard: Guard) -> Guard:
        """The conditions that matter to `value`: all to what takes care or needs what does, none to the rest."""
        return guard if guard and self._careful.get(value.id, True) else ()

    def takes_care(self, value: Value) -> bool:
        return value.op in self.CARE

    def operands(self, value: Value, guard: Guard) -> list[tuple[Value, Guard]]:
        """What has to stand before `value` under its guard: arguments first, then conditions that its own text asks."""
        if value.op == "masked":
            cond, a, b = value.args
            return [(cond, guard), (a, (*guard, cond)), (b, guard)]
        needs = [(arg, guard) for arg in value.args]
        if guard and value.op in self.CARE:
            needs += [(g, guard[:k]) for k, g in enumerate(guard)]
        return needs

    def order(self, roots: Iterable[Value]) -> list[tuple[Value, Guard]]:
        """Everything that `roots` need and that is not known yet, what is needed first."""
        roots = list(roots)
        for value in walk(roots):
            if value.id not in self._careful:
                self._careful[value.id] = self.takes_care(value) or any(self._careful[arg.id] for arg in value.args)
        seen: set[tuple] = set()
        out: list[tuple[Value, Guard]] = []
        stack: list[tuple[Value, Guard, bool]] = [(root, (), False) for root in reversed(roots)]
        while stack:
            value, guard, done = stack.pop()
            guard = self.guard_of(value, guard)
            key = self.key(value, guard)
            if done:
                out.append((value, guard))
            elif key not in seen and key not in self._known:
                seen.add(key)
                stack.append((value, guard, True))
                stack.extend((a, g, False) for a, g in reversed(self.operands(value, guard)))
        return out
