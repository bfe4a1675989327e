"""The slice of the fuzzer of hooks that runs with every test run."""

from __future__ import annotations

import pytest

from ..autograd.harness import check
from .hooks import REFUSED, function


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", [0, 2000])
def test_hooks_as_eager(first):
    for seed in range(first, first + 8):
        try:
            check(function(seed), False)
        except AssertionError as e:
            assert REFUSED in str(e), f"seed {seed}: {e}"
