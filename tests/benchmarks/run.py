"""Measure each workload in a process of its own, cold caches, engines timed in turn.

    python -m tests.benchmarks.run                         eager and tcompile
    python -m tests.benchmarks.run --torch                 and stock torch.compile
    python -m tests.benchmarks.run softmax mlp_128         these alone

Writes tests/benchmarks/results/DATE-DEVICE.md and .json: date, versions, device, the first call in seconds, the median
call in microseconds with its quartiles, the ratio of medians. Nothing is written where a result differs from eager's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 40
SECONDS_A_SAMPLE = 0.01


def sample(call: Callable[[], Any], inner: int) -> float:
    start = time.perf_counter()
    for _ in range(inner):
        call()
    return (time.perf_counter() - start) / inner


def measure(name: str, stock: bool) -> dict[str, Any]:
    """In this process: first calls, then the engines in turn. Seconds."""
    import torch

    import tcompile

    torch.manual_seed(0)
    function, inputs = WORKLOADS[name]()
    with torch.no_grad():
        start = time.perf_counter()
        expected = function(*inputs)
        engines: dict[str, Callable[..., Any]] = {"eager": function}
        first = {"eager": time.perf_counter() - start}
        start = time.perf_counter()
        engines["tcompile"] = tcompile.compile(function)
        torch.testing.assert_close(engines["tcompile"](*inputs), expected, rtol=2e-2, atol=2e-2)
        first["tcompile"] = time.perf_counter() - start
        if stock:
            start = time.perf_counter()
            engines["torch"] = torch.compile(function)
            engines["torch"](*inputs)
            first["torch"] = time.perf_counter() - start
        calls = {engine: (lambda f=f: f(*inputs)) for engine, f in engines.items()}
        inner = {engine: max(1, int(SECONDS_A_SAMPLE / max(sample(call, 3), 1e-7))) for engine, call in calls.items()}
        samples: dict[str, list[float]] = {engine: [] for engine in engines}
        for _ in range(ROUNDS):
            for engine, call in calls.items():
                samples[engine].append(sample(call, inner[engine]))
    quartiles = {engine: statistics.quantiles(s, n=4) for engine, s in samples.items()}
    return {"workload": name, "first": first, "quartiles": quartiles}


def run_apart(name: str, stock: bool) -> dict[str, Any]:
    """A fresh process with empty caches."""
    with tempfile.TemporaryDirectory(prefix="tcompile-bench-") as cache:
        env = {**os.environ, "TCOMPILE_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
        command = [sys.executable, "-m", "tests.benchmarks.run", "--here", name, *(["--torch"] if stock else [])]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: list[dict[str, Any]], facts: dict[str, str]) -> str:
    others = [e for e in rows[0]["quartiles"] if e != "tcompile"]
    head = ["workload", *(f"{e}, µs" for e in others), "tcompile, µs", *(f"over {e}" for e in others), "first call, s"]
    lines = [
        ", ".join(f"{k} {v}" for k, v in facts.items()),
        "",
        "| " + " | ".join(head) + " |",
        "| --- " * len(head) + "|",
    ]
    for row in rows:
        ours = row["quartiles"]["tcompile"]
        cells = [
            row["workload"],
            *(f"{row['quartiles'][e][1] * 1e6:.1f}" for e in others),
            f"{ours[1] * 1e6:.1f} [{ours[0] * 1e6:.1f}–{ours[2] * 1e6:.1f}]",
            *(f"{row['quartiles'][e][1] / ours[1]:.2f}×" for e in others),
            f"{row['first']['tcompile']:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--torch", action="store_true", help="stock torch.compile too")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if options.here:
        print(json.dumps(measure(options.workloads[0], options.torch)))
        return 0
    import torch

    facts = {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "device": "cpu",
        "threads": str(torch.get_num_threads()),
    }
    rows = []
    for name in options.workloads or WORKLOADS:
        rows.append(run_apart(name, options.torch))
        print(table(rows[-1:], facts).splitlines()[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{facts['date']}-{facts['device']}.md"
    path.write_text(table(rows, facts))
    path.with_suffix(".json").write_text(json.dumps({"facts": facts, "rows": rows}, indent=1) + "\n")
    print(f"kept in {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
