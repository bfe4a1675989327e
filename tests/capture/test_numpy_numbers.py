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


FROM_OUTSIDE = {
    "mul": lambda x, s: x * s,
    "from the left": lambda x, s: s * x + 1,
    "minus": lambda x, s: (s - x, x - s, s / (x + 9), x / s, x % s),
    "comparison": lambda x, s: (x < s, s < x, x == s),
    "two numbers": lambda x, s: x + (s + s) * 2,
    "function": lambda x, s: x * np.sqrt(s * s) if isinstance(s, np.floating) else x,
    "given back": lambda x, s: (x + 1, s, [s], type(s), s.dtype),
    "method": lambda x, s: torch.add(x, s) + x.mul(s),
    "branch": lambda x, s: x * 2 if s > 3 else x * 3,
    "argument": lambda x, s: torch.clamp(x, max=s),
}


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.float16, np.int32, np.uint8])
@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_numbers_from_outside(name, kind):
    """By type and value, and of other values as numbers that vary: never by which object it is."""
    f = FROM_OUTSIDE[name]
    compiled = tcompile.compile(f)
    x = torch.arange(4.0)
    with tcompile.record() as record:
        for v in (2, 2, 3, 4, 5, 4, 7, 11, 13, 1, 0):
            s = kind(v)
            got, want = compiled(x, s), f(x, s)
            torch.testing.assert_close(got, want, equal_nan=True) if name != "given back" else None
            if name == "given back":
                assert torch.equal(got[0], want[0]) and got[1] is s and got[2][0] is s and got[3:] == want[3:]
    assert len(record.report().recompiles) <= 4


def test_a_number_that_becomes_another_type():
    compiled = tcompile.compile(lambda x, s: (x * s, np.asarray(s).dtype, type(s)))
    for s in (np.float32(2), np.float64(2), 2.0, 2, np.int64(2), np.float32(3), np.float64(3), 3.0, np.bool_(True)):
        got = compiled(torch.arange(3), s)
        want = torch.arange(3) * s
        assert got[2] is type(s) and got[1] == np.asarray(s).dtype
        torch.testing.assert_close(got[0], want)


def test_special_numbers():
    compiled = tcompile.compile(lambda x, s: x + s)
    for v in (0.0, -0.0, np.nan, np.nan, np.inf, -np.inf, 1e300):
        s = np.float64(v)
        assert repr(compiled(torch.zeros(1), s)) == repr(torch.zeros(1) + s)
