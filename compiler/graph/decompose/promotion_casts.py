"""Type promotion made explicit: operands of element-wise operators are cast to the dtype that the operator computes
in.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from ..meta.factory_meta import device_of
from ..meta.pointwise_meta import FLOAT_RESULT
from ..meta.types import is_int, opmath, result_type
from .table import TABLE, Builder, Node, decomposition

__all__ = ["promoted"]

aten = torch.ops.aten


def promoted(builder: Builder, xs: list, float_result: bool = False) -> list:
    """The operands with tensors cast to their common dtype; numbers are left."""
    dtype = result_type([x.meta["val"] if isinstance(x, Node) else x for x in xs])
    if float_result and is_int(dtype):
        dtype = torch.get_default_dtype()
    return [builder.cast(x, dtype) if isinstance(x, Node) else x for x in xs]


def _elementwise(op: Any, name: str) -> Callable:
    floats = name in FLOAT_RESULT

    def f(builder: Builder, *args: Any, **kwargs: Any) -> Any:
        xs = promoted(builder, list(args), floats)
        return builder.emit(op, *xs, **kwargs)

    f.__name__ = f"promote_{name}"
    return f


_UNARY = """neg sign reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh
    asinh acosh atanh erf erfc lgamma sigmoid""".split()
for _n in _UNARY:
    TABLE[getattr(aten, _n).default] = _elementwise(getattr(aten, _n).default, _n)

_BINARY = """
    mul.Tensor remainder.Tensor fmod.Tensor maximum.default minimum.default fmax.default fmin.default atan2.default
    hypot.default copysign.Tensor nextafter.default bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor
    bitwise_left_shift.Tensor bitwise_right_shift.Tensor eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor
    eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar pow.Tensor_Tensor pow.Scalar remainder.Scalar
    fmod.Scalar copysign.Scalar bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar
    bitwise_left_shift.Tensor_Scalar bitwise_right_shift.Tensor_Scalar""".split()
for _n in _BINARY:
    _p, _, _o = _n.partition(".")
    TABLE[getattr(getattr(aten, _p), _o)] = _elementwise(getattr(getattr(aten, _p), _o), _p)

_LOGICAL = "logical_and logical_or logical_xor".split()


def _logical(op: Any) -> Callable:
    def f(builder: Builder, x: Node, y: Node) -> Node:
        return builder.emit(op, _truth(builder, x), _truth(builder, y))

    return f


def _truth(builder: Builder, x: Node) -> Node:
    """x as bool: nonzero is True."""
    return builder.cast(x, torch.bool)


for _n in _LOGICAL:
    TABLE[getattr(aten, _n).default] = _logical(getattr(aten, _n).default)


@decomposition(aten.logical_not.default)
def logical_not(builder: Builder, x: Node) -> Node:
    return builder.emit(aten.logical_not.default, _truth(builder, x))


# arithmetic with a number on the right is written with the .Tensor form, which takes numbers too
for _n in ("add", "sub", "mul", "div"):

    def _forward(builder: Builder, *args: Any, _op: Any = getattr(aten, _n).Tensor, **kw: Any) -> Any:
        return builder.call(_op, *args, **kw)

    TABLE[getattr(aten, _n).Scalar] = _forward


# a number on the left becomes a 0-dim tensor
for _n in ("remainder", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"):

    def _number_first(builder: Builder, x: Any, y: Node, _op: Any = getattr(aten, _n).Tensor) -> Any:
        d = result_type([x, y.meta["val"]])
        return builder.call(_op, builder.full((), x, d, y.meta["val"].device), y)

    TABLE[getattr(aten, _n).Scalar_Tensor] = _number_first


@decomposition(aten.add.Tensor)
def add(builder: Builder, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _add(builder, aten.add.Tensor, x, y, alpha)


def _add(builder: Builder, op: Any, x: Any, y: Any, alpha: Any) -> Node:
    x, y = promoted(builder, [x, y])
    if alpha != 1 or isinstance(alpha, bool):
        y = y * alpha if not isinstance(y, Node) else builder.mul(y, alpha)
    if not isinstance(x, Node):
        x = builder.full((), x, y.meta["val"].dtype, y.meta["val"].device)
    return builder.emit(op, x, y)


@decomposition(aten.sub.Tensor)
def sub(builder: Builder, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _add(builder, aten.sub.Tensor, x, y, alpha)


@decomposition(aten.rsub)
def rsub(builder: Builder, x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = promoted(builder, [x, y])
    if alpha != 1:
        x = builder.mul(x, alpha)
    return builder.sub(y, x)


@decomposition(aten.div.Tensor, aten.true_divide.Tensor)
def div(builder: Builder, x: Any, y: Any) -> Any:
    x, y = promoted(builder, [x, y], float_result=True)
    return builder.emit(aten.div.Tensor, x, y)


@decomposition(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(builder: Builder, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return div(builder, x, y)
    x, y = promoted(builder, [x, y])
    return builder.emit(aten.div.Tensor_mode, x, y, rounding_mode=rounding_mode)


@decomposition(aten.floor_divide)
def floor_divide(builder: Builder, x: Any, y: Any) -> Any:
    x, y = promoted(builder, [x, y])
    return builder.emit(aten.div.Tensor_mode, x, y, rounding_mode="floor")


@decomposition(aten.pow.Tensor_Scalar)
def pow_scalar(builder: Builder, x: Node, e: Any) -> Any:
    x, _ = promoted(builder, [x, e])
    dtype = x.meta["val"].dtype
    if e == 2:
        return builder.mul(x, x)
    if e == 1:
        return builder.emit(aten.clone.default, x)
    if dtype.is_floating_point:
        if e == 3:  # one rounding, as in the kernel
            u = builder.cast(x, opmath(dtype))
            return builder.cast(builder.mul(builder.mul(u, u), u), dtype)
        if abs(e) == 0.5:
            if dtype is torch.float16 and x.meta["val"].device.type == "cpu":
                # eager asks pow(): of -0.0 it is as of 0.0, of -inf as of inf
                root = builder.unary("sqrt" if e > 0 else "rsqrt", builder.unary("abs", x))
                return builder.where(
                    builder.compare("lt", x, -65504.0),
                    float("inf") if e > 0 else 0.0,
                    builder.where(builder.compare("lt", x, 0.0), float("nan"), root),
                )
            return builder.unary("sqrt" if e > 0 else "rsqrt", x)
        if e == -1:
            return builder.unary("reciprocal", x)
        if e == 0:
            return builder.emit(
                aten.full.default, list(x.meta["val"].shape), 1, dtype=dtype, device=x.meta["val"].device
            )
    return builder.emit(aten.pow.Tensor_Scalar, x, e)


@decomposition(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(builder: Builder, cond: Node, x: Any, y: Any) -> Any:
    d = result_type([v.meta["val"] if isinstance(v, Node) else v for v in (x, y)])
    device = cond.meta["val"].device
    x, y = (builder.cast(v, d) if isinstance(v, Node) else builder.full((), v, d, device) for v in (x, y))
    return builder.emit(aten.where.self, builder.cast(cond, torch.bool), x, y)


@decomposition(aten._to_copy.default)
def to_copy(
    builder: Builder,
    x: Node,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Any:
    meta = x.meta["val"]
    if device is not None and device_of(device) != meta.device:
        return NotImplemented
    val = builder.meta(aten._to_copy.default, (x,), {"dtype": dtype, "memory_format": memory_format})
    if dtype is None or dtype is meta.dtype:
        return builder.emit(aten.clone.default, x, val=val)
    return builder.emit(aten._to_copy.default, x, dtype=dtype, val=val)
