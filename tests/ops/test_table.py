"""The table of operators may only improve: a fixed sample of it is measured again."""
from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .table import JSON, ROOT, is_worse, load

ROWS, SAMPLES = 40, 2


@pytest.mark.skipif(json.loads(JSON.read_text())["about"]["torch"] != torch.__version__.split("+")[0], reason="the table is another torch's")
def test_sample_of_the_table(tmp_path: Path) -> None:
    table = {f"{r['name']}:{r['dtype']}": r for r in load()}
    chosen = random.Random(7).sample(sorted(table), ROWS)
    out = tmp_path / "rows.json"
    # a process of its own: it forks, which a process that has run parallel loops must not
    subprocess.run([sys.executable, "-W", "ignore", "-m", "tests.ops.table", "--names", ",".join(chosen), "--limit", str(SAMPLES), "--out", str(out)],
                   cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=300, stdout=subprocess.DEVNULL)
    rows = json.loads(out.read_text())
    assert len(rows) == ROWS
    worse = [f"{r['name']} {r['dtype']}: {r['result']} {r['kind']}: {r['why']}" for r in rows if is_worse(r, table[f"{r['name']}:{r['dtype']}"])]
    assert not worse, "\n".join(worse)


def test_nothing_is_wrong() -> None:
    wrong = [f"{r['name']} {r['dtype']}: {r['why']}" for r in load() if r["result"] in ("wrong", "crashed")]
    assert not wrong, "\n".join(wrong)
