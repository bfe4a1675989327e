"""What the tests of traps share: traps are places where a compiler of Python serves something stale or wrong."""

from __future__ import annotations

import tcompile
import torch
import torch.nn as nn


def same(got, want, tol=1e-5):
    assert type(got) is type(want), (type(got), type(want))
    assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride()
    assert got.requires_grad == want.requires_grad
    torch.testing.assert_close(got, want, rtol=tol, atol=tol, equal_nan=True)


def follows(f, *args, tol=1e-5, calls=2):
    """A compiled `f`, checked against eager a few times; `again(*args)` checks once more after a change."""
    c = tcompile.compile(f)

    def again(*args):
        same(c(*args), f(*args), tol)

    for _ in range(calls):
        again(*args)
    return again


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 3)
