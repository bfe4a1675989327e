"""A lab in its notebook: `course = tcompile.labs.open(3)`, then `course.check("exercise")`.

A check in the notebook runs the public tests on the notebook's own names, in the kernel, for a quick answer; a limit of
time ends what loops. `tcompile lab check` runs the same tests in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from html import escape
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Mapping

from ..compiler.errors import InternalError
from . import pictures, progress, puzzles
from .clock import OutOfTime, fastest, limited
from .library import find
from .printed import MOST_PRINTED, TooMuchPrinted, printing_limited
from .puzzle_widget import Puzzle
from .answers import Submission, is_unsolved, told, use_looks
from .words import language, say, speak

__all__ = ["Checked", "Course"]


class Checked:
    """What a check found: text in a terminal, a small table in a notebook."""

    def __init__(self, name: str, rows: list[tuple[str, float, str]], note: str = ""):
        self.name, self.rows, self.note = name, rows, note

    @property
    def points(self) -> float:
        return sum(points for _, points, message in self.rows if not message)

    @property
    def of(self) -> float:
        return sum(points for _, points, _ in self.rows)

    @property
    def passed(self) -> bool:
        return all(not message for _, _, message in self.rows)

    def _state(self) -> str:
        return say("solved" if self.passed else "partly" if self.points else "open")

    def __repr__(self) -> str:
        head = f"{self.name}: {self._state()}, {say('points', points=self.points, of=self.of)}"
        messages = dict.fromkeys(message for _, _, message in self.rows if message)
        return "\n".join(
            [head, *("  " + m.replace("\n", "\n  ") for m in messages), *([self.note] if self.note else [])]
        )

    def _repr_html_(self) -> str:
        colour = "#2aa198" if self.passed else "#d0703a"
        head = f"<b style='color:{colour}'>{escape(self.name)}: {escape(self._state())}</b>"
        head += f" &nbsp;{escape(say('points', points=self.points, of=self.of))}"
        lines = dict.fromkeys(message for _, _, message in self.rows if message)
        body = "".join(f"<pre style='margin:4px 0 0 12px;white-space:pre-wrap'>{escape(m)}</pre>" for m in lines)
        note = f"<div>{escape(self.note)}</div>" if self.note else ""
        return f"<div>{head}{body}{note}</div>"


class Board:
    """The scoreboard: exercises, and the challenge's figures now and at their best."""

    def __init__(self, exercises: dict[str, tuple[float, float]], now: Mapping[str, float], best: Mapping[str, float]):
        self.exercises, self.now, self.best = exercises, now, best

    def _lines(self) -> list[list[str]]:
        rows = [["", say("now"), say("best")]] if self.now or self.best else []
        names = dict.fromkeys([*self.now, *self.best])
        rows += [[n, *(_figure(n, d) for d in (self.now, self.best))] for n in names]
        return rows

    def __repr__(self) -> str:
        out = [f"{name}: {say('points', points=p, of=of)}" for name, (p, of) in self.exercises.items()]
        return "\n".join(out + ["  ".join(f"{c:>12}" for c in row) for row in self._lines()])

    def _repr_html_(self) -> str:
        rows = {name: {say("exercise"): 100 * p / of if of else 0} for name, (p, of) in self.exercises.items()}
        cells = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in self._lines())
        return f"<div>{pictures.bars(rows, '%')._repr_html_()}<table>{cells}</table></div>"


def _figure(name: str, figures: Mapping[str, float]) -> str:
    if name not in figures:
        return "-"
    return f"{figures[name]:.4g}" if name == "microseconds" else f"{figures[name]:g}"


class Said:
    """What went wrong in a cell, in the course's words: a traceback through the compiler helps no student."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre style='color:#d0703a;margin:0;white-space:pre-wrap'>{escape(self.text)}</pre>"


def _tell_errors(shell: Any) -> None:
    """Cells that show something end in a sentence where an exercise above them is unsolved, or fails in a stage."""

    def tell(shell: Any, kind: type, value: BaseException, trace: Any, tb_offset: int | None = None) -> None:
        from IPython.display import display

        unsolved = is_unsolved(value)
        if not unsolved and not isinstance(value, InternalError):
            shell.showtraceback((kind, value, trace), tb_offset=tb_offset)
        else:
            display(Said(say("unsolved_above") if unsolved else told(value)))

    shell.set_custom_exc((NotImplementedError, InternalError), tell)


class Course:
    """One lab, seen from its notebook."""

    bars = staticmethod(pictures.bars)
    graph = staticmethod(pictures.graph)
    kernels = staticmethod(pictures.kernels)
    stages = staticmethod(pictures.stages)
    timeline = staticmethod(pictures.timeline)
    touched = staticmethod(puzzles.touched)

    def puzzle(self, function: Callable[..., Any], case: Any, **sizes: int) -> Puzzle:
        """The puzzle that `function` should solve, as a live picture. `case` is a Case, or makes one of `sizes`."""
        speak(self._language())
        return Puzzle(function, case, sizes, _names_of(sys._getframe(1)))

    def __init__(self, number: int, folder: str | Path | None = None):
        self.lab = find(number)
        self.folder = Path(folder or os.getcwd())
        self._module: Any = None
        speak(self._language())
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        if shell is not None:
            _tell_errors(shell)

    def __repr__(self) -> str:
        return f"{self.lab.number}. {self.lab.facts['title'][language()]}"

    def _language(self) -> str:
        """The notebook's, where it lies here under its name; else the environment's."""
        try:
            data = json.loads((self.folder / self.lab.file_name).read_text(encoding="utf-8"))
            return data["metadata"]["tcompile_lab"]["language"]
        except (OSError, ValueError, KeyError, TypeError):
            return language()

    def check(self, exercise: str) -> Checked:
        """Run the public tests of one exercise on the names of the notebook."""
        names = _names_of(sys._getframe(1))
        speak(self._language())
        use_looks(self.lab.facts["looks"].get(language()) or {})
        known = [e["name"] for e in self.lab.facts["exercises"]]
        if exercise not in known:
            raise ValueError(f"no exercise {exercise!r} in lab {self.lab.number}; exercises are {', '.join(known)}")
        submission = Submission(**{k: v for k, v in names.items() if not k.startswith("_")}, _broken={})
        checked = self._checked(exercise, submission)
        progress.note(self.folder, self.lab.number, {exercise: (checked.points, checked.of)}, {})
        return checked

    def grade(self, exercise: str) -> float:
        """The points of one exercise by public and hidden tests (instructor's package): what nbgrader reads."""
        names = _names_of(sys._getframe(1))
        submission = Submission(**{k: v for k, v in names.items() if not k.startswith("_")}, _broken={})
        points = 0.0
        for hidden in (False, True):
            tests = self.lab.tests(hidden)
            for test, of, worth, seconds in tests.TESTS:
                if of == exercise and not _outcome(getattr(tests, test), submission, seconds):
                    points += worth
        return points

    def _checked(self, exercise: str, submission: Submission) -> Checked:
        tests = self._tests()
        rows: list[tuple[str, float, str]] = []
        endless = ""
        for test, of, points, seconds in tests.TESTS:
            if of == exercise:
                message = endless or _outcome(getattr(tests, test), submission, seconds)
                if message in (say("waited", seconds=seconds), say("printed", limit=MOST_PRINTED)):
                    endless = message  # the others would wait, or print, as long: nobody sits through that
                rows.append((test, points, message))
        return Checked(exercise, rows)

    def scoreboard(self) -> Board:
        """What you have reached, and the challenge's figures now and at your best."""
        names = _names_of(sys._getframe(1))
        speak(self._language())
        submission = Submission(**{k: v for k, v in names.items() if not k.startswith("_")}, _broken={})
        score, speed = (getattr(self._tests(), name, None) for name in ("score", "speed"))
        now: dict[str, float] = {}
        challenges = [e["name"] for e in self.lab.facts["exercises"] if e["challenge"]]
        right = all(self._checked(name, submission).passed for name in challenges)
        if score is not None and right:  # figures of a wrong answer are none
            message = _outcome(lambda lab: now.update(score(lab)), submission, 60.0)
            if speed is not None and not message:
                message = _outcome(lambda lab: now.update(microseconds=fastest(speed(lab)) * 1e6), submission, 60.0)
            if message:
                print(message)
        progress.note(self.folder, self.lab.number, {}, now)
        mine = progress.read(self.folder).get(str(self.lab.number), {})
        reached = {n: (p, of) for n, (p, of) in mine.get("exercises", {}).items()}
        everything = {e["name"]: reached.get(e["name"], (0.0, e["points"])) for e in self.lab.facts["exercises"]}
        return Board(everything, now, mine.get("best", {}))

    def _tests(self) -> Any:
        if self._module is None:
            self._module = self.lab.tests(hidden=False)
        return self._module


def _names_of(frame: FrameType | None) -> dict[str, Any]:
    return frame.f_globals if frame is not None else {}


def _outcome(test: Any, submission: Submission, seconds: float) -> str:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            with limited(seconds), printing_limited():
                test(submission)
            return ""
        except OutOfTime:
            return say("waited", seconds=seconds)
        except TooMuchPrinted:
            return say("printed", limit=MOST_PRINTED)
        except SystemExit as e:
            return say("exited", code=e.code)
        except Exception as e:
            return told(e)
