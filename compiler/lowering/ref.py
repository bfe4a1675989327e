"""Tensors during lowering. A Ref is a tensor as a function of its index: shape, dtype and a value over the symbols
j<k>, where j0 runs over the last dimension, j1 over the one before, and so on. Counting from the right makes
broadcasting free. A dimension of size 1 has no symbol. View operators make a new Ref by substituting symbols; no memory
is touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

import torch

from ..symbolic.expr import ONE, ZERO, Expr, add_all, as_expr, floordiv, integer, maybe_int, mod, mul_all, symbol
from .ir import Buffer, Value, const, is_plain_load, load
from .rewrite import Rewriter, tidy

__all__ = [
    "Ref",
    "Scalar",
    "numel",
    "dim_symbol",
    "axis",
    "is_empty",
    "shape_of",
    "same",
    "all_same",
    "is_one",
    "is_tensor",
    "plain_size",
    "ref_of_buffer",
    "strided",
    "remap",
    "reshape",
    "contiguous_strides",
    "ranges_of",
    "flat_index",
    "divides",
]

_symbols = [symbol(f"j{k}") for k in range(32)]


@dataclass(frozen=True)
class Ref:
    shape: tuple
    dtype: torch.dtype
    value: Value

    @property
    def ndim(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Scalar:
    """A Python float that comes into the graph at run time: promotes like a number, not like a tensor."""

    name: str
    value: Value


def dim_symbol(ndim: int, d: int) -> Expr:
    """The symbol of dimension d of a tensor with ndim dimensions."""
    return _symbols[ndim - 1 - d]


def axis(shape: Sequence[Any], d: int) -> Expr:
    """The index of dimension d: its symbol, and 0 where it has one element."""
    return as_expr(0) if is_one(shape[d]) else dim_symbol(len(shape), d)


def is_empty(shape: Sequence[Any]) -> bool:
    """Whether a tensor of this shape is known to have no elements."""
    return any(type(size) is int and size == 0 for size in shape)


def shape_of(sizes: Sequence[Any]) -> tuple:
    """Sizes as plain ints or Exprs."""
    return tuple(size if type(size) is int else maybe_int(size) for size in sizes)


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal."""
    return a == b if type(a) is int and type(b) is int else as_expr(a) is as_expr(b)


def all_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether as many sizes, or strides, are known to be equal one by one."""
    return len(a) == len(b) and all(map(same, a, b))


def is_one(s: Any) -> bool:
    return type(s) is int and s == 1


def contiguous_strides(shape: Sequence[Any]) -> tuple:
    out: list[Any] = []
    n: Any = 1
    for size in reversed(shape):
        out.append(n)
        n = n if is_one(size) else maybe_int(as_expr(n) * (size if not (type(size) is int and size == 0) else 1))
    return tuple(reversed(out))


def flat_index(shape: Sequence[Any], stride: Sequence[Any]) -> Expr:
    """Position in memory of the element at (j<n-1>, ..., j0)."""
    ndim = len(shape)
    return add_all(
        _symbols[ndim - 1 - dim] * stride[dim]
        for dim in range(ndim)
        if not is_one(shape[dim]) and not (type(stride[dim]) is int and stride[dim] == 0)
    )


def ranges_of(shape: Sequence[Any]) -> dict[str, tuple]:
    ndim = len(shape)
    return {f"j{ndim - 1 - dim}": (0, size) for dim, size in enumerate(shape) if not is_one(size)}


def ref_of_buffer(buffer: Buffer) -> Ref:
    return Ref(buffer.shape, buffer.dtype, load(buffer, flat_index(buffer.shape, buffer.stride)))


def strided(ref: Ref) -> tuple[Buffer, tuple, Any] | None:
    """(buffer, strides, offset) where the Ref is a plain strided view of a buffer, else None."""
    value = ref.value
    if not is_plain_load(value) or value.attr[0].bits and ref.dtype == torch.bool:
        return None
    buffer, expr = value.attr
    ndim = ref.ndim
    strides: list[Any] = []
    rest = expr
    for d, size in enumerate(ref.shape):
        if is_one(size):
            strides.append(None)
            continue
        coeff = expr.coeff(f"j{ndim - 1 - d}")
        if coeff is None or any(name.startswith("j") for name in coeff.symbol_names()):
            return None
        strides.append(maybe_int(coeff))
        if coeff is not ZERO:
            rest = rest - _symbols[ndim - 1 - d] * coeff
    if any(name.startswith("j") for name in rest.symbol_names()):
        return None
    for d in reversed(range(ndim)):  # the stride of a dimension of size 1 as eager's views choose it
        if strides[d] is None:
            strides[d] = 1 if d == ndim - 1 else maybe_int(as_expr(strides[d + 1]) * ref.shape[d + 1])
    return buffer, tuple(strides), maybe_int(rest)


def _with_index(ref: Ref, shape: tuple, f: Callable[[Expr], Expr]) -> Ref:
    return Ref(shape, ref.dtype, Rewriter(on_index=f)(ref.value))


def remap(ref: Ref, shape: Sequence[Any], of_dim: Mapping[int, Any]) -> Ref:
    """The tensor of `shape` whose element is ref[..., of_dim[d], ...]; of_dim gives an Expr over the new symbols (or an
    int) for each dimension of `ref` that is not of size 1. The others may be left out."""
    ndim = ref.ndim
    m = {f"j{ndim - 1 - key}": as_expr(value) for key, value in of_dim.items() if not is_one(ref.shape[key])}
    m = {key: value for key, value in m.items() if not (value.is_symbol and value.name == key)}
    shape = tuple(shape)
    if not m:
        return Ref(shape, ref.dtype, ref.value)
    ranges = ranges_of(shape)
    return _with_index(ref, shape, lambda e: tidy(e.subs(m), ranges))


def divides(a: Expr, b: Expr) -> Expr | None:
    """b // a where a is known to divide b."""
    if a is b:
        return ONE
    if a.is_const and b.is_const:
        return integer(b.value // a.value) if a.value and b.value % a.value == 0 else None
    if a is ZERO:
        return None
    q = floordiv(b, a)
    return q if q * a is b else None


def reshape(ref: Ref, shape: Sequence[Any]) -> Ref:
    """The same elements in row-major order under another shape. Runs of dimensions are matched by their products, so
    that what does not change stays as it is. A run of several old dimensions is merged where its strides allow, else
    split by // and %.
    """
    shape = tuple(shape)
    if len(shape) == ref.ndim and all(same(a, b) for a, b in zip(shape, ref.shape)):
        return ref
    if any(type(size) is int and size == 0 for size in shape):
        return Ref(shape, ref.dtype, const(0, ref.dtype))
    n_old, n_new = ref.ndim, len(shape)
    old = [(_symbols[n_old - 1 - dim], as_expr(size)) for dim, size in enumerate(ref.shape) if not is_one(size)]
    new = [(_symbols[n_new - 1 - dim], as_expr(size)) for dim, size in enumerate(shape) if not is_one(size)]
    runs = _match_runs(old, new)
    ranges = ranges_of(shape)
    simple: dict[str, Expr] = {}
    merges: list[tuple[list, dict, dict]] = []
    for olds, news in runs:
        flat, stride = ZERO, ONE
        for s, size in reversed(news):
            flat, stride = flat + s * stride, stride * size
        if len(olds) == 1:
            if olds[0][0] is not flat:
                simple[olds[0][0].name] = flat
            continue
        strides = []
        stride = ONE
        for s, size in reversed(olds):
            strides.append((s.name, size, stride))
            stride = stride * size
        strides.reverse()
        merged = {name: ZERO for name, _, _ in strides}
        merged[strides[-1][0]] = flat
        split = {}
        for k, (name, size, st) in enumerate(strides):
            q = floordiv(flat, st)
            split[name] = tidy(q if k == 0 else mod(q, size), ranges)
        merges.append((strides, merged, split))

    def f(e: Expr) -> Expr:
        m = dict(simple)
        names = e.symbol_names()
        for strides, merged, split in merges:
            if not any(name in names for name, _, _ in strides):
                continue
            last = e.coeff(strides[-1][0])
            ok = last is not None
            if ok:
                for name, _, st in strides[:-1]:
                    if e.coeff(name) is not last * st:
                        ok = False
                        break
            m.update(merged if ok else split)
        return tidy(e.subs(m), ranges) if m else e

    return _with_index(ref, shape, f)


def _match_runs(old: list, new: list) -> list[tuple[list, list]]:
    """Shortest runs of old and new dimensions with equal products; what cannot be matched is one run to the end."""
    runs = []
    i = j = 0
    while i < len(old) or j < len(new):
        i0, j0 = i, j
        if i == len(old) or j == len(new):  # only where symbolic products hid an equality
            i, j = len(old), len(new)
            runs.append((old[i0:], new[j0:]))
            break
        a, b = old[i][1], new[j][1]
        i, j = i + 1, j + 1
        while a is not b:
            grow_new = _smaller(b, a)
            if grow_new is None or (grow_new and j == len(new)) or (not grow_new and i == len(old)):
                i, j = len(old), len(new)
                break
            if grow_new:
                b = b * new[j][1]
                j += 1
            else:
                a = a * old[i][1]
                i += 1
        runs.append((old[i0:i], new[j0:j]))
    merged: list[tuple[list, list]] = []
    for o, n in runs:
        if (not o or not n) and merged:
            merged[-1] = (merged[-1][0] + o, merged[-1][1] + n)
        else:
            merged.append((o, n))
    return [r for r in merged if r[0]]


def _smaller(a: Expr, b: Expr) -> bool | None:
    """Whether a < b as products of sizes: by value, or by divisibility; None where neither is known."""
    if a.is_const and b.is_const:
        return a.value < b.value
    if divides(a, b) is not None:
        return True
    return False if divides(b, a) is not None else None


def numel(shape: Sequence[Any]) -> Any:
    return maybe_int(mul_all(shape))


def is_tensor(v: Any) -> bool:
    return hasattr(v, "dtype") and hasattr(v, "shape")


def plain_size(x: Any) -> Any:
    if type(x) is int or isinstance(x, (bool, float)) or x is None:
        return x
    expr = as_expr(x)
    return expr.value if expr.is_const else expr
