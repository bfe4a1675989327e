"""Convolutions with kernels of one element as generated products; others as library calls. Against torch and
float64.
"""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
import torch.nn.functional as F

import tcompile

OPTIONS = {"cpu_products": "generated"}


def check(f: Callable, *args: torch.Tensor, calls: int = 0, **options: Any) -> Any:
    """Forward and backward against float64 and eager; library calls in both graphs together."""
    leaves = [a.detach().clone(memory_format=torch.preserve_format).requires_grad_() for a in args]
    with tcompile.record() as r:
        got = tcompile.compile(f, fullgraph=True, options={**OPTIONS, **options})(*leaves)
        tangent = torch.randn(got.shape, generator=torch.Generator().manual_seed(1)).to(got.dtype)
        got.backward(tangent)
    want = f(*args)
    assert got.stride() == want.stride()
    exact = [a.detach().double().requires_grad_() for a in args]
    out = f(*exact)
    out.backward(tangent.double())
    torch.testing.assert_close(got.double(), out, rtol=1e-4, atol=1e-4)
    for x, y in zip(leaves, exact):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-4, atol=2e-3)
    report = r.report()
    assert len(report.externs) == calls, [e.op for e in report.externs]
    return report


def randn(*shape: int, last: bool = False) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return x.contiguous(memory_format=torch.channels_last) if last else x


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "n, c, o, h, w", [(2, 16, 24, 7, 7), (1, 64, 33, 8, 5), (3, 9, 130, 14, 3), (2, 40, 8, 30, 30)]
)
def test_products_over_channels(n, c, o, h, w, last) -> None:
    check(lambda x, k: F.conv2d(x, k), randn(n, c, h, w, last=last), randn(o, c, 1, 1))


def test_bias_and_activation_are_in_the_kernel() -> None:
    with torch.no_grad(), tcompile.record() as r:
        x, k, b = randn(2, 16, 9, 9), randn(24, 16, 1, 1), randn(24)
        got = tcompile.compile(lambda x, k, b: F.relu(F.conv2d(x, k, b)), options=OPTIONS)(x, k, b)
    torch.testing.assert_close(got, F.relu(F.conv2d(x, k, b)), rtol=1e-4, atol=1e-4)
    assert len(r.report().kernels) == 1 and not r.report().externs


def test_one_and_three_dimensions() -> None:
    check(lambda x, k: F.conv1d(x, k), randn(2, 16, 50), randn(24, 16, 1))
    check(lambda x, k: F.conv3d(x, k), randn(2, 16, 3, 4, 5), randn(24, 16, 1, 1, 1))


def test_images_that_are_not_whole() -> None:
    check(lambda x, k: F.conv2d(x[:, :, ::2, 1:], k), randn(2, 16, 9, 9), randn(24, 16, 1, 1))
    check(lambda x, k: F.conv2d(x[:, 3:], k), randn(2, 19, 9, 9), randn(24, 16, 1, 1))


@pytest.mark.parametrize("options", [{"stride": 2}, {"padding": 1}, {"groups": 2}])
def test_others_are_library_calls(options) -> None:
    check(
        lambda x, k: F.conv2d(x, k, **options),
        randn(2, 16, 9, 9),
        randn(24, 16 // options.get("groups", 1), 1, 1),
        calls=2,
    )


def test_large_kernels_and_the_library_on_request() -> None:
    check(lambda x, k: F.conv2d(x, k, padding=1), randn(2, 16, 9, 9), randn(24, 16, 3, 3), calls=2)
    check(lambda x, k: F.conv2d(x, k), randn(2, 16, 9, 9), randn(24, 16, 1, 1), calls=2, cpu_products="library")


def test_sizes_that_change() -> None:
    f = tcompile.compile(lambda x, k: F.conv2d(x, k), dynamic=True, options=OPTIONS)
    k = randn(24, 16, 1, 1).requires_grad_()
    for n, h in ((2, 9), (3, 10), (5, 12)):
        x = randn(n, 16, h, h)
        torch.testing.assert_close(f(x, k), F.conv2d(x, k), rtol=1e-4, atol=1e-4)
        (got,) = torch.autograd.grad(f(x, k).sum(), k)
        (want,) = torch.autograd.grad(F.conv2d(x, k).sum(), k)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


def test_a_sum_over_two_axes_that_are_not_one() -> None:
    """Products whose sum runs over rows that lie apart in memory."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bop,bcp->oc", x, y)

    x, y = randn(3, 20, 49), randn(3, 33, 49)
    torch.testing.assert_close(tcompile.compile(f, options=OPTIONS)(x, y), f(x, y), rtol=1e-4, atol=1e-4)
