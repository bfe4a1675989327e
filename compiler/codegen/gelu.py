"""GELU and its derivative in loop IR, and polynomials by which both take one exponential, for results that are rounded
to 16 bits.

The normal distribution's share below -a is 2 to the power of a polynomial, as its logarithm is nearly a parabola. With
s that share, GELU is x s below 0 and x (1 - s) above. Its derivative is exp(-a * a / 2) times another polynomial below
0, and 1 minus that above.
"""

from __future__ import annotations

import math

import torch

from ..lowering.ir import Value
from ..lowering.patterns import About, Either, Pattern, Same, match, op

__all__ = ["SHARE_BELOW", "DERIVATIVE", "plus_one", "gelu", "derivative"]

# Coefficients from the constant on. Minimax fits for a from 0 to 5.8: beyond, half precision can't tell the share from
# 0. The share to 3e-4 of itself, a tenth of what bfloat16 rounds by, and to 3e-6.
SHARE_BELOW = {
    torch.bfloat16: (-1.000457388, -1.145183969, -0.4715077296, -4.354225202e-2, 4.625132240e-3, -2.137321561e-4),
    torch.float16: (
        -0.9999953215,
        -1.151250390,
        -0.4584668818,
        -5.395666473e-2,
        8.505745269e-3,
        -9.298492930e-4,
        6.149518714e-5,
        -1.828746216e-6,
    ),
}
# The derivative below 0 to 3e-4 and 3e-5 of itself, near its zero of a fiftieth of the exponential.
DERIVATIVE = {
    torch.bfloat16: (
        0.4998366535,
        -0.7944782972,
        0.2350170016,
        -0.103983447,
        3.176905587e-2,
        -6.100208499e-3,
        6.489711814e-4,
        -2.887209484e-5,
    ),
    torch.float16: (
        0.4999855757,
        -0.7974213958,
        0.2470839322,
        -0.1249954477,
        5.048020184e-2,
        -1.53659666e-2,
        3.291859291e-3,
        -4.587431322e-4,
        3.688144716e-5,
        -1.289052989e-6,
    ),
}


def _times(number: float, of: Pattern) -> Pattern:
    return op("mul", of, About(number))


_X = Same("x")
_ERF_PLUS_ONE = op("add", op("erf", _times(math.sqrt(0.5), _X)), 1)  # twice the share
_DENSITY = _times(1 / math.sqrt(2 * math.pi), op("exp", _times(-0.5, op("mul", _X, _X))))
_GELU = op("mul", _times(0.5, _X), _ERF_PLUS_ONE)
_DERIVATIVE = op("add", _times(0.5, _ERF_PLUS_ONE), op("mul", _X, _DENSITY))
_PLUS_ONE = op("add", Same("function", Either((op("erf", _X), op("tanh", _X)))), 1)


def plus_one(value: Value) -> tuple[str, Value] | None:
    """("erf" | "tanh", its operand) where `value` is one of them plus 1: the sum keeps its digits where the terms
    cancel.
    """
    found = match(_PLUS_ONE, value)
    return None if found is None else (found["function"].op, found["x"])


def gelu(value: Value) -> Value | None:
    """x where `value` is x / 2 * (erf(x / sqrt(2)) + 1)."""
    return (match(_GELU, value) or {}).get("x")


def derivative(value: Value) -> Value | None:
    """x where `value` is (erf(x / sqrt(2)) + 1) / 2 + x exp(-x * x / 2) / sqrt(2 pi)."""
    return (match(_DERIVATIVE, value) or {}).get("x")
