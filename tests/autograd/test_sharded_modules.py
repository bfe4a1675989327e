"""Modules parted by FSDP2, compiled whole, in two processes (gloo, CPU): as eager, with all exchanges in the graph."""

from __future__ import annotations

import pytest
import torch

from .sharded_runs import CASES, IN_GRAPH, STEPS
from .test_distributed import run_cases

HOOKED = "stepped_with_a_hook"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]  # (the first test waits for all cases)


@pytest.fixture(scope="module")
def rows() -> dict[str, dict]:
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    return run_cases("gloo", "tests.autograd.sharded_runs", 900)


@pytest.mark.parametrize("case", [c.__name__ for c in CASES])
def test_as_eager(rows: dict[str, dict], case: str) -> None:
    assert rows[case]["same"], f"differs from eager by {rows[case]['worst']}"


# torch 2.15 adds up what it exchanges later in the parameter's own gradient: that is left to its hooks.
BY_HOOKS_FROM_2_15 = (
    "accumulated_mixed",
    "accumulated_unsynced",
    "everything_of_the_whole",
    "parallel_unsynced",
    "products_of_all_unsynced",
)


def kept_apart() -> bool:
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    return not isinstance(getattr(FSDPParam, "unsharded_accumulated_grad", None), property)


@pytest.mark.parametrize("case", BY_HOOKS_FROM_2_15)
def test_what_torch_adds_up_in_its_own_gradient_is_left_to_the_hooks(rows: dict[str, dict], case: str) -> None:
    assert kept_apart() == (rows[case]["by_hooks"] == 0 and not rows[case]["breaks"])


@pytest.mark.parametrize("case", [c.__name__ for c in IN_GRAPH])
def test_one_graph(rows: dict[str, dict], case: str) -> None:
    row = rows[case]
    if case in BY_HOOKS_FROM_2_15 and not kept_apart():
        pytest.skip("left to the hooks, as the test before this one says")
    assert row["by_hooks"] == 0 and not row["breaks"] and (case == HOOKED or not row["fallbacks"])
    waits = case in BY_HOOKS_FROM_2_15  # (one graph for passes that exchange gradients, one for the others)
    assert row["graphs"] == (3 if case == "accumulated_mixed" else 2 if waits or case == "evaluated" else 1)


@pytest.mark.parametrize("case", [c.__name__ for c in IN_GRAPH])
def test_steps_are_taken_on_local_parts(rows: dict[str, dict], case: str) -> None:
    assert rows[case]["steps_on_parts"] == (0 if case == HOOKED else STEPS)


def test_steps_that_are_left_to_torch_are_counted(rows: dict[str, dict]) -> None:
    assert rows[HOOKED]["fallbacks"] == ["an optimizer has hooks; torch's own step runs over DTensors"] * STEPS


def test_a_compiled_step_is_a_graph(rows: dict[str, dict]) -> None:
    row = rows["stepped_by_a_graph"]
    assert row["graphs"] == 2 and row["steps_on_parts"] == 0 and not row["breaks"]


def test_what_no_graph_does_is_left_to_the_hooks(rows: dict[str, dict]) -> None:
    assert rows["broken"]["by_hooks"] and len(rows["broken"]["fallbacks"]) == 1


def test_what_comes_after_a_forward_is_exchanged_too(rows: dict[str, dict]) -> None:
    assert not kept_apart() or rows["late_sum"]["by_hooks"] == 0 and not rows["late_sum"]["breaks"]


@pytest.mark.parametrize("case", ["one_block_of_others", "forwards_of_others"])
def test_blocks_that_are_compiled_alone(rows: dict[str, dict], case: str) -> None:
    """FSDP2 knows them as parts of the module around them, and steps are taken on the local parts of all parameters."""
    row = rows[case]
    assert row["steps_on_parts"] == STEPS and row["by_hooks"] == 5 * STEPS and not row["breaks"]
    assert row["graphs"] == 1, "the second block is equal to the first"
    assert all("gather" not in order for order in row["orders"])


def test_blocks_of_two_models_are_compiled_once(rows: dict[str, dict]) -> None:
    row = rows["forwards_of_two_models"]
    assert row["graphs"] == 1 and row["steps_on_parts"] == 2 * STEPS and not row["fallbacks"]


def test_forwards_of_parallel_blocks_have_no_breaks(rows: dict[str, dict]) -> None:
    assert rows["parallel_forwards"]["graphs"] == 1 and not rows["parallel_forwards"]["breaks"]


def test_gathers_are_one_module_ahead_and_reductions_behind(rows: dict[str, dict]) -> None:
    forward, backward = rows["per_block"]["orders"]
    parted = [[k for k in order if k != "compute"] for order in (forward, backward)]
    assert parted[0] == ["gather", "gather", "wait", "gather", "wait", "wait"]
    # the first block of backward is gathered at its beginning; the outermost module's parameters were kept
    assert parted[1].count("gather") == 2 and parted[1].count("reduce") == 3
    at = backward.index("gather")
    assert "compute" in backward[at : backward.index("wait")]
    first, second = [i for i, k in enumerate(backward) if k == "reduce"][:2]
    assert "wait" in backward[first:second] and "compute" in backward[first : first + 3]
    alike = rows["held_alike"]["orders"][1]
    first, second = [i for i, k in enumerate(alike) if k == "reduce"][:2]
    assert "wait" not in alike[first : first + 3] and "compute" in alike[first:second]
    kept = rows["kept_after_forward"]["orders"][1]
    assert "gather" not in kept
