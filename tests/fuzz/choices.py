"""Where a writer's choices come from: Hypothesis, which shrinks what it finds, or a plain random generator, which is
many times faster.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Sequence

from hypothesis import strategies as st

__all__ = ["Choices", "Drawn", "Rolled"]


class Choices:
    """What a writer asks for."""

    def pick(self, xs: Sequence[Any]) -> Any:
        """One of `xs`."""
        raise NotImplementedError

    def integer(self, low: int, high: int) -> int:
        """An int between the two, both included."""
        raise NotImplementedError

    def flag(self) -> bool:
        return self.pick((False, True))


class Drawn(Choices):
    """By Hypothesis, inside a composite strategy or a test."""

    def __init__(self, draw: Callable[[Any], Any]):
        self.draw = draw

    def pick(self, xs: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(xs)))

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))


class Rolled(Choices):
    """By a seed."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def pick(self, xs: Sequence[Any]) -> Any:
        return xs[self.random.randrange(len(xs))]

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)
