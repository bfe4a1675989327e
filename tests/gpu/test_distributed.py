"""Training on two GPUs (NCCL): as tests/autograd/test_distributed.py, which runs the same cases on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.autograd.distributed_runs import CASES
from tests.autograd.test_distributed import check_case, run_cases


@pytest.fixture(scope="module")
def rows() -> dict[str, dict]:
    if torch.cuda.device_count() < 2 or not torch.distributed.is_nccl_available():
        pytest.skip("needs two GPUs and NCCL")
    return run_cases("nccl")


@pytest.mark.parametrize("case", [c.__name__ for c in CASES])
def test_as_eager(rows: dict[str, dict], case: str) -> None:
    check_case(rows[case])
