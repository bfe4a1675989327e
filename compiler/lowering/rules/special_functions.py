"""Special functions: primitives of their own, for the CPU."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch

from ..ir import Value, cast, const, prim
from ..primitives import SPECIAL
from ..context import Lowering
from ..rule_table import NoRule, rule
from ..promote import compute_dtype, operand, rounded
from ..ref import Ref
from .scatters import on_cpu


def _operands(lo: Lowering, *xs: Any) -> list[Value]:
    on_cpu(lo, "special function")
    return lo.operands(*xs)


def _function(name: str) -> Callable:
    def f(lo: Lowering, node: Any, *xs: Any) -> Ref:
        if (name == "gcd") == lo.meta().dtype.is_floating_point:
            raise NoRule("not defined for this dtype")
        if name == "erfinv" and compute_dtype(lo.meta().dtype) == torch.float32:
            return lo.rounded(_erfinv(*_operands(lo, *xs)))
        return lo.rounded(prim(name, *_operands(lo, *xs)))

    return f


_CENTRE = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_TAILS = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def _erfinv(x: Value) -> Value:
    """In float32, by M. Giles' polynomials in w = -log(1 - x * x), one for the centre and one for the tails: whole
    vectors at a time.
    """
    dtype = x.dtype
    one = const(1.0, dtype)
    w = prim("neg", prim("log", prim("mul", prim("sub", one, x), prim("add", one, x))))

    def horner(value: Value, coefficients: tuple[float, ...]) -> Value:
        p = const(coefficients[0], dtype)
        for coefficient in coefficients[1:]:
            p = prim("add", const(coefficient, dtype), prim("mul", p, value))
        return p

    centre, tails = (
        horner(prim("sub", w, const(2.5, dtype)), _CENTRE),
        horner(prim("sub", prim("sqrt", w), const(3.0, dtype)), _TAILS),
    )
    p = prim("where", prim("lt", w, const(5.0, dtype)), centre, tails)
    edge = prim("eq", prim("abs", x), one)
    return prim("mul", prim("where", edge, const(math.inf, dtype), p), x)


_OVERLOADS = {1: ("default",), 2: ("default", "self_scalar", "other_scalar", "x_scalar", "n_scalar")}
for _name, _row in SPECIAL.items():
    for _overload in _OVERLOADS[_row.operands]:
        for _op in (_name, f"special_{_name}"):
            rule(f"aten.{_op}.{_overload}")(_function(_name))
for _k in ("i0", "i1"):
    rule(f"aten.special_modified_bessel_{_k}.default")(_function(_k))


def _shifted(kind: str) -> Callable:
    def f(lo: Lowering, node: Any, x: Any, n: Any) -> Ref:
        v, order = _operands(lo, x, n)
        v = prim("sub", prim("add", v, v), const(1, v.dtype))
        return lo.pointwise(prim(f"chebyshev_polynomial_{kind}", v, order))

    return f


for _kind in "tuvw":
    for _overload in ("default", "x_scalar", "n_scalar"):
        rule(f"aten.special_shifted_chebyshev_polynomial_{_kind}.{_overload}")(_shifted(_kind))


@rule("aten.polygamma.default")
def polygamma(lo: Lowering, node: Any, n: int, x: Ref) -> Ref:
    (v,) = _operands(lo, x)
    if n < 0:
        raise NoRule("polygamma of a negative order")
    if n < 2:
        return lo.rounded(prim(("digamma", "trigamma")[n], v))
    sign = 1.0 if n % 2 else -1.0
    factor = math.factorial(n) if n < 170 else math.inf
    return lo.rounded(prim("mul", const(sign * factor, v.dtype), prim("zeta", const(n + 1, v.dtype), v)))


@rule("aten.lcm.default")
def lcm(lo: Lowering, node: Any, a: Ref, b: Ref) -> Ref:
    x, y = _operands(lo, a, b)
    if x.dtype.is_floating_point:
        raise NoRule("not defined for this dtype")
    g = prim("gcd", x, y)
    nothing = prim("eq", g, const(0, g.dtype))
    some = prim("where", nothing, const(1, g.dtype), g)
    return lo.pointwise(
        prim("where", nothing, const(0, g.dtype), prim("abs", prim("mul", prim("div_trunc", x, some), y)))
    )


@rule("aten.frexp.Tensor")
def frexp(lo: Lowering, node: Any, x: Ref) -> tuple[Ref, Ref]:
    on_cpu(lo, "special function")
    v = operand(x, compute_dtype(x.dtype))
    return (
        lo.pointwise(rounded(prim("frexp_mantissa", v), x.dtype), 0),
        lo.pointwise(cast(prim("frexp_exponent", v), torch.int32), 1),
    )
