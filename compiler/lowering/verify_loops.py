"""The rules of the loop IR as code. `verify_lowered` checks what lowering made; kernels and schedules are checked in
fusion/verify_schedule.py.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

import torch

from ..errors import VerifyError
from ..symbolic.expr import Expr, as_expr
from .ir import REDUCE_OPS, SCAN_OPS, STORE_MODES, Buffer, LoopNest, Value, walk
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
    for v in values:
        if v.op in PRIMS and v.op != "check_index":
            row = PRIMS[v.op]
            require(len(v.args) == row.operands, f"{where}: {v!r} takes {row.operands} operands")
            args = v.args
            if v.op in ("where", "masked"):
                require(args[0].dtype == torch.bool, f"{where}: the condition of {v!r} is {args[0].dtype}")
                args = args[1:]
            require(len({a.dtype for a in args}) == 1, f"{where}: operands of {v!r} differ: {[a.dtype for a in args]}")
            require(
                v.dtype == (torch.bool if row.truth else args[-1].dtype),
                f"{where}: {v!r} has the wrong dtype",
            )
        elif v.op == "load":
            require(isinstance(v.attr[0], Buffer) and isinstance(v.attr[1], Expr), f"{where}: {v!r} is no load")
            require(v.dtype == v.attr[0].holds, f"{where}: {v!r} loads {v.attr[0].holds}")
        elif v.op == "check_index":
            require(all(a.dtype == torch.int64 for a in v.args), f"{where}: {v!r} checks something that is not int64")
        elif v.op == "put":
            require(
                v.dtype == v.args[0].dtype and all(a.dtype == torch.int64 for a in v.args[1:]),
                f"{where}: positions of {v!r} are not int64",
            )
        else:
            require(v.op in ("const", "index", "param", "acc", "cast"), f"{where}: unknown operator {v!r}")
    return values


def index_range(e: Expr, sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """(least, greatest) value of an affine index where each axis runs over [0, size); None where it is not affine or an
    axis is empty. Symbols that are not in `sizes` make it unknown."""
    lo = hi = 0
    for c, atoms in e.terms():
        if not atoms:
            lo, hi = lo + c, hi + c
            continue
        if len(atoms) != 1 or atoms[0].op != "sym" or atoms[0].name not in sizes:
            return None
        n = sizes[atoms[0].name]
        if n == 0:
            return None
        if c > 0:
            hi += c * (n - 1)
        else:
            lo += c * (n - 1)
    return lo, hi


def unmasked(roots: Sequence[Value]) -> set[int]:
    """Ids of values that are evaluated for every element: not only as the guarded operand of a `masked`."""
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        v = stack.pop()
        if v.id not in seen:
            seen.add(v.id)
            stack.extend((v.args[0], v.args[2]) if v.op == "masked" else v.args)
    return seen


def span(b: Buffer, hints: Mapping[str, int]) -> int:
    """Elements (where kernels see bits, these) from the first to the last that the strides reach, at the hints."""
    n = 1
    for s, st in zip(b.shape, b.stride):
        s, st = (as_expr(x).eval(_hinted(x, hints)) for x in (s, st))
        if s == 0:
            return 0
        n += (s - 1) * st
    return 8 * b.dtype.itemsize * n if b.bits else n


def _hinted(e: Any, hints: Mapping[str, int]) -> dict[str, int]:
    return {n: hints.get(n, 64) for n in as_expr(e).symbol_names()}


def check_bounds(
    where: str, b: Buffer, e: Expr, sizes: Mapping[str, int], hints: Mapping[str, int], elements: int
) -> None:
    e = e.subs({n: hints.get(n, 64) for n in e.symbol_names() if n not in sizes and not n.startswith(("ind", "at"))})
    r = index_range(e, sizes)
    require(
        r is None or (r[0] >= 0 and r[1] < elements),
        f"{where}: {b.name}[{e}] reaches {r}, the buffer has {elements} elements",
    )


def verify_lowered(g: LoweredGraph) -> None:
    """Every nest is well formed, reads only what is there already, and stays within its buffers at the hints."""
    known = {b for b in g.inputs if isinstance(b, Buffer)}
    for s in g.steps:
        if isinstance(s, LoopNest):
            verify_nest(s, known, g.hints)
            known.add(s.buffer)
        elif isinstance(s, View):
            require(s.base in known, f"view of {s.base!r}, which is not there yet")
            known.add(s.buffer)
        else:
            require(isinstance(s, Extern), f"unknown step {s!r}")
            for b in _buffers((s.args, s.kwargs)):
                require(b in known or b.kind == "constant", f"{s.op} reads {b!r}, which is not there yet")
            known.update(b for b in s.outputs if b is not None)


def _buffers(x: Any) -> list[Buffer]:
    if isinstance(x, Buffer):
        return [x]
    if isinstance(x, (list, tuple)):
        return [b for y in x for b in _buffers(y)]
    return _buffers(tuple(x.values())) if isinstance(x, dict) else []


def verify_nest(n: LoopNest, known: set[Buffer], hints: Mapping[str, int]) -> None:
    where = f"nest {n.buffer.name} of {', '.join(n.origins)}"
    values = verify_values([n.value], where)
    require(n.mode in STORE_MODES, f"{where}: no way of storing {n.mode!r}")
    require(not any(v.op == "put" for v in values if v is not n.value), f"{where}: a store inside a value")
    require(not n.onto or n.buffer in known, f"{where}: writes parts of {n.buffer!r}, of which nothing is there yet")
    require(
        {a.symbol for a in n.domain} == {a.symbol for a in (*n.axes, *n.reduce_axes)},
        f"{where}: domain is not axes + reduced axes",
    )
    require(
        (n.reduce_op is None) == (not n.reduce_axes) or n.onto and n.reduce_op is None,
        f"{where}: reduction without reduced axes, or the other way round",
    )
    if n.reduce_op is not None:
        require(n.reduce_op in (SCAN_OPS if n.scan else REDUCE_OPS), f"{where}: no reduction {n.reduce_op!r}")
        require(not n.scan or len(n.reduce_axes) == 1, f"{where}: a scan along {len(n.reduce_axes)} axes")
    want = torch.int64 if n.reduce_op in ("argmax", "argmin") else n.value.dtype
    require(n.buffer.holds == want or n.scan, f"{where}: stores {want} to {n.buffer!r}")
    sizes = {a.symbol.name: as_expr(a.size).eval(_hinted(a.size, hints)) for a in n.domain}
    kept = {a.symbol.name for a in n.axes}
    for name in n.index.symbol_names():
        require(name in kept or n.alone or not name.startswith("j"), f"{where}: stores at reduced axis {name}")
    strict = unmasked([n.value])
    empty = 0 in sizes.values()
    for v in values:
        if v.op == "load":
            b, e = v.attr
            require(b in known or b.kind == "constant", f"{where}: reads {b!r}, which is not there yet")
            for name in e.symbol_names():
                require(
                    not name.startswith("j") or name in sizes,
                    f"{where}: {v!r} uses axis {name}, which the nest does not have",
                )
            if v.id in strict and not empty:
                check_bounds(where, b, e, sizes, hints, span(b, hints))
    if not empty:
        check_bounds(where, n.buffer, n.index, sizes, hints, span(n.buffer, hints))
