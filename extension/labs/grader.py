"""Grading one submission, in processes of its own: `grade(path)`, and `python -m tcompile.labs.grader JOB`.

The submission runs in a child (runner.py) with a temporary home. This process watches the child and all that it starts:
processor time and time in all for each test, memory, the number of processes, what they write. It ends whatever passes
a limit, counts that test as failed, and goes on with the next in a new child. What it does not do: the child has the
user's rights, so that it can read the user's files, reach the network, and read the hidden tests that run in it.
"""

from __future__ import annotations

import ast
import ctypes
import json
import os
import select
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .library import BuiltLab, Missing, find
from .reading import NotALab, read_notebook
from .words import say, speak

__all__ = ["Limits", "TestResult", "Result", "grade"]

_POLL = 0.1
_SPARE = 120.0  # seconds that the watching process has beyond a submission's
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Limits:
    """What one submission may use."""

    memory_mb: int = 2048  # beyond what torch itself takes
    processes: int = 48
    file_mb: int = 64  # of one file
    disk_mb: int = 512  # of all files in the temporary home
    seconds: float = 600.0  # of time in all
    restarts: int = 24


@dataclass
class TestResult:
    test: str
    exercise: str
    hidden: bool
    points: float
    of: float
    message: str = ""  # empty where it passed


@dataclass
class Result:
    file: str
    lab: int = 0
    status: str = "graded"  # or "unreadable"
    message: str = ""
    tests: list[TestResult] = field(default_factory=list)
    score: dict[str, float] = field(default_factory=dict)
    score_message: str = ""

    @property
    def points(self) -> float:
        return sum(t.points for t in self.tests)

    @property
    def of(self) -> float:
        return sum(t.of for t in self.tests)

    def exercise(self, name: str) -> tuple[float, float]:
        mine = [t for t in self.tests if t.exercise == name]
        return sum(t.points for t in mine), sum(t.of for t in mine)

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Result":
        data = json.loads(text)
        return cls(**{**data, "tests": [TestResult(**t) for t in data["tests"]]})


def table_of(path: Path) -> list[tuple[str, str, float, float]]:
    """The table TESTS of a module of tests, read without running it."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "TESTS":
            return ast.literal_eval(node.value)
    raise ValueError(f"{path} has no table TESTS")


def grade(path: Path, hidden: bool = True, only: str = "", limits: Limits = Limits(), language: str = "") -> Result:
    """Grade a notebook: in a process that watches, and one that runs it. A submission that stops or ends the first ends
    the second with it, and gets no points."""
    with tempfile.TemporaryDirectory(prefix="tcompile-lab-") as folder:
        job = Path(folder) / "job.json"
        facts = {"path": str(path.resolve()), "hidden": hidden, "only": only, "language": language, "folder": folder}
        job.write_text(json.dumps({**facts, "limits": asdict(limits)}))
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "tcompile.labs.grader", str(job)],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                timeout=limits.seconds + _SPARE,
            )
        except subprocess.TimeoutExpired:
            return Result(path.name, status="error", message=say("waited", seconds=limits.seconds + _SPARE))
    if done.returncode:
        message = done.stderr[-2000:] or say("crashed", reason=_reason(done.returncode))
        return Result(path.name, status="error", message=message)
    return Result.from_json(done.stdout.splitlines()[-1])


def _reason(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _main(job_path: str) -> int:
    job = json.loads(Path(job_path).read_text())
    limits = Limits(**job["limits"])
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what is orphaned stays below this process
    path = Path(job["path"])
    result = Result(path.name)
    speak(job["language"])
    try:
        _, result.lab, language = read_notebook(path)
        speak(job["language"] or language)
        _Watch(job, find(result.lab), limits, result).run()
    except (Missing, NotALab) as e:
        result.status, result.message = "unreadable", str(e)
    print(result.to_json())
    return 0


@dataclass
class _Process:
    pid: int
    parent: int
    session: int
    seconds: float
    resident: int


def _everything() -> dict[int, _Process]:
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as f:
                parts = f.read().rpartition(b")")[2].split()
        except (OSError, ValueError):
            continue  # it ended meanwhile
        if parts[0] != b"Z":
            seconds = (int(parts[11]) + int(parts[12]) + int(parts[13]) + int(parts[14])) / _TICKS
            found[int(name)] = _Process(int(name), int(parts[1]), int(parts[3]), seconds, int(parts[21]) * _PAGE)
    return found


def _share_of(pid: int) -> int:
    """A process's memory, with what it shares with others divided among them (slow: forked children share most)."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0  # it ended meanwhile


def _below(root: int) -> list[_Process]:
    """The processes that descend from `root`, without it."""
    everything = _everything()
    children: dict[int, list[_Process]] = {}
    for p in everything.values():
        children.setdefault(p.parent, []).append(p)
    found, todo = [], [root]
    while todo:
        for p in children.get(todo.pop(), ()):
            found.append(p)
            todo.append(p.pid)
    return found


def _end_all(child: int) -> None:
    """End every process below this one. Stopped first, so that none starts another meanwhile."""
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it is gone already
    until = time.monotonic() + 10
    while time.monotonic() < until:
        left = _below(os.getpid())
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for p in left:
                try:
                    os.kill(p.pid, number)
                except ProcessLookupError:
                    continue
        _reap()
        if not left:
            return
        time.sleep(0.01)


def _reap() -> None:
    """Take the exit states of orphans, so that they do not stay as zombies."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def _size_of(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except OSError:
                continue  # removed meanwhile
    return total


class _Watch:
    """One submission: children that run its tests, until each test has its outcome."""

    def __init__(self, job: dict[str, Any], lab: BuiltLab, limits: Limits, result: Result):
        self.job, self.lab, self.limits, self.result = job, lab, limits, result
        self.folder = Path(job["folder"])
        self.messages: dict[str, str] = {}  # test -> what failed; empty where it passed
        self.ended_tests: dict[str, list[str]] = {}  # exercise -> messages of its tests that had to be ended
        self.skip_cells: dict[str, str] = {}
        self.output = Path()
        self.began = time.monotonic()
        self.tables = [(False, table_of(lab.folder / "public_tests.py"))]
        if job["hidden"] and lab.instructor is not None:
            self.tables.append((True, table_of(lab.instructor / "hidden_tests.py")))

    def run(self) -> None:
        for _ in range(self.limits.restarts + 1):
            if self._run_child():
                break
            if time.monotonic() - self.began > self.limits.seconds:
                break
        for hidden, table in self.tables:
            for test, exercise, points, seconds in table:
                if self.job["only"] and exercise != self.job["only"]:
                    continue
                message = self.messages.get(f"{'hidden' if hidden else 'public'}:{test}")
                if message is None:
                    message = self.result.message or say("waited", seconds=self.limits.seconds)
                self.result.tests.append(
                    TestResult(test, exercise, hidden, 0.0 if message else points, points, message)
                )

        challenges = [e["name"] for e in self.lab.facts["exercises"] if e["challenge"]]
        if any(t.message for t in self.result.tests if t.exercise in challenges and not t.hidden):
            self.result.score = {}  # figures of a wrong answer are none

    def _run_child(self) -> bool:
        """Start a child on what is left; True where it came to its end."""
        home = Path(tempfile.mkdtemp(prefix="tcompile-lab-home-", dir=self.folder))
        listen, channel = os.pipe()
        (home / "tmp").mkdir()
        limits = self.limits
        facts = {
            "notebook": self.job["path"],
            "channel": channel,
            "hidden": len(self.tables) > 1,
            "only": self.job["only"],
            "messages": self.messages,
            "ended": self.ended_tests,
            "skip_cells": list(self.skip_cells),
            "broken": self.skip_cells,
            "memory_mb": limits.memory_mb,
            "file_mb": limits.file_mb,
        }
        (home / "job.json").write_text(json.dumps(facts))
        self.output = home / "output.txt"
        output = open(self.output, "wb")
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "tcompile.labs.runner", str(home / "job.json")],
            cwd=home,
            env=_environment(home),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(channel,),
            start_new_session=True,
        )
        os.close(channel)
        try:
            return self._listen(child, listen, home)
        finally:
            _end_all(child.pid)
            child.wait()
            os.close(listen)
            output.close()
            shutil.rmtree(home, ignore_errors=True)

    def _listen(self, child: subprocess.Popen, listen: int, home: Path) -> bool:
        pending, current, allowed = b"", "", 120.0  # until the first word: the time that importing torch may take
        since, used, looked_at_disk = time.monotonic(), 0.0, time.monotonic()
        while True:
            ready, _, _ = select.select([listen], [], [], _POLL)
            data = os.read(listen, 65536) if ready else b""
            if ready and not data:  # it ended, or it closed what it speaks by
                try:
                    child.wait(_POLL * 100)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
                return self._died(child, current)
            pending += data
            *lines, pending = pending.split(b"\n")
            for line in lines:
                word = _word(line)
                if word["what"] in ("begin", "cell"):
                    current = f"cell:{word['name']}" if word["what"] == "cell" else word["test"]
                    allowed, since = word["seconds"], time.monotonic()
                    used = sum(p.seconds for p in _below(os.getpid()))
                elif word["what"] == "end":
                    self._ended(word)
                    current, allowed = "", 60.0
                    since, used = time.monotonic(), sum(p.seconds for p in _below(os.getpid()))
                elif word["what"] == "finished":
                    return True
            if child.poll() is not None:
                if not ready:  # else what it said last may still be in the pipe
                    return self._died(child, current)
                continue
            tree = _below(os.getpid())
            why = self._passed_a_limit(tree, allowed, used, since)
            if not why and time.monotonic() - looked_at_disk > 1:
                looked_at_disk = time.monotonic()
                if _size_of(home) > self.limits.disk_mb << 20:
                    why = say("disk", limit=self.limits.disk_mb)
            if why:
                return self._failed(current, why)

    def _passed_a_limit(self, tree: list[_Process], allowed: float, used: float, since: float) -> str:
        """Why the child is to be ended now; the child itself should have stopped before, by its own limits."""
        if len(tree) > self.limits.processes:
            return say("processes", limit=self.limits.processes)
        most = (self.limits.memory_mb + 1024) << 20
        if sum(p.resident for p in tree) > most and sum(_share_of(p.pid) for p in tree) > most:
            return say("memory", limit=self.limits.memory_mb)
        if sum(p.seconds for p in tree) - used > 1.5 * allowed + 5:
            return say("time", seconds=allowed)
        if time.monotonic() - since > 7 * allowed + 10:
            return say("waited", seconds=6 * allowed)
        if time.monotonic() - self.began > self.limits.seconds:
            return say("waited", seconds=self.limits.seconds)
        return ""

    def _ended(self, word: dict) -> None:
        self.messages[word["test"]] = word["message"]
        if word.get("ended"):
            self._count(word["test"], word["message"])
        if word["test"] == "score":
            self.result.score, self.result.score_message = word.get("figures", {}), word["message"]

    def _died(self, child: subprocess.Popen, current: str) -> bool:
        reason = _reason(child.returncode)
        if not current:  # no code of the student's ran: what the process said is of use to whoever runs the grader
            reason += "\n" + _tail(self.output)
        return self._failed(current, say("crashed", reason=reason))

    def _count(self, key: str, why: str) -> None:
        """A test had to be ended: after some of an exercise the runner leaves out its others."""
        for hidden, table in self.tables:
            for test, exercise, _, _ in table:
                if key == f"{'hidden' if hidden else 'public'}:{test}":
                    self.ended_tests.setdefault(exercise, []).append(why)

    def _failed(self, current: str, why: str) -> bool:
        """Note what failed; True where there is nothing to go on with."""
        if current.startswith("cell:"):
            self.skip_cells[current[5:]] = why
            return False
        if current:
            self.messages[current] = why
            self._count(current, why)
            if current == "score":
                self.result.score_message = why
            return False
        self.result.message = why  # between two tests, or before the first: it will not be better the next time
        return True


def _tail(path: Path) -> str:
    """The end of what a process printed."""
    with open(path, "rb") as f:
        f.seek(max(0, path.stat().st_size - 1500))
        return f.read().decode(errors="replace").strip()


def _word(line: bytes) -> dict:
    """A line from the runner; what a submission writes there by itself means nothing."""
    try:
        word = json.loads(line)
    except ValueError:
        return {"what": ""}
    return word if isinstance(word, dict) and "what" in word else {"what": ""}


def _environment(home: Path) -> dict[str, str]:
    """Little of this process's environment: what Python and the C++ compiler need, and a home that goes away."""
    kept = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CXX", "CC")
    return {
        **{k: os.environ[k] for k in kept if k in os.environ},
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "TCOMPILE_CACHE_DIR": str(home / "cache"),
        "PYTHONHASHSEED": "0",
        "PYTHONUSERBASE": site.getuserbase(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "IPYTHONDIR": str(home / "ipython"),
        "MPLBACKEND": "Agg",
    }


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
