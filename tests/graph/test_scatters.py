"""Parts of a tensor written in place and read again: each part alone is computed."""

from __future__ import annotations

from typing import Callable

import pytest
import torch

import tcompile


def gates(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    i, f, g, o = x.chunk(4, 1)
    i.sigmoid_(), f.sigmoid_(), g.tanh_(), o.sigmoid_()
    return f * 0.5 + i * g - o


def overlapping(x: torch.Tensor) -> torch.Tensor:
    x = x + 0
    x[:, 2:10] = 1
    x[:, 4:6].mul_(3)
    return torch.cat([x[:, 0:2], x[:, 3:7], x[:, 5:6], x[:, 9:12]], 1)


def whole_again(x: torch.Tensor) -> tuple:
    y = x.clone()
    y[1:3] = y[0:2] * 2
    return y, y[1:2], y[3:]


def strided(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, ::2] = 0
    y[:, 1:3] += 1
    return y[:, 1:4] + y[:, ::3][:, :3]


def other_dtype(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 2:6] = torch.arange(4)
    return y[:, 3:5]


def broadcast(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 2:6] = x[:, :1]
    return y[:, 3:5] + y[:, 4:6]


@pytest.mark.parametrize("f", (gates, overlapping, whole_again, strided, other_dtype, broadcast))
@pytest.mark.parametrize("dynamic", (False, True))
def test_equals_eager(f: Callable, dynamic: bool) -> None:
    x = torch.randn(5, 12)
    torch.testing.assert_close(tcompile.compile(f, fullgraph=True, dynamic=dynamic)(x.clone()), f(x.clone()))


def test_gates_are_one_kernel() -> None:
    with tcompile.record() as r:
        tcompile.compile(gates, fullgraph=True)(torch.randn(5, 12))
    assert len(r.report().kernels) == 1
    with tcompile.record() as r:
        tcompile.compile(gates, fullgraph=True, options={"disabled_passes": "slices_of_scatters"})(torch.randn(5, 12))
    assert len(r.report().kernels) > 1
