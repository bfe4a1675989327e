"""Output of several ranks in one place: each line with its rank before it, in the order in which lines are complete."""

from __future__ import annotations

import sys
import time
from typing import Any

__all__ = ["Labelled"]

_OLD = 0.5  # seconds after which half a line is shown


class Labelled:
    """Prints and displays what comes from ranks."""

    def __init__(self, count: int):
        self._width = len(str(count - 1))
        self._parts: dict[tuple[int, str], tuple[str, float]] = {}  # half lines, and when they came

    def label(self, rank: int) -> str:
        return f"[rank {rank:>{self._width}}] "

    def text(self, rank: int, stream: str, text: str) -> None:
        """Whole lines are shown, the rest waits for its end."""
        before, since = self._parts.pop((rank, stream), ("", time.monotonic()))
        *lines, rest = (before + text).split("\n")
        self._write(rank, stream, lines)
        if rest:
            self._parts[rank, stream] = rest.rpartition("\r")[2] or rest, since if not lines else time.monotonic()

    def flush_old(self) -> None:
        """Show half lines that have waited, but for those that a carriage return began to write again."""
        now = time.monotonic()
        for (rank, stream), (text, since) in list(self._parts.items()):
            if now - since > _OLD and "\r" not in text:
                del self._parts[rank, stream]
                self._write(rank, stream, [text])

    def flush(self, of: int | None = None) -> None:
        """Show half lines, of one rank where it is named: another one's line goes on."""
        for (rank, stream), (text, _) in list(self._parts.items()):
            if of is None or of == rank:
                del self._parts[rank, stream]
                self._write(rank, stream, [text])

    def display(self, rank: int, data: dict[str, Any], metadata: dict[str, Any], value: bool) -> None:
        """A value or a display of a rank: text as lines, anything else below a line that says whose it is."""
        self.flush(rank)
        if set(data) == {"text/plain"}:
            self._write(rank, "stdout", ("Out: " * value + data["text/plain"]).split("\n"))
            return
        from IPython.display import publish_display_data

        self._write(rank, "stdout", [f"{'value' if value else 'display'}:"])
        sys.stdout.flush()
        publish_display_data(data, metadata)

    def _write(self, rank: int, stream: str, lines: list[str]) -> None:
        if not lines:
            return
        head = self.label(rank)
        file = sys.stderr if stream == "stderr" else sys.stdout
        file.write("".join(f"{head}{line.rpartition(chr(13))[2]}\n" for line in lines))
        file.flush()
