"""What a lab's tests are written with: comparisons that say what differs and where to look.

A test is a function `test_...(lab)`; `lab` is the submission. What it asserts it asserts by the functions here:

    same(lab.count(tiny), 3, what="count(tiny)", look="kernels")

`what` is the expression as the student knows it, `look` the name of a section `## look kernels` in the lab's texts.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

import torch

from .answers import Submission, Wrong, wrong
from .puzzle_run import play
from .words import say

__all__ = [
    "Submission",
    "Wrong",
    "at_least",
    "at_most",
    "close",
    "holds",
    "plays",
    "raises",
    "same",
    "stage_ran",
    "tensors_close",
    "unsolved_said",
]


def shown(x: Any, limit: int = 400) -> str:
    text = repr(x)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def same(got: Any, want: Any, what: str = "", look: str = "") -> None:
    """The two are equal, and of one type."""
    if type(got) is not type(want) and not (isinstance(got, (int, float)) and isinstance(want, (int, float))):
        raise wrong(say("type", what=what, got=type(got).__name__, want=type(want).__name__, value=shown(got)), look)
    if got != want:
        raise wrong(say("same", what=what, got=shown(got), want=shown(want)) + _first_difference(got, want), look)


def _first_difference(got: Any, want: Any) -> str:
    if isinstance(got, (list, tuple)) and isinstance(want, (list, tuple)):
        for i, (a, b) in enumerate(zip(got, want)):
            if a != b:
                return "\n" + say("first", where=f"[{i}]", got=shown(a), want=shown(b))
        return "\n" + say("length", got=len(got), want=len(want)) if len(got) != len(want) else ""
    if isinstance(got, dict) and isinstance(want, dict):
        for k in want:
            if k not in got:
                return "\n" + say("no_key", key=repr(k))
            if got[k] != want[k]:
                return "\n" + say("first", where=f"[{k!r}]", got=shown(got[k]), want=shown(want[k]))
        extra = [k for k in got if k not in want]
        return "\n" + say("extra_key", key=repr(extra[0])) if extra else ""
    return ""


def close(got: float, want: float, what: str = "", look: str = "", rtol: float = 1e-6) -> None:
    """Two numbers are equal within `rtol`."""
    if not isinstance(got, (int, float)):
        raise wrong(say("type", what=what, got=type(got).__name__, want="float", value=shown(got)), look)
    if abs(got - want) > rtol * max(abs(want), 1e-30):
        raise wrong(say("same", what=what, got=shown(got), want=shown(want)), look)


def tensors_close(got: Any, want: torch.Tensor, what: str = "", look: str = "", **tolerance: Any) -> None:
    """Two tensors have one shape, one dtype and values within the dtype's tolerance; else the first place is named."""
    if not isinstance(got, torch.Tensor):
        raise wrong(say("type", what=what, got=type(got).__name__, want="Tensor", value=shown(got)), look)
    for fact in ("shape", "dtype"):
        a, b = getattr(got, fact), getattr(want, fact)
        if a != b:
            plain = (lambda s: tuple(s)) if fact == "shape" else str
            raise wrong(say("same", what=f"{what}.{fact}", got=plain(a), want=plain(b)), look)
    tolerance = {"equal_nan": True, **tolerance}
    if not torch.allclose(got, want, **{"rtol": 1e-4, "atol": 1e-5, **tolerance}):
        off = ~torch.isclose(got, want, **{"rtol": 1e-4, "atol": 1e-5, **tolerance})
        place = tuple(int(i) for i in off.nonzero()[0])
        raise wrong(
            say(
                "tensor",
                what=what,
                n=int(off.sum()),
                of=off.numel(),
                place=list(place),
                got=shown(got[place].item()),
                want=shown(want[place].item()),
            ),
            look,
        )


def at_most(got: float, limit: float, what: str = "", look: str = "") -> None:
    if not got <= limit:
        raise wrong(say("at_most", what=what, got=shown(got), limit=shown(limit)), look)


def at_least(got: float, limit: float, what: str = "", look: str = "") -> None:
    if not got >= limit:
        raise wrong(say("at_least", what=what, got=shown(got), limit=shown(limit)), look)


def holds(condition: Any, what: str, look: str = "") -> None:
    """`what` says in code what should hold."""
    if not condition:
        raise wrong(say("holds", what=what), look)


def raises(error: type[BaseException], call: Callable[[], Any], what: str = "", look: str = "") -> BaseException:
    """The call raises `error`; gives it."""
    try:
        got = call()
    except error as e:
        return e
    raise wrong(say("raises", what=what, error=error.__name__, got=shown(got)), look)


def plays(function: Callable[..., Any], case: Any, what: str = "", look: str = "") -> Any:
    """The program solves the puzzle (`puzzle_run.Case`); gives what it did."""
    played = play(function, case)
    if played.problem:
        unsolved = played.problem == say("unsolved")
        raise Wrong(played.problem) if unsolved else wrong(f"`{what}`: {played.problem}", look)
    return played


def stage_ran(report: Any, stage: str, function: Callable, look: str = "", declined: int | None = None) -> None:
    """The report names `function` as what ran for `stage`, and it did not decline everything (or, with `declined`, more
    than that)."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    rows = [st for st in report.stages if st.name == stage]
    mine = [st for st in rows if st.by == name]
    if not mine:
        who = ", ".join(st.by or "tcompile" for st in rows) or "-"
        raise wrong(say("stage", stage=stage, want=name, got=who), look)
    ran, left = sum(st.count for st in mine), sum(st.declined for st in mine)
    if left == ran or declined is not None and left > declined:
        raise wrong(say("declined", stage=stage, name=name, declined=left, count=ran), look)


@contextlib.contextmanager
def unsolved_said() -> Iterator[None]:
    """Around a student's function inside of a stage: there a NotImplementedError would mean to run the graph by torch's
    kernels, and the exercise would pass for solved."""
    try:
        yield
    except NotImplementedError as e:
        if "your code here" not in str(e):
            raise RuntimeError(f"NotImplementedError: {e}") from e
        raise Wrong(say("unsolved")) from e


def __getattr__(name: str) -> Any:
    """`pytest_lab`, the fixture: pytest is imported where it is asked for alone."""
    if name != "pytest_lab":
        raise AttributeError(name)
    import os
    from pathlib import Path

    import pytest

    from .submission import load

    @pytest.fixture(scope="module", name="lab")
    def pytest_lab(request: Any) -> Submission:
        beside = Path(request.path).parent / "lab.ipynb"
        return load(Path(os.environ.get("TCOMPILE_LAB_SUBMISSION") or beside))

    return pytest_lab
