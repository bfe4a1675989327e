"""Floats that sizes make vary with the sizes: one entry, and exactly the numbers of eager."""

from __future__ import annotations

import math

import pytest
import torch

import tcompile

X = torch.randn(9, 9, dtype=torch.float64)


def root(x, n):
    return x / math.sqrt(n), x * n**-0.5, x * n**1.5, 1 / math.sqrt(n) * x


def fractions(x, n):
    return (
        x * (n / 2),
        x * (1.0 / n),
        x * float(n),
        x * 1.5 * (3 / n),
        x + (n + 0.5) * 0.1,
        x - (0.5 - n),
        x / (n * 0.3 + 2),
    )


def logarithms(x, n):
    return x * math.log(n), x * math.log2(n), x + math.log10(n) * 2


def whole_again(x, n):
    return (
        x[: math.ceil(n / 2)],
        x[: int(n * 0.5)],
        x * math.floor(n / 3),
        x[: int(n * 1.5) - 5],
        x * math.floor(-n / 2),
        x * int(-n / 2),
        x * math.ceil(-n / 2),
    )


def compared(x, n):
    return x + 1 if n / 2 > 1.25 else x - 1, x * 2 if n * 0.25 <= 5 else x


def returned(x, n):
    return x * 2, n / 2, [n**0.5, float(n)], math.sqrt(n)


def of_sizes(x, n):
    y = x[:n]
    return (
        y.sum() / math.sqrt(y.shape[0]),
        (y @ y.T) * y.shape[0] ** -0.5,
        y * (y.shape[0] / n),
        y.float() * (1 / y.shape[0]),
    )


@pytest.mark.parametrize("fn", [root, fractions, logarithms, whole_again, compared, returned, of_sizes])
@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_one_entry_serves_every_size(fn, backend):
    with tcompile.record() as recorded:
        compiled = tcompile.compile(fn, backend=backend, fullgraph=True)
        for n in (4, 5, 6, 8, 7):
            torch.testing.assert_close(
                compiled(X, n),
                fn(X, n),
                rtol=0 if backend == "eager" else 1e-12,
                atol=0 if backend == "eager" else 1e-12,
            )
    assert len(recorded.report().entries) == 2
    for n in (2, 3, 1, 0, -1, -5):
        try:
            expected = fn(X, n)
        except (ValueError, ZeroDivisionError, TypeError, RuntimeError) as error:
            with pytest.raises(type(error)) as got:
                tcompile.compile(fn, backend="eager")(X, n)
            assert str(got.value) == str(error)
        else:
            torch.testing.assert_close(compiled(X, n), expected)


@pytest.mark.parametrize("n", [2**53 + 1, 2**60 + 3, 3**33])
def test_integers_that_no_float_holds(n):
    def fn(x, n):
        return x * (n / 2), x + float(n), int(n * 0.5), math.ceil(n / 3), n * 1.5 > 1e15, n**0.5

    compiled = tcompile.compile(fn, backend="eager")
    for k in (4, 5, n, n + 1):
        torch.testing.assert_close(compiled(X, k), fn(X, k), rtol=0, atol=0)


def test_exported_programs_fix_the_size():
    def fn(x):
        return x / math.sqrt(x.shape[0])

    with pytest.raises(tcompile.ExportError, match="cannot vary"):
        tcompile.export(fn, (X,), dynamic={"x": [0]})


def test_the_sign_of_zero():
    def fn(x, n):
        return torch.copysign(x, x.new_ones(()) * (n * -0.5)), 1 / (x * (n / -4.0)), n * -1.0

    compiled = tcompile.compile(fn, backend="eager")
    for n in (-3, -2, 2, 0, -5, 0, 4):
        want, got = fn(X, n), compiled(X, n)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert math.copysign(1, got[2]) == math.copysign(1, want[2])
