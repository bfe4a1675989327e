"""Rewriting values: substitution of index symbols and of loads, without recursion and with sharing kept."""

from __future__ import annotations

from typing import Callable, Iterable, Mapping, Sequence

import torch

from ..symbolic.expr import ZERO, Expr, as_expr, simplify
from .ir import (
    Axis,
    Buffer,
    LoopNest,
    Value,
    cast,
    check_index,
    const,
    has_op,
    indirect_symbol,
    indirect_values,
    index,
    is_const,
    load,
    make,
    prim,
    symbols_of,
    walk,
)

__all__ = ["Rewriter", "mapped", "positions", "still_checked", "tidy", "value_at", "with_operands"]


def tidy(expr: Expr, ranges: Mapping[str, tuple]) -> Expr:
    """`expr` without the divisions that `ranges` make superfluous. Free where there are none."""
    return expr if expr.is_affine else simplify(expr, ranges)


def positions(axes: Sequence[Axis], index: Expr, expr: Expr, ranges: Mapping[str, tuple]) -> dict[str, Expr]:
    """Where the flat position `expr` lies in a buffer that is stored at `index` over `axes`, largest stride first: each
    axis symbol as an expression. Divisions vanish where `expr` was made of the same strides."""
    if not all(type(axis.size) is int for axis in axes[1:]):
        known = _matched(axes, index, expr, ranges)
        if known is not None:
            return known
    out: dict[str, Expr] = {}
    for name in expr.symbol_names():
        if name.startswith("ind") and name not in ranges:
            ranges = {**ranges, name: _checked_range(name)}
    for k, axis in enumerate(axes):
        q = expr // index.coeff(axis.symbol.name)
        # (an empty axis has no positions)
        out[axis.symbol.name] = tidy(q if k == 0 or as_expr(axis.size) is ZERO else q % axis.size, ranges)
    return out


def _matched(axes: Sequence[Axis], index: Expr, expr: Expr, ranges: Mapping[str, tuple]) -> dict[str, Expr] | None:
    """`positions` where sizes are symbols, by which divisions do not vanish by themselves: each term of `expr` is of
    the axis with the largest stride that divides it. None where what an axis gets may be outside of its range."""
    strides = [index.coeff(axis.symbol.name) for axis in axes]
    if not expr.is_affine or any(st is None or st is ZERO for st in strides):
        return None
    got: list[Expr] = [ZERO] * len(axes)
    most: list[Expr] = [ZERO] * len(axes)
    for coeff, atoms in expr.terms():
        moving = [x for x in atoms if x.name in ranges]
        if len(moving) != 1 or coeff <= 0:
            return None
        at = moving[0]
        factor = as_expr(coeff)
        for atom in atoms:
            factor = factor if atom is at else factor * atom
        for k, st in enumerate(strides):
            q = factor // st
            if q * st is factor:
                got[k], most[k] = got[k] + q * at, most[k] + q * (as_expr(ranges[at.name][1]) - 1)
                break
        else:
            return None
    for axis, top in zip(axes, most):
        room = as_expr(axis.size) - 1 - top
        if not room.is_const or room.value < 0:
            return None
    return {axis.symbol.name: x for axis, x in zip(axes, got)}


def _checked_range(name: str) -> tuple:
    """The range of an indirect symbol: what its bounds check says."""
    value = indirect_values().get(name)
    if value is not None and value.op == "check_index":
        size = value.args[1]
        if size.op in ("const", "index"):
            return (0, size.attr)
    return (0, None)


class Rewriter:
    """Rebuilds values bottom-up.

    on_index: Expr -> Expr, applied to the index of every load and `index` node.
    on_load: (buffer, new index) -> Value | None: what replaces a load; None keeps it as a load.
    on_param, on_acc: name -> new name.
    known: id of a value -> what stands for it.
    drop_rounding: leave out the rounding of a low precision type between two operators (see ir.py).
    Results are remembered: values that share nodes share them afterwards.
    """

    def __init__(
        self,
        on_index: Callable[[Expr], Expr] | None = None,
        on_load: Callable[[Buffer, Expr], Value | None] | None = None,
        drop_rounding: bool = False,
        known: Mapping[int, Value] | None = None,
    ):
        self.on_index, self.on_load, self.drop_rounding = on_index, on_load, drop_rounding
        self.memo: dict[int, Value] = dict(known or {})
        self._indices: dict[Expr, Expr] = {}  # many values are read at one position
        self._keep: list[Value] = []  # ids stay valid while the nodes live

    def __call__(self, root: Value) -> Value:
        memo = self.memo
        new = memo.get(root.id)
        if new is None:
            rebuild = self._rebuild
            values = walk([root], memo)
            for v in values:
                new = memo[v.id] = rebuild(v)
                if new is not v:
                    new.origin = new.origin or v.origin
            self._keep += values
        return memo[root.id]

    def _new_index(self, value: Value, expr: Expr) -> Expr:
        if value.args:  # indirect: the values behind the index are rewritten as well
            changed = {
                f"ind{arg.id}": indirect_symbol(self.memo[arg.id]) for arg in value.args if self.memo[arg.id] is not arg
            }
            if changed:  # (a constant position becomes a number)
                expr = expr.subs(changed)
        if self.on_index is None:
            return expr
        new = self._indices.get(expr)
        if new is None:
            new = self._indices[expr] = self.on_index(expr)
        return new

    def _rebuild(self, value: Value) -> Value:
        op = value.op
        if op == "load":
            buffer, e = value.attr
            new = self._new_index(value, e)
            if self.on_load is not None:
                r = self.on_load(buffer, new)
                if r is not None:
                    return r
            return value if new is e else load(buffer, new)
        if op == "index":
            new = self._new_index(value, value.attr)
            return value if new is value.attr else index(new, value.dtype)
        args = value.args
        if not args:
            return value
        new_args = tuple(self.memo[arg.id] for arg in args)
        if op == "cast":
            (x,) = new_args
            if self.drop_rounding and x.is_rounding and _widens(x, value.dtype):
                inner = x.args[0]
                return inner if inner.dtype == value.dtype else cast(inner, value.dtype)
            if x is args[0]:
                return value
            return cast(x, value.dtype) if value.attr is None else make("cast", value.dtype, (x,), value.attr)
        if all(arg is b for arg, b in zip(args, new_args)):
            return value
        if op == "check_index":
            i, size = new_args
            return check_index(i, size, value.attr)
        if op == "put":
            return make(op, value.dtype, new_args)
        return prim(op, *new_args)


def _widens(rounding: Value, to: torch.dtype) -> bool:
    return to.is_floating_point and torch.finfo(to).bits > torch.finfo(rounding.dtype).bits


def mapped(root: Value, rule: Callable[[Value, tuple[Value, ...]], Value]) -> Value:
    """The root, where `rule` says what each value becomes, of what its operands became."""
    made: dict[int, Value] = {}
    for value in walk([root]):
        made[value.id] = rule(value, tuple([made[arg.id] for arg in value.args]))
    return made[root.id]


def with_operands(value: Value, args: tuple[Value, ...]) -> Value:
    """The same operation of other values. Positions that are computed stay as they are."""
    if value.op in ("load", "index") or all(arg is y for arg, y in zip(args, value.args)):
        return value
    return make(value.op, value.dtype, args, value.attr)


def still_checked(value: Value, asked: Iterable[str]) -> Value:
    """A value with the checks of the positions that were asked for, where it is the same at all of them: of a dimension
    of size 1, one that is expanded, a constant."""
    known = indirect_values()
    checked = {name for name in asked if name in known and has_op([known[name]], "check_index")}
    for name in sorted(checked - symbols_of([value]) if checked else ()):
        right = prim("ge", known[name], const(0, torch.int64))
        value = prim("where", right, value, const(int(is_const(value, 0)), value.dtype))  # (of two equal ones is none)
    return value


def value_at(nest: LoopNest, expr: Expr, ranges: Mapping[str, tuple]) -> Value:
    """The value that an element-wise nest stores at flat position `expr` of its buffer, over symbols of `ranges`."""
    if expr is nest.index:
        return nest.value
    m = positions(nest.axes, nest.index, expr, ranges)
    return Rewriter(on_index=lambda x: tidy(x.subs(m), ranges))(nest.value)
