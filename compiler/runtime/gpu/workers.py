"""The processes that compile kernels (worker.py): those that wait for the next one, and where a new one comes from.

It imports nothing of the compiler but its errors and forks, so that the first process starts while the compiler is
imported (extension/__init__.py).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import select
import sys
import time
import weakref
from importlib import metadata
from pathlib import Path
from typing import Any

from ...base import forks
from ...errors import ToolchainError

__all__ = ["Worker", "take", "give", "prestart", "processes", "stop_workers", "toolchain", "triton_version"]

KEPT_IDLE = 4  # workers that stay for later kernels
PATIENCE = 30.0  # seconds that each further one waits for a job before it ends by itself
MOST_SECONDS = 900.0  # that one kernel may take: a worker that says nothing for longer hangs


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


@functools.cache
def toolchain() -> str:
    """What makes a binary of a source, as a part of its key: triton, and the text of our program that calls it.

    A binary's file holds what that program made of it, too, such as the lines of its assembly. The version of tcompile
    stays the same while the compiler is worked on.
    """
    text = hashlib.sha256()
    for name in ("worker.py", "nvrtc.py"):
        text.update(Path(__file__).with_name(name).read_bytes())
    return f"triton {triton_version()} worker {text.hexdigest()[:12]}"


def processes(opts: Any) -> int:
    """How many compile at once."""
    return int(opts.get("compile_workers")) or max(1, min(16, os.cpu_count() or 1))


class Worker:
    def __init__(self) -> None:
        script = Path(__file__).with_name("worker.py")
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-P", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as e:
            raise ToolchainError(f"the process that compiles GPU kernels can't be started: {e}") from e
        self.errors: list[str] = []
        assert self.process.stdin is not None and self.process.stdout is not None and self.process.stderr is not None
        # Nothing is buffered on the way out: a child that is forked meanwhile would send it again.
        self.requests, self.answers, self.words = (
            self.process.stdin,
            io.BufferedReader(self.process.stdout),
            io.BufferedReader(self.process.stderr),
        )  # type: ignore[type-var]
        _all.add(self)
        self.until = float("inf")  # when it ends by itself, at the earliest
        self.heard = forks.signal()  # its last words are in `errors`
        self.died: int | None = None  # how it ended by itself in the middle of a job
        forks.start_thread(self._drain, "tcompile worker")

    def _drain(self) -> None:
        for line in self.words:
            self.errors.append(line.decode(errors="replace"))
            del self.errors[:-50]
        self.heard.set()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one job. Raises ToolchainError where the process ended, says nothing for MOST_SECONDS or gives
        no answer.
        """
        text, what = memoryview(json.dumps(request).encode() + b"\n"), "ended"
        try:
            while text and select.select([], [self.requests], [], MOST_SECONDS)[1]:
                text = text[self.requests.write(text[: select.PIPE_BUF]) or 0 :]  # (so much surely fits)
            if text or not select.select([self.answers], [], [], MOST_SECONDS)[0]:
                what = f"said nothing for {MOST_SECONDS:.0f} s and ended"
                raise TimeoutError
            return json.loads(self.answers.readline())
        except (ValueError, OSError) as e:
            if not isinstance(e, TimeoutError):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.died = self.process.wait(1.0)
            self.stop()
            self.heard.wait(1.0)
            raise ToolchainError(
                f"the process that compiles GPU kernels {what} with {self.process.returncode}:"
                f" {''.join(self.errors)[-3000:]}"
            ) from None

    def end_if_idle(self, seconds: float | None) -> None:
        """Have it end by itself where no job comes for so long; None: never. Raises OSError where it has ended."""
        self.requests.write(json.dumps({"patience": seconds}).encode() + b"\n")
        self.until = float("inf") if seconds is None else time.monotonic() + seconds

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # it has ended already

    def stop(self) -> None:
        self.kill()
        self.process.wait()


_lock = forks.lock()
_idle: list[Worker] = []
_all: weakref.WeakSet[Worker] = weakref.WeakSet()


def take() -> Worker:
    """One that waits, or a new one."""
    with _lock:
        while _idle:
            worker = _idle.pop()
            if worker.process.poll() is None and time.monotonic() < worker.until - PATIENCE / 2:
                with contextlib.suppress(OSError):
                    if worker.until < float("inf"):
                        worker.end_if_idle(None)
                    return worker
    return Worker()


def give(worker: Worker) -> None:
    """Back, after its last answer was read. (To wait for the end of a process takes a second on some machines: those
    that are too many end later, by themselves.)
    """
    with _lock:
        _idle[:] = [x for x in _idle if x.process.poll() is None]
        if worker.process.poll() is not None:
            return
        lasting = sum(x.until == float("inf") for x in _idle)
        if lasting < KEPT_IDLE:
            _idle.insert(0, worker)
            return
        with contextlib.suppress(OSError):  # (it ends at this moment)
            worker.end_if_idle(PATIENCE)
            _idle.append(worker)


@forks.in_child
def _forget() -> None:
    """The workers belong to the parent."""
    for worker in _all:
        worker.process.returncode = 0  # (nobody here waits for it)
        for pipe in (worker.process.stdin, worker.process.stdout, worker.process.stderr):
            if pipe is not None:
                pipe.close()
    _all.clear()
    _idle.clear()


def prestart(n: int) -> None:
    """Have `n` workers import triton meanwhile. Those beyond KEPT_IDLE end where no job comes for a while."""
    if triton_version() is None:
        return
    with _lock:
        with contextlib.suppress(ToolchainError, OSError):  # (said when one is needed)
            for k in range(len(_idle), n):
                worker = Worker()
                if k >= KEPT_IDLE:
                    worker.end_if_idle(2 * PATIENCE)
                _idle.append(worker)


def stop_workers() -> None:
    with _lock:
        for worker in _idle:
            worker.kill()
        _idle.clear()


@atexit.register
def _end() -> None:
    """Those at work, too: what they make is for nobody."""
    for worker in list(_all):
        worker.kill()
