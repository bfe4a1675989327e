"""numpy on plain numbers inside captured code."""

from __future__ import annotations

import numpy as np
import pytest
import tcompile
import torch


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * np.sqrt(64),
        lambda x: x / np.sqrt(x.shape[-1]) + np.log(2.0),
        lambda x: np.sqrt(2.0) * x,
        lambda x: x[: int(np.ceil(1.5))],
        lambda x: x * float(np.exp(1.0)) ** 2,
        lambda x: (x + np.float64(1.5), np.sqrt(16.0)),
        lambda x: x * (np.pi * np.float32(2)),
        lambda x: x + 1 if np.maximum(2, 3) == 3 else x,
    ],
    ids=range(8),
)
def test_numbers(f):
    x = torch.arange(4.0)
    got, want = tcompile.compile(f, backend="eager", fullgraph=True)(x), f(x)
    torch.testing.assert_close(got, want)
    if isinstance(want, tuple):
        assert type(got[1]) is type(want[1])


def test_what_varies_is_guarded():
    scale = [4.0]
    compiled = tcompile.compile(lambda x: x * np.sqrt(scale[0]), backend="eager")
    assert compiled(torch.ones(1)).item() == 2.0
    scale[0] = 9.0
    assert compiled(torch.ones(1)).item() == 3.0


def test_tensors_go_to_numpy_natively():
    def f(x):
        return torch.from_numpy(np.sqrt((x * 4).numpy())) + 1

    torch.testing.assert_close(tcompile.compile(f, backend="eager")(torch.ones(2)), torch.full((2,), 3.0))
