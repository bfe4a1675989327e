"""What is decided by time is rank 0's decision on every rank of a process group (frontend/ranks.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tcompile.compiler.runtime import frame_hook

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not frame_hook.available() or not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="the C extension is not built, or this torch has no gloo",
    ),
]


@pytest.mark.parametrize("entries, want", [((2.0, 0.1), "switched off"), ((0.1, 2.0), "compiled")])
def test_ranks_take_rank_0_s_decision(tmp_path, entries, want):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.capture.ranks_program", str(rank), str(tmp_path), str(entry)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank, entry in enumerate(entries)
    ]
    told = []
    for rank in ranks:
        out, err = rank.communicate(timeout=120)
        assert rank.returncode == 0, err[-3000:]
        told.append(json.loads(out.splitlines()[-1]))
    assert told == [want, want]
    assert not list(tmp_path.glob("*/v1/notes/slower-*")), "folders of ranks may differ: nothing is kept"
