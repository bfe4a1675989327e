"""Fuzzer 3: straight programs of tensor operators through the whole compiler, forward and backward, static and
symbolic.
"""

from __future__ import annotations

import os
import random
import warnings

import pytest

from .tensors import check_tensors, write

N = int(os.environ.get("TCOMPILE_FUZZ", "25"))


@pytest.mark.parametrize("seed", range(max(8, N // 2)))
def test_like_eager(seed):
    rolled = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_tensors(write(rolled), dynamic=(None, None, True)[seed % 3], grad=seed % 4 == 0)


def test_a_wrong_value_is_seen():
    """The oracle itself: a backend that gives other numbers, strides or types than eager."""
    source = "def inputs():\n    return [torch.ones(3, 4)]\n\n\ndef f(x0):\n    return (x0 * 2,)\n"
    for spoil in (lambda t: t + 0.1, lambda t: t.t().contiguous().t(), lambda t: t.double()):
        with pytest.raises(AssertionError, match="tensor 0"):
            check_tensors(source, backend=lambda gm, inputs: lambda *xs: tuple(spoil(t) for t in gm(*xs)))
