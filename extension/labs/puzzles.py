"""Puzzles with instant pictures: which elements of a tensor a loop or a program touches.

puzzle_run.py       runs a student's program over watched tensors: `Case`, `play`
puzzle_picture.py   draws what it did, as SVG
puzzle_widget.py    the same in a notebook, live: `course.puzzle(function, case)`

Without a student's program `touched` draws indices that are given:

    view = touched({"x": (4, 6)}, lambda pid: {"x": [(pid, j) for j in range(8)]}, range(4))
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, Sequence

import torch

from .pictures import Picture
from .puzzle_picture import picture
from .puzzle_run import Case, Played, Touch, arange, play

__all__ = ["Case", "Touched", "arange", "picture", "play", "touched"]

Index = tuple[int, ...]


class Touched(Picture):
    """What was touched, as a picture and as facts: `again`, `outside` and `missed`, by tensor."""

    def __init__(self, svg_text: str, words: str, again: dict, outside: dict, missed: dict):
        super().__init__(svg_text, words)
        self.again: dict[str, list[Index]] = again
        self.outside: dict[str, list[Index]] = outside
        self.missed: dict[str, list[Index]] = missed

    @property
    def exact(self) -> bool:
        """Every element is touched once, and nothing else."""
        return not any(any(found.values()) for found in (self.again, self.outside, self.missed))


def _index(i: Any) -> Index:
    return (int(i),) if isinstance(i, int) else tuple(int(k) for k in i)


def touched(
    shapes: Mapping[str, Sequence[int]],
    program: Callable[[int], Mapping[str, Iterable[Any]]],
    instances: Iterable[int],
    values: Mapping[str, Any] | None = None,
) -> Touched:
    """Draw what `program(i)` touches for each instance i: the indices by tensor. `values` (nested lists or tensors of
    one or two dimensions) are written into the elements."""
    every = list(instances)
    given = {n: torch.as_tensor((values or {})[n]).float() for n in shapes if n in (values or {})}
    blank = {n: torch.full(tuple(shape), float("nan")) for n, shape in shapes.items()}
    touches: list[Touch] = []
    for i in every:
        for name, indices in program(i).items():
            if name not in shapes:
                raise KeyError(f"the program touches {name!r}; the tensors are {', '.join(shapes)}")
            for at in map(_index, indices):
                if len(at) != len(shapes[name]):
                    raise ValueError(f"{name} has {len(shapes[name])} dimensions, and was touched at {list(at)}")
                inside = all(0 <= k < n for k, n in zip(at, shapes[name]))
                touches.append(Touch((i,), name, at, False, inside))
    case = Case(1 + max(every, default=0), {**blank, **given}, {})
    played = Played(case, touches, dict(case.inputs))
    drawn = picture(played, blank=frozenset(shapes) - frozenset(given), verdict=False)
    again, missed = ({n: find(n) for n in shapes} for find in (played.again, played.never))
    outside = {n: sorted({t.index for t in played.outside(n)}) for n in shapes}
    return Touched(drawn.svg, drawn.text, again, outside, missed)
