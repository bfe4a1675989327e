"""What a dtype decides: which kernels exist, how numbers round and wrap on their way in, where functions end."""

import random

import pytest
import torch
import torch.nn.functional as F

import tcompile

from .test_ordered import same

NARROW = (torch.bfloat16, torch.float16)
WITHOUT_KERNEL = {
    "special functions of halves": (torch.special.airy_ai, torch.ones(3, dtype=torch.half)),
    "error functions of halves": (torch.special.erfcx, torch.ones(3, dtype=torch.bfloat16)),
    "activations of integers": (F.elu, torch.arange(4)),
    "activations of bools": (F.hardtanh, torch.ones(3, dtype=torch.bool)),
    "fast activations of integers": (F.hardswish, torch.arange(4)),
    "degrees of complex numbers": (torch.deg2rad, torch.ones(3, dtype=torch.complex64)),
    "infinities of complex numbers": (torch.isposinf, torch.ones(3, dtype=torch.complex64)),
    "steps between types": (lambda x: torch.heaviside(x, x.double()), torch.ones(3)),
    "bits as powers": (lambda x: torch.ldexp(x, x > 0), torch.ones(3)),
    "parts of integers": (torch.frac, torch.arange(4)),
    "bits of floats": (lambda x: x & 2.5, torch.arange(4)),
    "bits in place": (lambda x: x.clone().bitwise_or_(1), torch.ones(3)),
    "quotients of bools": (lambda x: x // True, torch.ones(3, dtype=torch.bool)),
    "interpolated integers": (lambda x: torch.lerp(x, x + 1, 2), torch.arange(4)),
    "unsigned integers": (lambda x: x.abs().neg(), torch.ones(3, dtype=torch.uint16)),
    "differences of unsigned integers": (lambda x: torch.rsub(x, x), torch.ones(3, dtype=torch.uint32)),
    "eight bits": (lambda x: x.clamp(0, 1), torch.ones(3).to(torch.float8_e5m2)),
    "sums of eight bits": (lambda x: x.sum(), torch.ones(3).to(torch.float8_e4m3fn)),
    "softmax of integers": (lambda x: x.softmax(0), torch.arange(4)),
}


def raises_alike(f, x):
    with pytest.raises(Exception) as want:
        f(x)
    with pytest.raises(type(want.value)) as got:
        tcompile.compile(f)(x)
    assert str(got.value) == str(want.value)


@pytest.mark.parametrize("what", WITHOUT_KERNEL)
def test_what_eager_has_no_kernel_for_is_refused_in_its_words(what):
    raises_alike(*WITHOUT_KERNEL[what])


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.masked_fill(x > 0, -1_000_000_000),
        lambda x: torch.full_like(x, 1 << 31),
        lambda x: torch.add(x, x, alpha=1 << 31),
    ],
)
def test_integers_that_a_half_does_not_hold(f):
    raises_alike(f, torch.ones(3, dtype=torch.half))


@pytest.mark.parametrize("f", [lambda x: x // (1 << 16), lambda x: x % (1 << 32), lambda x: torch.fmod(x, 256)])
def test_divisors_that_wrap_to_zero(f):
    raises_alike(f, torch.arange(1, 5, dtype=torch.int8))


NUMBERS = [
    lambda x: x == 0.1,
    lambda x: x < 0.1,
    lambda x: x != 0.3,
    lambda x: x > 0.3,
    lambda x: x + 0.1,
    lambda x: 0.1 - x,
    lambda x: x - 0.1,
    lambda x: x * 0.1,
    lambda x: x / 0.1,
    lambda x: x % 0.1,
    lambda x: torch.fmod(x, 0.1),
    lambda x: x**0.3,
    lambda x: 0.3**x,
    lambda x: x // 0.1,
    lambda x: x == torch.tensor(0.1),
    lambda x: x >= torch.arange(x.numel()) + 256,
]


@pytest.mark.parametrize("dtype", NARROW)
def test_numbers_beside_narrow_floats_round_as_eagers(dtype):
    x = torch.cat([torch.tensor([0.1, 0.3, 2.1, 0.5, 0.7, 6, 257, 259]), torch.rand(40)]).to(dtype)
    compiled = tcompile.compile(lambda x: tuple(f(x) for f in NUMBERS), fullgraph=True)
    for k, (got, f) in enumerate(zip(compiled(x), NUMBERS)):
        assert torch.equal(got, f(x)), k


@pytest.mark.parametrize("dtype", NARROW)
def test_a_number_that_varies_is_compared_as_well(dtype):
    x = torch.tensor([0.1, 0.3, 0.7]).to(dtype)
    compiled = tcompile.compile(lambda x, n: x == n, fullgraph=True, dynamic=True)
    for n in (0.1, 0.3, 0.7):
        assert torch.equal(compiled(x, n), x == n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("power", [torch.int64, torch.uint8, torch.float32])
def test_powers_of_two_that_overflow(dtype, power):
    x, y = torch.tensor([0, 1, 3, 1]).to(dtype).repeat(5), torch.tensor([200, 1, 3, 127]).to(power).repeat(5)
    got, want = tcompile.compile(torch.ldexp, fullgraph=True)(x, y), torch.ldexp(x, y)
    assert got.dtype is want.dtype and torch.equal(got.nan_to_num(nan=7), want.nan_to_num(nan=7))


@pytest.mark.parametrize(
    "types", [(torch.float32, torch.float64), (torch.bfloat16, torch.float32), (torch.int64, torch.float32)]
)
def test_distances_between_types(types):
    x, y = (torch.arange(4).to(t) for t in types)
    torch.testing.assert_close(tcompile.compile(torch.dist, fullgraph=True)(x, y + 1), torch.dist(x, y + 1))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("n", [1, 9])
def test_the_next_number_is_that_of_the_type(dtype, n):
    x = torch.tensor([1, 1, -2, 0, -0.0, float("inf"), 60000, 2**-14, 0]).to(dtype).repeat(n)
    y = torch.tensor([0, 2, 0, 1, -1, 0, float("inf"), 0, 0]).to(dtype).repeat(n)
    assert torch.equal(tcompile.compile(torch.nextafter)(x, y), torch.nextafter(x, y))


def test_gelu_far_from_zero_is_nothing_or_its_argument():
    x = torch.tensor([-6.5, -14, -104, -1e4, -1e10, -3e38, 6.5, 104, 1e10]).repeat(4)
    want = torch.where(x > 0, x, -0.0)
    for dtype in (torch.float32, torch.bfloat16):
        got = tcompile.compile(lambda x: F.gelu(x) + 0, fullgraph=True)(x.to(dtype))
        assert torch.equal(got, want.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.half])
def test_negative_floats_wrap_in_every_integer_type(dtype):
    x = torch.tensor([-1.5, -2, -3.7, 0.5, 100.9, -100.9, 7, -7, 120, 200, 255]).to(dtype).repeat(3)
    types = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64)
    for n in (1, x.numel()):
        compiled = tcompile.compile(lambda x: tuple(x.to(t) for t in types), fullgraph=True)
        for got, t in zip(compiled(x[-n:]), types):
            assert got.tolist() == x[-n:].to(t).tolist(), t


@pytest.mark.parametrize("f", [torch.fmax, torch.fmin])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.half])
def test_of_zeros_eager_s_is_taken(f, dtype):
    x, y = torch.tensor([0.0, -0.0] * 20, dtype=dtype), torch.tensor([-0.0, 0.0] * 20, dtype=dtype)
    assert torch.equal(tcompile.compile(f)(x, y).signbit(), f(x, y).signbit())


def test_zeros_of_lgamma_have_no_sign():
    same(lambda x: torch.lgamma(x).signbit(), torch.tensor([1.0, 2.0] * 9))


EIGHT_BITS = [
    lambda x: torch.cat([x, x.flip(0)]),
    lambda x: torch.stack([x, x]),
    lambda x: torch.full_like(x, 3),
    lambda x: torch.zeros_like(x),
    lambda x: x.roll(1),
    lambda x: x.cumsum(0, dtype=torch.float32),
    lambda x: x.mT.contiguous(),
    lambda x: x[torch.tensor([1, 0])],
    lambda x: (x.float() * 2).to(x.dtype),
]


@pytest.mark.parametrize("k", range(len(EIGHT_BITS)))
def test_floats_of_eight_bits_are_moved_by_torch(k):
    """Nests have none of them on a CPU; rules that only move elements took them for any other type."""
    x = torch.randn(4, 6).to(torch.float8_e4m3fn)
    for dynamic in (False, True):
        got, want = tcompile.compile(EIGHT_BITS[k], fullgraph=True, dynamic=dynamic)(x), EIGHT_BITS[k](x)
        assert got.dtype is want.dtype and torch.equal(got.float(), want.float()) and got.stride() == want.stride()


@pytest.mark.parametrize(
    "f",
    [
        torch.argmax,
        lambda x: F.interpolate(x[None], scale_factor=2),
        lambda x: torch.isin(x, x),
        lambda x: torch.addcdiv(x.short(), x.short(), x.short()),
    ],
)
def test_what_a_kernel_cannot_be_asked(f):
    raises_alike(f, torch.ones(2, 3, dtype=torch.bool))


STEPS = [
    lambda a, b: a + b,
    lambda a, b: 0.7 - a,
    lambda a, b: a * 0.3,
    lambda a, b: a / (b.abs() + 1),
    lambda a, b: a.sigmoid(),
    lambda a, b: a.tanh() * b,
    lambda a, b: F.relu(a) + 0.1,
    lambda a, b: torch.where(a > 0.2, a, b),
    lambda a, b: (a.abs() + 0.1).sqrt(),
    lambda a, b: a.softmax(-1),
    lambda a, b: F.layer_norm(a, a.shape[-1:]),
    lambda a, b: a - a.mean(-1, keepdim=True),
    lambda a, b: a.sum(0, keepdim=True) * 0.1 + b,
    lambda a, b: (a.abs() + 0.1) ** 0.3,
    lambda a, b: F.silu(a),
    lambda a, b: a % 0.7,
    lambda a, b: a.cumsum(-1) * 0.1,
    lambda a, b: a.amax(-1, keepdim=True) - b,
    lambda a, b: F.softplus(a),
]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("seed", range(3))
def test_chains_round_as_eager_does_where_asked_to(dtype, seed):
    steps = random.Random(seed).sample(STEPS, 8)

    def chain(a, b):
        values = [a, b]
        for step in steps:
            values.append(step(values[-1], values[-2]))
        return tuple(values[2:])

    a, b = torch.randn(8, 33).to(dtype), torch.randn(8, 33).to(dtype)
    compiled = tcompile.compile(chain, fullgraph=True, options={"emulate_precision": True})
    for k, (got, want) in enumerate(zip(compiled(a, b), chain(a, b))):
        assert torch.equal(got, want), k
