"""Stock's own tests as an oracle: its suites, from its source, with this compiler in the place of stock's.

    python -m tests.oracles.stock.suite SOURCE [--suites NAME ...] [--dynamic] [--jobs N] [--only ID ...] [--again]
    [--large]

SOURCE is a checkout of PyTorch, or Debian's source package of it, with its test folder. It is of the installed version
or an older one; nothing of it is stored here. Each suite runs in a process of its own, which a crash or a hang ends and
a new one carries on. Values, gradients, effects and errors are compared as the tests do it. What they say of stock's
internals (graphs, kernels, counts, code, words) is left out (untold.py, places.py). A test that fails is run again by
stock itself: where that fails, too, it does not apply. The table of other causes is causes.py. Results are written to
build/stock: a JSON file for each suite, and table.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .causes import cause_of

__all__ = ["SUITES", "Plan", "Suite", "Verdict", "judge", "run"]

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "build" / "stock"
# Name on the command line -> module below SOURCE/test.
SUITES = {
    name.rpartition(".")[2]: name
    for name in """inductor.test_torchinductor inductor.test_cpu_repro dynamo.test_misc dynamo.test_functions
    dynamo.test_repros dynamo.test_modules dynamo.test_higher_order_ops dynamo.test_autograd_function""".split()
}
PASSED, FAILED, OTHER = "passed", "failed", "does not apply"


@dataclass
class Plan:
    """What a child process is told."""

    source: str
    module: str
    mode: str  # "ours", or "stock" for the control
    log: str
    dynamic: bool = False
    limit: float = 60.0  # seconds that a test may take
    chunk: int = 300  # tests that a process runs
    threads: int = 1
    large: bool = False
    done: list[str] = field(default_factory=list)
    only: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """What one test said: ok, fail, error, too long, crash, skipped, not ours, expected failure."""

    kind: str
    words: str = ""
    counts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Suite:
    """A run of one module in one mode."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    end: str = ""  # not empty: the module could not be run at all


@dataclass
class Verdict:
    test: str
    verdict: str  # PASSED, FAILED or OTHER
    reason: str = ""
    words: str = ""


def _read(log: Path, seen: Suite) -> tuple[str, int, bool]:
    """Take in what a child wrote: the test that was running when it stopped, how many are left, whether it ended by
    itself.
    """
    running, left, ended = "", 0, False
    for line in log.read_text().splitlines() if log.exists() else ():
        kind, *rest = json.loads(line)
        if kind == "start":
            running = rest[0]
        elif kind == "test":
            seen.outcomes[rest[0]] = Outcome(*rest[1:])
            running = ""
        elif kind == "class":
            seen.outcomes[rest[0]] = Outcome(rest[1], rest[2])
        elif kind == "all":
            left, seen.missing = len(rest[0]), rest[1]
        elif kind == "end":
            left, ended = rest[0], True
    return running, left, ended


def _watch(child: subprocess.Popen, log: Path, limit: float) -> str:
    """Wait for a child; kill it where nothing was written for much longer than a test may take. Words of a crash, or
    nothing.
    """
    written, since = -1, time.monotonic()
    while child.poll() is None:
        try:
            child.wait(1.0)
        except subprocess.TimeoutExpired:
            size = log.stat().st_size if log.exists() else 0
            if size != written:
                written, since = size, time.monotonic()
            elif time.monotonic() - since > 2 * limit + 120:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                return f"did not end within {limit:.0f} s and could not be stopped"
    return "" if child.returncode == 0 else f"the process ended with status {child.returncode}"


def run(
    source: Path,
    module: str,
    mode: str = "ours",
    *,
    dynamic: bool = False,
    only: list[str] | None = None,
    limit: float = 60.0,
    chunk: int = 300,
    threads: int = 1,
    large: bool = False,
) -> Suite:
    """Run the tests of `module` (or those ids in `only`), a process for each `chunk`, and one more after each crash."""
    seen = Suite()
    environment = dict(
        os.environ,
        TCOMPILE_SUPPRESS_ERRORS="0",
        OMP_NUM_THREADS=str(threads),
        PYTHONFAULTHANDLER="1",
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONPATH=os.pathsep.join(p for p in (os.environ.get("PYTHONPATH"), str(ROOT)) if p),
    )
    with tempfile.TemporaryDirectory(prefix="tcompile-stock-") as name:
        folder = Path(name)
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
        for number in range(10_000):
            log, said, planned = (folder / f"{kind}{number}" for kind in ("log", "said", "plan"))
            plan = Plan(
                str(source),
                module,
                mode,
                str(log),
                dynamic,
                limit,
                chunk,
                threads,
                large,
                list(seen.outcomes),
                only or [],
            )
            planned.write_text(json.dumps(asdict(plan)))
            with open(said, "w") as text:
                child = subprocess.Popen(
                    [sys.executable, "-m", f"{__package__}.child", str(planned)],
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=text,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                try:
                    crash = _watch(child, log, limit)
                finally:
                    if child.poll() is None:
                        os.killpg(child.pid, signal.SIGKILL)
            running, left, ended = _read(log, seen)
            if running:
                seen.outcomes[running] = Outcome("crash", f"{crash}\n{said.read_text(errors='replace')[-3000:]}")
            elif not ended:
                seen.end = f"{crash}\n{said.read_text(errors='replace')[-3000:]}"
                if left == 0 or not crash:
                    break
                seen.outcomes[f"process {number}"] = Outcome("crash", seen.end)  # between two tests
            elif left == 0:
                break
    return seen


def judge(ours: Suite, control: Suite | None = None) -> list[Verdict]:
    """A verdict on each test of a run; `control`: the same tests by stock itself, as far as they were asked for."""
    found = []
    for name, outcome in ours.outcomes.items():
        if outcome.kind == "ok":
            found.append(
                Verdict(name, PASSED)
                if outcome.counts.get("placed") or not outcome.counts
                else Verdict(name, OTHER, "compiles nothing")
            )
        elif outcome.kind == "skipped":
            found.append(
                Verdict(name, OTHER, f"skips itself: {outcome.words.splitlines()[0] if outcome.words else ''}")
            )
        elif outcome.kind == "not ours":
            found.append(Verdict(name, OTHER, last_line(outcome.words).rpartition("NotOurs: ")[2]))
        elif outcome.kind == "expected failure":
            found.append(Verdict(name, OTHER, "is expected to fail"))
        else:
            reason = cause_of(name, outcome.words)
            by_stock = control.outcomes.get(name) if control is not None else None
            if reason is None and by_stock is not None and _explains(by_stock, outcome):
                reason = f"fails with stock itself ({by_stock.kind}: {last_line(by_stock.words)[:160]})"
            found.append(
                Verdict(name, FAILED, outcome.kind, outcome.words)
                if reason is None
                else Verdict(name, OTHER, reason, outcome.words)
            )
    return found


def _explains(by_stock: Outcome, ours: Outcome) -> bool:
    """Whether stock's own failure is why ours does not count. Of what took too long nothing is known but that."""
    return by_stock.kind not in ("ok", "expected failure") and (by_stock.kind != "too long" or ours.kind == "too long")


def last_line(words: str) -> str:
    """The line of a traceback that says what was raised."""
    lines = [
        line for line in words.strip().splitlines() if line and not line.startswith((" ", "To execute", "This message"))
    ]
    for line in reversed(lines):
        head = line.partition(":")[0]
        if head and " " not in head and head[0].isalpha():
            return line
    return lines[-1] if lines else ""


def open_failures(ours: Suite) -> list[str]:
    """What the control is asked for: failures that no declared cause explains."""
    return [v.test for v in judge(ours) if v.verdict == FAILED]


def table(results: dict[str, list[Verdict]]) -> str:
    """A page in Markdown: counts by suite, what failed, and what does not apply by reason."""
    lines = ["| suite | apply | passed | failed | do not apply |", "| --- | --- | --- | --- | --- |"]
    for title, verdicts in results.items():
        n = Counter(v.verdict for v in verdicts)
        lines.append(f"| {title} | {n[PASSED] + n[FAILED]} | {n[PASSED]} | {n[FAILED]} | {n[OTHER]} |")
    for title, verdicts in results.items():
        lines += ["", f"## {title}"] + [
            f"- {v.test}: {v.reason}: {last_line(v.words)[:240]}" for v in verdicts if v.verdict == FAILED
        ]
        reasons = Counter(v.reason for v in verdicts if v.verdict == OTHER)
        lines += ["", "Do not apply:"] + [f"- {n}: {reason}" for reason, n in reasons.most_common()]
    return "\n".join(lines) + "\n"


def examine(source: Path, name: str, options: argparse.Namespace) -> tuple[str, list[Verdict]]:
    """One suite from beginning to end, with its control."""
    title = name + (" (dynamic)" if options.dynamic else "")
    module = SUITES.get(name, name)
    began = time.perf_counter()
    file = OUT / f"{name}{'-dynamic' if options.dynamic else ''}{'-part' if options.only else ''}.json"
    before = [Verdict(**v) for v in json.loads(file.read_text())["verdicts"]] if options.again and file.exists() else []
    only = options.only or [v.test for v in before if v.verdict == FAILED]
    if before and not only:
        print(f"{title}: nothing failed the last time", flush=True)
        return title, before
    ours = run(source, module, dynamic=options.dynamic, only=only, limit=options.limit, large=options.large)
    if not ours.outcomes:
        print(f"{title}: {ours.end}", flush=True)
        return title, [Verdict(name, FAILED, "crash", ours.end)]
    asked = open_failures(ours)
    control = (
        run(source, module, "stock", dynamic=options.dynamic, only=asked, limit=options.limit * 3, chunk=40)
        if asked and not options.no_control
        else None
    )
    now = {v.test: v for v in judge(ours, control)}
    verdicts = [now.pop(v.test, v) for v in before] + list(now.values())
    OUT.mkdir(parents=True, exist_ok=True)
    file.write_text(
        json.dumps({"suite": title, "verdicts": [asdict(v) for v in verdicts], "missing": ours.missing}, indent=1)
    )
    n = Counter(v.verdict for v in verdicts)
    print(
        f"{title}: {n[PASSED]} of {n[PASSED] + n[FAILED]} that apply pass, {n[OTHER]} do not apply; {time.perf_counter() - began:.0f} s",
        flush=True,
    )
    for v in verdicts:
        if v.verdict == FAILED:
            print(f"  {v.test} ({v.reason}): {last_line(v.words)[:300]}", flush=True)
    return title, verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="a checkout of PyTorch, or Debian's source package")
    parser.add_argument(
        "--suites", nargs="*", default=list(SUITES), help="names of SUITES, or modules below SOURCE/test"
    )
    parser.add_argument("--dynamic", action="store_true", help="dynamic=True wherever a test leaves it open")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--limit",
        type=float,
        default=60.0,
        help="seconds that a test may take; its control may take three times as long",
    )
    parser.add_argument("--only", nargs="*", default=[], help="ids of tests")
    parser.add_argument(
        "--again", action="store_true", help="only what failed the last time; its verdicts are put into the last table"
    )
    parser.add_argument("--large", action="store_true", help="also the tests that take gigabytes")
    parser.add_argument("--no-control", action="store_true", help="what fails is not run by stock itself")
    options = parser.parse_args()
    if not (options.source / "test").is_dir():
        parser.error(f"{options.source} has no folder test: SOURCE is a checkout of PyTorch")
    with ThreadPoolExecutor(options.jobs) as pool:
        results = dict(
            pool.map(lambda name: examine(options.source.resolve(), name, options), options.suites or list(SUITES))
        )
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "table.md").write_text(table(results))
    print(f"the table: {OUT / 'table.md'}")
    return 1 if any(v.verdict == FAILED for verdicts in results.values() for v in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
