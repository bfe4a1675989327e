"""Graphs whose kernels could not be compiled: torch's own kernels run them, and the toolchain is tried again later.

A compiler that was killed for memory, a full disk, a linker that an update is replacing: all that is over some time. So
a call now and then (RETRY seconds after the failure, then twice as long each time) tries to build again, and all of
them do at once when one has succeeded.
"""

from __future__ import annotations

import logging
import time
import weakref
from typing import Any, Callable

import torch

from .. import events
from ..errors import ToolchainError
from . import toolchain

__all__ = ["Waiting"]

RETRY, MOST = 10.0, 640.0  # seconds

_last_success = 0.0  # when a graph that waited was built
_said: set[str] = set()


class Waiting:
    """`call(*inputs) -> tuple` by `eager`, until `build` gives a graph; then by that."""

    def __init__(self, eager: Callable[..., tuple], build: Callable[[], Any], why: Exception):
        self.run, self._build = eager, build
        self._pause, self._tried, self._busy = RETRY, time.monotonic(), False
        self._graph: Callable[[], Any] = lambda: None
        self._holder: tuple[dict[str, Any], str] | None = None
        self.waits = True
        _say(why)

    def serves(self, graph: Any) -> None:
        """The CompiledGraph that this is the callable of."""
        self._graph = weakref.ref(graph)

    def held_by(self, names: dict[str, Any], name: str) -> None:
        """Where the caller finds this object: what was built stands there, once it was."""
        self._holder = names, name

    def __call__(self, *inputs: Any) -> tuple:
        # (other threads go on with torch's kernels while one tries)
        if (
            self.waits
            and not self._busy
            and (time.monotonic() - self._tried > self._pause or _last_success > self._tried)
        ):
            self._try()
        return self.run(*inputs)

    def _try(self) -> None:
        global _last_success
        from .. import stages
        from .dispatch import disabled

        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        self._busy = True
        try:
            toolchain.forget()
            with stages.compiling(), disabled():
                graph = self._build()
        except (ToolchainError, OSError):
            self._pause = min(2 * self._pause, MOST)
            return
        except Exception as e:  # a bug of ours: nothing of it is the program's
            self.waits = False
            events.emit("error", where="runtime", error=e)
            return
        finally:
            self._tried, self._busy = time.monotonic(), False
        self.waits, self.run, _last_success = False, graph.call, time.monotonic()
        _said.clear()
        known = self._graph()
        if known is not None:
            known.call, known.how, known.kernels = graph.call, graph.how, graph.kernels
        if self._holder is not None:
            names, name = self._holder
            if names.get(name) is self:
                names[name] = graph.call
                if hasattr(graph.call, "held_by"):
                    graph.call.held_by(names, name)


def _say(why: Exception) -> None:
    """To whoever listens, for each graph; where nobody does, by a warning, once for all graphs."""
    reason = f"{str(why).strip()}; torch's own kernels run, and compiled ones are tried again later"
    heard = events.heard()
    events.fallback("toolchain", reason)
    if not heard and "toolchain" not in _said:
        _said.add("toolchain")
        logging.getLogger("tcompile").warning("%s", reason)
