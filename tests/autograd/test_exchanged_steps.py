"""Steps with backward() inside, in two processes (gloo, CPU): gradients are exchanged in the graph, in the memory that
they have, and what exchanges them by hooks does so."""

from __future__ import annotations

import pytest
import torch

from .exchanged_steps import CASES, IN_PLACE, ONE_GRAPH, TWO_GRAPHS
from .test_distributed import run_cases

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows() -> dict[str, dict]:
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    return run_cases("gloo", "tests.autograd.exchanged_steps")


@pytest.mark.parametrize("case", [c.__name__ for c in CASES])
def test_as_eager(rows: dict[str, dict], case: str) -> None:
    assert rows[case]["same"]
    assert not any("internal" in why for why in rows[case]["breaks"])


@pytest.mark.parametrize("case", [c.__name__ for c in (*ONE_GRAPH, *TWO_GRAPHS)])
def test_whole_steps(rows: dict[str, dict], case: str) -> None:
    assert not rows[case]["breaks"]
    assert rows[case]["graphs"] == (1 if case in [c.__name__ for c in ONE_GRAPH] else 2)


@pytest.mark.parametrize("case", [c.__name__ for c in IN_PLACE])
def test_in_their_own_memory(rows: dict[str, dict], case: str) -> None:
    assert rows[case]["peak_bytes"] == 0
    assert not any("clone" in call for call in rows[case]["calls"])


def test_hooks_that_exchange_are_named(rows: dict[str, dict]) -> None:
    for case, words in (
        ("data_parallel", "DistributedDataParallel exchanges gradients"),
        ("past_its_forward", "A hook runs where the gradient of"),
        ("fully_sharded", "FSDP2 exchanges gradients while backward() runs"),
    ):
        assert any(words in why for why in rows[case]["breaks"]), rows[case]["breaks"]
