"""The line between JupyterLab and a kernel: a comm through which the side panel and the report's controls ask and are
told.

The frontend opens target `tcompile` and sends `{"id": 7, "ask": "state", ...}`; the answer is `{"id": 7, "ok": {...}}`
or `{"id": 7, "error": "one sentence"}`. After every cell each open comm gets `{"event": "state", "state": {...}}`
unasked. All of it is plain data, and nothing here is needed to run or to show a cell: without a comm the report is
complete.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

from ..compiler import config
from ..compiler.frontend.inventory import compiled_functions
from ..compiler.base.figures import plural
from ..compiler.base.labels import cell_number, frame_words, label
from .options import catalogue
from .questions import QUESTIONS, AskError, checked, number_of
from .status import cache_facts, changed_options, clear_cache

__all__ = ["AskError", "Live", "TARGET"]

TARGET = "tcompile"


class Live:
    """The open comms of one session, and the answers."""

    def __init__(self, session: Any):
        self.session = session
        self.comms: dict[str, Any] = {}
        own: dict[str, Callable[[dict[str, Any]], Any]] = {
            "state": lambda message: self.state(),
            "catalogue": lambda message: catalogue(),
            "on": self._on,
            "off": self._off,
            "reset": self._reset,
            "clear_cache": self._clear_cache,
        }
        # all others are answered by controls.py, which is imported when the first is asked
        self.asks = {name: own.get(name) or self._about_a_report(name) for name in QUESTIONS}

    def install(self) -> None:
        manager = self._manager()
        if manager is not None:
            manager.register_target(TARGET, self._opened)

    def remove(self) -> None:
        manager = self._manager()
        if manager is not None and manager.targets.get(TARGET) == self._opened:
            manager.unregister_target(TARGET, self._opened)
        for comm in list(self.comms.values()):
            comm.close()
        self.comms.clear()

    def _manager(self) -> Any:
        return getattr(getattr(self.session.shell, "kernel", None), "comm_manager", None)

    def _opened(self, comm: Any, message: Any) -> None:
        self.comms[comm.comm_id] = comm
        comm.on_close(lambda _: self.comms.pop(comm.comm_id, None))
        comm.on_msg(lambda m: self._answer(comm, m["content"]["data"]))
        comm.send({"event": "state", "state": self.state()})

    def _answer(self, comm: Any, message: Any) -> None:
        number = number_of(message)
        say = lambda text: comm.send({"id": number, "progress": text})  # noqa: E731
        try:
            question = checked(message, self.asks)
        except AskError as e:
            comm.send({"id": number, "error": str(e)})
            return
        try:
            comm.send({"id": number, "ok": self.asks[question["ask"]]({**question, "say": say})})
        except KeyboardInterrupt:
            comm.send({"id": number, "error": "stopped"})
        except Exception as e:  # the asker is told; an error in a comm handler would vanish in the kernel's log
            comm.send({"id": number, "error": str(e) if isinstance(e, AskError) else f"{type(e).__name__}: {e}"})
        self.tell()

    def tell(self) -> None:
        """Send the state to everyone who listens."""
        if self.comms:
            state = self.state()
            for comm in list(self.comms.values()):
                comm.send({"event": "state", "state": state})

    # -- answers
    # -----------------------------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """What the side panel shows."""
        session = self.session
        always = session.always
        return {
            "on": (
                None
                if always is None
                else {k: str(v) for k, v in {"mode": always.options.mode, **always.given}.items()}
            ),
            "cells": session.cells,
            "changed": {k: str(v) for k, v in changed_options().items()},
            "modes": list(config.MODES),
            "functions": self._functions() if "torch" in sys.modules else [],
            "cache": cache_facts() if "torch" in sys.modules else None,
            "last": session.last.id if session.last is not None else "",
        }

    def _functions(self) -> list[dict[str, Any]]:
        """Newest first. Where a report knows a function, its times and counts are told with it."""
        session = self.session
        rows = []
        for f in compiled_functions():
            file = label(f.file)
            calls = max(0, f.calls - session.timing_calls(f.served))
            row: dict[str, Any] = {
                "name": frame_words(f.name),
                "file": file,
                "line": f.line,
                "cell": cell_number(file),
                "mode": f.mode,
                "backend": f.backend,
                "entries": f.entries,
                "calls": calls,
                "guards": f.guards,
                "status": f.status,
                "reason": f.reason,
                "report": "",
                "recompiles": max(0, f.entries - 1),
                "breaks": 0,
                "saved_seconds": None,
                "compile_seconds": None,
                "ratio": None,
                "lo": None,
                "hi": None,
            }
            known = session.known([meta for meta, _ in f.served])
            if known is not None:
                row.update(_from_report(known, f.name, f.line, calls))
            rows.append(row)
        return rows[::-1]

    def _on(self, message: dict[str, Any]) -> dict[str, Any]:
        self.session.always = self.session.options(message["line"])
        self.session.refused = False
        return self.state()

    def _off(self, message: dict[str, Any]) -> dict[str, Any]:
        self.session.always = None
        return self.state()

    def _reset(self, message: dict[str, Any]) -> dict[str, Any]:
        self.session.engine.reset()
        return self.state()

    def _clear_cache(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"text": "\n".join(clear_cache())}

    def _about_a_report(self, name: str) -> Callable[[dict[str, Any]], Any]:
        def ask(message: dict[str, Any]) -> Any:
            report = self.session.report_of(message.get("report"))
            if report is None:
                raise AskError("this report's calls are not in the kernel any more: run the cell again")
            from .controls import CONTROLS  # imports torch

            return CONTROLS[name](report, message)

        return ask


def _from_report(report: Any, name: str, line: int, calls: int) -> dict[str, Any]:
    frames = {i for i, f in enumerate(report.frames) if name in (f.name, f.code_name) and f.line == line}
    found: dict[str, Any] = {
        "report": report.id,
        "breaks": sum(1 for b in report.graph_breaks if b.frame in frames),
        "compile_seconds": sum(f.seconds for i, f in enumerate(report.frames) if i in frames) or None,
    }
    called = list(dict.fromkeys(frame_words(report.frames[i].name) for i in sorted(frames)))
    if called:  # a decorator's wrapper is one function for all that it wraps
        found["name"] = called[0] + (f" and {plural(len(called) - 1, 'other')}" if len(called) > 1 else "")
    whole = [c for c in report.speedups.calls if c.measured in ("call", "cell")]
    call = next((c for c in whole if c.name in called), None)
    x = next((x for x in call.speedups if (x.engine, x.over) == ("tcompile", "eager")), None) if call else None
    if call is not None and x is not None:
        found["lo"], found["hi"] = x.lo, x.hi
        median = {e.engine: e.median for e in call.engines}
        eager, ours = median.get("eager"), median.get("tcompile")
        if eager and ours:
            found["ratio"] = eager / ours
            found["saved_seconds"] = (eager - ours) * calls
    return found
