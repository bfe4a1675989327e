"""Where a report appears: one output per cell, updated in place in a notebook, plain lines in a terminal."""

from __future__ import annotations

import shutil
import sys
from typing import Any

from ..compiler.base.quoting import html_text

__all__ = ["Place", "PROGRESS_MIME"]

PROGRESS_MIME = "application/vnd.tcompile.progress.v1+json"


class Place:
    """The output of one cell's report: first a line of progress, then the report, later the report with its timings."""

    def __init__(self, shell: Any, quiet: bool = False):
        self.notebook = hasattr(shell, "kernel")
        self.quiet = quiet
        self.handle: Any = None
        self._untimed: dict[str, Any] = {}  # the report as it is before its timings: saved with the line of progress
        self._line = 0  # width of the progress line on a terminal

    def say(self, text: str) -> None:
        """Show one line of progress in the place of the report."""
        if self.quiet:
            return
        if self.notebook:
            facts = {
                "text": text,
                "phase": "timing" if self._untimed else "running",
                "line": self._untimed.get("text/plain", "").split("\n")[0],
            }
            line = f'<div style="opacity:.75;font-variant-numeric:tabular-nums">… {html_text(text)}</div>'
            plain = {"text/plain": f"… {text}", "text/html": line + self._untimed.get("text/html", "")}
            self._put({PROGRESS_MIME: facts, **self._untimed, **plain})
        elif sys.stderr.isatty():
            text = f"… {text}"[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write("\r" + text.ljust(self._line))
            sys.stderr.flush()
            self._line = len(text)

    def show(self, report: Any) -> None:
        """Show the finished report."""
        self._untimed = {}
        if self.quiet:
            return
        from .render import bundle

        if self.notebook:
            self._put(bundle(report))
        else:
            self.clear()
            from IPython.display import display

            display({"text/plain": bundle(report, ("text/plain",))["text/plain"]}, raw=True)

    def show_untimed(self, report: Any) -> None:
        """Show what is known before the timings, beside the progress of these; a terminal waits for them."""
        if self.notebook and not self.quiet:
            from .render import bundle

            self._untimed = bundle(report)
            self.say("timing")

    def clear(self) -> None:
        """Take the progress line away from a terminal."""
        if self._line:
            sys.stderr.write("\r" + " " * self._line + "\r")
            sys.stderr.flush()
            self._line = 0

    def drop(self) -> None:
        """Nothing is to be shown after all."""
        self.clear()
        if self.handle is not None:
            self._put({"text/plain": ""})

    def _put(self, data: dict[str, Any]) -> None:
        from IPython.display import display

        if self.handle is None:
            self.handle = display(data, raw=True, display_id=True)
        else:
            self.handle.update(data, raw=True)
