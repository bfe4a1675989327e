"""The rules of the loop IR as code. `verify_lowered` checks what lowering made; kernels and schedules are checked in
fusion/verify_schedule.py.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, Sequence

import torch

from ..errors import VerifyError
from ..symbolic.expr import Expr, as_expr
from .ir import REDUCE_OPS, SCAN_OPS, STORE_MODES, Buffer, LoopNest, Value, reduced_dtype, walk
from .primitives import PRIMS
from .lowered import Extern, LoweredGraph, View

__all__ = [
    "verify_lowered",
    "verify_values",
    "verify_nest",
    "check_bounds",
    "span",
    "unmasked",
    "index_range",
    "require",
]


def require(ok: bool, message: str) -> None:
    if not ok:
        raise VerifyError(message)


def verify_values(roots: Iterable[Value], where: str) -> list[Value]:
    """Operators exist, have the right number of operands of one dtype, and give the dtype that they claim. Returns all
    values.
    """
    values = walk(list(roots))
    for value in values:
        rule = _RULES.get(value.op, _verify_primitive if value.op in PRIMS else None)
        require(rule is not None, f"{where}: unknown operator {value!r}")
        if rule is not None:
            rule(value, where)
    return values


def _verify_primitive(value: Value, where: str) -> None:
    row, args = PRIMS[value.op], value.args
    require(len(args) == row.operands, f"{where}: {value!r} takes {row.operands} operands")
    dtypes = {arg.dtype for arg in args}
    require(len(dtypes) == 1, f"{where}: operands of {value!r} differ: {[arg.dtype for arg in args]}")
    require(value.dtype == (torch.bool if row.truth else args[-1].dtype), f"{where}: {value!r} has the wrong dtype")


def _verify_choice(value: Value, where: str) -> None:
    require(
        len(value.args) == PRIMS[value.op].operands, f"{where}: {value!r} takes {PRIMS[value.op].operands} operands"
    )
    condition, one, other = value.args
    require(condition.dtype == torch.bool, f"{where}: the condition of {value!r} is {condition.dtype}")
    require(one.dtype == other.dtype, f"{where}: operands of {value!r} differ: {[one.dtype, other.dtype]}")
    require(value.dtype == other.dtype, f"{where}: {value!r} has the wrong dtype")


def _verify_load(value: Value, where: str) -> None:
    buffer, index = value.attr
    require(isinstance(buffer, Buffer) and isinstance(index, Expr), f"{where}: {value!r} is no load")
    require(value.dtype == buffer.holds, f"{where}: {value!r} loads {buffer.holds}")


def _verify_check(value: Value, where: str) -> None:
    whole = all(arg.dtype == torch.int64 for arg in value.args)
    require(whole, f"{where}: {value!r} checks something that is not int64")


def _verify_put(value: Value, where: str) -> None:
    whole = all(arg.dtype == torch.int64 for arg in value.args[1:])
    require(value.dtype == value.args[0].dtype and whole, f"{where}: positions of {value!r} are not int64")


def _verify_nothing(value: Value, where: str) -> None:
    """Operators whose operands and dtype may be any."""


# By operator; others are primitives.
_RULES: dict[str, Callable[[Value, str], None]] = {
    **dict.fromkeys(("const", "index", "param", "acc", "cast"), _verify_nothing),
    **dict.fromkeys(("where", "masked"), _verify_choice),
    "load": _verify_load,
    "check_index": _verify_check,
    "put": _verify_put,
}


def index_range(expr: Expr, sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """(least, greatest) value of an affine index where each axis runs over [0, size); None where it is not affine or an
    axis is empty. Symbols that are not in `sizes` make it unknown."""
    lo = hi = 0
    for coeff, atoms in expr.terms():
        if not atoms:
            lo, hi = lo + coeff, hi + coeff
            continue
        if len(atoms) != 1 or not atoms[0].is_symbol or atoms[0].name not in sizes:
            return None
        n = sizes[atoms[0].name]
        if n == 0:
            return None
        if coeff > 0:
            hi += coeff * (n - 1)
        else:
            lo += coeff * (n - 1)
    return lo, hi


def unmasked(roots: Sequence[Value]) -> set[int]:
    """Ids of values that are evaluated for every element: not only as the guarded operand of a `masked`."""
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        value = stack.pop()
        if value.id not in seen:
            seen.add(value.id)
            stack.extend((value.args[0], value.args[2]) if value.op == "masked" else value.args)
    return seen


def span(buffer: Buffer, hints: Mapping[str, int]) -> int:
    """Elements (where kernels see bits, these) from the first to the last that the strides reach, at the hints."""
    n = 1
    for size, st in zip(buffer.shape, buffer.stride):
        size, st = (as_expr(x).eval(_hinted(x, hints)) for x in (size, st))
        if size == 0:
            return 0
        n += (size - 1) * st
    return 8 * buffer.dtype.itemsize * n if buffer.bits else n


def _hinted(expr: Any, hints: Mapping[str, int]) -> dict[str, int]:
    return {name: hints.get(name, 64) for name in as_expr(expr).symbol_names()}


def check_bounds(
    where: str, buffer: Buffer, expr: Expr, sizes: Mapping[str, int], hints: Mapping[str, int], elements: int
) -> None:
    expr = expr.subs(
        {
            name: hints.get(name, 64)
            for name in expr.symbol_names()
            if name not in sizes and not name.startswith(("ind", "at"))
        }
    )
    reached = index_range(expr, sizes)
    require(
        reached is None or (reached[0] >= 0 and reached[1] < elements),
        f"{where}: {buffer.name}[{expr}] reaches {reached}, the buffer has {elements} elements",
    )


def verify_lowered(lowered: LoweredGraph) -> None:
    """Every nest is well formed, reads only what is there already, and stays within its buffers at the hints."""
    known = {buffer for buffer in lowered.inputs if isinstance(buffer, Buffer)}
    for step in lowered.steps:
        if isinstance(step, LoopNest):
            verify_nest(step, known, lowered.hints)
            known.add(step.buffer)
        elif isinstance(step, View):
            require(step.base in known, f"view of {step.base!r}, which is not there yet")
            known.add(step.buffer)
        else:
            require(isinstance(step, Extern), f"unknown step {step!r}")
            for buffer in _buffers((step.args, step.kwargs)):
                require(
                    buffer in known or buffer.kind == "constant", f"{step.op} reads {buffer!r}, which is not there yet"
                )
            known.update(output for output in step.outputs if output is not None)


def _buffers(value: Any) -> list[Buffer]:
    if isinstance(value, Buffer):
        return [value]
    if isinstance(value, (list, tuple)):
        return [buffer for item in value for buffer in _buffers(item)]
    return _buffers(tuple(value.values())) if isinstance(value, dict) else []


def verify_nest(nest: LoopNest, known: set[Buffer], hints: Mapping[str, int]) -> None:
    where = f"nest {nest.buffer.name} of {', '.join(nest.origins)}"
    values = verify_values([nest.value], where)
    require(nest.mode in STORE_MODES, f"{where}: no way of storing {nest.mode!r}")
    require(not any(item.op == "put" for item in values if item is not nest.value), f"{where}: a store inside a value")
    require(
        not nest.onto or nest.buffer in known,
        f"{where}: writes parts of {nest.buffer!r}, of which nothing is there yet",
    )
    require(
        {axis.symbol for axis in nest.domain} == {axis.symbol for axis in (*nest.axes, *nest.reduce_axes)},
        f"{where}: domain is not axes + reduced axes",
    )
    require(
        (nest.reduce_op is None) == (not nest.reduce_axes) or nest.onto and nest.reduce_op is None,
        f"{where}: reduction without reduced axes, or the other way round",
    )
    if nest.reduce_op is not None:
        require(nest.reduce_op in (SCAN_OPS if nest.scan else REDUCE_OPS), f"{where}: no reduction {nest.reduce_op!r}")
        require(not nest.scan or len(nest.reduce_axes) == 1, f"{where}: a scan along {len(nest.reduce_axes)} axes")
    want = nest.value.dtype if nest.reduce_op is None else reduced_dtype(nest.reduce_op, nest.value.dtype)
    require(nest.buffer.holds == want or nest.scan, f"{where}: stores {want} to {nest.buffer!r}")
    sizes = {axis.symbol.name: as_expr(axis.size).eval(_hinted(axis.size, hints)) for axis in nest.domain}
    kept = {axis.symbol.name for axis in nest.axes}
    for name in nest.index.symbol_names():
        require(name in kept or nest.alone or not name.startswith("j"), f"{where}: stores at reduced axis {name}")
    strict = unmasked([nest.value])
    empty = 0 in sizes.values()
    for value in values:
        if value.is_load:
            buffer, expr = value.attr
            require(buffer in known or buffer.kind == "constant", f"{where}: reads {buffer!r}, which is not there yet")
            for name in expr.symbol_names():
                require(
                    not name.startswith("j") or name in sizes,
                    f"{where}: {value!r} uses axis {name}, which the nest does not have",
                )
            if value.id in strict and not empty:
                check_bounds(where, buffer, expr, sizes, hints, span(buffer, hints))
    if not empty:
        check_bounds(where, nest.buffer, nest.index, sizes, hints, span(nest.buffer, hints))
