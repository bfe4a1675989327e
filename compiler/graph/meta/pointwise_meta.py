"""Element-wise operators: broadcasting, type promotion and TensorIterator strides, from one table of dtypes."""

from __future__ import annotations

from typing import Any

import torch

from .core import RULES, TensorMeta, broadcast_shapes, contiguous_strides, rule
from .strides import elementwise_strides
from .types import is_int, result_type, to_complex_real

__all__ = ["pointwise", "pointwise_dtype", "FLOAT_RESULT", "BOOL_RESULT", "generic_pointwise"]

# ints and bools become the default float dtype
FLOAT_RESULT = frozenset(
    """
        copysign acos acosh asin asinh atan atan2 atanh cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 i0
        lgamma log log10 log1p log2 logit logaddexp logaddexp2 polygamma rad2deg reciprocal rsqrt sigmoid sin sinc
        sinh sqrt tan tanh true_divide special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr
        special_ndtri special_xlog1py xlogy special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0
        special_bessel_y1 special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
        special_modified_bessel_k1 special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
        special_spherical_bessel_j0 special_chebyshev_polynomial_t special_chebyshev_polynomial_u
        special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_t
        special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
        special_shifted_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he
        special_laguerre_polynomial_l special_legendre_polynomial_p special_zeta mvlgamma""".split()
)

BOOL_RESULT = frozenset(
    """
        eq ne lt le gt ge logical_and logical_or logical_xor logical_not isnan isinf isposinf isneginf isfinite isreal
        signbit isclose""".split()
)


# their numbers are no operands
_UNWRAPPED = frozenset("polygamma special_polygamma logit special_logit mvlgamma special_multigammaln".split())


def pointwise_dtype(name: str, xs: list) -> torch.dtype:
    """The dtype of the result of the element-wise operator `name` (without namespace)."""
    if name in BOOL_RESULT:
        return torch.bool
    d = result_type(xs)
    if name in FLOAT_RESULT and is_int(d):
        return torch.get_default_dtype()
    return d


def _metas(xs: Any) -> list[TensorMeta]:
    return [x for x in xs if isinstance(x, TensorMeta)]


def pointwise(xs: list, dtype: torch.dtype, wrapped: bool = True) -> TensorMeta:
    """The result of an element-wise operator over TensorMetas and numbers. `wrapped`: numbers are tensors without
    dimensions to eager, beside which it orders all dimensions by their strides, those of size 1 or without elements,
    too."""
    ts = _metas(xs)
    first = ts[0]
    if len(ts) == 1:
        if any(type(size) is int and (size == 0 or size == 1 and wrapped and len(xs) > 1) for size in first.shape):
            ts = [first, TensorMeta((), (), dtype, first.device)]
        return TensorMeta(first.shape, elementwise_strides(first.shape, ts), dtype, first.device)
    shape, device = broadcast_shapes(*[t.shape for t in ts]), common_device(ts)
    if wrapped and len(ts) < len(xs) and any(type(size) is int and size == 1 for size in shape):
        ts = [*ts, TensorMeta((), (), dtype, device)]
    return TensorMeta(shape, elementwise_strides(shape, ts), dtype, device)


def common_device(ts: list[TensorMeta]) -> torch.device:
    """CPU scalars (0-dim) may meet tensors of another device."""
    device = ts[0].device
    for tensor in ts[1:]:
        if tensor.device != device:
            if not tensor.shape and tensor.device.type == "cpu":
                continue
            if device.type == "cpu" and all(not u.shape for u in ts if u.device.type == "cpu"):
                device = tensor.device
                continue
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices,"
                f" {device} and {tensor.device}!"
            )
    return device


def generic_pointwise(name: str) -> Any:
    """The rule of an operator that torch tags as point-wise: all tensor and number operands promote together."""

    def f(*args: Any, **kwargs: Any) -> TensorMeta:
        return pointwise(list(args), pointwise_dtype(name, list(args)), name not in _UNWRAPPED)

    f.__name__ = f"pointwise_{name}"
    return f


@rule("prims::convert_element_type")
def convert_element_type(a: TensorMeta, dtype: torch.dtype) -> TensorMeta:
    return pointwise([a], dtype)


def _check_alpha(dtype: torch.dtype, alpha: Any) -> None:
    if isinstance(alpha, bool) and dtype is not torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if isinstance(alpha, float) and is_int(dtype):
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")


@rule("add")
def add(a: Any, b: Any, alpha: Any = 1) -> TensorMeta:
    d = result_type([a, b])
    _check_alpha(d, alpha)
    return pointwise([a, b], d)


@rule("sub", "rsub")
def sub(a: Any, b: Any, alpha: Any = 1) -> TensorMeta:
    d = result_type([a, b])
    _check_alpha(d, alpha)
    bools = [isinstance(x, bool) or isinstance(x, TensorMeta) and x.dtype is torch.bool for x in (a, b)]
    if all(bools):
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or "
            "`logical_xor()` operator instead."
        )
    if any(bools):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert "
            "a mask, use the `~` or `logical_not()` operator instead."
        )
    return pointwise([a, b], d)


@rule("neg")
def neg(a: TensorMeta) -> TensorMeta:
    if a.dtype is torch.bool:
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert "
            "a mask, use the `~` or `logical_not()` operator instead."
        )
    return pointwise([a], a.dtype)


@rule("div")
def div(a: Any, b: Any, rounding_mode: str | None = None) -> TensorMeta:
    dtype = result_type([a, b])
    if rounding_mode is None and is_int(dtype):
        dtype = torch.get_default_dtype()
    return pointwise([a, b], dtype)


@rule("abs")
def abs_(a: TensorMeta) -> TensorMeta:
    return pointwise([a], to_complex_real(a.dtype))


@rule("angle")
def angle(a: TensorMeta) -> TensorMeta:
    d = to_complex_real(a.dtype)
    return pointwise([a], torch.get_default_dtype() if is_int(d) else d)


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(cond: TensorMeta, a: Any, b: Any) -> TensorMeta:
    if cond.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError(f"where expected condition to be a boolean tensor, but got a tensor with dtype {cond.dtype}")
    return pointwise([cond, a, b], result_type([a, b]))


@rule("clamp", "clamp_min", "clamp_max", "clip")
def clamp(a: TensorMeta, *bounds: Any, min: Any = None, max: Any = None) -> TensorMeta:
    xs = [a, *(b for b in (*bounds, min, max) if b is not None)]
    if len(xs) == 1:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    return pointwise(xs, result_type(xs), wrapped=False)


@rule("pow.Scalar")
def power_of_number(a: Any, b: TensorMeta) -> TensorMeta:
    """(eager makes its result before it looks at strides)"""
    return TensorMeta(b.shape, contiguous_strides(b.shape), result_type([a, b]), b.device)


@rule("pow.Tensor_Tensor", "pow.Tensor_Scalar", "float_power")
def pow_(a: Any, b: Any) -> TensorMeta:
    return pointwise([a, b], result_type([a, b]), wrapped=False)


@rule("addcmul", "addcdiv")
def addcmul(a: TensorMeta, b: TensorMeta, c: TensorMeta, value: Any = 1) -> TensorMeta:
    return pointwise([a, b, c], result_type([a, b, c]))


@rule("lerp")
def lerp(a: TensorMeta, b: TensorMeta, w: Any) -> TensorMeta:
    for x in (b, w):
        if isinstance(x, TensorMeta) and x.dtype != a.dtype:
            raise RuntimeError(f"expected dtype {a.dtype} for `end`/`weight` but got dtype {x.dtype}")
    return pointwise([a, b, w], a.dtype, wrapped=False)


@rule("masked_fill")
def masked_fill(a: TensorMeta, mask: TensorMeta, value: Any) -> TensorMeta:
    if mask.dtype is not torch.bool:
        raise RuntimeError(f"masked_fill only supports boolean masks, but got mask with dtype {mask.dtype}")
    shape = broadcast_shapes(a.shape, mask.shape)
    return TensorMeta(shape, contiguous_strides(shape), a.dtype, a.device)


_FIRST = """relu relu6 leaky_relu elu gelu silu hardswish hardsigmoid mish softplus threshold celu selu
    log_sigmoid_forward softshrink hardshrink ceil floor round trunc frac sign sgn positive bitwise_not conj_physical
    square fill zero""".split()


@rule(*_FIRST)
def same_as_input(a: TensorMeta, *args: Any, **kwargs: Any) -> TensorMeta:
    return pointwise([a], a.dtype)


@rule("fill.Scalar", "fill.Tensor", "zero")
def fill(a: TensorMeta, value: Any = 0) -> TensorMeta:
    return pointwise([a], a.dtype)


@rule("log_sigmoid_forward")
def log_sigmoid_forward(a: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    out = pointwise([a], a.dtype)
    # the second result is a buffer for backward; the CPU kernel fills it, others leave it empty
    buf = pointwise([a], a.dtype) if a.device.type == "cpu" else TensorMeta((0,), (1,), a.dtype, a.device)
    return out, buf


_GRADS = """threshold_backward gelu_backward silu_backward elu_backward leaky_relu_backward hardtanh_backward
    hardswish_backward hardsigmoid_backward mish_backward softplus_backward sigmoid_backward tanh_backward
    log_sigmoid_backward softshrink_backward hardshrink_backward logit_backward""".split()


@rule(*_GRADS)
def grad(*args: Any, **kwargs: Any) -> TensorMeta:
    ts = [arg for arg in args if isinstance(arg, TensorMeta)][:2]
    return pointwise(ts, result_type(ts))


@rule("_standard_gamma_grad", "_dirichlet_grad")
def grad_of_draw(*args: TensorMeta) -> TensorMeta:
    return pointwise(args, result_type(args))


@rule("ldexp")
def ldexp(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    """a * 2.0 ** b, or, of a float and an integer, what C's ldexp gives in a's dtype."""
    if a.dtype.is_floating_point and is_int(b.dtype):
        if b.dtype is torch.bool:
            raise NotImplementedError("ldexp is not implemented for exponents of dtype bool")
        return pointwise([a, b], a.dtype)
    power = b if b.dtype.is_floating_point or b.dtype.is_complex else b.replace(dtype=torch.get_default_dtype())
    return pointwise([a, b], result_type([a, power]))


@rule("heaviside")
def heaviside(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    if a.dtype != b.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    return pointwise([a, b], a.dtype)


_PROMOTING = """
    mul bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ __and__ __or__
    __xor__ remainder fmod maximum minimum fmax fmin copysign nextafter hypot floor_divide gcd lcm""".split()


def _register_promoting() -> None:
    for name in [*_PROMOTING, *FLOAT_RESULT, *BOOL_RESULT]:
        RULES.setdefault(name, generic_pointwise(name))


_register_promoting()
