"""Messages between processes, gathers and scatters of one process, and barriers are part of one graph (gloo, CPU)."""

from __future__ import annotations

import pytest
import torch

from .message_runs import CASES, ONE_GRAPH
from .test_distributed import run_cases

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows() -> dict[str, dict]:
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    return run_cases("gloo", "tests.autograd.message_runs")


@pytest.mark.parametrize("case", [c.__name__ for c in CASES])
def test_as_eager(rows: dict[str, dict], case: str) -> None:
    row = rows[case]
    assert row["same"]
    if case in [c.__name__ for c in ONE_GRAPH]:
        assert not row["breaks"]
        assert row["graphs"] == 1, "compiled again"


def test_products_run_beside_them(rows: dict[str, dict]) -> None:
    calls = rows["gathered_later"]["calls"]
    order = [next(i for i, c in enumerate(calls) if name in c) for name in ("gather_to", "mm", "wait_tensor")]
    assert order == sorted(order)


def test_what_no_graph_has_is_named(rows: dict[str, dict]) -> None:
    assert any("whichever process sends" in why for why in rows["with_words"]["breaks"])
