"""Vectors of every type as every other: with the machine's instructions and without, lane counts of each width."""

from __future__ import annotations

import pytest
import torch

import tcompile

SMALL = (torch.uint8, torch.int8, torch.bool, torch.int16)
MIDDLE = (*SMALL, torch.int32, torch.float32, torch.bfloat16, torch.float16)
ALL = (*MIDDLE, torch.int64, torch.float64)
LEVELS = {"bytes and words": SMALL, "up to 32 bits": MIDDLE, "up to 64 bits": ALL}


def sample(dtype: torch.dtype) -> torch.Tensor:
    """Values that every type holds, the borders among them; 1003 elements leave a tail for every number of lanes."""
    values = torch.randint(0, 128, (1003,), generator=torch.Generator().manual_seed(1))
    values[:4] = torch.tensor([0, 1, 127, 64])
    if dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        values[4:500] = values[4:500].neg()
    return values.to(dtype)


@pytest.mark.parametrize("simd", ["auto", "avx2", "none"])
@pytest.mark.parametrize("level", LEVELS)
def test_every_pair(level: str, simd: str) -> None:
    types = LEVELS[level]

    def f(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [x.to(t) for x in xs for t in types]

    inputs = [sample(t) for t in types if not (t.is_signed and simd == "none")]
    for got, want in zip(tcompile.compile(f, options={"simd": simd})(*inputs), f(*inputs), strict=True):
        assert got.dtype == want.dtype and torch.equal(got, want)


@pytest.mark.parametrize("simd", ["auto", "avx2"])
def test_masks_of_one_width_choose_among_values_of_another(simd: str) -> None:
    def f(m: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.where(m, a, b),
            torch.where(a > 3, m, ~m),
            (a > b) & m,
            torch.where(b.double() > 0, b, a.float()),
            m.any(),
            (a > 0).all(),
        )

    m, a, b = torch.rand(517) > 0.5, sample(torch.int16)[:517], torch.randn(517)
    for got, want in zip(tcompile.compile(f, options={"simd": simd})(m, a, b), f(m, a, b), strict=True):
        assert got.dtype == want.dtype and torch.equal(got, want)


def test_unsigned_bytes_are_read_with_one_instruction() -> None:
    """An image of bytes as floats: the conversion must not go lane by lane."""
    from tcompile.compiler import events
    from tcompile.compiler.codegen.target import host_target

    if host_target().width < 32 or "avx2" not in host_target().features:
        pytest.skip("no vector conversions here")
    heard = []
    with events.listen(lambda e: heard.append(e.source) if e.kind == "kernel" else None):
        tcompile.compile(lambda x: x.float() / 255)(torch.zeros(3, 640, dtype=torch.uint8))
    assert 'asm("vpmovzxbd' in heard[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_number_of_a_short_type_is_stored_as_eager_stores_it(dtype):
    """What rounds and what need not, zeros, denormals, infinities and NaN."""

    def f(x):
        return (
            -x,
            x.abs(),
            x.relu(),
            x.floor(),
            x.round(),
            x.clamp(-1.003, 7),
            x * 1.5,
            x * 0.5,
            torch.where(x > 1, x, -x),
            x / 3,
            x.sign(),
        )

    x = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
    for got, want in zip(tcompile.compile(f, fullgraph=True)(x), f(x)):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
