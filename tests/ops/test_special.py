"""Special functions in generated code: eager's values, also at poles, at zeros of either sign, and for NaN and
infinities.
"""

from __future__ import annotations

import pytest
import torch

import tcompile

from .test_ordered import same

EDGES = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-30, 0.5, 2, 5, 8, 10, -2, -10, 1, -1]
UNARY = """
    digamma i0 i0e i1 i1e airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1
    modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0
    log_ndtr ndtri erfinv erfcx""".split()
POLYNOMIALS = """
    chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w hermite_polynomial_h
    hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p shifted_chebyshev_polynomial_t
    shifted_chebyshev_polynomial_w""".split()


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_argument(name):
    torch.manual_seed(0)
    x = torch.cat(
        [
            torch.randn(400, dtype=torch.float64) * 6,
            torch.rand(100, dtype=torch.float64),
            torch.tensor(EDGES, dtype=torch.float64),
        ]
    )
    if name == "erfcx":
        x = x[x > -3]  # (float32 loses digits of its growth below, in eager as well)
    fn = getattr(torch.special, name)
    same(lambda x: fn(x) * 1.0, x)
    same(lambda x: fn(x), x.float())


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name):
    torch.manual_seed(0)
    x, n = torch.randn(300) * 1.5, torch.randint(-1, 12, (300,)).float()
    fn = getattr(torch.special, name)
    same(lambda x, n: fn(x, n), x.double(), n.double())
    same(lambda x: fn(x, 3), x)


def test_others():
    x, i, j = torch.rand(50) * 4 + 0.1, torch.randint(-50, 50, (60,)), torch.randint(-50, 50, (60,))
    same(
        lambda x: (torch.polygamma(1, x), torch.polygamma(2, x), torch.polygamma(3, x), torch.special.zeta(x + 1, x)),
        x.double(),
    )
    same(lambda i, j: (torch.gcd(i, j), torch.lcm(i, j)), i, j)
    same(lambda x: tuple(torch.frexp(x)), torch.cat([x, -x, torch.zeros(2)]))


@pytest.mark.parametrize("name", [n for n in UNARY if n not in ("ndtri", "erfinv")] + POLYNOMIALS)
def test_integers_give_floats(name):
    fn = getattr(torch.special, name)
    x = torch.tensor([0, 1, 2, 5])
    same((lambda x: fn(x) * 2) if name in UNARY else lambda x: fn(x, x) * 2, x)


def test_trigamma_at_its_poles():
    """Integers are float32: what is left of sin(pi x) there is of that size, and large where doubles made it huge."""
    x = torch.tensor([0, -1, -2, 1, 2, -5])
    for y in (x, x.float(), x.double(), torch.randn(50) * 3):
        same(lambda y: torch.polygamma(1, y) * 1.0, y)


def test_bessel_functions_round_as_eager_does():
    """The series without its last terms gave one at zero, where eager stays below: long() of it was another number."""
    x = torch.tensor([0, 0.1, 0.5, 1, 2, 3, 5, 7.9, 8, 9, -3, 20])
    assert torch.equal(tcompile.compile(torch.special.i0e)(x), torch.special.i0e(x))
    got, want = tcompile.compile(torch.special.i0)(x), torch.special.i0(x)
    assert got[0] == want[0]
    torch.testing.assert_close(got, want, rtol=2.4e-7, atol=0)  # (the exponential of both is within a unit)


def test_both_precisions_and_single_numbers_in_one_kernel():
    def f(x, y, n):
        return (
            torch.special.i0e(x),
            torch.special.i0(y),
            torch.erfinv(x),
            torch.erfinv(y),
            x * torch.digamma(n),
            torch.special.bessel_y1(y),
            torch.special.modified_bessel_k0(x),
            torch.lgamma(y),
        )

    x = torch.rand(100) * 0.9 + 0.05
    same(f, x, x.double() ** 2, torch.tensor(2.5))
