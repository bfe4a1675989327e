"""Functions over doubles against 40 digits, and against eager where arguments are special, for every width of vector
that the machine runs.
"""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from tcompile.compiler.lowering.ir import prim

from .helper import SIMD, pointwise, pointwise_many

inf, nan = math.inf, math.nan
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    0.41421356237309503,
    2.0,
    -3.0,
    4.0,
    8.0,
    1024.0,
    1e-3,
    inf,
    -inf,
    nan,
    5e-324,
    -5e-324,
    1e-310,
    2.2250738585072014e-308,
    1e-300,
    -1e-300,
    1e300,
    -1.7976931348623157e308,
    1e5,
    -1e6,
    3e7,
    709.7,
    709.8,
    710.4,
    -708.0,
    -745.0,
    -746.0,
    27.2,
    -27.3,
    5.9,
    0.9999999999999999,
    4503599627370497.0,
    -4503599627370497.0,
    9007199254740993.0,
    1e17,
    3.5,
    -2.5,
]
# function -> (ranges of arguments, largest error in units of the last place)
FUNCTIONS = {
    "exp": ([(-700, 700), (-1, 1)], 1.1),
    "log": ([(1e-3, 10), (0.9, 1.1), (1e-300, 1e300)], 1.1),
    "exp2": ([(-1000, 1000), (-1, 1)], 1.1),
    "expm1": ([(-30, 700), (-1, 1), (-1e-8, 1e-8)], 1.6),
    "sinh": ([(-705, 705), (-2, 2), (-1e-6, 1e-6)], 2.6),
    "cosh": ([(-705, 705), (-2, 2)], 2.6),
    "log1p": ([(-0.999, 50), (-1e-5, 1e-5), (0, 1e10)], 1.6),
    "log2": ([(1e-3, 10), (0.9, 1.1), (1e-300, 1e300)], 1.6),
    "log10": ([(1e-3, 10), (0.9, 1.1), (1e-300, 1e300)], 1.8),
    "atanh": ([(-0.999, 0.999), (-1e-3, 1e-3)], 3.1),
    "erf": ([(-6, 6), (-1, 1), (-1e-5, 1e-5)], 1.6),
    "erfc": ([(-6, 26), (0, 3), (-1, 1)], 4.6),
    "atan": ([(-50, 50), (-1, 1), (-1e-5, 1e-5)], 1.6),
    "asin": ([(-1, 1), (-0.5, 0.5), (0.99, 1)], 1.6),
    "acos": ([(-1, 1), (-0.5, 0.5), (0.99, 1)], 1.6),
    "tan": ([(-100, 100), (-1, 1)], 2.6),
    "erfinv": ([(-1, 1), (0.99, 1), (-1e-5, 1e-5)], 5.1),
    "lgamma": ([(0, 3), (2, 40), (0, 1e-5), (1e5, 1e300)], 8.1),
}
EXACT = {
    "lgamma": lambda x: mpmath.loggamma(x).real,
    "exp2": lambda x: mpmath.power(2, x),
    "log2": lambda x: mpmath.log(x, 2),
}
N = 700


def units(got: torch.Tensor, want: list) -> float:
    """The largest error in units of the last place of what is exact, where that is no denormal."""
    worst = 0.0
    for g, w in zip(got.tolist(), want):
        if abs(w) > 2.3e-308 and abs(w) < 1.7e308:
            worst = max(worst, float(abs(mpmath.mpf(g) - w) / mpmath.mpf(math.ulp(float(w)))))
    return worst


@pytest.mark.parametrize("simd", SIMD)
def test_errors(simd):
    torch.manual_seed(0)
    xs = {
        n: torch.cat([torch.empty(N // len(ranges), dtype=torch.float64).uniform_(*r) for r in ranges])[: N - 3]
        for n, (ranges, _) in FUNCTIONS.items()
    }
    got = {n: pointwise_many({n: (lambda v, n=n: prim(n, v), x)}, torch.float64, simd)[n] for n, x in xs.items()}
    with mpmath.workdps(40):
        found = {
            n: units(got[n], [EXACT.get(n, getattr(mpmath, n, None))(mpmath.mpf(x)) for x in xs[n].tolist()])
            for n in FUNCTIONS
        }
    assert {n: e for n, e in found.items() if e > FUNCTIONS[n][1]} == {}


@pytest.mark.parametrize("simd", SIMD)
def test_special_arguments(simd):
    x = torch.tensor([*SPECIAL, *SPECIAL[:7]], dtype=torch.float64)
    got = pointwise_many({n: (lambda v, n=n: prim(n, v), x) for n in FUNCTIONS}, torch.float64, simd)
    for n in FUNCTIONS:
        want = getattr(torch, n)(x)
        # (eager's are infinite from 709.8 on, where there are doubles left)
        told = want.isfinite() | ~got[n].isfinite()
        assert told.all() or n in ("sinh", "cosh") and (x[~told].abs() > 709.7).all()
        torch.testing.assert_close(
            got[n][told], want[told], rtol=2e-15, atol=1e-322, equal_nan=True, msg=lambda m, n=n: f"{n}: {m}"
        )
        number = ~want.isnan() & ((x == 0) | (x.abs() > 1e-320))  # (eager's log1p makes zeros of the least doubles)
        assert torch.equal(torch.signbit(got[n][number]), torch.signbit(want[number])), n
    assert got["log2"][SPECIAL.index(8.0)] == 3 and got["exp2"][SPECIAL.index(4.0)] == 16


@pytest.mark.parametrize("simd", SIMD)
def test_powers(simd):
    torch.manual_seed(1)
    x = torch.cat(
        [torch.rand(N).double() * 20, torch.rand(N).double() + 0.5, torch.logspace(-300, 300, N, dtype=torch.float64)]
    )
    y = torch.cat([torch.randn(N).double() * 20, torch.randn(N).double() * 900, torch.randn(N).double()])
    got = pointwise(lambda p, q: prim("pow", p, q), x, y, out=torch.float64, simd=simd)
    with mpmath.workdps(40):
        assert units(got, [mpmath.power(mpmath.mpf(a), mpmath.mpf(b)) for a, b in zip(x.tolist(), y.tolist())]) <= 1.6
    a = torch.tensor(SPECIAL, dtype=torch.float64)
    a, b = a.repeat_interleave(len(SPECIAL)), a.repeat(len(SPECIAL))
    got, want = (
        pointwise(lambda p, q: prim("pow", p, q), a, b, out=torch.float64, simd=simd),
        torch.tensor([power(p, q) for p, q in zip(a.tolist(), b.tolist())], dtype=torch.float64),
    )
    torch.testing.assert_close(got, want, rtol=2e-15, atol=0, equal_nan=True)
    number = ~want.isnan()
    assert torch.equal(torch.signbit(got[number]), torch.signbit(want[number]))


def power(a: float, b: float) -> float:
    """C's pow()."""
    try:
        return math.pow(a, b)
    except OverflowError:
        return math.copysign(inf, a) if b % 2 == 1 else inf
    except ValueError:  # a zero divided by, or no real number
        return nan if a else math.copysign(inf, a) if b % 2 == 1 else inf


@pytest.mark.parametrize("simd", SIMD)
def test_two_operands(simd):
    torch.manual_seed(2)
    s = torch.tensor(SPECIAL, dtype=torch.float64)
    x, y = (
        torch.cat([torch.randn(N).double(), s.repeat(len(s))]),
        torch.cat([torch.randn(N).double() * 2, s.repeat_interleave(len(s))]),
    )
    for name in ("atan2", "hypot"):
        got = pointwise(lambda p, q: prim(name, p, q), x, y, out=torch.float64, simd=simd)
        with mpmath.workdps(40):
            assert (
                units(
                    got[:N],
                    [
                        getattr(mpmath, name)(mpmath.mpf(a), mpmath.mpf(b))
                        for a, b in zip(x[:N].tolist(), y[:N].tolist())
                    ],
                )
                <= 1.8
            )
        want = getattr(torch, name)(x, y)
        torch.testing.assert_close(got, want, rtol=2e-15, atol=1e-322, equal_nan=True)
        assert torch.equal(torch.signbit(got[~want.isnan()]), torch.signbit(want[~want.isnan()]))
