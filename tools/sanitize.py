"""The C extension with AddressSanitizer and checks of undefined behaviour, and the tests that go through it: what `make
sanitize` runs.

    sanitize.py build          build/sanitized/tcompile: a copy of the package with an instrumented extension
    sanitize.py run [ARGS]     the tests of TESTS and slices of the fuzzers (or pytest's ARGS alone): first
                               instrumented, with memory of Python's from
                               malloc, so that a use of a freed object is seen; then the usual extension with
                               PYTHONMALLOC=debug

Kernels are compiled with AddressSanitizer, too: they are C++ that reads and writes memory of others. Leaks are not
looked for (tests/e2e/test_leaks.py does), since the interpreter and torch keep what they made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "sanitized"
PARTS = {"": ROOT / "extension", "compiler": ROOT / "compiler", "kernel_magics": ROOT / "kernel_magics"}
TESTS = ["tests/native", "tests/runtime", "tests/fuzz/test_regressions.py"]
LEFT_OUT = {
    "budget_of": "measures time",
    "costs_little": "measures time",
    "reused_addresses": "freed memory is not used again for long",
}
FUZZ = [("tensors", "tcompile"), ("programs", "tcompile"), ("changes", "tcompile")]
OPTIONS = {
    "ASAN_OPTIONS": (
        "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:detect_odr_violation=0:handle_segv=1:use_sigaltstack=0"
    ),
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}


def copy() -> None:
    """The package as files of its own, without what was built."""
    shutil.rmtree(TREE, ignore_errors=True)
    for name, source in PARTS.items():
        shutil.copytree(
            source,
            TREE / "tcompile" / name,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.so", "labextension"),
        )


def build() -> int:
    copy()
    return subprocess.call([sys.executable, str(TREE / "tcompile" / "compiler" / "native" / "build.py"), "--sanitize"])


def library(name: str) -> str:
    path = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(path):
        sys.exit(f"tcompile: gcc has no {name}. Debian and Ubuntu: apt install libgcc-12-dev (of your gcc's version)")
    return path


def passes(cache: str) -> list[tuple[str, dict[str, str]]]:
    """What each pass is called, and its environment."""
    plain = {**os.environ, "OMP_NUM_THREADS": "2"}
    instrumented = {
        **plain,
        **OPTIONS,
        "PYTHONPATH": str(TREE),
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so')}",
        "PYTHONMALLOC": "malloc",
        "TCOMPILE_CACHE_DIR": os.path.join(cache, "sanitized"),
        "CXX": f"{sys.executable} {Path(__file__).resolve()} cxx",
    }
    debug = {**plain, "PYTHONMALLOC": "debug", "TCOMPILE_CACHE_DIR": os.path.join(cache, "debug")}
    return [("AddressSanitizer", instrumented), ("PYTHONMALLOC=debug", debug)]


def run(args: list[str], seconds: int) -> int:
    status = 0
    with tempfile.TemporaryDirectory(prefix="tcompile-sanitize-") as cache:
        for name, env in passes(cache):
            # (what a sanitizer says on its way out comes through only where the file descriptors are left alone)
            commands = [
                [
                    "-m",
                    "pytest",
                    "-q",
                    "--capture=sys",
                    "-p",
                    "no:cacheprovider",
                    "-p",
                    "no:faulthandler",
                    "-k",
                    " and ".join(f"not {n}" for n in LEFT_OUT),
                    *(args or TESTS),
                ]
            ]
            if not args:
                commands += [
                    ["-m", "tests.fuzz.bulk", part, "--backend", backend, "--seconds", str(seconds)]
                    for part, backend in FUZZ
                ]
            for command in commands:
                began = time.monotonic()
                failed = subprocess.call([sys.executable, *command], env=env, cwd=ROOT)
                print(
                    f"tcompile: {name}: {' '.join(command[1:])}: {'FAILED' if failed else 'passed'} in"
                    f" {time.monotonic() - began:.0f} s",
                    flush=True,
                )
                status = status or failed
    return status


def cxx(args: list[str]) -> int:
    """Stands for the C++ compiler: instruments what it compiles, and is not instrumented itself."""
    env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONMALLOC")}
    sanitize = [] if "--version" in args else ["-fsanitize=address", "-fno-omit-frame-pointer", "-g1"]
    os.execvpe("g++", ["g++", *args, *sanitize], env)


if __name__ == "__main__":
    what, rest = sys.argv[1], sys.argv[2:]
    if what == "cxx":
        cxx(rest)
    sys.exit(build() if what == "build" else run(rest, int(os.environ.get("FUZZ_SECONDS", "60"))))
