"""The processes that compile kernels (worker.py): those that wait for the next one, and where a new one comes from.

It imports nothing of the compiler, so that the first process starts while the compiler is imported (extension/__init__.py).
"""
from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

from ...errors import ToolchainError

__all__ = ["Worker", "take", "give", "prestart", "processes", "stop_workers", "triton_version"]

KEPT_IDLE = 4                  # workers that stay for later kernels


@functools.cache
def triton_version() -> str | None:
    """The installed triton, without importing it; None where there is none."""
    if importlib.util.find_spec("triton") is None:
        return None
    for name in ("triton", "pytorch-triton", "triton-nightly"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def processes(opts: Any) -> int:
    """How many compile at once."""
    return int(opts.get("compile_workers")) or max(1, min(16, os.cpu_count() or 1))


class Worker:
    def __init__(self) -> None:
        script = Path(__file__).with_name("worker.py")
        try:
            self.process = subprocess.Popen([sys.executable, "-s", "-P", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE, text=True, start_new_session=True)
        except OSError as e:
            raise ToolchainError(f"the process that compiles GPU kernels can't be started: {e}") from e
        self.errors: list[str] = []
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        for line in self.process.stderr or ():
            self.errors.append(line)
            del self.errors[:-50]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self.process.stdin.write(json.dumps(request) + "\n")        # type: ignore[union-attr]
            self.process.stdin.flush()                                  # type: ignore[union-attr]
            answer = self.process.stdout.readline()                     # type: ignore[union-attr]
        except (BrokenPipeError, ValueError, OSError):
            answer = ""
        if not answer:
            self.process.wait(5)
            raise ToolchainError(f"the process that compiles Triton code ended with {self.process.returncode}: {''.join(self.errors)[-3000:]}")
        return json.loads(answer)

    def stop(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass                                    # it has ended already
        self.process.wait()


_lock = threading.RLock()
_idle: list[Worker] = []
_owner = os.getpid()


def take() -> Worker:
    """One that waits, or a new one."""
    with _lock:
        _only_own()
        while _idle:
            w = _idle.pop()
            if w.process.poll() is None:
                return w
    return Worker()


def give(w: Worker) -> None:
    """Back, after its last answer was read."""
    with _lock:
        if w.process.poll() is None and len(_idle) < KEPT_IDLE:
            _idle.append(w)
            return
    w.stop()


def _only_own() -> None:
    """After a fork the workers belong to the parent."""
    global _owner
    if _owner != os.getpid():
        _idle.clear()
        _owner = os.getpid()


def prestart(n: int) -> None:
    """Have `n` workers, KEPT_IDLE at most, import triton meanwhile."""
    if triton_version() is None:
        return
    with _lock:
        _only_own()
        with contextlib.suppress(ToolchainError):        # (said when one is needed)
            for _ in range(min(n, KEPT_IDLE) - len(_idle)):
                _idle.append(Worker())


def stop_workers() -> None:
    with _lock:
        _only_own()
        while _idle:
            _idle.pop().stop()


atexit.register(stop_workers)
