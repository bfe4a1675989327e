"""A group of nests as one kernel in normal form.

1. Values of all nests are rewritten onto the group's axes; what the group makes itself becomes a shared value, not a
load.
2. Values are split into stages: a stage is one pass over the reduced axes, and starts where the accumulators of the one
before are
   needed. Expensive values that later stages need again go to a local row buffer; cheap ones are computed again from
   what is in the cache by then.
3. Axes that are contiguous for every access are merged, so that a kernel over dense tensors has one axis.
4. Buffers, axes, accumulators and sizes get formal names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable, Sequence

import torch

from ..lowering.ir import (
    Acc,
    Axis,
    Buffer,
    Kernel,
    Stage,
    Store,
    Value,
    acc,
    cast,
    indirect_symbol,
    load,
    reduced_dtype,
    walk,
)
from ..lowering.rewrite import Rewriter, tidy
from ..symbolic.expr import Expr, as_expr, integer, maybe_int, symbol
from .value_cost import Costs
from .domain import numel_hint
from .parameter_names import FormalNames, scalars_and_checks
from .groups import Group, element
from .schedule import Launch

__all__ = ["build_kernel"]

LOCAL_ELEMENTS = 16384  # longest row that is kept in a local buffer: 64 KB of float32, a part of the second-level cache
WORTH_KEEPING = 6  # cost from which storing and loading a row is cheaper than computing it again


@dataclass
class _Root:
    """A value that the kernel must make: an accumulator's operand or something stored."""

    value: Value
    store: tuple[Buffer, Expr] | None = None
    mode: str = "set"
    acc: str | None = None
    op: str = ""
    dtype: torch.dtype | None = None
    stage: int = 0
    inner: bool = False
    running: bool = False
    origin: str = ""


def build_kernel(group: Group, needed: set[Buffer], hints: dict[str, int], drop_rounding: bool, name: str) -> Launch:
    """The kernel of a group and its call. `needed`: buffers that something outside the group reads."""
    roots = _collect(group, needed, drop_rounding)
    reduced = [k for k, factor in enumerate(group.factors) if factor.reduced]
    red_names = frozenset(f"g{k}" for k in reduced)
    info = _Stages(red_names)
    for root in roots:  # accumulators come before what uses them
        root.stage, root.inner = info.stage_of(root.value), info.inner(root.value)
        if root.acc is not None:
            info.acc_stage[root.acc] = root.stage
            root.inner = True
        elif root.store is not None and (root.store[1].symbol_names() & red_names or group.alone and red_names):
            root.inner = True
        if group.nests[0].scan:  # (what is stored is the result so far)
            root.stage = 0
    kept = _locals(group, roots, reduced, info, hints)
    return _emit(group, roots, kept, reduced, info, hints, name)


# ---- 1. values on the group's axes
def _collect(group: Group, needed: set[Buffer], drop_rounding: bool) -> list[_Root]:
    env: dict[Buffer, Value] = {}
    ranges = group.ranges(group.factors)
    rewriters: dict[Any, Rewriter] = {}
    accs: dict[tuple, Value] = {}
    roots: list[_Root] = []

    def on_load(buffer: Buffer, expr: Expr) -> Value | None:
        local = env.get(buffer)
        if local is None or expr is group.writes[buffer]:
            return local
        where = element(group.writes[buffer], expr, group.factors, ranges)  # another element of the same row
        return Rewriter(_substitution(where, ranges))(local)

    for nest, level in zip(group.nests, group.levels):
        axes = nest.domain if level == "full" else nest.axes
        key = (tuple((axis.symbol.name, axis.size) for axis in axes), level)
        rw = rewriters.get(key)
        if rw is None:
            mapping = group.map_of(axes, level, group.factors)
            rw = rewriters[key] = Rewriter(_substitution(mapping, ranges), on_load, drop_rounding)
        value = rw(nest.value)
        if nest.reduce_op is not None:
            dtype = nest.buffer.dtype
            k = (nest.reduce_op, value, dtype)
            accumulator = accs.get(k)
            if nest.scan:
                dtype = reduced_dtype(nest.reduce_op, value.dtype)
            if accumulator is None:
                accumulator = accs[k] = acc(f"a{len(accs)}", dtype)
                roots.append(
                    _Root(
                        value,
                        acc=accumulator.attr,
                        op=nest.reduce_op,
                        dtype=dtype,
                        running=nest.scan,
                        origin=nest.origins[-1] if nest.origins else "",
                    )
                )
            value = cast(accumulator, nest.buffer.dtype) if nest.scan else accumulator
        if group.writes[nest.buffer] is not None:
            env[nest.buffer] = value
        if nest.buffer in needed:
            mapping = group.map_of(axes, level, group.factors)
            roots.append(_Root(value, (nest.buffer, tidy(nest.index.subs(mapping), ranges)), nest.mode))
    return roots


def _substitution(mapping: dict[str, Expr], ranges: dict[str, tuple]) -> Callable[[Expr], Expr]:
    def f(expr: Expr) -> Expr:
        return tidy(expr.subs(mapping), ranges)

    return f


# ---- 2. stages
class _Stages:
    """stage_of(v): the first pass in which v can be computed; inner(v): whether it depends on the reduced axes."""

    def __init__(self, red_names: frozenset[str]):
        self.red_names = red_names
        self.acc_stage: dict[str, int] = {}
        self._stage: dict[int, int] = {}
        self._inner: dict[int, bool] = {}
        self._keep: list[Value] = []

    def stage_of(self, value: Value) -> int:
        self._visit(value)
        return self._stage[value.id]

    def inner(self, value: Value) -> bool:
        self._visit(value)
        return self._inner[value.id]

    def _visit(self, root: Value) -> None:
        stage, inner = self._stage, self._inner
        for value in () if root.id in stage else walk([root], stage):
            if value.is_accumulator:
                s, i = self.acc_stage[value.attr] + 1, False
            else:
                s = max((stage[arg.id] for arg in value.args), default=0)
                i = any(inner[arg.id] for arg in value.args)
                i = i or bool(value.symbols & self.red_names)
            stage[value.id], inner[value.id] = s, i
            self._keep.append(value)


def _locals(group: Group, roots: list[_Root], reduced: list[int], info: _Stages, hints: dict[str, int]) -> list[Value]:
    """Values worth keeping in a row buffer: made in one pass, needed again in a later one, and expensive."""
    if not reduced or len({root.stage for root in roots if root.inner}) < 2:
        return []
    if numel_hint([group.factors[k].size for k in reduced], hints) > LOCAL_ELEMENTS:
        return []
    kept: dict[int, Value] = {}
    for number in sorted({root.stage for root in roots if root.inner}):
        cost = Costs()
        cost.memo.update(dict.fromkeys(kept, 1))  # what is kept already costs a load
        stack = [root.value for root in roots if root.inner and root.stage == number]
        seen: set[int] = set()
        while stack:
            value = stack.pop()
            if value.id in seen:
                continue
            seen.add(value.id)
            if info.stage_of(value) == number:
                stack.extend(value.args)
            elif info.inner(value) and cost(value) >= WORTH_KEEPING:
                kept[value.id] = value
    return sorted(kept.values(), key=lambda v: v.id)


# ---- 3. and 4.: merged axes, formal names
def _emit(
    group: Group,
    roots: list[_Root],
    kept: list[Value],
    reduced: list[int],
    info: _Stages,
    hints: dict[str, int],
    name: str,
) -> Launch:
    n_stages = 1 + max((root.stage for root in roots), default=0)
    exprs = _all_indices(
        [root.value for root in roots] + kept, [root.store[1] for root in roots if root.store is not None]
    )
    outer_axes, m_outer = _merge(group, [k for k in range(len(group.factors)) if k not in set(reduced)], exprs, "i")
    inner_axes, m_inner = _merge(group, reduced, exprs, "r")
    names = {**m_outer, **m_inner}
    formal = FormalNames({axis.symbol.name for axis in (*outer_axes, *inner_axes)})
    outer = tuple(Axis(axis.symbol, maybe_int(formal.size(as_expr(axis.size)))) for axis in outer_axes)
    inner = tuple(Axis(axis.symbol, maybe_int(formal.size(as_expr(axis.size)))) for axis in inner_axes)

    def on_index(expr: Expr) -> Expr:
        return formal.size(expr.subs(names))

    local_index, local_shape = _row_index(inner), tuple(axis.size for axis in inner)
    stage_of_kept = {v.id: info.stage_of(v) for v in kept}
    local_of = {
        v.id: Buffer(f"tmp{k}", v.dtype, local_shape, _row_strides(local_shape), "local", None, "temp")
        for k, v in enumerate(kept)
    }

    acc_names: dict[str, str] = {}
    acc_values: dict[int, Value] = {}
    stages: list[Stage] = []
    last = Stage(())

    def store_of(root: _Root, value: Value) -> Store:
        buffer, at = root.store
        if value.op == "put":
            at = at.subs({f"at{k}": indirect_symbol(arg) for k, arg in enumerate(value.args[1:])})
            value = value.args[0]
        return Store(formal.output(buffer), on_index(at), value, root.mode)

    for number in range(n_stages):
        rw = Rewriter(on_index, formal.load)
        rw.memo.update(acc_values)
        for v in kept:
            if stage_of_kept[v.id] < number:
                rw.memo[v.id] = load(local_of[v.id], local_index)
        stage = Stage(inner)
        for v in kept:
            if stage_of_kept[v.id] == number:
                stage.stores.append(Store(local_of[v.id], local_index, rw(v)))
        for root in roots:
            if root.stage != number or not root.inner:
                continue
            value = rw(root.value)
            if root.acc is not None:
                acc_names[root.acc] = f"acc{len(acc_names)}"
                old, new = acc(root.acc, root.dtype), acc(acc_names[root.acc], root.dtype)
                acc_values[old.id] = new
                stage.accs.append(Acc(new.attr, root.op, root.dtype, value, root.running, root.origin))
                if root.running:
                    rw.memo[old.id] = new
            else:
                stage.stores.append(store_of(root, value))
        if stage.accs or stage.stores:
            stages.append(stage)
    rw = Rewriter(on_index, formal.load)
    rw.memo.update(acc_values)
    for root in roots:
        if not root.inner and root.acc is None:
            last.stores.append(store_of(root, rw(root.value)))
    if last.stores:
        stages.append(last)

    params, checks = scalars_and_checks([v for st in stages for v in st.roots()])
    kernel = Kernel(
        name,
        outer,
        stages,
        inputs=list(formal.inputs.values()),
        outputs=list(formal.outputs.values()),
        locals=list(local_of.values()),
        sizes=list(formal.sizes.values()),
        params=params,
        origins=list(dict.fromkeys(origin for nest in group.nests for origin in nest.origins)),
        lines=list(dict.fromkeys(line for nest in group.nests for line in nest.lines)),
        fused_because=_reasons(group),
        hints=formal.hints(hints),
        checks=checks,
    )
    sizes = [symbol(size) for size in formal.sizes]
    return Launch(kernel, list(formal.inputs), list(formal.outputs), sizes, [name for name, _ in params])


def _reasons(group: Group) -> list[str]:
    counts: dict[str, int] = {}
    for b in group.because:
        counts[b] = counts.get(b, 0) + 1
    return [f"{count} {'operator' if count == 1 else 'operators'}: {key}" for key, count in counts.items()]


def _all_indices(values: Sequence[Value], others: Iterable[Expr]) -> list[Expr]:
    out = dict.fromkeys(others)
    out.update((e, None) for value in walk(values) if (e := value.position) is not None)
    return list(out)


def _merge(group: Group, ks: Sequence[int], exprs: Sequence[Expr], letter: str) -> tuple[list[Axis], dict[str, Expr]]:
    """Axes of the factors `ks`, neighbours merged where every access steps over both as over one; and what each
    factor's symbol becomes."""
    runs: list[list[int]] = []
    for k in ks:
        if runs and _mergeable(runs[-1][-1], k, group, exprs):
            runs[-1].append(k)
        else:
            runs.append([k])
    axes, names = [], {}
    for n, run in enumerate(runs):
        merged_symbol = symbol(f"{letter}{n}")
        size = integer(1)
        for k in run:
            size = size * group.factors[k].size
            names[f"g{k}"] = integer(0)
        names[f"g{run[-1]}"] = merged_symbol
        axes.append(Axis(merged_symbol, maybe_int(size)))
    return axes, names


def _mergeable(a: int, b: int, group: Group, exprs: Sequence[Expr]) -> bool:
    if b != a + 1:
        return False
    na, nb, size = f"g{a}", f"g{b}", group.factors[b].size
    for expr in exprs:
        names = expr.symbol_names()
        if na not in names and nb not in names:
            continue
        ca, cb = expr.coeff(na), expr.coeff(nb)
        if ca is None or cb is None or cb * size is not ca:
            return False
    return True


def _row_strides(shape: tuple) -> tuple:
    out, n = [], integer(1)
    for size in reversed(shape):
        out.append(maybe_int(n))
        n = n * size
    return tuple(reversed(out))


def _row_index(axes: Sequence[Axis]) -> Expr:
    e = integer(0)
    for axis, st in zip(axes, _row_strides(tuple(other.size for other in axes))):
        e = e + axis.symbol * st
    return e
