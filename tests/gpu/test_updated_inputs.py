"""Updates of parts of an input are made in the input, on a GPU, by Triton's kernels."""

from __future__ import annotations

import pytest
import torch

import tcompile
from tcompile.compiler import events
from tests.fusion import test_updated_inputs as programs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

UPDATES = [programs.copies, programs.puts, programs.adds, programs.fills, programs.gives_it_back, programs.attends]
READERS = [programs.reads_before, programs.is_made_of_it, programs.is_read_between, programs.keeps_the_old]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [programs.LARGE, programs.SMALL])
@pytest.mark.parametrize("fn", [*UPDATES, *READERS])
def test_values_are_those_of_eager(fn, shape, dynamic):
    schedules = []
    compiled = tcompile.compile(fn, dynamic=dynamic)
    with events.listen(lambda e: schedules.append(e.schedule) if e.kind == "schedule" else None), torch.no_grad():
        for length in (shape[2], shape[2] + 3):
            ours = torch.randint(-4, 5, (*shape[:2], length, shape[3]), device="cuda").float()
            theirs = ours.clone()
            at = torch.tensor([length - 2], device="cuda")
            new = torch.randint(-4, 5, (*shape[:2], 1, shape[3]), device="cuda").float()
            result, wanted = compiled(ours, at, new), fn(theirs, at, new)
            torch.testing.assert_close(result, wanted, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(ours, theirs)
    if fn in UPDATES:  # whatever their size: nothing runs after a kernel's assertion
        assert all(not s.mutations and len(s.written) == 1 for s in schedules)
