"""Which tests take long: `slow_tests.txt`, a test and its seconds of CPU a row, as `make slow-tests` measured them.

They carry the mark *slow*, as those that carry it in their own text. `make test` runs them, the targets of one area
leave them out. The seconds are a mean over a test's parameters, processes that it starts included.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Iterable

import pytest

TABLE = Path(__file__).with_name("slow_tests.txt")
SECONDS = 0.15  # of CPU: the tests below are nine in ten, and take a third of the time
VARIABLE = "TCOMPILE_TEST_TIMES"  # a file that the tests add their seconds to


def function_of(nodeid: str) -> str:
    """`tests/a/test_b.py::test_c` of `tests/a/test_b.py::test_c[x-y]`."""
    return nodeid.partition("[")[0]


def listed() -> dict[str, float]:
    """The rows of the table: tests without their parameters, and seconds of CPU."""
    rows = (line.split(" ", 1) for line in TABLE.read_text().splitlines())
    return {name: float(seconds) for seconds, name in rows}


def mark(items: Iterable[pytest.Item]) -> None:
    """Give what the table lists the mark *slow*."""
    slow = listed()
    for item in items:
        if function_of(item.nodeid) in slow:
            item.add_marker(pytest.mark.slow)


def cpu_seconds() -> float:
    """What this process and those that it waited for have used."""
    return sum(os.times()[:4])


def write_down(nodeid: str, seconds: float) -> None:
    """Add a row to the file that the variable names; workers add to one file, a line at a time."""
    with open(os.environ[VARIABLE], "a") as file:
        file.write(f"{seconds:.4f} {nodeid}\n")


def write_table(times: Path) -> int:
    """Make the table from what the tests wrote down. Returns how many rows it has."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for line in times.read_text().splitlines():
        taken, nodeid = line.split(" ", 1)
        seconds[function_of(nodeid)].append(float(taken))
    means = {name: sum(taken) / len(taken) for name, taken in seconds.items()}
    slow = sorted((name, mean) for name, mean in means.items() if mean >= SECONDS)
    TABLE.write_text("".join(f"{mean:.2f} {name}\n" for name, mean in slow))
    return len(slow)


if __name__ == "__main__":
    print(f"{write_table(Path(sys.argv[1]))} tests take {SECONDS} s of CPU or more: {TABLE.name}")
