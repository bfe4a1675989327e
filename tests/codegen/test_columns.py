"""Reductions over rows in two phases: every extent around a chunk's, several sums at once, what follows them,
threads.
"""

from __future__ import annotations

from typing import Callable

import pytest
import torch

import tcompile
from tcompile.compiler import events


def shapes_of(f: Callable, *inputs: torch.Tensor, **kw) -> tuple[object, list[str]]:
    found: list[str] = []
    with events.listen(lambda e: found.append(e.choices["shape"]) if e.kind == "kernel" else None):
        result = tcompile.compile(f, **kw)(*inputs)
    return result, found


@pytest.mark.parametrize("rows, columns", [(1031, 300), (4096, 33), (257, 2500), (300, 4100), (70000, 3)])
def test_against_float64(rows: int, columns: int) -> None:
    x = torch.randn(rows, columns)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(0) * 2 + 1, (x * x).sum(0), x.amax(0), x.amin(0)

    result, shapes = shapes_of(f, x)
    assert columns < 16 or "split" in shapes
    for got, want in zip(result, f(x.double()), strict=True):
        torch.testing.assert_close(got, want.float(), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    x = torch.randn(2000, 130).to(dtype)
    result, shapes = shapes_of(lambda x: x.sum(0), x)
    assert shapes == ["split"]
    torch.testing.assert_close(
        result,
        x.double().sum(0).to(dtype),
        rtol=2e-2 if dtype != torch.float64 else 1e-12,
        atol=1e-1 if dtype != torch.float64 else 1e-10,
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows, columns", [(2000, 130), (257, 2500), (4097, 96)])
def test_what_is_stored_beside_the_sums(rows: int, columns: int, threads: int) -> None:
    x, g = torch.randn(rows, columns), torch.randn(rows, columns)

    def f(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        d = g * x.sigmoid()
        return d - 1, d.sum(0), x.tanh(), (d * x).sum(0) + 1

    result, shapes = shapes_of(f, x, g, options={"threads": threads})
    assert shapes == ["split"]
    for got, want in zip(result, f(x.double(), g.double()), strict=True):
        torch.testing.assert_close(got, want.float(), rtol=1e-5, atol=1e-3)


def test_columns_that_lie_in_runs() -> None:
    """The gradient of three projections, head by head, as rows, and their bias' gradient."""
    q = torch.randn(3, 100, 3, 49, 32)

    def f(q: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = q.permute(1, 3, 0, 2, 4).reshape(-1, 288)
        return rows, rows.sum(0)

    result, shapes = shapes_of(f, q)
    assert shapes == ["split"]
    assert result[0].equal(f(q)[0])
    torch.testing.assert_close(result[1], f(q.double())[1].float(), rtol=1e-5, atol=1e-3)


def test_mean_and_variance_of_columns_are_used_in_one_graph() -> None:
    x, w = torch.randn(3000, 70), torch.randn(70)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        m = x.mean(0)
        return (x - m) * torch.rsqrt(((x - m) ** 2).mean(0) + 1e-5) * w

    torch.testing.assert_close(tcompile.compile(f)(x, w), f(x, w), rtol=2e-5, atol=2e-5)


def test_groups_of_rows() -> None:
    x = torch.randn(3, 2000, 90)
    result, shapes = shapes_of(lambda x: x.sum(1), x)
    assert shapes == ["split"]
    torch.testing.assert_close(result, x.sum(1), rtol=1e-5, atol=1e-4)


def test_nan_and_infinity_come_through() -> None:
    x = torch.randn(2048, 128)
    x[700, 3], x[1999, 5], x[0, 7] = float("nan"), float("inf"), float("-inf")
    f = lambda x: (x.amax(0), x.amin(0), x.sum(0))  # noqa: E731
    for got, want in zip(tcompile.compile(f)(x), f(x), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-4)


def test_rows_of_any_number() -> None:
    f = lambda x: x.sum(0)  # noqa: E731
    compiled = tcompile.compile(f, dynamic=True)
    for rows in (5000, 2, 31, 257, 4096, 100000):
        x = torch.randn(rows, 40)
        torch.testing.assert_close(compiled(x), x.double().sum(0).float(), rtol=1e-5, atol=1e-3)


def test_result_does_not_depend_on_threads() -> None:
    x = torch.randn(20000, 64)
    compiled = tcompile.compile(lambda x: x.sum(0))
    n = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(compiled(x))
    finally:
        torch.set_num_threads(n)
    assert results[0].equal(results[1]) and results[0].equal(results[2])
