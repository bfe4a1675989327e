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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bytes_are_converted_inside(dtype: torch.dtype) -> None:
    """A weight of eight bits is read as it is, where few rows are multiplied with it, and is never stored in full."""
    bits, scale = torch.randint(-128, 128, (160, 192), dtype=torch.int8), torch.rand(160).to(dtype)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, bits.t().to(x.dtype)) * scale

    def with_bias(x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(scale, x, bits.t().to(x.dtype))

    for g in (f, with_bias):
        for rows in (1, 2, 5, 8, 9):
            launches: list = []
            x = torch.randn(rows, 192).to(dtype)
            with events.listen(lambda e, heard=launches: heard.append(e.launches) if e.kind == "schedule" else None):
                got = tcompile.compile(g)(x)
            want = x.double() @ bits.t().double()
            want = want * scale.double() if g is f else want + scale.double()
            torch.testing.assert_close(got.double(), want, rtol=2e-2 if dtype != torch.float32 else 1e-5, atol=2.0)
            assert got.dtype == dtype
            stored = [origins for _, origins in launches[0] if "to_copy" in origins]
            assert rows > 8 or not stored


def test_what_bytes_are_unpacked_to_is_stored_for_several_rows() -> None:
    """Half bytes cost more to unpack than to read: for each row anew they would be slower."""
    packed = torch.randint(0, 256, (160, 96), dtype=torch.uint8)

    def f(x: torch.Tensor) -> torch.Tensor:
        halves = torch.stack((packed & 15, packed >> 4), -1).view(160, 192)
        return x @ ((halves.to(x.dtype) - 8) * 0.1).t()

    for rows in (1, 2, 4):
        x = torch.randn(rows, 192)
        torch.testing.assert_close(tcompile.compile(f)(x), f(x), rtol=1e-4, atol=1e-3)
