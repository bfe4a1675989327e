"""Random numbers of our own (option `fallback_random=False`): made inside of the kernel that uses them, from the element's position and a
seed that torch's generator gives once per operator and call. torch.manual_seed repeats them; they are not the numbers that eager draws."""
from __future__ import annotations

import math
from typing import Any

import torch

from ..ir import Value, cast, const, index, load, prim
from ..lower import Lowering, NoRule, rule
from ..lowered import Extern
from ..promote import compute_dtype, operand, rounded
from ..ref import Ref, contiguous_strides, flat_index

I64 = torch.int64


def _signed(x: int) -> Value:
    return const(x - (1 << 64) if x >= 1 << 63 else x, I64)


def _shifted(z: Value, n: int) -> Value:
    """z >> n without the sign."""
    return prim("bitwise_and", prim("bitwise_right_shift", z, const(n, I64)), const((1 << (64 - n)) - 1, I64))


def _mixed(z: Value) -> Value:
    """splitmix64's finaliser: every bit of the result depends on every bit of z."""
    z = prim("mul", prim("bitwise_xor", z, _shifted(z, 30)), _signed(0xBF58476D1CE4E5B9))
    z = prim("mul", prim("bitwise_xor", z, _shifted(z, 27)), _signed(0x94D049BB133111EB))
    return prim("bitwise_xor", z, _shifted(z, 31))


class _Stream:
    """The random bits of one operator's result, over j symbols of its shape."""

    def __init__(self, lo: Lowering, shape: tuple, generator: Any = None):
        if lo.opts.get("fallback_random", True) or generator is not None:
            raise NoRule("random numbers")
        seed = lo._buffer(lo._node_name() + "_seed", (1,), I64)
        draw = {"dtype": I64, "device": torch.device(lo._device())}
        lo.steps.append(Extern(torch.ops.aten.randint.low, (0, (1 << 63) - 1, [1]), draw, [seed], reason="seed of random numbers", origin=lo._node_name()))
        lo.foreign.add(seed)
        at = index(flat_index(shape, contiguous_strides(shape)))
        self.bits = _mixed(prim("add", load(seed, flat_index((1,), (1,))), prim("mul", at, _signed(0x9E3779B97F4A7C15))))

    def uniform(self, dtype: torch.dtype, again: int = 0, result: torch.dtype | None = None) -> Value:
        """In [0, 1): as many bits as `result` (`dtype` itself) holds, so that rounding never makes it 1. `again`: another number for the
        same element."""
        z = self.bits if not again else _mixed(prim("add", self.bits, _signed(0x9E3779B97F4A7C15 * again % (1 << 64))))
        n = {torch.float64: 53, torch.bfloat16: 8, torch.float16: 11}.get(result or dtype, 24)
        return prim("mul", cast(_shifted(z, 64 - n), dtype), const(2.0 ** -n, dtype))

    def normal(self, dtype: torch.dtype) -> Value:
        """Box and Muller's."""
        radius = prim("sqrt", prim("mul", const(-2.0, dtype), prim("log", prim("sub", const(1.0, dtype), self.uniform(dtype)))))
        return prim("mul", radius, prim("cos", prim("mul", const(2 * math.pi, dtype), self.uniform(dtype, 1))))


def _float(lo: Lowering) -> torch.dtype:
    d = lo.meta().dtype
    if not d.is_floating_point:
        raise NoRule("random numbers")
    return compute_dtype(d)


def _out(lo: Lowering, v: Value) -> Ref:
    return lo.pointwise(rounded(v, lo.meta().dtype))


@rule("aten.rand.default", "aten.rand_like.default")
def rand(lo: Lowering, node: Any, *args: Any, **kw: Any) -> Ref:
    return _out(lo, _Stream(lo, lo.out_shape()).uniform(_float(lo), result=lo.meta().dtype))


@rule("aten.randn.default", "aten.randn_like.default")
def randn(lo: Lowering, node: Any, *args: Any, **kw: Any) -> Ref:
    return _out(lo, _Stream(lo, lo.out_shape()).normal(_float(lo)))


@rule("aten.uniform.default")
def uniform(lo: Lowering, node: Any, x: Ref, low: Any = 0.0, high: Any = 1.0, *, generator: Any = None) -> Ref:
    d = _float(lo)
    u = _Stream(lo, lo.out_shape(), generator).uniform(d, result=lo.meta().dtype)
    return _out(lo, prim("add", prim("mul", u, prim("sub", operand(high, d), operand(low, d))), operand(low, d)))


@rule("aten.normal_functional.default")
def normal(lo: Lowering, node: Any, x: Ref, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Ref:
    d = _float(lo)
    return _out(lo, prim("add", prim("mul", _Stream(lo, lo.out_shape(), generator).normal(d), operand(std, d)), operand(mean, d)))


@rule("aten.exponential.default")
def exponential(lo: Lowering, node: Any, x: Ref, rate: Any = 1.0, *, generator: Any = None) -> Ref:
    d = _float(lo)
    u = _Stream(lo, lo.out_shape(), generator).uniform(d)
    return _out(lo, prim("div", prim("neg", prim("log", prim("sub", const(1.0, d), u))), operand(rate, d)))


@rule("aten.bernoulli.p")
def bernoulli_p(lo: Lowering, node: Any, x: Ref, p: Any = 0.5, *, generator: Any = None) -> Ref:
    u = _Stream(lo, lo.out_shape(), generator).uniform(torch.float32)
    return lo.pointwise(cast(prim("lt", u, operand(p, torch.float32)), lo.meta().dtype))


@rule("aten.bernoulli.default")
def bernoulli(lo: Lowering, node: Any, p: Ref, *, generator: Any = None) -> Ref:
    d = _float(lo)
    u = _Stream(lo, lo.out_shape(), generator).uniform(d)
    return lo.pointwise(cast(prim("lt", u, operand(p, d)), lo.meta().dtype))


@rule("aten.native_dropout.default")
def native_dropout(lo: Lowering, node: Any, x: Ref, p: Any, train: bool | None) -> tuple[Ref, Ref]:
    if train is False or not isinstance(p, float) or not x.dtype.is_floating_point:
        raise NoRule("random numbers")
    d = compute_dtype(x.dtype)
    stream = _Stream(lo, lo.out_shape(k=0))
    keep = prim("ge", stream.uniform(torch.float32), const(p, torch.float32))
    mask = lo.pointwise(keep, 1)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    kept = prim("mul", prim("mul", operand(x, d), cast(mask.value, d)), const(scale, d))
    return lo.pointwise(rounded(kept, x.dtype), 0), mask
