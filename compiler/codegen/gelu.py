"""GELU and its derivative in loop IR, and polynomials by which both take one exponential, for results that are rounded
to 16 bits.

The normal distribution's share below -a is 2 to the power of a polynomial, as its logarithm is nearly a parabola. With
s that share, GELU is x s below 0 and x (1 - s) above; its derivative is exp(-a * a / 2) times another polynomial below
0, and 1 minus that above.
"""

from __future__ import annotations

import math

import torch

from ..lowering.ir import Value

__all__ = ["SHARE_BELOW", "DERIVATIVE", "scaled", "plus_one", "gelu", "derivative"]

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


def scaled(v: Value) -> tuple[float, Value] | None:
    """(k, x) where `v` is k times x."""
    if v.op != "mul":
        return None
    for k, x in (v.args, v.args[::-1]):
        if k.op == "const" and x.op != "const":
            return k.attr, x
    return None


def _times(v: Value, k: float) -> Value | None:
    """x where `v` is k x."""
    found = scaled(v)
    return found[1] if found is not None and math.isclose(found[0], k, rel_tol=1e-6) else None


def plus_one(v: Value) -> tuple[str, Value] | None:
    """("erf" | "tanh", its operand) where `v` is one of them plus 1: the sum keeps its digits where the terms
    cancel.
    """
    if v.op != "add":
        return None
    for f, one in (v.args, v.args[::-1]):
        if f.op in ("erf", "tanh") and one.op == "const" and one.attr == 1:
            return f.op, f.args[0]
    return None


def _twice_share(v: Value) -> Value | None:
    """x where `v` is erf(x / sqrt(2)) + 1."""
    plus = plus_one(v)
    return _times(plus[1], math.sqrt(0.5)) if plus is not None and plus[0] == "erf" else None


def gelu(v: Value) -> Value | None:
    """x where `v` is x / 2 * (erf(x / sqrt(2)) + 1)."""
    if v.op != "mul":
        return None
    for half, other in (v.args, v.args[::-1]):
        x = _twice_share(other)
        if x is not None and _times(half, 0.5) is x:
            return x
    return None


def derivative(v: Value) -> Value | None:
    """x where `v` is (erf(x / sqrt(2)) + 1) / 2 + x exp(-x * x / 2) / sqrt(2 pi)."""
    if v.op != "add":
        return None
    for share, density in (v.args, v.args[::-1]):
        twice = _times(share, 0.5)
        x = None if twice is None else _twice_share(twice)
        if x is None or density.op != "mul" or not any(a is x for a in density.args):
            continue
        rest = next((a for a in density.args if a is not x), x)
        e = _times(rest, 1 / math.sqrt(2 * math.pi))
        square = _times(e.args[0], -0.5) if e is not None and e.op == "exp" else None
        if square is not None and square.op == "mul" and square.args[0] is x is square.args[1]:
            return x
    return None
