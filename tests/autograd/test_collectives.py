"""Collectives and updates of DTensors are part of one graph, in two processes (gloo, CPU): values and gradients are
eager's, and the processes issue the same collectives in the same order."""

from __future__ import annotations

import pytest
import torch

from .collective_runs import CASES, ONE_GRAPH
from .test_distributed import run_cases

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows() -> dict[str, dict]:
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    return run_cases("gloo", "tests.autograd.collective_runs")


@pytest.mark.parametrize("case", [c.__name__ for c in CASES])
def test_as_eager(rows: dict[str, dict], case: str) -> None:
    row = rows[case]
    assert row["same"]
    if case in [c.__name__ for c in ONE_GRAPH]:
        assert not row["breaks"]
        assert row["graphs"] == 1, "compiled again"


def test_unread_and_equal_ones_stay(rows: dict[str, dict]) -> None:
    assert sum("all_reduce" in c for c in rows["equal_and_unread"]["calls"]) == 3


def test_products_run_beside_them(rows: dict[str, dict]) -> None:
    calls = rows["beside_products"]["calls"]
    first, last = (f(i for i, c in enumerate(calls) if "mm" in c) for f in (min, max))
    assert sum("all_reduce" in c for c in calls[:first]) == 4
    assert sum("wait_tensor" in c for c in calls[last:]) == 4


def test_small_ones_keep_their_order(rows: dict[str, dict]) -> None:
    """They are not put together: a process whose graph differs would wait for another one (docs/internals.md)."""
    calls = [c for c in rows["many_small"]["calls"] if "c10d" in c and "wait" not in c]
    assert ["broadcast" in c for c in calls] == [i % 3 == 2 for i in range(16)]


def test_what_no_graph_has_is_named(rows: dict[str, dict]) -> None:
    breaks = rows["with_words"]["breaks"]
    for name in ("dist.all_gather_object()", "get_future()"):
        assert any(name in why and "communicates between processes" in why for why in breaks), breaks
