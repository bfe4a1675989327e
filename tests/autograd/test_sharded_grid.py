"""FSDP2 beside tensor parallelism in four processes (gloo, CPU): losses and parameters are eager's, in one graph."""

from __future__ import annotations

import pytest
import torch

from .test_distributed import run_cases

pytestmark = pytest.mark.slow


def test_rows_and_columns_of_processes() -> None:
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    row = run_cases("gloo", "tests.autograd.grid_runs")["rows_and_columns"]
    assert row["same"]
    assert not row["breaks"] and row["graphs"] == 1
