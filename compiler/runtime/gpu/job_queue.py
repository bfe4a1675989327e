"""Jobs that wait for a process to compile them, of all who ask: so many run at once as there are to be processes.

What somebody waits for comes before what will be wanted later. Of each the longest comes first: it would be the last to
end.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Any, Callable, Iterable

from ...base import forks

__all__ = ["Answer", "put", "drop"]


class Answer:
    """What becomes of one job."""

    def __init__(self, do: Callable[[], Any]):
        self.do, self.value, self.error = do, None, None
        self._ended = forks.signal()

    def ended(self) -> bool:
        return self._ended.is_set()

    def result(self) -> Any:
        """Waits; raises what the job raised."""
        self._ended.wait()
        if self.error is not None:
            raise self.error
        return self.value

    def run(self) -> None:
        try:
            self.value = self.do()
        except BaseException as e:  # raised where the result is asked for
            self.error = e
        finally:
            self._ended.set()


_lock = forks.lock()
_waiting: list[tuple[tuple, int, Answer]] = []
_number = itertools.count()
_threads = 0


def put(answer: Answer, order: tuple, limit: int) -> None:
    """Have a job run in another thread, the least `order` first, `limit` at a time."""
    global _threads
    with _lock:
        heapq.heappush(_waiting, (order, next(_number), answer))
        if _threads < limit:
            _threads += 1
            try:
                forks.start_thread(_work, "tcompile jobs")
            except RuntimeError:  # (Python's word for a thread that the system refuses)
                _threads -= 1
                if not _threads:
                    _waiting.clear()
                    raise


def drop(answers: Iterable[Answer]) -> list[Answer]:
    """Those that had not begun: they never will."""
    gone = set(map(id, answers))
    with _lock:
        dropped = [a for _, _, a in _waiting if id(a) in gone]
        _waiting[:] = [w for w in _waiting if id(w[2]) not in gone]
        heapq.heapify(_waiting)
    return dropped


def _work() -> None:
    global _threads
    while True:
        with _lock:
            if not _waiting:
                _threads -= 1
                return
            answer = heapq.heappop(_waiting)[2]
        answer.run()


@forks.in_child
def _forget() -> None:
    """The threads are the parent's."""
    global _threads
    _waiting.clear()
    _threads = 0
