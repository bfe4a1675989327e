"""A kernel that a GPU's driver does not load or launch: another form of it, then torch's kernels; each counted, shown
and kept as a file, the result right. Without a GPU: stand_in_driver.py is the driver.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tcompile.compiler.native import native

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(native is None, reason="the C extension is not built")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.stand_in_driver", str(folder)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def reproducer(said):
    path = Path(re.search(r"To see it alone: (\S+\.py)", said).group(1))
    assert path.parent.name == "rejected" and "_init_handles()" in path.read_text()


def test_nothing_is_said_where_all_launches_go_well(found):
    assert found["nothing"] == {"calls": [True] * 3, "launches": [3, 3, 3], "said": [], "eager": 0}


@pytest.mark.parametrize("name, refusals", [("one launch", 1), ("some ways", 2)])
def test_a_launch_that_is_refused_goes_on_with_the_kernel_in_another_form(found, name, refusals):
    seen = found[name]
    assert seen["calls"] == [True] * 3 and seen["eager"] == 0
    assert seen["launches"] == [3 + refusals, 3, 3]  # the refused form is not asked for again
    assert len(seen["said"]) == refusals
    for said in seen["said"]:
        assert re.match(r"kernel: add_constant_1 takes xblock=\d+, warps=\d+: the device rejects .*\(701\)", said)
        reproducer(said)


def test_where_every_form_is_refused_torch_runs_the_graph(found):
    seen = found["every launch"]
    assert seen["calls"] == [True] * 3 and seen["eager"] == 3 and seen["launches"][1:] == [0, 0]
    assert sum("torch's own kernels run a graph from now on" in said for said in seen["said"]) == 1
    reproducer(seen["said"][-1])


def test_a_call_whose_inputs_are_gone_fails_in_words_and_the_next_do_not(found):
    first, *later = found["every launch, given"]["calls"]
    assert first.startswith("RejectedKernel: the device rejects a generated kernel: CUDA error") and later == [True] * 2


def test_a_kernel_that_does_not_load_is_printed_in_another_way(found):
    seen = found["some loads"]
    assert seen["calls"] == [True] * 3 and seen["launches"] == [3, 3, 3] and seen["eager"] == 0
    (said,) = seen["said"]
    assert "add_constant_1 takes" in said and "(200)" in said
    reproducer(said)


def test_more_threads_than_the_device_runs_are_seen_before_a_launch(found):
    assert "64 threads of 255 registers, and the device runs 32 of them" in found["too many threads"]["refused"]


def test_a_fault_on_the_device_is_no_refusal(found):
    seen = found["a fault"]
    assert seen["said"] == [] and seen["eager"] == 0
    assert all(said.startswith("RuntimeError: CUDA error") and "start it anew" in said for said in seen["calls"])


def test_a_refusal_that_is_to_be_heard_is_raised(found):
    assert all(said.startswith("RejectedKernel: CUDA error") for said in found["to be heard"]["calls"])
