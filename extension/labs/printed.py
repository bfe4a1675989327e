"""A limit of what one test prints: an endless loop with a print in it would fill a notebook, or a disk."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Iterator

__all__ = ["MOST_PRINTED", "TooMuchPrinted", "printing_limited"]

SHOWN = 10_000  # characters; what follows is dropped
MOST_PRINTED = 1_000_000


class TooMuchPrinted(BaseException):
    """It printed too much. No Exception, so that `except Exception` in a loop does not swallow it."""


class _Limited:
    """A stream of text that shows the first of it, and ends who writes far too much."""

    def __init__(self, stream: Any):
        self.stream, self.written = stream, 0

    def write(self, text: str) -> int:
        room = SHOWN - self.written
        self.written += len(text)
        if self.written > MOST_PRINTED:
            raise TooMuchPrinted()
        if room > 0:
            self.stream.write(text[:room] + ("…\n" if len(text) > room else ""))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def printing_limited() -> Iterator[None]:
    """Show the first SHOWN characters of what is printed, and end what prints more than MOST_PRINTED."""
    with contextlib.redirect_stdout(_Limited(sys.stdout)):  # type: ignore[type-var]
        yield
