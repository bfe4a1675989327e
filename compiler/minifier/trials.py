"""Trying candidates: in this process, or in another one that may crash or hang."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from typing import Any, Callable

from .trial_worker import tried

__all__ = ["Verdict", "Trials"]

Verdict = tuple[str, str]  # kind and words; beside those of `tried`: "crash" and "timeout"
_WORKER = "from tcompile.compiler.minifier.trial_worker import serve; serve()"


class Trials:
    """Tries texts and remembers what became of each. `apart`: in a process of its own, for `limit` seconds each at
    most."""

    def __init__(self, check: str, limit: float, apart: bool, predicate: Callable[..., Any] | None = None):
        self.check, self.limit, self.apart, self.predicate = check, limit, apart, predicate
        self.count = 0
        self._known: dict[str, Verdict] = {}
        self._worker: subprocess.Popen[str] | None = None

    def use(self, apart: bool) -> None:
        """Try in another process, or in this one; what was found elsewhere is forgotten."""
        if apart != self.apart:
            self.close()
            self._known.clear()
            self.apart = apart

    def __call__(self, text: str) -> Verdict:
        if text not in self._known:
            self.count += 1
            if self.predicate is not None:
                self._known[text] = self._ask_predicate(text)
            else:
                self._known[text] = self._ask_worker(text) if self.apart else tried(text, self.check)
        return self._known[text]

    def _ask_predicate(self, text: str) -> Verdict:
        """ "fails" where the predicate is true of program and arguments."""
        space: dict[str, Any] = {"__name__": "reproducer"}
        assert self.predicate is not None
        try:
            exec(compile(text, "<reproducer>", "exec"), space)
            space["program"](*space["inputs"]())
        except Exception as e:
            return "invalid", f"{type(e).__name__}: {e}"
        fails = self.predicate(space["program"], space["inputs"]())
        return ("fails", "the predicate holds") if fails else ("same", "")

    def _ask_worker(self, text: str) -> Verdict:
        if self._worker is None:
            self._worker = subprocess.Popen(
                [sys.executable, "-c", _WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        worker = self._worker
        assert worker.stdin is not None and worker.stdout is not None
        try:
            worker.stdin.write(json.dumps({"text": text, "check": self.check}) + "\n")
            worker.stdin.flush()
        except BrokenPipeError:
            return self._ended()
        end = time.monotonic() + self.limit
        ready, _, _ = select.select([worker.stdout], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            self.close()
            return "timeout", f"it did not end within {self.limit:g} s"
        answer = worker.stdout.readline()
        if not answer:
            return self._ended()
        kind, words = json.loads(answer)
        return kind, words

    def _ended(self) -> Verdict:
        """The worker is gone: what ended it."""
        assert self._worker is not None
        status = self._worker.wait()
        self.close()
        if status < 0:
            return "crash", f"the process ended by {signal.Signals(-status).name}"
        return "crash", f"the process ended with status {status}"

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    pipe.close()
