"""Vector mathematics against float64 and against eager, for every width of vector that the machine runs."""

import math

import pytest
import torch

from tcompile.compiler.lowering.ir import cast, const, prim

from .helper import SIMD, pointwise, pointwise_many

inf, nan = math.inf, math.nan
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    inf,
    -inf,
    nan,
    1e-40,
    -1e-40,
    1e-30,
    3e38,
    -3e38,
    1e5,
    -1e6,
    3e7,
    88.5,
    -103.0,
    0.9277,
    4.2,
]

# function -> (lowest, highest argument, largest error in units of the last place)
FLOAT32 = {
    "exp": (-100, 88, 1.1),
    "log": (1e-38, 1e30, 1.1),
    "sin": (-100, 100, 1.6),
    "cos": (-100, 100, 1.6),
    "tanh": (-10, 10, 1.6),
    "erf": (-5, 5, 1.6),
    "sigmoid": (-80, 80, 2.6),
    "rsqrt": (1e-30, 1e30, 1.6),
    "log2": (1e-30, 1e30, 1.1),
    "log10": (1e-30, 1e10, 1.1),
    "exp2": (-120, 127, 1.1),
    "expm1": (-20, 80, 1.6),
    "log1p": (-0.99, 1e5, 1.6),
    "sqrt": (0, 1e20, 0.6),
    "tan": (-50, 50, 1.6),
    "atan": (-100, 100, 1.6),
    "asin": (-1, 1, 2.1),
    "acos": (-1, 1, 1.6),
    "erfc": (-5, 9, 1.6),
    "sinh": (-80, 80, 2.1),
    "cosh": (-80, 80, 1.6),
    "asinh": (-1e5, 1e5, 2.1),
    "acosh": (1, 1e5, 2.1),
    "atanh": (-0.999, 0.999, 2.1),
    "lgamma": (1e-30, 1e30, 1.6),
}
FLOAT64 = {
    "exp": (-700, 700, 1.1),
    "log": (1e-300, 1e300, 1.1),
    "sin": (-100, 100, 1.6),
    "cos": (-100, 100, 1.6),
    "tanh": (-20, 20, 2.1),
    "erf": (-5, 5, 2.1),
    "sigmoid": (-30, 30, 2.6),
    "sqrt": (0, 1e100, 0.6),
}


def samples(lo: float, hi: float, dtype: torch.dtype, n: int = 20011) -> torch.Tensor:
    g = torch.Generator().manual_seed(7)
    if lo > 0:
        return torch.exp(torch.empty(n, dtype=torch.float64).uniform_(math.log(lo), math.log(hi), generator=g)).to(
            dtype
        )
    wide = torch.empty(n, dtype=torch.float64).uniform_(lo, hi, generator=g)
    near = torch.empty(n // 4, dtype=torch.float64).uniform_(max(lo, -1), min(hi, 1), generator=g)
    return torch.cat([wide, near, near * 1e-3]).to(dtype)


def errors(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """In units of the last place of `got`'s type; `want` is more exact."""
    digits, least = {torch.float32: (23, -126), torch.float64: (52, -1022)}[got.dtype]
    exponent = torch.floor(torch.log2(want.abs().clamp_min(2.0**least))).clamp_min(least)
    return ((got.double() - want.double()).abs() / torch.exp2(exponent - digits))[torch.isfinite(want.to(got.dtype))]


def primitive(name: str):
    return lambda v: prim(name, v)


@pytest.fixture(scope="module", params=SIMD)
def float32_results(request):
    """name -> (argument, result, result in float64)"""
    xs = {n: samples(lo, hi, torch.float32)[:20000] for n, (lo, hi, _) in FLOAT32.items()}
    got = pointwise_many({n: (primitive(n), x) for n, x in xs.items()}, torch.float32, request.param)
    return {n: (xs[n], got[n], getattr(torch, n)(xs[n].double())) for n in FLOAT32}


@pytest.mark.parametrize("name", FLOAT32)
def test_float32_error(name, float32_results):
    x, got, want = float32_results[name]
    normal = want.abs() > 1.2e-38
    assert errors(got, want)[normal[torch.isfinite(want.float())]].max() <= FLOAT32[name][2]


@pytest.mark.parametrize("name", FLOAT32)
def test_float32_rms_error_is_at_most_twice_eager_s(name, float32_results):
    x, got, want = float32_results[name]
    ours = errors(got, want).square().mean().sqrt()
    eager = errors(getattr(torch, name)(x), want).square().mean().sqrt()
    assert ours <= 2 * eager + 0.05


@pytest.mark.parametrize("simd", SIMD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_values(dtype, simd):
    x = torch.tensor(SPECIAL * 2 + SPECIAL[:5], dtype=dtype)
    names = [*FLOAT32, "floor", "ceil", "round", "trunc", "frac", "abs", "sign", "relu", "reciprocal", "neg"]
    got = pointwise_many({n: (primitive(n), x) for n in names}, dtype, simd)
    for name in names:
        want = getattr(torch, name)(x)
        torch.testing.assert_close(
            got[name],
            want,
            rtol=1e-6 if dtype == torch.float32 else 1e-14,
            atol=0,
            equal_nan=True,
            msg=lambda m, name=name: f"{name}: {m}",
        )
        if name in ("exp", "log", "sin", "tanh", "erf", "sqrt", "neg", "abs", "floor", "round", "trunc"):
            zero = x == 0
            assert torch.equal(torch.signbit(got[name][zero]), torch.signbit(want[zero])), name


def test_float64_error():
    xs = {n: samples(lo, hi, torch.float64)[:20000] for n, (lo, hi, _) in FLOAT64.items()}
    got = pointwise_many({n: (primitive(n), x) for n, x in xs.items()}, torch.float64)
    for name, (_, _, limit) in FLOAT64.items():
        want = getattr(torch, name)(xs[name])  # eager's own error is within 1 unit
        assert errors(got[name], want).max() <= limit + 1, name


@pytest.mark.parametrize("simd", SIMD)
def test_large_arguments_of_sine_and_cosine(simd):
    x = torch.cat([torch.logspace(0, 38, 5000), -torch.logspace(3, 10, 3000), torch.arange(1, 2000) * (math.pi / 2)])
    for name in ("sin", "cos"):
        got = pointwise(lambda v: prim(name, v), x, out=torch.float32, simd=simd)
        torch.testing.assert_close(got.double(), getattr(torch, name)(x.double()), rtol=0, atol=2e-7)


@pytest.mark.parametrize("simd", SIMD)
def test_lgamma_of_negative_numbers_and_about_its_zeros(simd):
    near = torch.cat([torch.linspace(0.9, 1.1, 4001), torch.linspace(1.9, 2.1, 4001), torch.rand(4000) * 12])
    x = torch.cat([near, -torch.rand(4000) * 20, torch.tensor([-1.0, -2.0, -1e9, -0.5, 1.0, 2.0, -2.4570248])])
    got, want = pointwise(lambda v: prim("lgamma", v), x, out=torch.float32, simd=simd), torch.lgamma(x.double())
    assert errors(got[: len(near)], want[: len(near)]).max() <= 1.6
    torch.testing.assert_close(got.double(), want, rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("simd", SIMD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_operands(dtype, simd):
    special = torch.tensor([*SPECIAL, 1e38, 1.4e-45, 3.4028235e38, 1e-20, 3e-39, 2.0, 1 + 2**-23], dtype=torch.float32)
    a, b = special.repeat_interleave(len(special)), special.repeat(len(special))
    a, b = torch.cat([a, torch.randn(3000) * 9]).to(dtype), torch.cat([b, torch.randn(3000)]).to(dtype)
    for name in ("nextafter", "hypot", "atan2", "copysign"):
        got, want = pointwise(lambda p, q: prim(name, p, q), a, b, out=dtype, simd=simd), getattr(torch, name)(a, b)
        rtol = {"nextafter": 0, "copysign": 0}.get(name, 2.4e-7 if dtype == torch.float32 else 1e-15)
        torch.testing.assert_close(got, want, rtol=rtol, atol=0, equal_nan=True, msg=lambda m: f"{name}: {m}")
        assert torch.equal(torch.signbit(got), torch.signbit(want)) or name == "hypot" or got.isnan().any()


@pytest.mark.parametrize("simd", SIMD)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_shifts(dtype, simd):
    info = torch.iinfo(dtype)
    a = torch.tensor([info.min, info.max, 0, 1, 3, 77, 100]).to(dtype).repeat_interleave(12)
    b = torch.tensor([0, 1, 2, 3, 7, 8, 15, 31, 33, 63, 64, 100]).to(dtype).repeat(7)
    b = torch.where(b < 0, b + info.max + 1, b) if info.min < 0 else b
    for name, op in (
        ("bitwise_left_shift", torch.bitwise_left_shift),
        ("bitwise_right_shift", torch.bitwise_right_shift),
    ):
        got = pointwise(lambda p, q: prim(name, p, q), a, b, out=dtype, simd=simd)
        assert torch.equal(got, op(a, b)), name


@pytest.mark.parametrize("simd", SIMD)
def test_rough_erf_stays_within_its_bound(simd):
    x = torch.linspace(-6, 6, 20001)
    got = pointwise(lambda v: prim("erf_rough", v), x, out=torch.float32, simd=simd)
    assert (got.double() - torch.erf(x.double())).abs().max() < 3.4e-7
    gelu = torch.nn.functional.gelu
    x = torch.randn(50000)
    half = prim("mul", const(0.5, torch.float32), const(1.0, torch.float32))
    got = pointwise(
        lambda v: prim(
            "mul",
            prim("mul", v, half),
            prim("add", const(1.0, torch.float32), prim("erf_rough", prim("mul", v, const(0.5**0.5, torch.float32)))),
        ),
        x,
        out=torch.float32,
        simd=simd,
    )
    want = gelu(x.double())
    assert (got.double() - want).square().mean() <= 4 * (gelu(x).double() - want).square().mean()


@pytest.mark.parametrize("simd", SIMD)
def test_denormals_stay(simd):
    x = torch.tensor([1e-40, -3e-42, 1.4e-45, 1e-38] * 9)
    got = pointwise(lambda v: prim("mul", v, const(0.5, torch.float32)), x, out=torch.float32, simd=simd)
    assert torch.equal(got, x * 0.5)
    tiny = pointwise(lambda v: prim("exp", v), torch.full((33,), -100.0), out=torch.float32, simd=simd)
    assert (tiny > 0).all() and (tiny < 1.2e-38).all()


@pytest.mark.parametrize("simd", SIMD)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_conversions(dtype, simd):
    x = torch.cat([torch.randn(1000) * 10, torch.tensor(SPECIAL), torch.linspace(-70000, 70000, 501)])
    torch.testing.assert_close(
        pointwise(lambda v: cast(v, dtype), x, out=dtype, simd=simd), x.to(dtype), rtol=0, atol=0, equal_nan=True
    )
    h = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
    got = pointwise(lambda v: cast(v, torch.float32), h, out=torch.float32, simd=simd)
    torch.testing.assert_close(got, h.float(), rtol=0, atol=0, equal_nan=True)
    twice = pointwise(
        lambda v: prim("mul", cast(cast(v, dtype), torch.float32), const(3.0, torch.float32)),
        x,
        out=torch.float32,
        simd=simd,
    )
    torch.testing.assert_close(twice, x.to(dtype).float() * 3, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("simd", SIMD)
def test_powers(simd):
    x = torch.cat([torch.rand(500) * 10, -torch.rand(500), torch.tensor(SPECIAL)])
    exponents = [2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 1.0, 0.0, 2.5, -1.7]
    got = pointwise_many(
        {str(e): (lambda v, e=e: prim("pow", v, const(e, torch.float32)), x) for e in exponents}, torch.float32, simd
    )
    for e in exponents:
        torch.testing.assert_close(got[str(e)], x**e, rtol=1e-6, atol=2e-15, equal_nan=True)


@pytest.mark.parametrize("simd", SIMD)
def test_powers_of_two_tensors(simd):
    x, y = torch.rand(3000) * 50, torch.randn(3000) * 10
    want = torch.pow(x.double(), y.double())
    got = pointwise(lambda a, b: prim("pow", a, b), x, y, out=torch.float32, simd=simd)
    ok = (want > 1e-37) & (want < 1e38)
    assert errors(got, want)[ok[torch.isfinite(want.float())]].max() <= 1.6
    a = torch.tensor(SPECIAL).repeat_interleave(len(SPECIAL))
    b = torch.tensor(SPECIAL).repeat(len(SPECIAL))
    got = pointwise(lambda p, q: prim("pow", p, q), a, b, out=torch.float32, simd=simd)
    torch.testing.assert_close(got, torch.pow(a, b), rtol=1e-6, atol=1e-44, equal_nan=True)


@pytest.mark.parametrize("simd", SIMD)
def test_constant_powers(simd):
    x = torch.cat([torch.tensor([*SPECIAL, 2.0, -2.0, 1e-20, -1e-20, 1e19, -1e19]), torch.randn(3000) * 3])
    powers = (4.0, 7.0, 16.0, -3.0, -16.0, 1.5, 2.5, 15.5, -1.5, -2.5, 1.7, 17.0)
    got = pointwise_many(
        {p: (lambda v, p=p: prim("pow", v, const(p, v.dtype)), x) for p in powers}, torch.float32, simd
    )
    for p in powers:
        want = x.pow(p)
        torch.testing.assert_close(
            got[p], want, rtol=2e-7, atol=1.5e-45, equal_nan=True, msg=lambda m, p=p: f"{p}: {m}"
        )
        assert torch.equal(torch.signbit(got[p])[want == 0], torch.signbit(want)[want == 0]), p


@pytest.mark.parametrize("simd", SIMD)
def test_powers_of_negative_numbers(simd):
    y = torch.tensor(
        [2.0, 3.0, -3.0, 0.5, 8388607.5, 8388609.0, 16777215.0, 16777216.0, 33554432.0, -1.0000001, 1e30, -7.0, 5.0]
    )
    a, b = (
        -torch.tensor([1.0, 1.0000001, 0.9999999, 2.0, 0.3, 1e-30, 3e38, 1e-40]).repeat_interleave(len(y)),
        y.repeat(8),
    )
    got = pointwise(lambda v, w: prim("pow", v, w), a, b, out=torch.float32, simd=simd)
    torch.testing.assert_close(got, torch.pow(a, b), rtol=2e-7, atol=1.5e-45, equal_nan=True)


@pytest.mark.parametrize("simd", SIMD)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8])
def test_divisions_of_integers(dtype, simd):
    info = torch.iinfo(dtype)
    near = [2**31, 2**52, 2**53, 3 * 2**50]
    some = sorted(
        {
            v
            for n in (0, 1, 2, 3, 7, 100, 127, *near)
            for d in (-1, 0, 1)
            for v in (n + d, -n - d)
            if info.min <= v <= info.max
        }
        | {info.min, info.max, info.min + 1, info.max - 1}
    )
    pairs = [(a, b) for a in some for b in some if b and (a, b) != (info.min, -1)]
    g = torch.Generator().manual_seed(5)
    a = torch.cat(
        [
            torch.tensor([p for p, _ in pairs]),
            torch.randint(info.min, info.max, (500,), generator=g),
            torch.randint(-(2**52) if info.max > 2**52 else info.min, info.max, (500,), generator=g),
        ]
    ).to(dtype)
    b = torch.cat([torch.tensor([q for _, q in pairs]), torch.randint(1, 100, (1000,), generator=g)]).to(dtype)

    def cut(p, q):
        return abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)

    wanted = {
        "div_floor": lambda p, q: p // q,
        "remainder": lambda p, q: p % q,
        "div_trunc": cut,
        "fmod": lambda p, q: p - cut(p, q) * q,
    }
    for name, op in wanted.items():
        got = pointwise(lambda p, q: prim(name, p, q), a, b, out=dtype, simd=simd)
        assert got.tolist() == [op(p, q) for p, q in zip(a.tolist(), b.tolist())], name
    # neither is an error in a lane nobody asked for
    least, zero = (torch.tensor([info.min, info.min, 5] * 11, dtype=dtype), torch.tensor([-1, 0, 0] * 11, dtype=dtype))
    assert pointwise(lambda p, q: prim("remainder", p, q), least, zero, out=dtype, simd=simd).tolist() == [0] * 33
    assert (
        pointwise(lambda p, q: prim("div_floor", p, q), least, zero, out=dtype, simd=simd).tolist()
        == [info.min, 0, 0] * 11
    )
