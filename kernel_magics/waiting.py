"""What in timed rounds was waiting for other programs.

Waiting only adds, and it may add ten thousandfold to one engine: where a thread of eager's operators has no core, each
operator waits for it.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Sequence

from ..compiler.base.figures import plural

__all__ = ["RunQueue", "steady", "WAITED"]

WAITED = 3.0  # times an engine's shortest sample: what takes longer waited for other programs
_FEW = 3  # rounds that are needed for an interval where some waited
_TASKS = "/proc/self/task"


class RunQueue:
    """How long this process's threads wait for a core; always 0 where the system doesn't tell (it isn't Linux)."""

    def __init__(self) -> None:
        self._files: list[int] = []

    def __enter__(self) -> RunQueue:
        with contextlib.suppress(OSError):
            for thread in os.listdir(_TASKS):
                with contextlib.suppress(OSError):  # (the thread has ended)
                    self._files.append(os.open(f"{_TASKS}/{thread}/schedstat", os.O_RDONLY))
        return self

    def __exit__(self, *_: Any) -> None:
        for file in self._files:
            os.close(file)
        self._files.clear()

    def seconds(self) -> float:
        """All threads' together, so far."""
        out = 0
        for file in self._files:
            with contextlib.suppress(OSError):
                out += int(os.pread(file, 100, 0).split()[1])
        return out * 1e-9


def steady(rounds: Sequence[dict[str, float]]) -> tuple[list[dict[str, float]], str]:
    """The rounds in which no engine took much longer than at its best, and words where many did. Where hardly a round
    is left, the shortest sample of each engine is all that is known.
    """
    engines = {e for r in rounds for e in r}
    least = {e: min(r[e] for r in rounds if e in r) for e in engines}
    kept = [r for r in rounds if all(took <= WAITED * least[e] for e, took in r.items())]
    n, out = len(rounds), len(rounds) - len(kept)
    few = out and len(kept) < _FEW
    what = "the shortest sample of each engine is kept" if few else f"{out} of them are left out"
    words = f"{out} of {plural(n, 'round')} waited for other programs: {what}" if few or out > n / 10 else ""
    return [least] if few else kept, words
