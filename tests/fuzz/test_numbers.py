"""Fuzzer 4: numbers and sizes that differ from call to call."""

from __future__ import annotations

import os
import random

import pytest

from .numbers import check_numbers, write

N = int(os.environ.get("TCOMPILE_FUZZ", "60"))


@pytest.mark.parametrize("seed", range(N))
def test_like_eager(seed):
    check_numbers(write(random.Random(seed)), "tcompile" if seed % 8 == 0 else "eager")


def test_a_stale_number_is_seen():
    """The oracle itself: a backend whose graphs are those of the first call."""
    graphs = []

    def stale(gm, inputs):
        graphs.append(gm)
        return graphs[0]

    with pytest.raises(AssertionError, match="call"):
        check_numbers(
            "calls = [((2, 2), 1, 1, 1.0), ((2, 2), 5, 1, 1.0)]\ndef f(x, n, k, s):\n    return x * n,\n", stale
        )
