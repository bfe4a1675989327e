"""The labextension's own tests: formatting, payloads, the graph's layout, highlighting. They need Node alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

LAB = Path(__file__).parents[2] / "labextension"


@pytest.mark.skipif(
    not (shutil.which("node") and shutil.which("jlpm") and (LAB / "node_modules").is_dir()),
    reason="the labextension was not built: there is no Node, or its packages could not be had",
)
def test_the_labextension() -> None:
    done = subprocess.run(
        ["jlpm", "test"], cwd=LAB, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# pass 0" not in done.stdout and "# fail 0" in done.stdout
