"""Elements that lie along another axis than the result's: read in square tiles; every dtype, ragged edges, several
operands.
"""

from __future__ import annotations

from typing import Callable

import pytest
import torch

import tcompile

R = torch.randn


def some(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    x = R(shape) * 50
    return (x > 0) if dtype == torch.bool else x.to(dtype)


CASES: dict[str, tuple[Callable, tuple]] = {
    "matrix": (lambda x: x.t().contiguous(), ((100, 77),)),
    "exact": (lambda x: x.t().contiguous(), ((64, 64),)),
    "one operand of two": (lambda x, y: x + y.t(), ((51, 70), (70, 51))),
    "rows and columns": (lambda x, y, z: (x + y.t()) * z, ((40, 33), (33, 40), (33,))),
    "channels last": (lambda x: x.permute(0, 2, 3, 1).contiguous(), ((2, 19, 5, 7),)),
    "channels first": (lambda x: x.permute(0, 3, 1, 2).contiguous(), ((2, 5, 7, 40),)),
    "five axes": (lambda x: x.permute(4, 0, 3, 1, 2).contiguous(), ((3, 5, 7, 18, 19),)),
    "slices": (lambda x: x[:, 1:-1].t().contiguous(), ((50, 40),)),
    "thin": (lambda x: x.t().contiguous(), ((3, 500),)),
}


@pytest.mark.parametrize("simd", ("auto", "avx2", "none"))
@pytest.mark.parametrize("name", CASES)
def test_float32(name: str, simd: str) -> None:
    f, shapes = CASES[name]
    args = [some(s, torch.float32) for s in shapes]
    got = tcompile.compile(f, fullgraph=True, options={"simd": simd})(*args)
    want = f(*args)
    assert torch.equal(got, want) and got.stride() == want.stride()


@pytest.mark.parametrize(
    "dtype",
    (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool),
)
def test_dtypes(dtype: torch.dtype) -> None:
    x, y = some((45, 70), dtype), some((70, 45), torch.float32)
    for f in (lambda x, y: x.t().contiguous(), lambda x, y: y + x.t(), lambda x, y: torch.where(x.t() > 0, y, -y)):
        got, want = tcompile.compile(f, fullgraph=True)(x, y), f(x, y)
        assert torch.equal(got, want) and got.stride() == want.stride()


def test_symbolic_sizes() -> None:
    f = tcompile.compile(lambda x, y: x.t() * 2 + y, fullgraph=True, dynamic=True)
    for m, n in ((40, 50), (17, 16), (64, 33), (5, 300), (2, 2)):
        x, y = R(m, n), R(n, m)
        torch.testing.assert_close(f(x, y), x.t() * 2 + y)


def test_tiles_are_used() -> None:
    with tcompile.record() as r:
        tcompile.compile(lambda x: x.permute(0, 2, 3, 1).contiguous(), fullgraph=True)(R(2, 64, 28, 28))
    assert "transpose(" in r.report().kernels[0].source
