"""Operators at the ends of their dtypes: infinities, NaN, both zeros, denormals, the largest numbers, the limits of
integers.

`UNARY` and `BINARY` are tables of functions of one and two tensors. `values(dtype)` are the operands. `difference(want,
got)` says where two results are not the same to within a few units of the last place, signs of zeros included. `KNOWN`
names what differs and why it is left.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
import torch.nn.functional as F

__all__ = ["UNARY", "BINARY", "KNOWN", "FLOATS", "INTEGERS", "values", "pairs", "difference"]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32)

_PLAIN = """abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad erf erfc erfinv exp exp2 expm1 floor frac isfinite isinf isnan isneginf isposinf lgamma
    log log10 log1p log2 neg positive rad2deg reciprocal relu round rsqrt sigmoid sign sgn signbit sin sinc sinh sqrt square tan tanh trunc nan_to_num
    logical_not bitwise_not"""
UNARY: dict[str, Callable] = {
    **{name: getattr(torch, name) for name in _PLAIN.split()},
    **{
        name: getattr(F, name)
        for name in """
            silu mish softplus elu selu celu relu6 hardtanh hardsigmoid hardswish logsigmoid softsign tanhshrink
            hardshrink leaky_relu gelu""".split()
    },
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "threshold": lambda x: F.threshold(x, 0.5, -0.0),
    "logit": torch.logit,
    "frexp": lambda x: torch.frexp(x)[0],
    "round 2": lambda x: torch.round(x, decimals=2),
    "round -1": lambda x: torch.round(x, decimals=-1),
    "clamp": lambda x: x.clamp(1, 2),
    "clamp min": lambda x: x.clamp(min=0),
    "clamp max": lambda x: x.clamp(max=-0.0),
    **{f"** {e}": lambda x, e=e: x**e for e in (2, 3, -1, 0.5, -0.5, -2, 0, 1, 2.5)},
    "2 **": lambda x: 2**x,
    "0 **": lambda x: 0**x,
    "fmod 3": lambda x: torch.fmod(x, 3),
    "% 3": lambda x: x % 3,
    "% -3": lambda x: x % -3,
    "% inf": lambda x: x % math.inf,
    "// 3": lambda x: x // 3,
    "// -3": lambda x: x // -3,
    "/ 3": lambda x: x / 3,
    "/ 0": lambda x: x / 0,
    "* -0": lambda x: x * -0.0,
    "1 -": lambda x: 1 - x,
    "<< 1": lambda x: x << 1,
    ">> 1": lambda x: x >> 1,
    "& 5": lambda x: x & 5,
    **{
        f"to {d}": lambda x, d=d: x.to(d)
        for d in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, *FLOATS)
    },
}
BINARY: dict[str, Callable] = {
    **{
        name: getattr(torch, name)
        for name in """
            add sub mul div maximum minimum fmax fmin fmod remainder floor_divide atan2 copysign hypot nextafter
            logaddexp xlogy pow float_power eq ne lt le gt ge logical_and logical_or logical_xor heaviside bitwise_and
            bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift""".split()
    },
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "clamp min": lambda a, b: torch.clamp(a, min=b),
    "clamp max": lambda a, b: torch.clamp(a, max=b),
    "where": lambda a, b: torch.where(a > b, a, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b),
    "sub 2": lambda a, b: torch.sub(a, b, alpha=2),
    "huber": lambda a, b: F.huber_loss(a, b, reduction="none"),
    "smooth l1": lambda a, b: F.smooth_l1_loss(a, b, reduction="none"),
    "mse": lambda a, b: F.mse_loss(a, b, reduction="none"),
}

_QUOTIENTS = "eager's vectors give NaN where the quotient overflows, its scalar code the remainder; so do the kernels here, everywhere"
_ONE_ROUNDING = (
    "eager's compiler makes a product and a sum one instruction, so that the product alone does not overflow"
)
_NOT_ROUNDED = "what a kernel computes between is not rounded to 16 bits"
_EAGER_ZERO = "eager's vectors and its scalar code, which the ends of rows get, choose different zeros"
_FLUSHED = "eager flushes denormal numbers"
# operator -> (the dtypes concerned, or None for all of floating point, and why)
KNOWN: dict[str, tuple[tuple[torch.dtype, ...] | None, str]] = {
    **dict.fromkeys(("fmod", "remainder", "fmod 3", "% 3", "% -3"), (None, _QUOTIENTS)),
    **dict.fromkeys(("addcmul", "sub 2"), (None, _ONE_ROUNDING)),
    "gelu": (
        (torch.float32, torch.bfloat16, torch.float16),
        "eager's kernel is oneDNN's (of float16 on processors with AVX-512): gelu(inf) is NaN there, and inf without it",
    ),
    "erf": ((torch.bfloat16,), _FLUSHED),
    "tanhshrink": ((torch.bfloat16,), _NOT_ROUNDED),
    "trunc": ((torch.float16, torch.bfloat16), _NOT_ROUNDED),
    **dict.fromkeys(("maximum", "minimum", "clamp min", "clamp max"), (None, _EAGER_ZERO)),
    "mish": ((torch.float64,), _FLUSHED),
}


def values(dtype: torch.dtype) -> torch.Tensor:
    """The operands of a dtype."""
    if dtype is torch.bool:
        return torch.tensor([True, False])
    if not dtype.is_floating_point:
        i = torch.iinfo(dtype)
        given = [
            0,
            1,
            2,
            3,
            7,
            i.max,
            i.max - 1,
            i.min,
            i.min + 1,
            i.max // 2,
            i.max // 3,
            *([-1, -2, -3, -7] if i.min < 0 else []),
        ]
        return torch.tensor(given, dtype=torch.int64).to(dtype)
    f = torch.finfo(dtype)
    given = [
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        f.max,
        -f.max,
        f.max / 2,
        -f.max / 3,
        f.tiny,
        -f.tiny,
        f.tiny / 2,
        -f.tiny / 4,
        f.eps,
        1 + f.eps,
        1 - f.eps / 2,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        -1.5,
        2.5,
        2.0,
        3.0,
        -3.0,
        math.pi,
        -math.pi / 2,
        1e4,
        -1e4,
        88.7,
        -88.7,
        104.0,
        -104.0,
        1e-5,
        -1e-5,
        20.0,
        -20.0,
        127.0,
        -126.5,
        255.0,
    ]
    given += [
        x
        for x in (709.7, -745.1, 2.0**31, -(2.0**31), 2.0**53, -(2.0**63), 2.0**63, 2.0**24 + 1, 33000.0, 65520.0)
        if abs(x) < f.max
    ]
    return torch.tensor(given, dtype=torch.float64).to(dtype)


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Each value with each."""
    v = values(dtype)
    return v.repeat_interleave(len(v)), v.repeat(len(v))


def difference(want: torch.Tensor, got: torch.Tensor, ulps: int = 16) -> torch.Tensor:
    """Where results differ: more than `ulps` units of the last place, another sign of zero, a NaN on one side.
    Everywhere where dtypes differ.
    """
    if want.dtype is not got.dtype or want.shape != got.shape:
        return torch.ones(want.shape, dtype=torch.bool)
    if not want.dtype.is_floating_point:
        return want != got
    x, y, f = want.double(), got.double(), torch.finfo(want.dtype)
    near = (x - y).abs() <= ulps * f.eps * x.abs().clamp(min=f.tiny)
    zeros = (x == 0) & (y == 0) & (x.signbit() != y.signbit())
    return ~((x == y) | (x.isnan() & y.isnan()) | near) | zeros


def known(name: str, dtype: torch.dtype) -> Any:
    """Why an operator differs from eager's for a dtype; None where it must not."""
    dtypes, why = KNOWN.get(name, ((), ""))
    return why if dtypes is None and dtype.is_floating_point or dtypes is not None and dtype in dtypes else None
