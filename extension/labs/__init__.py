"""Course labs on the real compiler.

    tcompile lab list | start N | check N | grade FOLDER        (solution N: with the instructor's package)

In a lab's notebook `course = tcompile.labs.open(N)` gives `course.check("exercise")`, `course.scoreboard()` and the
pictures. notebooks/labs/AUTHORING.md says how a lab is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .notebook import Course

__all__ = ["open"]


def open(number: int) -> Course:
    """The lab in the notebook that calls this."""
    from .notebook import Course

    return Course(number)
