"""A student's answers: a submission's names, what is not right in them, and errors as messages for the student."""

from __future__ import annotations

import contextvars
import linecache
import traceback
from types import SimpleNamespace
from typing import Any, Iterator

from .words import say

__all__ = ["Submission", "Wrong", "is_unsolved", "register_source", "told", "use_looks", "wrong"]

_looks: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar("tcompile_lab_looks", default=None)


class Wrong(AssertionError):
    """An answer that is not right: the message is for the student."""


class Submission(SimpleNamespace):
    """A student's notebook as names. What is not there yet is said in the student's words."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        broken = self.__dict__.get("_broken", {})
        raise Wrong(say("missing", name=name) + "".join(f"\n{text}" for text in broken.values()))


def use_looks(looks: dict[str, str]) -> None:
    """The texts that `look=` names."""
    _looks.set(looks)


def wrong(text: str, look: str = "") -> Wrong:
    """Not right, with the section of the lab's texts that `look` names."""
    hint = (_looks.get() or {}).get(look, "")
    return Wrong(f"{text}\n{say('look')} {hint}" if hint else text)


# ---- what went wrong inside of the student's own code
def register_source(name: str, source: str) -> None:
    """So that tracebacks, and capture, can read a cell's lines."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)


def _student_frames(error: BaseException) -> Iterator[traceback.FrameSummary]:
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith("<") and frame.filename.endswith(" cell>") or "ipykernel_" in frame.filename:
            yield frame


def _inner(error: BaseException) -> BaseException:
    """What was raised inside of a stage, where this says that compiling failed."""
    while type(error).__name__ == "InternalError" and error.__cause__ is not None:
        error = error.__cause__
    return error


def is_unsolved(error: BaseException) -> bool:
    """Whether an error is that of an exercise without an answer."""
    error = _inner(error)
    blank = error.__cause__ if isinstance(error, Wrong) else error
    return isinstance(blank, NotImplementedError) and "your code here" in str(blank)


def told(error: BaseException) -> str:
    """An error as a message for the student: the answer's own words, or where in the student's code it was raised."""
    error = _inner(error)
    if isinstance(error, Wrong):
        return str(error)
    if is_unsolved(error):
        return say("unsolved")
    frames = list(_student_frames(error))
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, AssertionError) and not frames and str(error):
        return str(error)
    if not frames:
        return say("raised", error=text)
    last = frames[-1]
    return say("raised_at", error=text, function=last.name, line=last.lineno, code=(last.line or "").strip())
