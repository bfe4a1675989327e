"""The process in which one suite of stock's tests runs; see suite.py. Writes one JSON line for each thing that it knows
as soon as it knows it, so that a crash tells where.

    python -m tests.oracles.stock.child PLAN        PLAN: a JSON file, the fields of suite.Plan
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import time
import unittest
from collections import Counter
from pathlib import Path
from typing import Any, Iterator

from . import loading, places
from .causes import LARGE
from .places import NotOurs, placed


class TooLong(BaseException):
    """A test took longer than it may."""


def tests(suite: Any) -> Iterator[Any]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests(item)
        else:
            yield item


class Result(unittest.TestResult):
    """Says each outcome at once. Subtests count for the test that they belong to."""

    def __init__(self, plan: dict[str, Any], out: Any):
        super().__init__()
        self.plan, self.out = plan, out
        self.counts: Counter = Counter()
        self.outcome: str | None = None
        self.done = 0
        self.parent = os.getppid()

    def tell(self, *facts: Any) -> None:
        self.out.write(json.dumps(facts) + "\n")
        self.out.flush()

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        if os.getppid() != self.parent:
            os._exit(0)  # nobody reads what this process finds
        self.outcome, self.words, self.began = "ok", "", time.perf_counter()
        self.counts.clear()
        placed.clear()
        self.tell("start", test.id())
        signal.setitimer(signal.ITIMER_REAL, self.plan["limit"])

    def stopTest(self, test: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        super().stopTest(test)
        self.tell(
            "test",
            test.id(),
            self.outcome,
            self.words,
            {"seconds": round(time.perf_counter() - self.began, 2), **self.counts, "placed": sum(placed.values())},
        )
        self.outcome = None
        self.done += 1
        if self.done >= self.plan["chunk"]:
            self.stop()

    def note(self, outcome: str, test: Any, err: Any) -> None:
        text = self._exc_info_to_string(err, test)[-6000:] if err else ""
        if self.outcome is None:  # setUpClass
            self.tell("class", str(test), outcome, text)
        elif self.outcome == "ok" if outcome == "skipped" else self.outcome in ("ok", "skipped"):
            self.outcome, self.words = outcome, text

    def addError(self, test: Any, err: Any) -> None:
        self.note(
            "too long" if err[0] is TooLong else "not ours" if issubclass(err[0], NotOurs) else "error", test, err
        )

    def addFailure(self, test: Any, err: Any) -> None:
        self.note("fail", test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.note("fail" if issubclass(err[0], AssertionError) else "error", test, err)

    def addSkip(self, test: Any, reason: str) -> None:
        if self.outcome in ("ok", "skipped"):
            self.outcome, self.words = "skipped", reason
        elif self.outcome is None:
            self.tell("test", test.id(), "skipped", reason, {})

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.note("expected failure", test, err)

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.outcome = "ok"  # what stock can't do and this compiler can

    def late(self, *details: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 5)  # once more, where something caught it
        raise TooLong()


def main() -> int:
    plan = json.loads(Path(sys.argv[1]).read_text())
    with open(plan["log"], "a", encoding="utf-8") as out:
        result = Result(plan, out)
        signal.signal(signal.SIGALRM, result.late)
        ours = plan["mode"] == "ours"
        loading.install(Path(plan["source"]))
        places.install(ours, True if plan["dynamic"] else None)
        import torch

        torch.set_num_threads(plan["threads"])
        if ours:
            from tcompile.compiler import events

            def count(event: Any) -> None:
                if event.kind in ("entry", "break", "skip", "limit", "error", "fallback"):
                    result.counts[event.kind] += 1

            listening = events.listen(count)
            listening.__enter__()
        module = importlib.import_module(plan["module"])
        places.leave_out(module)
        found = list(tests(unittest.defaultTestLoader.loadTestsFromModule(module)))
        result.tell("all", [t.id() for t in found], sorted(loading.missing))
        done, only = set(plan["done"]), plan["only"]
        wanted = [t for t in found if t.id() not in done and (not only or t.id() in only)]
        for test in [] if plan["large"] else [t for t in wanted if re.search(LARGE, t.id())]:
            result.tell("test", test.id(), "skipped", "takes gigabytes and minutes (--large)", {})
            wanted.remove(test)
        unittest.TestSuite(wanted).run(result)
        result.tell("end", len(wanted) - result.done if result.shouldStop else 0)
        if ours:
            listening.__exit__(None, None, None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
