"""The C++ compiler: finding it, what it can do, and running it in processes that can be stopped.

`find()` looks for the compiler named by the option `cxx`, then $CXX, g++, clang++. What a compiler is (its version
text) is asked once per executable and kept on disk beside the kernels. `compile_units` builds shared libraries, several
at once, each in a process group of its own, so that Ctrl-C stops all of them and leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

from .. import events
from ..base import forks
from ..codegen.cpp.support import Target
from ..errors import NoToolchainError, ToolchainError

__all__ = ["Toolchain", "Unit", "find", "compile_units"]

# -ffast-math is never used: linking with it makes the library set flush-to-zero for the whole process, and breaks NaN
# tests. What is left out of it: errno of math functions and traps, which eager does not offer either. Integers wrap as
# eager's.
FLAGS = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-plt",
    "-fno-asynchronous-unwind-tables",
    "-w",
)
# For kernels of thousands of statements: -O3 costs seconds and gains nothing, and substitution of expressions (ter)
# would undo their interleaving.
LONG_FLAGS = ("-O1", "-fno-tree-ter")
KERNEL_ROOM = 1 << 20  # bytes that a kernel surely fits in, with what the compiler writes on the way
STARTS = 30.0  # seconds that an interrupt waits for a compiler that is being started, to end it
MOST_SECONDS = 600.0  # that one kernel may take: a compiler that runs for longer hangs
LONG_TEXT = 60_000  # characters
# For products, whose loops are written out as vectors: -O3 takes a third longer, and these passes of -O2 another
# quarter. None of them gains anything.
PRODUCT_FLAGS = ("-O2", "-fno-tree-pre", "-fno-tree-vrp", "-fno-tree-vectorize")
PRODUCT_MARK = "tc::multiply<"  # (codegen/cpp/product.py)


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler. `version` is its own first line; it is part of every cache key."""

    command: tuple[str, ...]
    version: str

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version

    def flags(self, target: Target, text: str = "") -> tuple[str, ...]:
        """What follows the compiler's name for one source file of this text: the words that $CXX has beside the name
        (`g++ -ffast-math`), then our flags. Part of every cache key.
        """
        machine: tuple[str, ...] = ()
        if target.width == 64:
            machine = ("-march=native", "-mprefer-vector-width=512")
        elif target.width == 32:
            machine = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
        own = LONG_FLAGS if len(text) > LONG_TEXT else PRODUCT_FLAGS if PRODUCT_MARK in text else ()
        return (*self.command[1:], *FLAGS, *own, *machine, *(("-Wno-psabi",) if not self.is_clang else ()))

    def link_flags(self) -> tuple[str, ...]:
        """A kernel needs no start files and of the C++ library nothing: without them linking takes a third of the
        time.
        """
        return () if self.is_clang else ("-pipe", "-nostartfiles", "-nodefaultlibs")

    def libraries(self) -> tuple[str, ...]:
        return ("-lm",) if self.is_clang else ("-lm", "-lc", "-lgcc")


@dataclass
class Unit:
    """One source file to become one shared library, which holds the kernels of these names."""

    names: tuple[str, ...]
    source: Path
    output: Path
    flags: tuple[str, ...]

    @property
    def title(self) -> str:
        return ", ".join(self.names)


_found: dict[str, Toolchain] = {}


def find(opts: Any, memory: Any = None) -> Toolchain:
    """The compiler to use. `memory`: a KernelCache that remembers versions. Raises ToolchainError with what to do."""
    asked = opts.get("cxx") or ""
    env = os.environ.get("CXX", "")
    key = f"{asked}|{env}|{os.environ.get('PATH', '')}"
    if key in _found:
        return _found[key]
    tried = []
    for words in [_words(asked)] if asked else [*([_words(env)] if env else []), ["g++"], ["clang++"], ["c++"]]:
        path = shutil.which(words[0]) if words else None
        tried.append(words[0] if words else "")
        if path is None:
            continue
        command = (path, *words[1:])
        tool = Toolchain(command, _version(command, memory))
        _found[key] = tool
        return tool
    what = (
        f"the option cxx={asked!r} names no program"
        if asked
        else f"none of {', '.join(filter(None, tried))} is on PATH"
    )
    raise NoToolchainError(
        f"no C++ compiler: {what}. Install one (Debian/Ubuntu: apt install g++) or set CXX to its path; "
        "until then compiled functions run torch's own kernels."
    )


def _words(command: str) -> list[str]:
    """The program and its options. A path that has spaces or quotes and is a program is one."""
    if shutil.which(command):
        return [command]
    try:
        return shlex.split(command)
    except ValueError as e:
        raise ToolchainError(f"the C++ compiler is given as {command!r}, which is not a command: {e}") from None


def forget() -> None:
    """Look for compilers anew: one failed, and may be another by now."""
    _found.clear()


def _version(command: tuple[str, ...], memory: Any) -> str:
    try:
        stat = os.stat(command[0])
    except OSError as e:
        raise ToolchainError(f"the C++ compiler {command[0]} does not run: {e}") from None
    key = hashlib.sha256(f"{command}{stat.st_size}{stat.st_mtime_ns}".encode()).hexdigest()[:24]
    known = memory.get_note("compiler-" + key) if memory is not None else None
    if known:
        return known
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", timeout=30)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ToolchainError(f"the C++ compiler {command[0]} does not run: {e}") from None
    if done.returncode:
        raise ToolchainError(
            f"the C++ compiler {command[0]} does not run: {(done.stderr or done.stdout).strip()[:500]}"
        )
    version = (done.stdout.splitlines() or ["unknown"])[0]
    if memory is not None:
        memory.put_note("compiler-" + key, version)
    return version


def workers(opts: Any) -> int:
    """Compilers that run at once: the option `compile_workers`, or one per core."""
    return max(1, opts.get("compile_workers") or os.cpu_count() or 1)


def compile_units(tool: Toolchain, units: Sequence[Unit], limit: int = 1) -> None:
    """Build every unit, `limit` at a time. Raises ToolchainError with the compiler's words or where one hangs, OSError
    where its folder is full or was removed. On that and on any interrupt all compilers still running are killed
    first."""
    waiting = list(reversed(units))
    total = sum(len(unit.names) for unit in units)
    done = 0
    running: list[tuple[Unit, subprocess.Popen, Path, float]] = []
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                _start_aside(tool, waiting.pop(), running)
            _wait_any(running)
            for job in [j for j in running if j[1].poll() is not None]:
                _finish(*job)
                running.remove(job)
                done += len(job[0].names)
                events.emit("progress", text="kernels", done=done, total=total)
    finally:
        for unit, process, log, _ in running:
            _kill(process)
            log.unlink(missing_ok=True)


def _start_aside(tool: Toolchain, unit: Unit, running: list) -> None:
    """Start a compiler from another thread, in which no interrupt is raised: it stands in `running` before this thread
    hears of one.
    """
    failed: list[Exception] = []
    started = forks.signal()

    def start() -> None:
        try:
            running.append(_start(tool, unit))
        except Exception as e:
            failed.append(e)
        finally:
            started.set()

    try:
        forks.start_thread(start, "tcompile compiler")
        started.wait()
    except RuntimeError as e:  # (Python's word for a thread that the system refuses)
        raise ToolchainError(f"the C++ compiler {tool.command[0]} does not start: {e}") from None
    except BaseException:
        started.wait(STARTS)  # (no longer: the interrupt may have come before the thread began)
        raise
    if failed:
        raise failed[0]


def _start(tool: Toolchain, unit: Unit) -> tuple[Unit, subprocess.Popen, Path, float]:
    log, folder = unit.output.with_suffix(".log"), unit.output.parent
    # names without a folder: what a folder is called (quotes, a newline) is no matter to a compiler that works in it;
    # nor is a full /tmp
    command = [
        tool.command[0],
        *unit.flags,
        "-shared",
        *tool.link_flags(),
        "-o",
        unit.output.name,
        os.path.relpath(unit.source, folder),
        *tool.libraries(),
    ]
    try:
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
                env={**os.environ, "TMPDIR": "."},
            )
    except OSError as e:
        _check_folder(unit)
        raise ToolchainError(f"the C++ compiler {tool.command[0]} does not start: {e}") from None
    return unit, process, log, time.perf_counter()


def _wait_any(running: list) -> None:
    """Until one of the compilers has ended; short naps, because a compilation takes some tens of milliseconds."""
    nap = 0.001
    while all(j[1].poll() is None for j in running):
        for unit, _, _, began in running:
            if time.perf_counter() - began > MOST_SECONDS:
                raise ToolchainError(f"the C++ compiler did not finish kernel {unit.title} within {MOST_SECONDS:.0f} s")
        time.sleep(nap)
        nap = min(nap * 1.2, 0.01)


def _finish(unit: Unit, process: subprocess.Popen, log: Path, began: float) -> None:
    words = log.read_text(errors="replace") if log.exists() else ""
    log.unlink(missing_ok=True)
    if process.returncode:
        _check_folder(unit)
        how = f"was killed by signal {-process.returncode}" if process.returncode < 0 else "failed"
        raise ToolchainError(f"the C++ compiler {how} on kernel {unit.title} ({unit.source}):\n{words.strip()[-2000:]}")
    if wrong := _no_library(unit.output):
        raise ToolchainError(f"the C++ compiler gave {wrong} for kernel {unit.title}: {words.strip()[-2000:]}")
    events.emit("compile_c", seconds=time.perf_counter() - began, flags=" ".join(unit.flags), units=unit.names)


def _no_library(path: Path) -> str:
    """What a compiler that says it went well left in place of a library; "" of a library. A linker writes the table of
    sections last, and loading a library that ends before it can end the process.
    """
    try:
        if not path.is_file():  # (nothing, a folder, a pipe that would be waited for)
            return "no file"
        with path.open("rb") as f:
            head = f.read(64)
        size = path.stat().st_size
    except OSError as e:
        return f"a file that can't be read ({e})"
    if head[:5] == b"\x7fELF\x02" and len(head) == 64:
        (begin,), (each, number) = struct.unpack_from("<Q", head, 40), struct.unpack_from("<HH", head, 58)
        if begin + each * number > size:
            return "a part of a library"
    return ""


def _check_folder(unit: Unit) -> None:
    """Raises OSError where the folder is at fault: someone removed it, or a kernel would not fit, which a linker may
    have no room to say.
    """
    if not unit.source.exists():
        raise FileNotFoundError(f"{unit.source} was removed while it was compiled")
    with tempfile.TemporaryFile(dir=unit.output.parent) as f:
        f.write(bytes(KERNEL_ROOM))
        f.flush()


def _kill(process: subprocess.Popen) -> None:
    if process.poll() is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()
