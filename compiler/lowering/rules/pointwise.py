"""Element-wise operators. Low precision computes in float32 and rounds, ints wrap, comparisons promote first."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch

from ...ops.closed_set import POINTWISE
from ...symbolic.expr import eq, ge, gt, le, lt, ne
from ...symbolic.simplify import known
from ..ir import Value, cast, check_index, const, known_position, prim
from ..primitives import PRIMS
from ..context import BETWEEN, Lowering
from ..rule_table import RULES, NoRule, rule
from ..buffer_strides import same_strides, strides_of
from ..promote import compute_dtype, operand, result_type
from ..ref import Ref, ranges_of, strided

C = const


def _elementwise(name: str) -> Callable:
    """The rule of an operator that is one primitive on operands of its own dtype."""

    def f(lo: Lowering, node: Any, *xs: Any) -> Ref:
        values = lo.operands(*xs)
        if values[0].dtype == torch.bool and not PRIMS[name].on_bool:
            raise NoRule("on bools")
        return lo.rounded(prim(name, *values))

    return f


@rule("aten.logical_not.default")
def logical_not(lo: Lowering, node: Any, x: Ref) -> Ref:
    return lo.rounded(prim("logical_not", cast(x.value, torch.bool)))


@rule("aten.isnan.default", "aten.isinf.default", "aten.signbit.default")
def is_special(lo: Lowering, node: Any, x: Ref) -> Ref:
    name = node.target._schema.name.split("::")[1]
    v = operand(x, compute_dtype(x.dtype))
    if not v.dtype.is_floating_point:
        return lo.rounded(
            prim("lt", v, C(0, v.dtype)) if name == "signbit" and v.dtype != torch.bool else C(False, torch.bool)
        )
    return lo.rounded(prim(name, v))


@rule("aten.isposinf.default", "aten.isneginf.default")
def signed_inf(lo: Lowering, node: Any, x: Ref) -> Ref:
    v = operand(x, compute_dtype(x.dtype))
    if not v.dtype.is_floating_point:
        return lo.rounded(C(False, torch.bool))
    return lo.rounded(prim("eq", v, C(math.inf if "pos" in node.target._schema.name else -math.inf, v.dtype)))


# ---- copies and conversions
@rule("aten.clone.default", "aten.lift_fresh_copy.default", any_dtype=True)
def clone(lo: Lowering, node: Any, x: Ref, **kw: Any) -> Ref:
    """No copy where the values lie in a temporary with the right strides already: nothing in a functional graph can
    tell.
    """
    v = strided(x)
    if (
        v is not None
        and v[0].kind == "temp"
        and v[0] not in lo.foreign
        and same_strides(x.shape, v[1], strides_of(lo.meta()))
    ):
        return x
    return lo.pointwise(x.value)


@rule("aten._to_copy.default", "prims.convert_element_type.default")
def to_copy(lo: Lowering, node: Any, x: Ref, *args: Any, **kw: Any) -> Ref:
    meta = lo.meta()
    if str(meta.device) != str(lo.meta(node.args[0]).device):
        return lo.extern(node, (x, *args), kw, BETWEEN)
    return lo.pointwise(cast(x.value, meta.dtype))


# ---- two operands
def _of_one_dtype(lo: Lowering, dt: torch.dtype, *xs: Any) -> list[Value]:
    """Operands that eager converts to `dt` first, whatever it computes in: Python numbers of sums and comparisons are
    rounded to the tensor's dtype on a CPU, those of products and quotients are not, nor any on a GPU."""
    wide = compute_dtype(dt)
    if dt is wide or lo._device().type != "cpu":
        return [operand(x, wide) for x in xs]
    return [
        (
            operand(float(torch.tensor(float(x)).to(dt)), wide)
            if isinstance(x, (int, float))
            else operand(x, wide)
            if isinstance(x, Ref) and x.dtype == dt
            else cast(operand(x, dt), wide)
        )
        for x in xs
    ]


def _converted(lo: Lowering, a: Any, b: Any) -> list[Value]:
    return _of_one_dtype(lo, lo.meta().dtype, a, b)


@rule("aten.add.Tensor")
def add(lo: Lowering, node: Any, a: Any, b: Any) -> Ref:
    x, y = _converted(lo, a, b)
    return lo.rounded(prim("add", x, y))


@rule("aten.sub.Tensor")
def sub(lo: Lowering, node: Any, a: Any, b: Any) -> Ref:
    x, y = _converted(lo, a, b)
    return lo.rounded(prim("sub", x, y))


@rule("aten.div.Tensor_mode")
def div_mode(lo: Lowering, node: Any, a: Any, b: Any, *, rounding_mode: str | None) -> Ref:
    x, y = lo.operands(a, b)
    name = {None: "div", "trunc": "div_trunc", "floor": "div_floor"}[rounding_mode]
    return lo.rounded(prim(name, x, _divisor(lo, x, y, b)))


@rule("aten.remainder.Tensor", "aten.remainder.Scalar")
def remainder(lo: Lowering, node: Any, a: Any, b: Any) -> Ref:
    x, y = _converted(lo, a, b)
    return lo.rounded(prim("remainder", x, _divisor(lo, x, y, b)))


@rule("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(lo: Lowering, node: Any, a: Any, b: Any) -> Ref:
    x, y = _converted(lo, a, b)
    return lo.rounded(prim("fmod", x, _divisor(lo, x, y, b)))


def _divisor(lo: Lowering, x: Value, value: Value, b: Any) -> Value:
    """The divisor of an integer division: eager raises for zeros, and so does the kernel."""
    if x.dtype.is_floating_point or isinstance(b, int) and b % (1 << 8 * x.dtype.itemsize) != 0:
        # (a multiple of that is zero in this type)
        return value
    if lo._device().type != "cpu" or x.dtype == torch.bool:
        raise NoRule("integer division by values that may be zero")
    zero = cast(prim("eq", value, C(0, value.dtype)), torch.int64)
    none = check_index(zero, C(1, torch.int64), "RuntimeError: ZeroDivisionError")  # (0 where it holds)
    return prim("add", value, cast(none, value.dtype))


@rule("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def pow_tensor(lo: Lowering, node: Any, a: Any, b: Any) -> Ref:
    x, y = _converted(lo, a, b)
    if not x.dtype.is_floating_point and (lo._device().type != "cpu" or x.dtype == torch.bool):
        raise NoRule("integer power")
    return lo.rounded(prim("pow", x, y))


@rule("aten.pow.Tensor_Scalar")
def pow_scalar(lo: Lowering, node: Any, a: Ref, b: Any) -> Ref:
    (x,) = lo.operands(a)
    if isinstance(b, (int, float)):
        r = _power(x, b)
        if r is not None:
            return lo.rounded(r)
    if not x.dtype.is_floating_point and (
        lo._device().type != "cpu" or x.dtype == torch.bool or not isinstance(b, int) or b < 0
    ):
        raise NoRule("integer power")
    return lo.rounded(prim("pow", *_converted(lo, a, b)))


def _power(value: Value, b: float) -> Value | None:
    """The exponents that eager's kernel treats specially."""
    if b == 0 and value.dtype != torch.bool:
        return C(1, value.dtype)
    if b == 1:
        return value
    if value.dtype == torch.bool:
        return None
    if b == 2:
        return prim("mul", value, value)
    if b == 3:
        return prim("mul", prim("mul", value, value), value)
    if not value.dtype.is_floating_point:
        return None
    if b == 0.5:
        return prim("sqrt", value)
    if b == -0.5:
        return prim("rsqrt", value)
    if b == -1:
        return prim("reciprocal", value)
    if b == -2:
        return prim("reciprocal", prim("mul", value, value))
    return None


@rule("aten.fmax.default", "aten.fmin.default")
def fmax(lo: Lowering, node: Any, a: Any, b: Any) -> Ref:
    if lo.meta().dtype is torch.bfloat16 and lo.meta().device.type == "cpu":
        a, b = b, a  # of 0.0 and -0.0 the first is taken, but of bfloat16 on a CPU the second
    return _elementwise("fmax" if node.target is torch.ops.aten.fmax.default else "fmin")(lo, node, a, b)


@rule("aten.nextafter.default")
def nextafter(lo: Lowering, node: Any, a: Any, b: Any) -> Ref:
    x, y = lo.operands(a, b)
    if x.dtype != lo.meta().dtype:
        raise NoRule("the next number of a type that is computed in float32")
    return lo.rounded(prim("nextafter", x, y))


def _shift(name: str) -> Callable:
    def f(lo: Lowering, node: Any, a: Ref, b: Any) -> Ref:
        x, y = lo.operands(a, b)
        if x.dtype.is_floating_point or x.dtype == torch.bool:
            raise NoRule("shift of floats")
        return lo.rounded(prim(name, x, y))

    return f


for _side in ("left", "right"):
    _name, _short = f"bitwise_{_side}_shift", f"__{_side[0]}shift__"
    rule(f"aten.{_name}.Tensor", f"aten.{_name}.Tensor_Scalar", f"aten.{_short}.Tensor", f"aten.{_short}.Scalar")(
        _shift(_name)
    )


def _compare(name: str) -> Callable:
    def f(lo: Lowering, node: Any, a: Any, b: Any) -> Ref:
        dt = result_type((a, b))
        if isinstance(b, float) and not dt.is_floating_point:
            dt = torch.get_default_dtype()
        x, y = _of_one_dtype(lo, dt, a, b)
        truth = _decided(name, x, y, lo)
        return lo.rounded(prim(name, x, y) if truth is None else C(truth, torch.bool))

    return f


def _decided(name: str, x: Value, value: Value, lo: Lowering) -> bool | None:
    """The truth of a comparison of positions where the shape decides it (row >= 0)."""
    a, b = known_position(x), known_position(value)
    if a is None or b is None:
        return None
    return known(_RELATIONS[name](a, b), ranges_of(lo.out_shape()))


_RELATIONS = {"eq": eq, "ne": ne, "lt": lt, "le": le, "gt": gt, "ge": ge}
for _name in _RELATIONS:
    rule(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_compare(_name))


def _logical(name: str) -> Callable:
    def f(lo: Lowering, node: Any, a: Ref, b: Ref) -> Ref:
        return lo.rounded(prim(name, operand(a, torch.bool), operand(b, torch.bool)))

    return f


for _name in ("logical_and", "logical_or", "logical_xor"):
    rule(f"aten.{_name}.default")(_logical(_name))


@rule("aten.xlogy.Tensor", "aten.xlogy.Scalar_Other", "aten.xlogy.Scalar_Self")
def xlogy(lo: Lowering, node: Any, a: Any, b: Any) -> Ref:
    x, y = lo.operands(a, b)
    zero = C(0, x.dtype)
    r = prim("where", prim("eq", x, zero), zero, prim("mul", x, prim("log", y)))
    return lo.rounded(prim("where", prim("isnan", y), y, r))


# ---- three operands
@rule("aten.where.self")
def where(lo: Lowering, node: Any, cond: Ref, a: Any, b: Any) -> Ref:
    dt = lo.meta().dtype
    return lo.pointwise(prim("where", cast(cond.value, torch.bool), operand(a, dt), operand(b, dt)))


# ---- activations
@rule("aten.erf.default")
def erf(lo: Lowering, node: Any, x: Ref) -> Ref:
    (v,) = lo.operands(x)
    return lo.rounded(prim(_gelu_s_erf(lo, v) if _inside_gelu(node) else "erf", v))


def _gelu_s_erf(lo: Lowering, value: Value) -> str:
    """The erf of GELU and of its derivative, which eager's operators take on a CPU with an error of 4e-8 and 5e-8
    (RMS), more than erf_rough's.
    """
    return "erf_rough" if value.dtype == torch.float32 and lo._device().type == "cpu" else "erf"


def _inside_gelu(node: Any) -> bool:
    """Whether this erf is that of x / 2 * (1 + erf(x * sqrt(1/2)))."""

    def scaled(n: Any, by: float) -> Any:
        return n.args[0] if getattr(n, "target", None) is torch.ops.aten.mul.Tensor and n.args[1] == by else None

    x, (plus, *others) = scaled(node.args[0], math.sqrt(0.5)), [*node.users, None]
    if x is None or others != [None] or plus.target is not torch.ops.aten.add.Tensor or plus.args[1] != 1.0:
        return False
    return bool(plus.users) and all(
        user.target is torch.ops.aten.mul.Tensor and scaled(user.args[0], 0.5) is x for user in plus.users
    )


@rule("aten.threshold_backward.default")
def threshold_backward(lo: Lowering, node: Any, grad: Ref, x: Ref, t: Any) -> Ref:
    g, v = lo.operands(grad, x)
    return lo.rounded(prim("where", prim("le", v, operand(t, v.dtype)), C(0, v.dtype), g))


@rule("aten.sigmoid_backward.default", "aten.tanh_backward.default")
def gate_backward(lo: Lowering, node: Any, grad: Ref, y: Ref) -> Ref:
    g, v = lo.operands(grad, y)
    one = C(1, v.dtype)
    if "sigmoid" in node.target._schema.name:
        return lo.rounded(prim("mul", g, prim("mul", prim("sub", one, v), v)))
    return lo.rounded(prim("mul", g, prim("sub", one, prim("mul", v, v))))


@rule("aten.gelu_backward.default")
def gelu_backward(lo: Lowering, node: Any, grad: Ref, x: Ref, *, approximate: str = "none") -> Ref:
    g, v = lo.operands(grad, x)

    def c(k: float) -> Value:
        return C(k, v.dtype)

    if approximate == "none":
        cdf = prim("mul", c(0.5), prim("add", c(1.0), prim(_gelu_s_erf(lo, v), prim("mul", v, c(math.sqrt(0.5))))))
        pdf = prim(
            "mul",
            c(0.5 * math.sqrt(2.0) * 2.0 / math.sqrt(math.pi) * 0.5),
            prim("exp", prim("mul", prim("mul", v, v), c(-0.5))),
        )
        return lo.rounded(prim("mul", g, prim("add", cdf, prim("mul", v, pdf))))
    beta, kappa = math.sqrt(2.0 / math.pi), 0.044715
    sq = prim("mul", v, v)
    t = prim("tanh", prim("mul", c(beta), prim("add", v, prim("mul", c(kappa), prim("mul", sq, v)))))
    left = prim("mul", c(0.5), prim("add", c(1.0), t))
    inner = prim("mul", c(beta), prim("add", c(1.0), prim("mul", c(3 * kappa), sq)))
    right = prim("mul", prim("mul", prim("mul", c(0.5), v), prim("sub", c(1.0), prim("mul", t, t))), inner)
    return lo.rounded(prim("mul", g, prim("add", left, right)))


# ---- all others are the primitive of their name
for _op, _name in POINTWISE.items():
    if _op not in RULES and _name in PRIMS:
        rule(_op)(_elementwise(_name))
