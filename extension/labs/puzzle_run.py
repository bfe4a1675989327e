"""A puzzle run: a student's program over watched tensors, with everything that it reads and writes noted.

    case = Case(programs=4, inputs={"x": x}, outputs={"out": x.sum(1)})
    played = play(row_sum, case)
    played.problem        # "" where it is solved, else one sentence

`row_sum(p, x, out)` runs once for each program p. `x[i, j]` and `x.load(rows, columns, mask=m)` read, `out[i] = v` and
`out.store(rows, columns, value=v, mask=m)` write. A place outside of a tensor is noted, and reads as NaN: a picture of
the mistake teaches more than an error at its first element.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping

import torch

from .answers import told
from .words import say

__all__ = ["Case", "Played", "Touch", "Watched", "arange", "play"]

Index = tuple[int, ...]
MOST_TOUCHES = 20_000  # what a puzzle's program reads and writes at most; a loop without an end reaches it


class TooMuch(BaseException):
    """The program reads and writes without an end. No Exception, so that `except Exception` does not keep it."""


@dataclass(frozen=True)
class Touch:
    program: Index
    tensor: str
    index: Index
    write: bool
    inside: bool


@dataclass
class Case:
    """What a puzzle gives and asks for: programs (one number, or two), tensors, what should stand in the outputs."""

    programs: int | tuple[int, ...]
    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    reads: Mapping[str, int] = field(default_factory=dict)  # how often an element may be read; once if not said

    def every_program(self) -> list[Index]:
        sizes = (self.programs,) if isinstance(self.programs, int) else tuple(self.programs)
        return list(itertools.product(*map(range, sizes)))

    def tensors(self) -> dict[str, torch.Tensor]:
        return {**self.inputs, **self.outputs}


class Watched:
    """A tensor of a puzzle: small, of one or two dimensions, and every touch is noted."""

    def __init__(self, name: str, values: torch.Tensor, note: Callable[[str, Index, bool, bool], None]):
        self.shape = tuple(values.shape)
        self._name, self._values, self._note = name, values, note

    def __repr__(self) -> str:
        return f"{self._name} of shape {list(self.shape)}"

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(say("puzzle_no_loop", name=self._name))

    def _place(self, index: Any) -> Index:
        at = index if isinstance(index, tuple) else (index,)
        if len(at) != len(self.shape):
            raise IndexError(say("puzzle_dimensions", name=self._name, want=len(self.shape), got=list(at)))
        for k in at:
            whole = isinstance(k, int) or isinstance(k, torch.Tensor) and k.ndim == 0 and not k.is_floating_point()
            if not whole or isinstance(k, bool):
                raise TypeError(say("puzzle_index", name=self._name, got=repr(k)))
        return tuple(int(k) for k in at)

    def _touch(self, at: Index, write: bool) -> bool:
        inside = all(0 <= k < n for k, n in zip(at, self.shape))
        self._note(self._name, at, write, inside)
        return inside

    def __getitem__(self, index: Any) -> float:
        at = self._place(index)
        return self._values[at].item() if self._touch(at, False) else float("nan")

    def __setitem__(self, index: Any, value: Any) -> None:
        at = self._place(index)
        number = float(value)
        if self._touch(at, True):
            self._values[at] = number

    def _block(self, at: tuple[Any, ...], mask: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
        if len(at) != len(self.shape):
            raise IndexError(say("puzzle_dimensions", name=self._name, want=len(self.shape), got=len(at)))
        *places, keep = torch.broadcast_tensors(*(torch.as_tensor(k) for k in at), torch.as_tensor(mask))
        if any(p.is_floating_point() or p.dtype == torch.bool for p in places):
            raise TypeError(say("puzzle_index", name=self._name, got=repr(at)))
        return list(places), keep

    def load(self, *at: Any, mask: Any = True, other: float = 0.0) -> torch.Tensor:
        """The elements at these places as a block; `other` where the mask is False."""
        places, keep = self._block(at, mask)
        out = torch.full(keep.shape, float(other))
        for k in itertools.product(*map(range, keep.shape)):
            if keep[k]:
                out[k] = self[tuple(int(p[k]) for p in places)]
        return out

    def store(self, *at: Any, value: Any, mask: Any = True) -> None:
        """Write a block to these places, where the mask is True."""
        places, keep = self._block(at, mask)
        values = torch.as_tensor(value, dtype=torch.float32).broadcast_to(keep.shape)
        for k in itertools.product(*map(range, keep.shape)):
            if keep[k]:
                self[tuple(int(p[k]) for p in places)] = values[k].item()


def arange(n: int) -> torch.Tensor:
    """0, 1, ... n - 1 as a block of places."""
    return torch.arange(n)


@dataclass
class Played:
    """What a run did. `problem` is empty where the puzzle is solved; else it says what is wrong, the first thing
    first."""

    case: Case
    touches: list[Touch]
    values: dict[str, torch.Tensor]
    error: str = ""
    problem: str = ""

    @property
    def solved(self) -> bool:
        return not self.problem

    def counts(self, tensor: str, write: bool = False) -> Counter[Index]:
        """How often each place inside of a tensor was read (or written)."""
        return Counter(t.index for t in self.touches if t.tensor == tensor and t.write is write and t.inside)

    def outside(self, tensor: str) -> list[Touch]:
        return [t for t in self.touches if t.tensor == tensor and not t.inside]

    def again(self, tensor: str) -> list[Index]:
        """Places that were touched more often than the puzzle allows."""
        write = tensor in self.case.outputs
        most = 1 if write else self.case.reads.get(tensor, 1)
        return sorted(i for i, n in self.counts(tensor, write).items() if n > most)

    def never(self, tensor: str) -> list[Index]:
        seen = self.counts(tensor, tensor in self.case.outputs)
        return [i for i in itertools.product(*map(range, self.case.tensors()[tensor].shape)) if i not in seen]

    def wrong(self, tensor: str) -> list[Index]:
        """Places of an output that were written and hold something else than they should."""
        want, got = self.case.outputs[tensor], self.values[tensor]
        off = ~torch.isclose(got, want.float(), rtol=1e-4, atol=1e-5)
        written = self.counts(tensor, True)
        return [i for i in (tuple(k) for k in off.nonzero().tolist()) if i in written]


def play(function: Callable[..., Any], case: Case) -> Played:
    """Run `function(*program, *inputs, *outputs, *numbers)` for every program."""
    touches: list[Touch] = []
    values = {n: t.clone().float() for n, t in case.inputs.items()}
    values |= {n: torch.full(tuple(t.shape), float("nan")) for n, t in case.outputs.items()}
    now: list[Index] = [()]

    def note(name: str, at: Index, write: bool, inside: bool) -> None:
        if len(touches) >= MOST_TOUCHES:
            raise TooMuch()
        touches.append(Touch(now[0], name, at, write, inside))

    watched = [Watched(name, values[name], note) for name in values]
    played = Played(case, touches, values)
    try:
        for program in case.every_program():
            now[0] = program
            function(*program, *watched, *case.numbers.values())
    except TooMuch:
        played.error = say("puzzle_too_much", limit=MOST_TOUCHES)
    except Exception as e:  # the student's mistake: it becomes words in the picture
        played.error = told(e)
    played.problem = played.error or _problem(played)
    return played


def _problem(played: Played) -> str:
    case = played.case
    for name in case.tensors():
        if out := played.outside(name):
            what = say("puzzle_writes" if out[0].write else "puzzle_reads")
            return say(
                "puzzle_outside", name=name, at=list(out[0].index), program=program_text(out[0].program), do=what
            )
    for name in case.outputs:
        if missed := played.never(name):
            return say("puzzle_never", name=name, at=list(missed[0]), n=len(missed))
    for name, want in case.outputs.items():
        if wrong := played.wrong(name):
            at = wrong[0]
            return say(
                "puzzle_wrong",
                name=name,
                at=list(at),
                n=len(wrong),
                want=f"{want[at].item():.4g}",
                got=f"{played.values[name][at].item():.4g}",
            )
    for name in case.tensors():
        if again := played.again(name):
            write = name in case.outputs
            n = played.counts(name, write)[again[0]]
            most = 1 if write else case.reads.get(name, 1)
            words = "puzzle_writes" if write else "puzzle_reads"
            return say("puzzle_again", name=name, at=list(again[0]), n=n, most=most, do=say(words))
    return ""


def program_text(program: Index) -> str:
    return str(program[0]) if len(program) == 1 else str(program)
