"""One rank: a process with an IPython shell that runs the cells which the notebook's process sends.

The main thread runs cells. A second one hears the notebook: it interrupts the cell, breaks the process group off, and
ends the process as soon as the notebook is gone.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

from ...compiler.base import forks
from .plan import ADDRESS, KEY
from .wire import Channel, connect

__all__ = ["main"]

_LOOK = 0.02  # seconds between two looks


def main() -> None:
    options = argparse.ArgumentParser(prog="tcompile.kernel_magics.ranks")
    options.add_argument("--device", choices=("cpu", "cuda"), default="", help="cuda where there is a GPU")
    asked = options.parse_args().device
    for name in (ADDRESS, KEY, "RANK", "WORLD_SIZE"):
        if name not in os.environ:
            sys.exit(f"tcompile: a rank is started by torchrun, with {ADDRESS} and {KEY} set; {name} is missing")
    channel = connect(os.environ[ADDRESS], os.environ.pop(KEY))
    channel.send(
        "hello",
        rank=int(os.environ["RANK"]),
        world=int(os.environ["WORLD_SIZE"]),
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    RankProcess(channel).serve(asked)


class RankProcess:
    """`serve` comes back never: the process ends with the connection."""

    def __init__(self, channel: Channel):
        self.channel = channel
        self.jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.cell = 0  # the number of the one that runs
        self.in_cell = False  # its own code runs
        self.interrupted = 0  # the cell that is to end
        self.caught = False  # it has reached the cell
        self.error: dict[str, Any] | None = None
        self.main_thread = threading.get_ident()
        self.group: Any = None

    def serve(self, asked: str) -> None:
        signal.signal(signal.SIGINT, self._on_interrupt)
        forks.start_thread(self._hear, "tcompile-notebook")
        try:
            self._prepare(asked)
        except BaseException:
            self.channel.send("failed", text=traceback.format_exc())
            raise
        self.channel.send("ready", device=self.device, backend="nccl" if "cuda" in self.device else "gloo")
        while True:
            self._run(self.jobs.get())

    def _prepare(self, asked: str) -> None:
        from .rank_recorder import BUFFER

        for name, value in BUFFER.items():
            os.environ.setdefault(name, value)
        import torch

        from .rank_group import RankGroup
        from .rank_output import RankOutput
        from .rank_recorder import RankRecorder

        local = int(os.environ["LOCAL_RANK"])
        kind = asked or ("cuda" if torch.cuda.is_available() else "cpu")
        self.device = f"cuda:{local}" if kind == "cuda" else "cpu"
        if kind == "cuda":
            torch.cuda.set_device(local)
        self.output = RankOutput(self.channel)
        group = RankGroup(kind)
        group.make(0)
        self.group, self.recorder = group, RankRecorder(kind)
        self.shell = self._make_shell()
        self.shell.user_ns.update(
            rank=group.rank, world_size=group.size, local_rank=local, device=torch.device(self.device)
        )

    def _make_shell(self) -> Any:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        from .. import magics
        from .rank_output import make_display_classes

        hook, publisher = make_display_classes(self.channel)
        config = Config()
        config.HistoryManager.enabled = False  # N ranks would write into one data base

        class RankShell(InteractiveShell):
            displayhook_class = hook
            display_pub_class = publisher

            async def run_code(shell, *args: Any, **rest: Any) -> Any:
                try:
                    self.in_cell = True
                    self._on_interrupt(signal.SIGINT, None)  # it may have been asked for before
                    return await super().run_code(*args, **rest)
                finally:
                    self.in_cell = False

            def showtraceback(shell, *args: Any, **rest: Any) -> None:
                self.in_cell = False  # it has ended by itself
                super().showtraceback(*args, **rest)

            def _showtraceback(shell: Any, etype: Any, evalue: Any, stb: list[str]) -> None:
                self._fail(etype.__name__, str(evalue), list(stb))

            def show_usage_error(shell: Any, exc: Any) -> None:
                self._fail(type(exc).__name__, str(exc), [f"UsageError: {exc}"])

        shell = RankShell.instance(config=config)
        sys.path.insert(0, "")  # as a notebook has it
        self.session = magics.load(shell).session
        self.session.on_rank = True
        return shell

    # -- what the notebook says
    def _hear(self) -> None:
        while (message := self.channel.receive()) is not None:
            kind = message["kind"]
            if kind == "run":
                self.jobs.put(message)
            elif kind == "interrupt":
                self.interrupted = message["cell"]
                forks.start_thread(self._tell_caught, "tcompile-interrupted")
                if self.in_cell:
                    signal.pthread_kill(self.main_thread, signal.SIGINT)  # wakes what sleeps, too
            elif kind == "break_off" and self.group is not None:
                self.group.break_off()
        os.kill(os.getpid(), signal.SIGKILL)  # whatever it does; the launcher ends the other ranks then

    def _on_interrupt(self, number: int, frame: Any) -> None:
        if self.in_cell and self.cell == self.interrupted and not self.caught:
            self.caught = True
            raise KeyboardInterrupt

    def _tell_caught(self) -> None:
        """Say when the interrupt has reached the cell: what follows is its report, which may take a while."""
        cell = self.interrupted
        while self.cell == cell and not self.caught:
            time.sleep(_LOOK)
        if self.caught:
            self.channel.send("caught", cell=cell)

    # -- a cell
    def _run(self, job: dict[str, Any]) -> None:
        self.error, self.caught, report, facts = None, False, None, None
        try:
            self.cell = job["cell"]
            if job["group"] != self.group.number:
                self.group.make(job["group"])
                self.recorder = type(self.recorder)(self.recorder.device)
            report, facts = self._cell(job)
        except KeyboardInterrupt:  # outside of the cell's own code
            self._fail("KeyboardInterrupt", "", ["KeyboardInterrupt"])
        except BaseException as e:
            self._fail(type(e).__name__, str(e), traceback.format_exc().splitlines())
        self.output.flush()
        self.channel.send(
            "done", cell=job["cell"], error=self.error, report=report, facts=facts, sequence=self.recorder.sequence()
        )

    def _fail(self, name: str, text: str, lines: list[str]) -> None:
        """The cell's first error is its error."""
        if self.error is None:
            self.error = {"name": name, "text": text, "lines": lines, "time": time.time_ns()}

    def _say(self, text: str) -> None:
        self.channel.send("progress", text=text)

    def _cell(self, job: dict[str, Any]) -> tuple[Any, Any]:
        from ...compiler import events
        from ..progress import Progress

        shell, session = self.shell, self.session
        session.always = session.options(job["always"]) if job["always"] is not None else None
        session.latest_run = None
        shell.execution_count, shell.colors = job["count"], job["colors"]
        self.recorder.begin()
        try:
            with events.listen(Progress(self._say)):
                result = shell.run_cell(job["text"], store_history=False)
        finally:
            facts = self.recorder.end()
        failed = result.error_before_exec or result.error_in_exec
        if failed is not None:
            self._fail(type(failed).__name__, str(failed), [repr(failed)])
        report = session.latest_run
        return (report.to_dict(job["limit"]) if report is not None else None), facts
