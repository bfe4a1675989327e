"""Products with few rows, which are multiplied without packing, and the border to those that are packed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler import events

OPTIONS = {"cpu_products": "generated"}


@pytest.mark.parametrize("simd", ["auto", "avx2"])
@pytest.mark.parametrize("depth, columns", [(64, 48), (77, 33), (1000, 130), (16, 300), (2050, 35)])
def test_every_number_of_rows(depth: int, columns: int, simd: str) -> None:
    w, b = torch.randn(columns, depth), torch.randn(columns)

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b))

    compiled = tcompile.compile(f, dynamic=True, options=OPTIONS | {"simd": simd})
    for rows in (3, 2, 4, 5, 7, 8, 9, 14, 15, 40, 1):
        x = torch.randn(rows, depth)
        want = F.gelu(F.linear(x.double(), w.double(), b.double()))
        torch.testing.assert_close(compiled(x).double(), want, rtol=1e-5, atol=1e-4)


def test_batches_with_few_rows_each() -> None:
    a, b = torch.randn(5, 3, 65), torch.randn(5, 50, 65)

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.bmm(a, b.transpose(1, 2)), -1)

    torch.testing.assert_close(tcompile.compile(f, options=OPTIONS)(a, b), f(a, b), rtol=1e-4, atol=1e-5)


def test_the_kernel_does_not_pack() -> None:
    found = []
    w = torch.randn(256, 256)
    with events.listen(lambda e: found.append(e.source) if e.kind == "kernel" else None):
        tcompile.compile(lambda x: x @ w.t(), options=OPTIONS)(torch.randn(2, 256))
    assert any("tc::dots" in text for text in found)


def test_nan_in_the_last_column_stays_there() -> None:
    """What is read past the end of the columns or rows is the last one once more, and is not stored."""
    x, w = torch.randn(3, 40), torch.randn(37, 40)
    w[36] = float("nan")
    got = tcompile.compile(lambda x, w: x @ w.t(), options=OPTIONS)(x, w)
    assert got[:, 36].isnan().all() and not got[:, :36].isnan().any()
