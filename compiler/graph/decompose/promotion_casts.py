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


def promoted(b: Builder, xs: list, float_result: bool = False) -> list:
    """The operands with tensors cast to their common dtype; numbers are left."""
    d = result_type([x.meta["val"] if isinstance(x, Node) else x for x in xs])
    if float_result and is_int(d):
        d = torch.get_default_dtype()
    return [b.cast(x, d) if isinstance(x, Node) else x for x in xs]


def _elementwise(op: Any, name: str) -> Callable:
    floats = name in FLOAT_RESULT

    def f(b: Builder, *args: Any, **kwargs: Any) -> Any:
        xs = promoted(b, list(args), floats)
        return b.emit(op, *xs, **kwargs)

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
    def f(b: Builder, x: Node, y: Node) -> Node:
        return b.emit(op, _truth(b, x), _truth(b, y))

    return f


def _truth(b: Builder, x: Node) -> Node:
    """x as bool: nonzero is True."""
    return b.cast(x, torch.bool)


for _n in _LOGICAL:
    TABLE[getattr(aten, _n).default] = _logical(getattr(aten, _n).default)


@decomposition(aten.logical_not.default)
def logical_not(b: Builder, x: Node) -> Node:
    return b.emit(aten.logical_not.default, _truth(b, x))


# arithmetic with a number on the right is written with the .Tensor form, which takes numbers too
for _n in ("add", "sub", "mul", "div"):

    def _forward(b: Builder, *args: Any, _op: Any = getattr(aten, _n).Tensor, **kw: Any) -> Any:
        return b.call(_op, *args, **kw)

    TABLE[getattr(aten, _n).Scalar] = _forward


# a number on the left becomes a 0-dim tensor
for _n in ("remainder", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"):

    def _number_first(b: Builder, x: Any, y: Node, _op: Any = getattr(aten, _n).Tensor) -> Any:
        d = result_type([x, y.meta["val"]])
        return b.call(_op, b.full((), x, d, y.meta["val"].device), y)

    TABLE[getattr(aten, _n).Scalar_Tensor] = _number_first


@decomposition(aten.add.Tensor)
def add(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _add(b, aten.add.Tensor, x, y, alpha)


def _add(b: Builder, op: Any, x: Any, y: Any, alpha: Any) -> Node:
    x, y = promoted(b, [x, y])
    if alpha != 1 or isinstance(alpha, bool):
        y = y * alpha if not isinstance(y, Node) else b.mul(y, alpha)
    if not isinstance(x, Node):
        x = b.full((), x, y.meta["val"].dtype, y.meta["val"].device)
    return b.emit(op, x, y)


@decomposition(aten.sub.Tensor)
def sub(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _add(b, aten.sub.Tensor, x, y, alpha)


@decomposition(aten.rsub)
def rsub(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = promoted(b, [x, y])
    if alpha != 1:
        x = b.mul(x, alpha)
    return b.sub(y, x)


@decomposition(aten.div.Tensor, aten.true_divide.Tensor)
def div(b: Builder, x: Any, y: Any) -> Any:
    x, y = promoted(b, [x, y], float_result=True)
    return b.emit(aten.div.Tensor, x, y)


@decomposition(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: Builder, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return div(b, x, y)
    x, y = promoted(b, [x, y])
    return b.emit(aten.div.Tensor_mode, x, y, rounding_mode=rounding_mode)


@decomposition(aten.floor_divide)
def floor_divide(b: Builder, x: Any, y: Any) -> Any:
    x, y = promoted(b, [x, y])
    return b.emit(aten.div.Tensor_mode, x, y, rounding_mode="floor")


@decomposition(aten.pow.Tensor_Scalar)
def pow_scalar(b: Builder, x: Node, e: Any) -> Any:
    x, _ = promoted(b, [x, e])
    d = x.meta["val"].dtype
    if e == 2:
        return b.mul(x, x)
    if e == 1:
        return b.emit(aten.clone.default, x)
    if d.is_floating_point:
        if e == 3:  # one rounding, as in the kernel
            u = b.cast(x, opmath(d))
            return b.cast(b.mul(b.mul(u, u), u), d)
        if abs(e) == 0.5:
            if (
                d is torch.float16 and x.meta["val"].device.type == "cpu"
            ):  # eager asks pow(): of -0.0 it is as of 0.0, of -inf as of inf
                root = b.unary("sqrt" if e > 0 else "rsqrt", b.unary("abs", x))
                return b.where(
                    b.compare("lt", x, -65504.0),
                    float("inf") if e > 0 else 0.0,
                    b.where(b.compare("lt", x, 0.0), float("nan"), root),
                )
            return b.unary("sqrt" if e > 0 else "rsqrt", x)
        if e == -1:
            return b.unary("reciprocal", x)
        if e == 0:
            return b.emit(aten.full.default, list(x.meta["val"].shape), 1, dtype=d, device=x.meta["val"].device)
    return b.emit(aten.pow.Tensor_Scalar, x, e)


@decomposition(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(b: Builder, cond: Node, x: Any, y: Any) -> Any:
    d = result_type([v.meta["val"] if isinstance(v, Node) else v for v in (x, y)])
    device = cond.meta["val"].device
    x, y = (b.cast(v, d) if isinstance(v, Node) else b.full((), v, d, device) for v in (x, y))
    return b.emit(aten.where.self, b.cast(cond, torch.bool), x, y)


@decomposition(aten._to_copy.default)
def to_copy(
    b: Builder,
    x: Node,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Any:
    m = x.meta["val"]
    if device is not None and device_of(device) != m.device:
        return NotImplemented
    val = b.meta(aten._to_copy.default, (x,), {"dtype": dtype, "memory_format": memory_format})
    if dtype is None or dtype is m.dtype:
        return b.emit(aten.clone.default, x, val=val)
    return b.emit(aten._to_copy.default, x, dtype=dtype, val=val)
