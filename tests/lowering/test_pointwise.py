"""Element-wise operators against eager, on inputs that hurt."""

import math

import pytest
import torch
import torch.nn.functional as F

from . import helper
from .helper import check, externs, kernels

inf, nan = math.inf, math.nan
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, inf, -inf, nan, 1e-38, 30.0, -30.0, 100.0])

UNARY = [*helper.UNARY, "isfinite", "square", "isposinf", "isneginf", "sgn", "positive"]


@pytest.mark.parametrize("name", UNARY)
def test_unary_special_values(name):
    check(getattr(torch, name), SPECIAL, n_kernels=0 if name == "positive" else 1, n_externs=0)


@pytest.mark.parametrize(
    "name",
    [
        "sqrt",
        "exp",
        "sin",
        "tanh",
        "sigmoid",
        "abs",
        "neg",
        "sign",
        "floor",
        "relu",
        "isnan",
        "signbit",
        "logical_not",
        "square",
        "erf",
        "reciprocal",
    ],
)
@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.float16, torch.float64]
)
def test_unary_dtypes(name, dtype):
    x = torch.tensor([0, 1, 2, 5]).to(dtype)
    if dtype == torch.bool and name in ("neg", "floor", "square", "relu", "abs"):
        pytest.skip("not defined for bool")
    check(getattr(torch, name), x, n_externs=0)


ACTIVATIONS = [
    F.gelu,
    lambda x: F.gelu(x, approximate="tanh"),
    F.silu,
    F.relu6,
    F.hardtanh,
    F.leaky_relu,
    F.elu,
    F.selu,
    F.softplus,
    F.hardswish,
    F.hardsigmoid,
    F.mish,
    F.logsigmoid,
    F.softsign,
    F.tanhshrink,
    lambda x: F.threshold(x, 0.5, 7.0),
    lambda x: torch.nan_to_num(x),
    lambda x: torch.nan_to_num(x, 1.0, 2.0, -2.0),
]


@pytest.mark.parametrize("f", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations(f, dtype):
    x = SPECIAL[~SPECIAL.isinf()].to(dtype)  # eager's gelu of inf is NaN
    s = check(f, x, atol=1e-6 if dtype == torch.float32 else 1e-2, rtol=1e-5 if dtype == torch.float32 else 2e-2)
    assert len(kernels(s)) == 1 and not externs(s)


BINARY = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.maximum,
    torch.minimum,
    torch.atan2,
    torch.pow,
    torch.fmod,
    torch.remainder,
    torch.fmax,
    torch.fmin,
    torch.copysign,
    torch.hypot,
    torch.eq,
    torch.ne,
    torch.lt,
    torch.le,
    torch.gt,
    torch.ge,
    torch.logical_and,
    torch.logical_or,
    torch.logical_xor,
    torch.xlogy,
    torch.nextafter,
    lambda a, b: torch.div(a, b, rounding_mode="floor"),
    lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    lambda a, b: torch.add(a, b, alpha=2.5),
    lambda a, b: torch.rsub(a, b, alpha=3),
    torch.floor_divide,
]


@pytest.mark.parametrize("f", BINARY)
def test_binary_special_values(f):
    a, b = SPECIAL.unsqueeze(1), SPECIAL.unsqueeze(0)
    check(f, a, b, n_kernels=1, n_externs=0)


INTS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", INTS)
def test_integer_arithmetic_wraps_and_promotes(dtype):
    a = torch.tensor([0, 1, 100, 127, 5], dtype=dtype)
    b = torch.tensor([3, 100, 100, 1, 7], dtype=dtype)
    for f in (
        torch.add,
        torch.sub,
        torch.mul,
        torch.div,
        torch.bitwise_and,
        torch.bitwise_or,
        torch.bitwise_xor,
        torch.lt,
        torch.maximum,
        lambda a, b: a + 1,
        lambda a, b: a * 2.5,
        lambda a, b: a / 2,
        lambda a, b: a // 3,
        lambda a, b: a % 3,
        lambda a, b: ~a,
        lambda a, b: a << 1,
        lambda a, b: a >> 1,
        lambda a, b: a == 5,
        lambda a, b: a < 2.5,
        lambda a, b: a**2,
        lambda a, b: a**3,
    ):
        check(f, a, b, n_externs=0)


def test_integer_division_by_a_tensor_checks_for_zeros():
    a, b = torch.arange(-4, 4), torch.arange(1, 9)
    for f in (lambda a, b: a // b, torch.remainder, torch.fmod, lambda a, b: torch.div(a, b, rounding_mode="trunc")):
        s = check(f, a, b, n_externs=0)
        assert [k.checks for k in kernels(s)] == [["RuntimeError: ZeroDivisionError"]]


def test_bools():
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    for f in (
        torch.add,
        torch.mul,
        lambda a, b: a & b,
        lambda a, b: a | b,
        lambda a, b: a ^ b,
        lambda a, b: ~a,
        torch.eq,
        lambda a, b: a + 1,
        lambda a, b: a * 0.5,
        lambda a, b: torch.where(a, 1.0, 2.0),
        lambda a, b: a < b,
        torch.maximum,
    ):
        check(f, a, b, n_externs=0)


@pytest.mark.parametrize(
    "f",
    [
        lambda a, z: a + z,
        lambda a, z: z * a,
        lambda a, z: a == z,
        lambda a, z: torch.where(a > z, a, z),
        lambda a, z: a.int() + z,
        lambda a, z: a.bfloat16() * z,
        lambda a, z: (a > 0) + z,
        lambda a, z: a.half() / z.double(),
        lambda a, z: a.int() < z,
    ],
)
def test_zero_dim_tensors_promote_like_eager(f):
    check(f, torch.tensor([1.5, -2.0, 3.0]), torch.tensor(0.7))


def test_three_operands():
    a, b, c = torch.randn(3, 4), torch.randn(4), torch.randn(3, 1)
    for f in (
        lambda a, b, c: torch.addcmul(a, b, c, value=0.3),
        lambda a, b, c: torch.addcdiv(a, b, c, value=2),
        lambda a, b, c: torch.lerp(a, b + 0 * a, 0.3),
        lambda a, b, c: torch.lerp(a, b + 0 * a, c + 0 * a),
        lambda a, b, c: torch.clamp(a, -0.5, 0.5),
        lambda a, b, c: torch.clamp(a, b, c),
        lambda a, b, c: a.clamp_min(0.1),
        lambda a, b, c: a.clamp(max=0.1),
        lambda a, b, c: a.masked_fill(b > 0, -inf),
        lambda a, b, c: torch.where(c > 0, a, b),
    ):
        check(f, a, b, c, n_kernels=1, n_externs=0)


@pytest.mark.parametrize("p", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.7, -3])
def test_powers(p):
    check(lambda x: x**p, SPECIAL, n_kernels=1, n_externs=0)


@pytest.mark.parametrize(
    "src", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int8, torch.bool]
)
@pytest.mark.parametrize(
    "dst", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]
)
def test_casts(src, dst):
    check(lambda x: x.to(dst), torch.tensor([0.0, 1.0, 3.7, 2.5, 100.3]).to(src), n_externs=0)


def test_low_precision_keeps_float32_inside_a_kernel_and_emulation_rounds():
    x = (torch.randn(64) * 10).bfloat16()

    def f(x):
        return (x * 1.1 + 0.3) * 0.7 - x

    s = check(f, x, atol=1e-1, rtol=1e-1)
    assert str(kernels(s)[0]).count("bfloat16.round") == 1
    s = check(f, x, atol=0, rtol=0, emulate_precision=True)
    assert str(kernels(s)[0]).count("bfloat16.round") == 4


def test_an_explicit_rounding_is_kept():
    x = torch.randn(64)
    check(lambda x: x.bfloat16().float() + 1, x, atol=0, rtol=0, n_kernels=1)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (1, 1), (2, 0, 3), (5, 1, 3), (1, 7)])
def test_odd_shapes(shape):
    x = torch.randn(shape)
    check(lambda x: (x * 2 + 1).relu() - x, x, n_kernels=1)


def test_broadcasting_and_layouts():
    a = torch.randn(4, 1, 6)
    check(lambda a, b: a * b + 1, a, torch.randn(5, 1), n_kernels=1)
    check(lambda a, b: a + b, torch.randn(6, 4).t(), torch.randn(4, 6), n_kernels=1)
    check(lambda a, b: a + b, torch.randn(6, 4).t(), torch.randn(6, 4).t(), n_kernels=1)
    check(lambda a: a * 2, torch.randn(10, 8)[::2, 1::3], n_kernels=1)
    check(lambda a: a * 2, torch.randn(3, 1).expand(3, 4), n_kernels=1)
    check(lambda a: a + 1, torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), n_kernels=1)
    s = check(
        lambda a, b: a + b, torch.randn(2, 3, 4).permute(2, 0, 1), torch.randn(2, 3, 4).permute(2, 0, 1), n_kernels=1
    )
    assert len(kernels(s)[0].outer) == 1  # dense in memory: one axis


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x + 1,
        lambda x: x.abs(),
        lambda x: x.t().clone(),
        lambda x: torch.view_as_real(x) * 2,
        lambda x: x.sum(),
        lambda x: torch.cat([x, x]),
        lambda x: x[0],
        lambda x: torch.real(x) + 1,
        lambda x: x == x,
        lambda x: (x * 2).clone(),
        lambda x: x.cumsum(0),
        lambda x: x @ x,
        lambda x: x.real * 2j,
        lambda x: x.real == 2j,
        lambda x: torch.split_copy(x, 2),
        lambda x: torch.unbind_copy(x),
        lambda x: torch.full((2,), 2j) + x[0, 0],
    ],
)
def test_complex_numbers_are_left_to_eager(f):
    check(f, torch.randn(3, 3, dtype=torch.complex64))


def test_constants_are_what_their_dtype_holds():
    check(lambda x: torch.where(x > 0, 1.1, 0.3).bfloat16() + 0 * x.bfloat16(), torch.randn(5), atol=0, rtol=0)
    check(lambda x: x.bfloat16().masked_fill(x > 0, 1.1).float() * 3, torch.randn(5), atol=0, rtol=0)
    check(lambda x: torch.full_like(x, -1, dtype=torch.int8) + (x > 0), torch.randn(5))


def test_remainders_and_quotients_of_positions_are_positions():
    x = torch.randn(6, 3)

    def rolled(x):
        i = torch.arange(3)
        return (
            x.index_select(1, (i + 1) % 3) * x.index_select(1, (i - 1) % 3)
            + (torch.arange(6) // 2)[:, None]
            - (torch.arange(6) - 4) // 3 % 2 * 1.0 @ torch.ones(6)
        )

    s = check(rolled, x)
    assert not any("remainder" in str(k) or "div_floor" in str(k) for k in kernels(s))
    check(lambda x: x + torch.arange(3) % -2 + torch.arange(3).int() % 2 + torch.arange(3) // -2, x)
