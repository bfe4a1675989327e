"""Training in two processes (gloo, CPU): gradients are exchanged, hooks run and shards are gathered as in eager, and
the model is compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .distributed_runs import CASES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def run_cases(backend: str, program: str = "tests.autograd.distributed_runs", seconds: int = 300) -> dict[str, dict]:
    """case -> its row, from two processes of their own."""
    run = subprocess.run(
        [sys.executable, "-m", program, backend],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "TCOMPILE_SUPPRESS_ERRORS": "0", "TCOMPILE_VERIFY": "1", "OMP_NUM_THREADS": "1"},
    )
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert run.returncode == 0, f"after {[r['case'] for r in rows]}: {run.stderr[-3000:]}"
    return {r["case"]: r for r in rows}


def check_case(row: dict) -> None:
    assert row["same"], f"differs from eager by {row['worst']}"
    if row["case"] in (
        "ddp_around",
        "ddp_inside",
        "fully_shard",
        "sharded_product",
        "tensor_parallel",
        "sequence_parallel",
        "placed_by_hand",
        "parted_words",
    ):
        # (what one case compiled may serve the next)
        assert row["kernels"], "the model was not compiled"
    if row["case"] in ("ddp_inside", "sharded_product", "tensor_parallel", "sequence_parallel", "placed_by_hand"):
        assert not row["breaks"], row["breaks"]
    if row["case"] == "parted_words":
        assert not row["breaks"] and not row["fallbacks"], row


@pytest.mark.parametrize("case", ["ddp_around", "ddp_no_sync", "fsdp"])
def test_the_module_inside_is_compiled_once(rows: dict[str, dict], case: str) -> None:
    """What stands around it runs as it is, and no part of that is captured step by step."""
    assert rows[case]["captures"] == ["call_module", "Net.forward"] and len(rows[case]["breaks"]) == 1


@pytest.fixture(scope="module")
def rows() -> dict[str, dict]:
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    return run_cases("gloo")


@pytest.mark.parametrize("case", [c.__name__ for c in CASES])
def test_as_eager(rows: dict[str, dict], case: str) -> None:
    check_case(rows[case])
