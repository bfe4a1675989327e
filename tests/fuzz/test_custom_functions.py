"""The slice of the fuzzer of custom autograd functions that runs with every test run."""

from __future__ import annotations

import pytest

from ..autograd.harness import check
from .custom_functions import function, program


@pytest.mark.parametrize("first", [0, 5000])
def test_custom_functions_as_eager(first):
    for seed in range(first, first + 20):
        try:
            check(function(seed), False, backend="aot_eager")
        except AssertionError as e:
            pytest.fail(f"seed {seed}: {e}\n{program(seed)}")
