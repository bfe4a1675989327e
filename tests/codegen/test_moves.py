"""Elements that are moved without arithmetic, and read one by one."""

import pytest
import torch

import tcompile
from tcompile.compiler import events

MOVES = {
    "clone": lambda x, y: x.clone(),
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "copysign": torch.copysign,
    "where": lambda x, y: torch.where(y > 0, x, 0.3),
    "cat": lambda x, y: torch.cat([x, y], 1),
    "roll": lambda x, y: x.roll(3, -1),
    "transpose": lambda x, y: x.t().contiguous(),
    "masked": lambda x, y: x.masked_fill(y > 0, -0.0),
    "pad": lambda x, y: torch.nn.functional.pad(x, (1, 2), value=1e-3),
}


def specials(dtype, *shape):
    """All sorts of numbers: numbers below the normal ones, both zeros, infinities, NaNs of different bits."""
    bits = torch.randint(-(1 << 15), 1 << 15, shape, dtype=torch.int16)
    bits.flatten()[:6] = torch.tensor([0, -(1 << 15), 1, 0x7F81, 0x7C01, -1], dtype=torch.int16)
    return bits.view(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MOVES)
def test_short_floats_keep_their_bits(name, dtype):
    fn = MOVES[name]
    for shape in ((33, 70), (2, 3)):
        x, y = specials(dtype, *shape), specials(dtype, *shape)
        got, want = tcompile.compile(fn)(x, y), fn(x, y)
        finite = ~want.isnan()
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.view(torch.int16)[finite], want.view(torch.int16)[finite])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_no_conversion_is_made(dtype):
    kernels = []
    with events.listen(lambda e: kernels.append(e) if e.kind == "kernel" else None):
        tcompile.compile(lambda x: torch.cat([x, -x]))(torch.randn(8, 40).to(dtype))
    assert kernels and not any("widen" in k.source or "narrow" in k.source for k in kernels)


def test_zeros_and_small_numbers_in_bfloat16():
    """The machine's conversion takes numbers below the normal ones for 0: they go another way, zeros do not."""
    x = torch.tensor([0.0, -0.0, 1e-39, -1e-39, 9.2e-41, 1e-45, 1.0, float("nan"), float("inf")]).repeat(9)
    assert torch.equal(
        tcompile.compile(lambda x: (x * 1.0).bfloat16())(x).view(torch.int16)[:7], x.bfloat16().view(torch.int16)[:7]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("step", [3])
def test_elements_far_apart(dtype, step):
    for n in (7, 1001):
        x = (torch.randn(3, n * step) * 50).to(dtype)
        assert torch.equal(tcompile.compile(lambda x: x[:, ::step].clone())(x), x[:, ::step])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bool])
def test_elements_at_computed_positions(dtype):
    x, i = (torch.randn(37, 41) * 50).to(dtype), torch.randint(-41, 41, (130,))
    assert torch.equal(tcompile.compile(lambda x, i: x[:, i])(x, i), x[:, i])
    assert torch.equal(tcompile.compile(lambda x, i: x.gather(1, i.remainder(41).expand(37, 130)))(x, i), x[:, i])
    for k in (0, 9, 129):  # in whole vectors and in the rest
        bad = i.clone()
        bad[k] = 41
        with pytest.raises(IndexError):
            tcompile.compile(lambda x, i: x[:, i])(x, bad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("columns", [3, 8, 17])
def test_reductions_over_rows_of_few_columns(columns, dtype):
    for rows in (3, 131, 3001):
        x = (torch.randn(rows, columns) * 3).to(dtype)
        if dtype.is_floating_point:
            x[rows // 2, 0], x[0, -1] = float("nan"), float("inf")
        sums, largest = tcompile.compile(lambda x: (x.sum(0), x.amax(0)))(x)
        torch.testing.assert_close(
            sums,
            x.double().sum(0).to(sums.dtype) if dtype.is_floating_point else x.sum(0),
            equal_nan=True,
            rtol=2e-2 if dtype == torch.bfloat16 else 1e-4,
            atol=1e-3,
        )
        torch.testing.assert_close(largest, x.amax(0), equal_nan=True, rtol=0, atol=0)
        assert torch.equal(tcompile.compile(lambda x: (x > 0).any(0))(x), (x > 0).any(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("op", [torch.argmax, torch.argmin])
def test_the_first_of_equals(op, dtype):
    for columns in (5, 32, 67, 300):
        x = torch.randint(0, 3, (40, columns)).to(dtype)
        if dtype.is_floating_point:
            x[0], x[1], x[2, 3:], x[3, 4] = float("inf"), float("-inf"), float("nan"), float("nan")
        assert torch.equal(tcompile.compile(lambda x: op(x, 1))(x), op(x, 1))
