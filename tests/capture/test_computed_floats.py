"""Floats that vary and meet each other, functions of module math, and operators that take numbers: the entry computes
as Python does, in two entries.
"""

from __future__ import annotations

import math

import pytest
import torch

import tcompile

X = torch.tensor([-1.5, 0.25, 2.0, 3.0])
SCOPE = {"torch": torch, "math": math}


def made(expression):
    scope: dict = {}
    exec(f"def fn(x, v, w):\n    return {expression}", SCOPE, scope)
    return scope["fn"]


def outcome(fn, *args):
    try:
        return fn(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


NUMBERS = [
    "x * (v * w + v - w / 7), v * w",
    "x * (v / w), x + 1 / v",
    "x * math.exp(-v * w), math.atan2(v, w)",
    "x * math.sqrt(v)",
    "x * v ** w",
    "x * abs(v) ** 0.5",
    "x * min(1.0, v / 10) + max(v * 2, w), max(v, w)",
    "x + round(v, 1), round(v * w, 2)",
    "x * (v // w) + v % w",
    "x + float(v), -v",
    "x * math.log(v)",
    "x * (v * x.shape[0]), v ** 3 / x.shape[0]",
]
OPERATORS = [
    "x.clamp(max=v), x.clamp(-1, v), x.clamp(min=v, max=w), torch.clip(x, v)",
    "x > v, v <= x, x == w, (x * 2).int() >= v",
    "torch.where(x > v, x, v), torch.where(x > 0, v, 1.0)",
    "x.abs() ** v, v ** x, (x * 3).int() ** v",
    "torch.full((2, 3), v), torch.full_like(x, v), x.new_full((2,), v), x.new_tensor(v)",
    "torch.tensor(v), torch.tensor([v, 1, w]), torch.tensor(v, dtype=torch.float64)",
    "x.masked_fill(x > 0, v), x.clone().fill_(v), x.index_fill(0, torch.tensor([1]), w)",
    "x // v, x % v, v // x, v % x, torch.fmod(x, v)",
    "x.lerp(x + 1, v), torch.add(x, x, alpha=v), torch.addcmul(x, x, x, value=w)",
    "x.bfloat16() > v, x.bfloat16().masked_fill(x > 0, v)",
    "x.clone().clamp_(min=v), x.clone().clamp_(v, 2.5), x.clone().pow_(v)",
    "x.double().clamp(v), torch.maximum(x, torch.tensor(v))",
]
VALUES = [(-2.0, 3.0), (-0.75, -2.5), (1.25, 2.0), (2.5, 0.5), (3.0, -1.0), (0.125, 7.5), (5.5, 5.5)]


@pytest.mark.parametrize("expression", NUMBERS + OPERATORS)
@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_two_entries(expression, backend):
    fn = made(expression)
    values = VALUES
    if "v ** w" in expression or "math.sqrt(v)" in expression or "math.log(v)" in expression:
        values = [(abs(v), w) for v, w in VALUES]
    with tcompile.record() as recorded:
        compiled = tcompile.compile(fn, backend=backend, fullgraph=True)
        for v, w in values:
            wanted, got = fn(X, v, w), compiled(X, v, w)
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)
            assert [t.dtype for t in got if isinstance(t, torch.Tensor)] == [
                t.dtype for t in wanted if isinstance(t, torch.Tensor)
            ]
            assert [n for n in got if type(n) is float] == [n for n in wanted if type(n) is float]
    assert len(recorded.report().entries) <= 2


@pytest.mark.parametrize(
    "expression",
    [
        "x * (v / w)",
        "x * (1 / v)",
        "x * math.log(v)",
        "x * math.exp(v)",
        "x * v ** w",
        "x * (v % w)",
        "x * math.sqrt(v - w)",
        "x * (v ** -2)",
        "x.fill_(v * w)",
        "x.clamp(max=v)",
        "x * (v * w)",
        "torch.full((2,), v)",
    ],
)
def test_numbers_that_python_refuses(expression):
    fn = made(expression)
    compiled = tcompile.compile(fn, backend="eager")
    for v, w in (
        (1.0, 2.0),
        (2.0, 3.0),
        (0.0, 0.0),
        (-1.0, 0.5),
        (1e300, 1e300),
        (800.0, -3.0),
        (-0.0, 1.0),
        (math.inf, math.nan),
        (3.0, 2.0),
    ):
        wanted, got = outcome(fn, X.clone(), v, w), outcome(compiled, X.clone(), v, w)
        assert str(got) == str(wanted), (v, w)


def test_effects_before_an_error_happen_once():
    seen = []

    def fn(x, v, w):
        seen.append(v)
        y = x.add_(1) * 2
        return y * (v / w)

    compiled = tcompile.compile(fn, backend="eager")
    for v, w in ((1.0, 2.0), (2.0, 3.0), (4.0, 0.0), (5.0, 2.0)):
        x, expected = X.clone(), X + 1
        seen.clear()
        outcome(compiled, x, v, w)
        assert seen == [v]
        torch.testing.assert_close(x, expected)


def test_a_negative_base_keeps_its_sign_in_a_graph():
    def fn(x):
        return (-2.0) ** x

    x = torch.tensor([1.0, 2.0, 0.5])
    torch.testing.assert_close(tcompile.compile(fn, backend="eager")(x), fn(x), equal_nan=True)
    torch.testing.assert_close(tcompile.compile(fn)(x), fn(x), equal_nan=True)


@pytest.mark.parametrize(
    "expression",
    [
        "x * math.gcd(int(v), 12) + math.floor(w), math.gcd(int(v), 6)",
        "x + math.factorial(abs(int(v))), math.isqrt(int(v * v))",
        "x * round(v), round(w), int(v)",
        "x + 1, v ** w, (-v) ** 0.5, (v - w) ** (w / 3)",
        "x + 1, math.frexp(v), math.isnan(w), v.is_integer(), divmod(v, 2)",
    ],
)
def test_what_is_no_float(expression):
    fn = made(expression)
    compiled = tcompile.compile(fn, backend="eager")
    for v, w in ((1.0, 2.0), (2.0, 3.0), (3.0, 0.5), (-4.0, 1.5), (5.5, -2.0), (-6.0, 2.0)):
        wanted, got = outcome(fn, X, v, w), outcome(compiled, X, v, w)
        assert str(got) == str(wanted), (v, w)


SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 0.5, -0.5, 1e300, 1e-46, 65519.0, 2.0**24 + 1)
SIGNED = torch.tensor([-math.inf, -1.5, -0.0, 0.0, 2.0, math.nan])


def bits(result):
    """With the signs of zeros; NaNs are all one."""
    return (
        [str(result.dtype), [repr(number) for number in result.tolist()]]
        if isinstance(result, torch.Tensor)
        else result
    )


@pytest.mark.parametrize(
    "expression",
    [
        "x.clamp(min=v)",
        "x.clamp(max=v)",
        "x.clamp(None, v)",
        "x.clamp(v, None)",
        "x.clamp(min=v * w)",
        "x.clamp(v, 1.0)",
        "x.clone().clip_(max=v / 3)",
        "torch.clamp_min(x, v)",
        "x.abs().clamp(max=abs(v))",
        "x > v",
        "torch.where(x > 0, v, x)",
        "v ** x",
    ],
)
@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_numbers_that_are_special(expression, backend):
    """A clamp's only bound that is a NaN bounds nothing before torch 2.13 where it is a number, unlike a tensor."""
    fn = made(expression)
    compiled = tcompile.compile(fn, backend=backend)
    for v in (1.25, 2.5, *SPECIAL, 1.0):
        assert bits(outcome(compiled, SIGNED, v, 1.5)) == bits(outcome(fn, SIGNED, v, 1.5)), v


@pytest.mark.parametrize(
    "expression",
    [
        "x ** v",
        "x.clone().pow_(v)",
        "torch.pow(x, v)",
        "x.double() ** v",
        "x.add(x, alpha=v)",
        "x.sub(x, alpha=v)",
        "x.addcdiv(x, x, value=v)",
        "x.half().masked_fill(x > 0, v)",
        "torch.full((2,), v, dtype=torch.float16)",
        "x.bfloat16().fill_(v)",
    ],
)
def test_numbers_that_are_no_tensors(expression):
    """An exponent of 0.5 is a square root, and is not rounded to float32; numbers that a type does not hold are
    refused.
    """
    fn = made(expression)
    compiled = tcompile.compile(fn, backend="eager")
    for v in (1.25, 2.5, *SPECIAL, 1.0):
        assert bits(outcome(compiled, SIGNED, v, 1.5)) == bits(outcome(fn, SIGNED, v, 1.5)), v


@pytest.mark.parametrize("expression", ["x.clamp(min=v)", "x.clamp(max=v)", "x.clamp(v, None)", "x.clamp(v, 1.0)"])
def test_a_bound_that_is_read_and_no_number(expression):
    scope: dict = {}
    exec(f"def fn(x, t):\n    v = t.item()\n    return {expression}", SCOPE, scope)
    fn = scope["fn"]
    compiled = tcompile.compile(fn, backend="eager", fullgraph=True)
    for v in (0.5, math.nan, math.inf, -math.inf):
        assert bits(compiled(SIGNED, torch.tensor(v))) == bits(fn(SIGNED, torch.tensor(v))), v


@pytest.mark.parametrize(
    "comparison",
    [
        "n < float(n)",
        "n == float(n)",
        "n > v + n",
        "v + n != n",
        "v <= 9007199254740993",
        "9007199254740993 == v",
        "n > 9007199254740992.0",
    ],
)
def test_large_integers_are_compared_with_floats_exactly(comparison):
    scope: dict = {}
    exec(f"def fn(x, n, v):\n    return x + v, {comparison}", SCOPE, scope)
    compiled = tcompile.compile(scope["fn"], backend="eager")
    for n, v in ((3, 1.5), (5, 2.5), (2**53 + 1, 0.0), (2**53 - 1, 2.0**53), (2**53 + 3, 0.5)):
        assert compiled(X, n, v)[1] is scope["fn"](X, n, v)[1], (n, v)
