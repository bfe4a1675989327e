"""The ranks as processes: started by torch.distributed.run, found by their connection, ended together.

The launcher is torch's own, so that ranks have the variables, the store and the end that programs under torchrun have.
It gets a session of its own: a signal to the notebook's group, as Ctrl-C is, must not reach it. Ranks end when their
connection does, so nothing is left of them when the notebook's process ends, however it does.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from functools import partial
from typing import Any, Callable

from ...compiler.base import forks
from ...compiler.errors import TCompileError
from .plan import ADDRESS, KEY, RanksPlan
from .wire import Channel, accept, listen

__all__ = ["Launcher", "RanksError"]

_LAST_LINES = 40  # of what the launcher says
_GRACE = 3.0  # seconds that the launcher gets to end


class RanksError(TCompileError, RuntimeError):
    """The ranks could not be started, or were lost."""


class Launcher:
    """N ranks and the way to each. `inbox` gets (rank, message); a message of kind "gone" is a rank's last."""

    def __init__(self, plan: RanksPlan):
        self.plan = plan
        self.channels: dict[int, Channel] = {}
        self.pids: dict[int, int] = {}  # of ranks on this machine that are there
        self.facts: dict[int, dict[str, Any]] = {}  # what each said of itself
        self.inbox: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        self._process: subprocess.Popen | None = None

    def start(self, say: Callable[[str], None]) -> None:
        """Start the ranks and wait until all are there, with their group made. `say` tells how far it is."""
        folder = tempfile.mkdtemp(prefix="tcompile-ranks-")  # only its owner can enter it
        try:
            if self.plan.started_here:
                address, key = os.path.join(folder, "door"), secrets.token_hex(32)
                door = listen(address)
                self._process = self._launch(address, key)
            else:
                address, key = f"{self.plan.host}:{self.plan.port}", os.environ[KEY]
                door = listen(address)
                print(f"waiting at {address} for {self.plan.count} ranks. On each host:\n  {self.plan.command()}")
            with contextlib.closing(door):
                self._gather(door, key, say)
            self._until_ready(say)
        except BaseException:
            self.stop()
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _launch(self, address: str, key: str) -> subprocess.Popen:
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        paths = [os.path.dirname(package), *filter(None, [os.environ.get("PYTHONPATH")])]
        threads = max(1, (os.cpu_count() or 1) // self.plan.count)
        env = {
            "OMP_NUM_THREADS": str(threads),
            **os.environ,
            ADDRESS: address,
            KEY: key,
            "PYTHONPATH": os.pathsep.join(paths),
        }
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1"]
        command += [f"--nproc-per-node={self.plan.count}", "--max-restarts=0", "-m", __package__]
        process = subprocess.Popen(
            [*command, "--device", self.plan.device],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

        def read() -> None:
            assert process.stdout is not None
            with process.stdout as lines:
                self._said.extend(line.decode(errors="replace").rstrip() for line in lines)

        forks.start_thread(read, "tcompile-ranks-launcher")
        return process

    def _gather(self, door: Any, key: str, say: Callable[[str], None]) -> None:
        n, began = self.plan.count, time.monotonic()
        while len(self.channels) < n:
            say(f"starting ranks: {len(self.channels)} of {n} are there, {time.monotonic() - began:.0f} s")
            if not select.select([door], [], [], 0.25)[0]:
                self._still_there()
                continue
            channel = accept(door, key)
            hello = channel.receive() if channel is not None else None
            if channel is None or hello is None:
                continue
            rank = hello["rank"]
            if hello["world"] != n or rank in self.channels:
                channel.close()
                raise RanksError(f"ranks={n}, but torchrun started rank {rank} of {hello['world']}")
            self.channels[rank], self.facts[rank] = channel, hello
            if self.plan.started_here:
                self.pids[rank] = hello["pid"]
            forks.start_thread(partial(self._read, rank, channel), f"tcompile-rank-{rank}")

    def _read(self, rank: int, channel: Channel) -> None:
        while (message := channel.receive()) is not None:
            self.inbox.put((rank, message))
        self.pids.pop(rank, None)
        self.inbox.put((rank, {"kind": "gone"}))

    def _until_ready(self, say: Callable[[str], None]) -> None:
        ready = 0
        while ready < self.plan.count:
            say(f"starting ranks: the process group is made, {ready} of {self.plan.count} are ready")
            try:
                rank, message = self.inbox.get(timeout=0.25)
            except queue.Empty:
                self._still_there()
                continue
            if message["kind"] == "ready":
                ready += 1
                self.facts[rank].update(message)
            elif message["kind"] == "gone":
                raise RanksError(f"rank {rank} ended before it was ready{self.last_words()}")
            elif message["kind"] == "failed":
                raise RanksError(f"rank {rank} could not join the process group:\n{message['text']}")

    def _still_there(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            time.sleep(0.1)  # its last lines
            raise RanksError(f"torch.distributed.run ended with code {self._process.returncode}{self.last_words()}")

    def last_words(self) -> str:
        return "\n" + "\n".join(self._said) if self._said else ""

    def exit_code(self, rank: int) -> str:
        """How a rank ended, as the launcher saw it: `signal 9 (SIGKILL)`, `exit code 3`; empty: not known."""
        pid = self.facts[rank].get("pid")
        end = time.monotonic() + 1.0
        while self._process is not None and time.monotonic() < end:
            for line in self._said:
                found = re.search(r"exitcode\s*:\s*(-?\d+)", line)
                if found is not None and f"(pid: {pid})" in line:
                    code = int(found[1])
                    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
            if self._process.poll() is not None and not self._said:
                break
            time.sleep(0.05)
        return ""

    def stop(self) -> None:
        """End all ranks now, and the launcher after them."""
        for pid in list(self.pids.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for channel in self.channels.values():
            channel.close()
        self.channels.clear()
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
