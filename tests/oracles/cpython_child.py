"""The process in which one module of CPython's tests runs; see cpython.py. Writes one JSON line for each thing it knows
as soon as it knows it, so that a crash tells where."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import types
import unittest
from collections import Counter
from contextlib import ExitStack

module, mode, log, only = sys.argv[1:5]
here = os.path.dirname(os.path.abspath(__file__))
# names in this folder are no modules of the tests'
sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]

import torch  # noqa: E402, F401  (both runs have it: what it changes in the process is no difference)

import tcompile.compiler.frontend.hook as compiler  # noqa: E402
from tcompile.compiler import api, config, events  # noqa: E402
from tcompile.compiler.frontend import frames  # noqa: E402

out = open(log, "w", encoding="utf-8")


def tell(*facts) -> None:
    out.write(json.dumps(facts) + "\n")
    out.flush()


class Result(unittest.TestResult):
    """Says each outcome at once. Subtests count for the test that they belong to."""

    def startTest(self, test) -> None:
        super().startTest(test)
        self.outcome, self.words = "ok", ""
        tell("start", test.id())

    def stopTest(self, test) -> None:
        super().stopTest(test)
        tell("test", test.id(), self.outcome, self.words)
        del self.outcome

    def note(self, outcome: str, test=None, err=None) -> None:
        if self.outcome == "ok" if outcome == "skipped" else self.outcome in ("ok", "skipped"):
            self.outcome = outcome
            self.words = self._exc_info_to_string(err, test)[-4000:] if err else ""

    def addError(self, test, err) -> None:
        if not hasattr(self, "outcome"):  # setUpClass, setUpModule
            tell("test", str(test), "ERROR", self._exc_info_to_string(err, test)[-4000:])
            return
        self.note("ERROR", test, err)

    def addFailure(self, test, err) -> None:
        self.note("FAIL", test, err)

    def addSubTest(self, test, subtest, err) -> None:
        if err is not None:
            self.note("FAIL", test, err)

    def addSkip(self, test, reason) -> None:
        if not hasattr(self, "outcome"):  # Python 3.12.1 skips a test without starting it
            self.outcome, self.words = "ok", ""
        self.note("skipped")

    def addExpectedFailure(self, test, err) -> None:
        self.note("expected failure")

    def addUnexpectedSuccess(self, test) -> None:
        self.note("unexpected success")


def tests(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests(item)
        else:
            yield item


def main() -> None:
    counts: Counter = Counter()

    def count(event) -> None:
        if event.kind in ("entry", "break", "skip", "limit", "recompile", "error"):
            counts[event.kind] += 1
        if event.kind == "error":
            tell("error", event.where, str(event.error)[:300])

    try:
        loaded = importlib.import_module(f"test.{module}")
    except (ImportError, unittest.SkipTest) as missing:
        print(missing)
        sys.exit(3)
    suite = unittest.defaultTestLoader.loadTestsFromModule(loaded)
    if only:
        suite = unittest.TestSuite(t for t in tests(suite) if only in t.id())
    began = time.perf_counter()
    with ExitStack() as stack:
        if mode != "plain":
            stack.enter_context(events.listen(count))
            stack.enter_context(config.patch(recompile_limit=64))
            if mode == "methods":
                for test in tests(suite):
                    name = getattr(test, "_testMethodName", "")
                    if isinstance(getattr(test, name, None), types.MethodType):
                        setattr(test, name, api.compile(getattr(test, name), backend="eager"))
            else:
                if mode == "forced":
                    stack.enter_context(frames.every_frame())
                stack.enter_context(compiler.enable(backend="eager"))
        suite.run(Result())
    tell("counts", dict(counts, seconds=round(time.perf_counter() - began, 1)))
    tell("end")


if __name__ == "__main__":
    main()
