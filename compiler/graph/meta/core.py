"""TensorMeta, the rule table, and the size arithmetic that rules share.

A *rule* gives the metadata of an operator's results from the metadata of its arguments, without data. Rules see plain
values: tensors are TensorMeta, sizes are ints or Exprs. They compare sizes with `same`, `is_one`, ... which record a
guard where the answer depends on the hints. A wrong call raises what eager would raise (the same type, a similar text).
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Iterable, Sequence

import torch

from ...symbolic import expr as E
from ...symbolic.env import ShapeEnv
from ...symbolic.expr import Expr, IntLike

__all__ = [
    "TensorMeta",
    "Rule",
    "RULES",
    "rule",
    "DataDependentError",
    "same",
    "is_zero",
    "is_one",
    "decide",
    "norm_dim",
    "norm_dims",
    "numel",
    "contiguous_strides",
    "is_contiguous",
    "is_dense",
    "order_in_memory",
    "new",
    "fix",
    "broadcast_shapes",
    "channels_last_strides",
    "is_channels_last",
    "suggest_format",
    "strides_for",
    "sym_max",
]


class DataDependentError(RuntimeError):
    """The operator's result depends on the data (`item`, `nonzero`, ...): it cannot be traced."""


class TensorMeta:
    """What is known of a tensor without its data. Sizes are ints or Exprs, `storage_offset` is in elements."""

    __slots__ = ("shape", "stride", "dtype", "device", "storage_offset", "requires_grad")

    def __init__(
        self,
        shape: tuple,
        stride: tuple,
        dtype: torch.dtype,
        device: torch.device,
        storage_offset: IntLike = 0,
        requires_grad: bool = False,
    ):
        self.shape, self.stride, self.dtype, self.device = shape, stride, dtype, device
        self.storage_offset, self.requires_grad = storage_offset, requires_grad

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def numel(self) -> IntLike:
        return numel(self.shape)

    def replace(self, **changes: Any) -> "TensorMeta":
        meta = TensorMeta(self.shape, self.stride, self.dtype, self.device, self.storage_offset, self.requires_grad)
        for key, change in changes.items():
            setattr(meta, key, change)
        return meta

    def key(self) -> tuple:
        return (self.shape, self.stride, self.dtype, self.device, self.storage_offset, self.requires_grad)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorMeta) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        dims = ", ".join(map(str, self.shape))
        return f"{str(self.dtype).removeprefix('torch.')}[{dims}]"


Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}  # "add.Tensor" (one overload) or "add" (all overloads of aten::add)


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for aten operators, by "name.overload" or by "name"; other namespaces are written
    "prims::name".
    """

    def put(f: Rule) -> Rule:
        for name in names:
            RULES[name] = f
        return f

    return put


class _State(threading.local):
    env: ShapeEnv | None = None
    recorder: Any = None
    by_class: Any = None  # runs operators on wrappers (graph/wrappers), once there has been one
    tracing_wrapper = False  # inside of a wrapper class's own code
    written_inside: Any = None  # what that code writes to, once there has been a wrapper


state = _State()


# ---- comparisons that may guard
def decide(p: Expr) -> bool:
    """The truth of a predicate over sizes; recorded as a guard unless it is certain."""
    if p.is_const:
        return bool(p.value)
    if state.env is None:
        raise RuntimeError(f"size expression {p} without a ShapeEnv")
    return state.env.decide(p)


def same(a: IntLike, b: IntLike) -> bool:
    if a is b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return decide(E.eq(a, b))


def is_one(a: IntLike) -> bool:
    return a == 1 if isinstance(a, int) else decide(E.eq(a, 1)) and _is_plain(a)


def is_zero(a: IntLike) -> bool:
    return a == 0 if isinstance(a, int) else decide(E.eq(a, 0)) and _is_plain(a)


def _is_plain(a: Expr) -> bool:
    """What is broadcast or empty is plain in the graph's sizes. `(s + 1) // 2 - 1 == 1`, kept as `(s + 1) // 2 == 2`,
    would leave the size as it is."""
    state.env.specialize(a)
    return True


def less(a: IntLike, b: IntLike) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return decide(E.lt(a, b))


def sym_max(a: IntLike, b: IntLike) -> IntLike:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else fold(E.maximum(a, b))


def fix(a: IntLike) -> int:
    """The size as an int: a symbol is fixed to its hint, by a guard."""
    return a if isinstance(a, int) else state.env.specialize(a)


def fold(expr: IntLike) -> IntLike:
    """An int where the expression is constant."""
    if isinstance(expr, int):
        return expr
    return expr.value if expr.is_const else expr


# ---- dimensions and shapes
def norm_dim(dim: int, ndim: int) -> int:
    n = max(ndim, 1)
    if not -n <= dim < n:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
    return dim + n if dim < 0 else dim


def norm_dims(dims: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Dimensions as a tuple of non-negative ints; None and () mean all."""
    if dims is None:
        return tuple(range(ndim))
    if isinstance(dims, int):
        dims = (dims,)
    if not len(dims):
        return tuple(range(ndim))
    out = tuple(norm_dim(dim, ndim) for dim in dims)
    if len(set(out)) != len(out):
        raise RuntimeError(f"dim {out} appears multiple times in the list of dims")
    return out


def numel(shape: Iterable[IntLike]) -> IntLike:
    n: IntLike = 1
    for size in shape:
        n = n * size
    return fold(n)


def contiguous_strides(shape: Sequence[IntLike]) -> tuple:
    out: list[IntLike] = []
    n: IntLike = 1
    for size in reversed(shape):
        out.append(n)
        if size.__class__ is int:
            if size > 1:
                n = n * size
        else:
            n = n * size
    return tuple(out[::-1])


_CL = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}  # innermost dimension first


def channels_last_strides(shape: Sequence[IntLike]) -> tuple:
    out: list[IntLike] = [0] * len(shape)
    n: IntLike = 1
    for d in _CL[len(shape)]:
        out[d] = n
        n = fold(n * (shape[d] if not (isinstance(shape[d], int) and shape[d] < 1) else 1))
    return tuple(out)


def strides_for(shape: Sequence[IntLike], fmt: torch.memory_format) -> tuple:
    if fmt in (torch.channels_last, torch.channels_last_3d):
        if len(shape) != (4 if fmt is torch.channels_last else 5):
            raise RuntimeError(f"required rank {4 if fmt is torch.channels_last else 5} tensor to use {fmt} format")
        return channels_last_strides(shape)
    return contiguous_strides(shape)


def is_contiguous(shape: Sequence[IntLike], stride: Sequence[IntLike]) -> bool:
    if any(size == 0 for size in shape if isinstance(size, int)):
        return True
    if state.env is not None and state.env.has_unbacked and state.env.surely_contiguous(shape, stride):
        return True
    n: IntLike = 1
    for size, t in zip(reversed(shape), reversed(stride)):
        if size.__class__ is int:
            if size == 1:
                continue
        elif is_one(size):
            continue
        if t is not n and not same(t, n):
            return False
        n = fold(n * size)
    return True


def order_in_memory(meta: TensorMeta) -> list[int] | None:
    """The dimensions, largest stride first, where the elements fill their memory, each once."""
    if meta.stride == contiguous_strides(meta.shape):
        return list(range(len(meta.shape)))
    if not all(type(x) is int for x in (*meta.shape, *meta.stride)):
        return None
    order = sorted(range(len(meta.shape)), key=lambda d: (meta.stride[d], meta.shape[d] != 1))
    expected = 1
    for dim in order:
        if meta.shape[dim] != 1 and meta.stride[dim] != expected:
            return None
        expected *= meta.shape[dim]
    return order[::-1]


def is_channels_last(shape: Sequence[IntLike], stride: Sequence[IntLike]) -> bool:
    """Dense with channels innermost, for 4 or 5 dimensions."""
    order = _CL.get(len(shape))
    if order is None:
        return False
    n: IntLike = 1
    for dim in order:
        if is_one(shape[dim]):
            continue
        if not same(stride[dim], n):
            return False
        n = fold(n * shape[dim])
    return True


def suggest_format(meta: TensorMeta) -> torch.memory_format:
    """As c10's suggest_memory_format: channels-last where the strides are ordered so."""
    if meta.ndim in _CL and _channels_last_order(meta):
        return torch.channels_last if meta.ndim == 4 else torch.channels_last_3d
    return torch.contiguous_format


def _channels_last_order(meta: TensorMeta) -> bool:
    if is_zero(meta.stride[1]):
        return False
    low: IntLike = 0
    for d in _CL[meta.ndim]:
        if is_zero(meta.shape[d]) or less(meta.stride[d], low):
            return False
        if d == 0 and same(low, meta.stride[1]):
            return False
        low = meta.stride[d]
        if not is_one(meta.shape[d]):
            low = fold(low * meta.shape[d])
    return True


def _hint(a: IntLike) -> int:
    return a if isinstance(a, int) else state.env.hint(a)


def _below_two(size: IntLike) -> bool:
    """Whether there is at most one element along a dimension. Symbols are 2 or more, but for those of mark_unbacked."""
    if isinstance(size, int):
        return size < 2
    return any(map(E.is_unbacked, size.symbol_names())) and less(size, 2)


def is_dense(shape: Sequence[IntLike], stride: Sequence[IntLike]) -> bool:
    """Non-overlapping and dense: a permutation of a contiguous tensor."""
    if len(shape) == 1:
        return is_one(stride[0]) or _below_two(shape[0])
    if state.env is not None and state.env.has_unbacked and state.env.surely_contiguous(shape, stride):
        return True
    dims = sorted((dim for dim in range(len(shape)) if not _below_two(shape[dim])), key=lambda d: _hint(stride[d]))
    if any(isinstance(size, int) and size == 0 for size in shape):
        return True
    n: IntLike = 1
    for dim in dims:
        if not same(stride[dim], n):
            return False
        n = fold(n * shape[dim])
    return True


def broadcast_shapes(*shapes: Sequence[IntLike]) -> tuple:
    if len(shapes) == 1:
        return tuple(shapes[0])
    first = shapes[0]
    if all(shape == first for shape in shapes[1:]):  # Exprs compare by identity, ints by value
        return tuple(first)
    n = max(len(shape) for shape in shapes)
    out: list[IntLike] = [1] * n
    for shape in shapes:
        for i, size in enumerate(shape, n - len(shape)):
            o = out[i]
            if o is size or (size.__class__ is int and size == 1):
                continue
            if o.__class__ is int and o == 1:
                out[i] = size
            elif same(o, size):
                out[i] = size if size.__class__ is int else o
            elif is_one(o):  # 9 - n, say, that is one in this call
                out[i] = size
            elif not is_one(size):
                raise RuntimeError(
                    f"The size of tensor a ({o}) must match the size of tensor b ({size}) "
                    f"at non-singleton dimension {i}"
                )
    return tuple(out)


# ---- results
def new(
    shape: Sequence[IntLike], dtype: torch.dtype, device: torch.device, stride: Sequence[IntLike] | None = None
) -> TensorMeta:
    """A fresh tensor, contiguous unless strides are given."""
    shape = tuple(shape)
    return TensorMeta(shape, contiguous_strides(shape) if stride is None else tuple(stride), dtype, device)
