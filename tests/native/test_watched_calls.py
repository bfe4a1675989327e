"""Compiled functions under a tracer, debugger, coverage or profile function: they run plainly, so that it sees their
lines and calls.
"""

from __future__ import annotations

import cProfile
import pdb
import sys
import threading
from contextlib import contextmanager
from typing import Any, Iterator

import pytest
import tcompile
import torch
from torch import nn

from tcompile.compiler.runtime.dispatch import RUN_ORIGINAL, PythonCodeCache, PythonDispatcher


def doubled(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y + 1


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    return y


class Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubled(x)


def compiled(what: str) -> Any:
    return tcompile.compile({"function": doubled, "module": Doubling(), "broken": broken}[what], backend="eager")


@contextmanager
def watching(how: str, seen: list) -> Iterator[None]:
    def watch(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code in (doubled.__code__, broken.__code__):
            seen.append((event, frame.f_lineno))
        return watch

    setter, before = getattr(sys, f"set{how}"), getattr(sys, f"get{how}")()
    setter(watch)
    try:
        yield
    finally:
        setter(before)


@pytest.mark.parametrize("how", ["trace", "profile"])
@pytest.mark.parametrize("what", ["function", "module", "broken"])
def test_what_watches_sees_what_it_sees_without_us(what: str, how: str) -> None:
    f, x, seen, expected = compiled(what), torch.ones(3), [], []
    f(x)
    plain = Doubling() if what == "module" else f.__wrapped__
    with watching(how, expected):
        plain(x)
    with watching(how, seen):
        assert torch.equal(f(x), plain(x))
    assert seen[: len(expected)] == expected and expected


@pytest.mark.parametrize("how", ["trace", "profile"])
def test_compiled_code_serves_again_when_nobody_watches(how: str) -> None:
    calls, x = [], torch.ones(3)

    def backend(gm: Any, inputs: Any) -> Any:
        return lambda *args: calls.append(1) or gm.forward(*args)

    f = tcompile.compile(doubled, backend=backend)
    f(x)
    with watching(how, []):
        f(x)
    assert len(calls) == 1
    f(x)
    assert len(calls) == 2


def test_a_breakpoint_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    met = []

    class Debugger(pdb.Pdb):
        def user_line(self, frame: Any) -> None:
            if frame.f_code is doubled.__code__ and self.get_break(frame.f_code.co_filename, frame.f_lineno):
                met.append(float(frame.f_locals["y"].sum()))
            self.set_continue()

    f = compiled("function")
    f(torch.ones(3))
    debugger, before = Debugger(nosigint=True, readrc=False), sys.gettrace()
    debugger.set_break(__file__, doubled.__code__.co_firstlineno + 2)
    try:
        debugger.runcall(f, torch.ones(3))
    finally:
        sys.settrace(before)
        debugger.clear_all_breaks()
    assert met == [6.0]


def test_other_threads_run_compiled_code() -> None:
    calls = []
    f = tcompile.compile(
        doubled,
        backend=lambda gm, inputs: lambda *args: calls.append(threading.current_thread().name) or gm.forward(*args),
    )
    f(torch.ones(3))
    with watching("trace", []):
        thread = threading.Thread(target=f, args=(torch.ones(3),), name="other")
        thread.start()
        thread.join()
    assert calls[1:] == ["other"]


def test_cprofile_may_see_compiled_code() -> None:
    f = compiled("function")
    f(torch.ones(3))
    profiler = cProfile.Profile()
    profiler.runcall(f, torch.ones(3))
    assert not any(call.code is doubled.__code__ for call in profiler.getstats())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
@pytest.mark.parametrize("tool", ["DEBUGGER_ID", "COVERAGE_ID"])
def test_tools_of_sys_monitoring(tool: str) -> None:
    f, started, monitoring = compiled("function"), [], sys.monitoring
    f(torch.ones(3))
    number = getattr(monitoring, tool)
    monitoring.use_tool_id(number, "test")
    try:
        monitoring.register_callback(number, monitoring.events.PY_START, lambda code, offset: started.append(code))
        monitoring.set_events(number, monitoring.events.PY_START)
        f(torch.ones(3))
    finally:
        monitoring.set_events(number, 0)
        monitoring.register_callback(number, monitoring.events.PY_START, None)
        monitoring.free_tool_id(number)
    assert doubled.__code__ in started


def test_without_the_extension() -> None:
    asked = []
    f = PythonDispatcher(doubled, PythonCodeCache(), lambda *args: asked.append(1) or RUN_ORIGINAL)
    with watching("trace", []):
        assert torch.equal(f(torch.ones(3)), doubled(torch.ones(3)))
    assert not asked
    with watching("profile", []):
        f(torch.ones(3))
    assert not asked
