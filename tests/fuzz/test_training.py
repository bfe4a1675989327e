"""A slice of the random training programs; `python -m tests.fuzz.training SEED COUNT` runs more."""

import warnings

import pytest

from .training import check


@pytest.mark.parametrize("seed", range(0, 60, 20))
def test_like_eager(seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(seed, seed + 20):
            assert check(k, "aot_eager") is None
    assert check(seed + 90_000) is None
