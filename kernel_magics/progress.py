"""The line that lives while a cell compiles: at most five updates a second, no sooner than there is something to wait
for.
"""

from __future__ import annotations

import time
from typing import Any, Callable

from ..compiler.base.figures import plural, seconds
from ..compiler.base.labels import frame_words, users_name

__all__ = ["Progress"]

_INTERVAL = 0.2  # seconds between updates
_PATIENCE = 0.12  # what compiles faster than this shows no line at all


class Progress:
    """A listener on events; `say(text)` shows a line."""

    def __init__(self, say: Callable[[str], None]):
        self.say = say
        self.started: float | None = None
        self.shown = 0.0  # time of the last update
        self.compiling = False  # the line shown says so
        self.frame, self.step = "", ""
        self.stages: list[str] = []
        self.kernels = self.entries = 0

    def __call__(self, e: Any) -> None:
        kind = e.kind
        if kind == "capture_begin":
            name = str(getattr(e.frame, "co_qualname", None) or getattr(e.frame, "co_name", None) or e.frame)
            self.frame = frame_words(users_name(e.facts.get("func"), name))
        elif kind == "kernel":
            self.kernels += 1
        elif kind == "progress":
            done, total = e.facts.get("done"), e.facts.get("total")
            self.step = str(e.text) + (f" {done}/{total}" if total else "")
        elif kind == "entry":
            self.entries += 1
        elif kind == "stage":
            if e.phase == "begin":
                self.stages.append(e.name)
                self.step = ""
            elif self.stages:
                self.stages.pop()
        else:
            return
        self._update()

    def _update(self) -> None:
        now = time.perf_counter()
        if self.started is None:
            self.started = now
        if not self.stages:
            if self.compiling:  # the cell goes on: the line must not say that it compiles
                self.compiling = False
                self.shown = now
                done, took = plural(self.entries, "entry", "entries"), seconds(now - self.started)
                self.say(f"running · {done} compiled so far, in {took}" if self.entries else "running")
            return
        if now - self.started < _PATIENCE and self.stages[-1] != "runtime" or now - self.shown < _INTERVAL:
            return
        self.shown, self.compiling = now, True
        parts = [f"compiling {self.frame}".rstrip(), self.step or self.stages[-1], seconds(now - self.started)]
        if self.kernels:
            parts.append(plural(self.kernels, "kernel"))
        self.say(" · ".join(parts))
