"""How many calls between modules a tensor passes on its way from a cell to its kernel (tools/hops.py says what counts).

Each bar is the number that the code has reached. Where a change makes a count smaller, its bar is lowered with it.
"""

from __future__ import annotations

import re
import subprocess
import sys

from .test_imports import ROOT

SPINE, WHOLE_WAY = 12, 32


def test_hops_of_one_tensor():
    ran = subprocess.run([sys.executable, "tools/hops.py"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = {name: int(n) for name, n in re.findall(r"^(spine|whole way): (\d+) hops", ran.stdout, re.MULTILINE)}
    assert 10 < found["spine"] <= SPINE, ran.stdout
    assert found["spine"] < found["whole way"] <= WHOLE_WAY, ran.stdout
