"""What a thread does while it waits: work that will be wanted soon, offered by who knows of it.

    with meanwhile.offered(work):      # who calls something that may have to wait
        ...
    with meanwhile.offered_last(work):  # the same, behind what others offered
        ...
    meanwhile.use(done)                # who is about to wait, until `done()`: calls work(done), once for each offer

`work(done)` does what it can in steps, and looks at `done()` in between. It imports nothing of the compiler.
"""

from __future__ import annotations

import contextvars
from contextlib import contextmanager
from typing import Callable, Iterator

__all__ = ["Work", "offered", "offered_last", "use"]

Work = Callable[[Callable[[], bool]], None]
_offers: contextvars.ContextVar[list[Work]] = contextvars.ContextVar("tcompile_meanwhile")


@contextmanager
def offered(work: Work) -> Iterator[None]:
    token = _offers.set([work])
    try:
        yield
    finally:
        _offers.reset(token)


@contextmanager
def offered_last(work: Work) -> Iterator[None]:
    offers = _offers.get(None)
    if offers is None:
        with offered(work):
            yield
        return
    offers.insert(0, work)
    try:
        yield
    finally:
        if work in offers:
            offers.remove(work)


def use(done: Callable[[], bool]) -> None:
    offers = _offers.get(None)
    while offers and not done():
        offers.pop()(done)
