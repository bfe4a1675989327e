"""Joining and padding."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ...base.fx_nodes import is_call
from ...symbolic.expr import Expr, as_expr
from ..ir import Buffer, LoopNest, Value, cast, const, has_op, index, prim, walk
from ..context import Lowering
from ..rule_table import NoRule, rule
from ..buffer_strides import memory_order, strides_of
from ..ref import Ref, dim_symbol, flat_index, is_one, ranges_of, ref_of_buffer, remap
from ..rewrite import Rewriter, positions, tidy

MOST_MOVED = 96  # operations that are computed where their result is padded
# A cat of few pieces is a choice by index inside a fused kernel; of many, each piece is stored into its part of the
# result.
CHOICE_LIMIT = 4


@rule("aten.cat.default")
def cat(lo: Lowering, node: Any, tensors: Sequence[Ref], dim: int = 0) -> Ref:
    dtype = lo.meta().dtype
    pieces = [
        tensor for tensor in tensors if not (tensor.ndim == 1 and type(tensor.shape[0]) is int and tensor.shape[0] == 0)
    ]
    shape = lo.out_shape()
    if not pieces:
        return lo.pointwise(const(0, dtype))
    dim %= len(shape)
    pieces = [piece for piece in pieces if not (type(piece.shape[dim]) is int and piece.shape[dim] == 0)]
    if not pieces:
        return lo.pointwise(const(0, dtype))
    if len(pieces) <= CHOICE_LIMIT and feeds_kernels(node):
        return lo.pointwise(_choose(pieces, dim, shape, dtype))
    return _store_pieces(lo, pieces, dim, shape, dtype)


def feeds_kernels(node: Any) -> bool:
    """Whether what uses the result is element-wise work, into which a choice by index can be fused."""
    from ..rule_table import RULES

    users = [user for user in node.users if is_call(user)]
    return (
        bool(users)
        and len(users) == len(node.users)
        and all(
            user.target in RULES and RULES[user.target].__module__.endswith(("pointwise", "reductions"))
            for user in users
        )
    )


def _choose(pieces: list[Ref], dim: int, shape: tuple, dtype: torch.dtype) -> Value:
    ndim = len(shape)
    at = as_expr(0) if is_one(shape[dim]) else dim_symbol(ndim, dim)
    starts, first = [], as_expr(0)
    for x in pieces:
        starts.append(first)
        first = first + x.shape[dim]
    v: Value | None = None
    for x, start in zip(reversed(pieces), reversed(starts)):
        piece = cast(remap(x, shape, {dim: at - start}).value, dtype)
        if v is None:
            v = piece
        else:
            v = prim("masked", prim("lt", index(at), index(start + x.shape[dim])), piece, v)
    return v if len(pieces) == 1 else _guard_last(v, at, starts[-1], dtype)


def _guard_last(value: Value, at: Expr, start: Expr, dtype: torch.dtype) -> Value:
    """The last piece is read only where none of the others holds: the chain's final operand must be guarded as well,
    because generated code may evaluate the second branch of a choice for all elements."""
    chain: list[tuple[Value, Value]] = []
    while value.op == "masked":
        chain.append((value.args[0], value.args[1]))
        value = value.args[2]
    r = prim("masked", prim("ge", index(at), index(start)), value, const(0, dtype))
    for cond, piece in reversed(chain):
        lower = piece_start(cond, chain)
        inside = cond if lower is None else prim("logical_and", lower, cond)
        r = prim("masked", inside, piece, r)
    return r


def piece_start(cond: Value, chain: list[tuple[Value, Value]]) -> Value | None:
    """at >= start of the piece that `cond` (at < end) bounds: start is the end of the piece before it."""
    k = next(i for i, (c, _) in enumerate(chain) if c is cond)
    return None if k == 0 else prim("ge", *chain[k - 1][0].args)


def _store_pieces(lo: Lowering, pieces: list[Ref], dim: int, shape: tuple, dtype: torch.dtype) -> Ref:
    meta = lo.meta()
    buffer: Buffer = lo.new_buffer(shape, dtype, strides_of(meta))
    first = as_expr(0)
    for piece in pieces:
        axes = memory_order(piece.shape, buffer.stride)
        idx = flat_index(piece.shape, buffer.stride) + first * buffer.stride[dim]
        lo.steps.append(
            LoopNest(buffer, axes, idx, cast(piece.value, dtype), domain=axes, origins=lo.origins(), lines=lo.lines())
        )
        first = first + piece.shape[dim]
    return ref_of_buffer(buffer)


@rule("aten.constant_pad_nd.default")
def constant_pad(lo: Lowering, node: Any, x: Ref, pad: Sequence[Any], value: Any = 0) -> Ref:
    shape = lo.out_shape()
    ndim = x.ndim
    m: dict[int, Any] = {}
    cond: Value | None = None
    for k in range(len(pad) // 2):
        d = ndim - 1 - k
        before, after = pad[2 * k], pad[2 * k + 1]
        if _is_zero(before) and _is_zero(after):
            continue
        at = (as_expr(0) if is_one(shape[d]) else dim_symbol(ndim, d)) - before
        m[d] = at
        checks = []
        if not (isinstance(before, int) and before <= 0):
            checks.append(prim("ge", index(at), const(0, torch.int64)))
        if not (isinstance(after, int) and after <= 0):
            checks.append(prim("lt", index(at), index(as_expr(x.shape[d]))))
        for check in checks:
            cond = check if cond is None else prim("logical_and", cond, check)
    fill = const(value, x.dtype) if isinstance(value, (int, float)) else None
    if fill is None:
        raise NoRule("a padding value that is known only at run time")
    if any(type(size) is int and size == 0 for size in x.shape):
        return lo.pointwise(fill)
    if lo.meta().on_gpu:
        x = _before_it_is_stored(lo, x)
    v = remap(x, shape, m).value
    return lo.pointwise(v if cond is None else prim("masked", cond, v, fill))


def _before_it_is_stored(lo: Lowering, x: Ref) -> Ref:
    """What element-wise operators compute, in the place of their result, where nothing but the padding reads it (nor
    what leads to it): it is then computed where it is padded."""
    if not x.value.is_load:
        return x
    alone = {lo.node: True}  # whether an operator serves nothing but the padding
    ranges = ranges_of(x.shape)
    room = 2 * MOST_MOVED  # operations that are looked at; of those that appear twice one may remain

    def is_alone(node: Any, left: int = MOST_MOVED) -> bool:
        if node not in alone:  # (what comes later is not for the padding)
            before = node in lo.refs and is_call(node) and bool(node.users) and left > 0
            alone[node] = before and all(is_alone(user, left - 1) for user in node.users)
        return alone[node]

    def value_at(buffer: Buffer, expr: Expr) -> Value | None:
        nests = lo.nests_of(buffer)
        if len(nests) != 1 or buffer.origin not in lo.named or not is_alone(lo.named[buffer.origin]):
            return None
        nest = nests[0]
        if (
            nest.reduce_op is not None
            or nest.mode != "set"
            or nest.product
            or nest.alone
            or any(nest.index.coeff(axis.symbol.name) is None for axis in nest.axes)
            or has_op([nest.value], "check_index")
        ):
            return None
        nonlocal room
        room -= len(walk([nest.value]))
        if room < 0:  # (whatever follows is not used)
            return None
        at = positions(nest.axes, nest.index, expr, ranges)
        return Rewriter(on_index=lambda e: tidy(e.subs(at), ranges), on_load=value_at)(nest.value)

    value = value_at(*x.value.attr)
    return x if value is None or room < 0 or len(walk([value])) > MOST_MOVED else Ref(x.shape, x.dtype, value)


def _is_zero(x: Any) -> bool:
    return isinstance(x, int) and x == 0
