"""A limit of what one test prints: an endless loop with a print in it would fill a notebook, or a disk."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Iterator

__all__ = ["MOST_PRINTED", "TooMuchPrinted", "printing_limited"]

MOST_PRINTED = 100_000  # characters


class TooMuchPrinted(BaseException):
    """It printed too much. No Exception, so that `except Exception` in a loop does not swallow it."""


class _Limited:
    """A stream of text that ends who writes too much to it."""

    def __init__(self, stream: Any):
        self.stream, self.left = stream, MOST_PRINTED

    def write(self, text: str) -> int:
        self.left -= len(text)
        if self.left < 0:
            raise TooMuchPrinted()
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def printing_limited() -> Iterator[None]:
    """End what prints more than MOST_PRINTED characters."""
    with contextlib.redirect_stdout(_Limited(sys.stdout)):  # type: ignore[type-var]
        yield
