"""The table of operators may only improve: a fixed sample of it is measured again."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from .table import ROOT, is_bad, is_worse, jobs, load

ROWS, SAMPLES = 36, 2


def test_sample_of_the_table(tmp_path: Path) -> None:
    known = {f"{name}:{dtype}" for name, dtype, _ in jobs()}  # the table may be another torch's
    table = {k: r for r in load() if (k := f"{r['name']}:{r['dtype']}") in known}
    chosen = random.Random(7).sample(sorted(table), ROWS)
    out = tmp_path / "rows.json"
    # a process of its own: it forks, which a process that has run parallel loops must not
    subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.ops.table",
            "--names",
            ",".join(chosen),
            "--limit",
            str(SAMPLES),
            "--out",
            str(out),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=300,
        stdout=subprocess.DEVNULL,
    )
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == ROWS
    worse = [
        f"{r['name']} {r['dtype']}: {r['result']} {r['kind']}: {r['why']}"
        for r in rows
        if is_worse(r, table[f"{r['name']}:{r['dtype']}"])
    ]
    assert not worse, "\n".join(worse)


def test_nothing_is_wrong() -> None:
    wrong = [f"{r['name']} {r['dtype']}: {r['why']}" for r in load() if is_bad(r)]
    assert not wrong, "\n".join(wrong)
