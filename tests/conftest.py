"""For every test: internal errors raise, every stage is verified, the work of compiling a cell is not bounded, time
decides nothing, searches are short, the disk cache is a folder for tests, random numbers are the same in every run, and
what a test sets for the whole process is as it was."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from typing import Any, Iterator

import pytest

from . import slow_tests

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin take the cores from the other workers
os.environ.setdefault("TCOMPILE_SUPPRESS_ERRORS", "0")
os.environ.setdefault("TCOMPILE_VERIFY", "1")
os.environ.setdefault("TCOMPILE_CELL_INSTRUCTION_LIMIT", "0")
os.environ.setdefault("TCOMPILE_CELL_KERNEL_LIMIT", "0")
os.environ.setdefault("TCOMPILE_SWITCH_OFF_SLOWER", "0")
os.environ.setdefault("TCOMPILE_AUTOTUNE_SECONDS", "0.2")
os.environ.setdefault("TCOMPILE_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"tcompile-tests-{os.getuid()}"))


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background jobs begin: Ctrl-C would not be heard
    signal.signal(signal.SIGINT, signal.default_int_handler)

_FILES_A_LOOK = 32  # files between two collections that go over everything
_files = 0


def _leave_alone() -> None:
    """What is there now is not gone over by the collections of the next tests. Twelve thousand tests to come are a
    million objects: half a second a collection, and tests ask for hundreds."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    _leave_alone()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    global _files
    engine = sys.modules.get("tcompile.compiler.frontend.engine")
    for reference in engine.engines if engine is not None else ():
        if (left := reference()) is not None:
            left.module = None  # a module that a test left alive shares no entries with equal ones of the next
    if nextitem is not None and nextitem.path != item.path:
        _files += 1
        if _files % _FILES_A_LOOK == 0:
            gc.unfreeze()
        _leave_alone()


def pytest_unconfigure() -> None:
    """Each of IPython's shells that the tests made collects at exit; over all that they left that took minutes."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list) -> None:
    """Browser tests last: Playwright's synchronous interface leaves an event loop running in the thread."""
    slow_tests.mark(items)
    items.sort(key=lambda item: "browser" in item.path.parts)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = slow_tests.cpu_seconds()
    yield
    if slow_tests.VARIABLE in os.environ:
        slow_tests.write_down(item.nodeid, slow_tests.cpu_seconds() - before)


def _process_state() -> dict[str, Any]:
    """What PyTorch keeps for the whole process or thread, and a later test would be surprised by."""
    import torch

    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return {
        "autocast nesting": nesting,
        "autocast dtype": torch.get_autocast_dtype("cpu"),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
    }


@pytest.fixture(autouse=True)
def _nobody_waits_for_a_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run beside each other, and ask for figures: timing makes one however busy the machine is."""
    if request.path.name != "test_timing.py":
        from tcompile.kernel_magics.waiting import RunQueue

        monkeypatch.setattr(RunQueue, "seconds", lambda queue: 0.0)


@pytest.fixture(autouse=True)
def _process_state_stays() -> Iterator[None]:
    import torch

    torch.manual_seed(0)
    before = _process_state()
    yield
    after = _process_state()
    left = {name: f"{before[name]} before, {value} after" for name, value in after.items() if value != before[name]}
    assert not left, f"the test changed, and left: {left}"
