"""Scans: rows go by in pieces of RBLOCK elements, each scanned as a tree; what came before a piece is carried to it."""

from __future__ import annotations

from typing import Any

import torch

from ...lowering.ir import Acc, Stage
from .dtypes import ttype
from .prims import Operand, conversion, reduce_identity
from ..guarded import stored
from .values import Names

__all__ = ["HELPERS", "scan_loop"]

HELPERS = {
    "_running_sum": "@triton.jit\ndef _running_sum(a, b):\n    return a + b\n",
    "_running_prod": "@triton.jit\ndef _running_prod(a, b):\n    return a * b\n",
    "_running_max": (
        "@triton.jit\ndef _running_max(a, b):  # NaN wins, as in eager\n    return tl.where((a > b) | (a != a), a, b)\n"
    ),
    "_running_min": (
        "@triton.jit\ndef _running_min(a, b):  # NaN wins, as in eager\n    return tl.where((a < b) | (a != a), a, b)\n"
    ),
    "_running_argmax": (
        "@triton.jit\ndef _running_argmax(a, i, b, j):  # the last of equal values; NaN is the largest\n"
        "    right = (b >= a) | (b != b)\n    return tl.where(right, b, a), tl.where(right, j, i)\n"
    ),
    "_running_argmin": (
        "@triton.jit\ndef _running_argmin(a, i, b, j):  # the last of equal values; NaN is the smallest\n"
        "    right = (b <= a) | (b != b)\n    return tl.where(right, b, a), tl.where(right, j, i)\n"
    ),
    "_running_logaddexp": (
        "@triton.jit\ndef _running_logaddexp(a, b):\n    top = tl.where((a > b) | (a != a), a, b)\n    low = tl.where(a"
        " > b, b, a)\n    sum = top + libdevice.log1p(libdevice.exp(low - top))\n    return tl.where((a == b) &"
        ' (tl.abs(a) == float("inf")), a, sum)\n'
    ),
}


def scan_loop(printer: Any, stage: Stage, names: Names, masks: dict[str, str]) -> list[str]:
    """Lines of a stage whose accumulators are running."""
    head, inner = printer._head(stage.axes, masks)
    values = printer._values(stage, names, inner)
    values.emit([a.value for a in stage.accs])
    declare: list[str] = []
    for acc in stage.accs:
        values.inside += _piece(printer, acc, values.operand(acc.value), declare)
    for store in stage.stores:
        values.emit([*store.positions, stored(store.value)])
        values.store(store.buffer, store.index, store.value, store.mode, frozenset("xr"))
    names.forget("r")
    return [
        *values.outside,
        *declare,
        "for roffset in range(0, rnumel, RBLOCK):",
        *(f"    {line}" for line in [*head, *values.inside]),
    ]


def _piece(printer: Any, acc: Acc, x: Operand, declare: list[str]) -> list[str]:
    """One accumulator over one piece: the tile of results, and what is carried on."""
    full = frozenset("xr")
    position = acc.is_position
    t = ttype(acc.folded)
    combine = f"_running_{acc.op}"
    printer.need(combine)
    name, carry = acc.name, f"{acc.name}_carry"
    tile = printer._tile(x if x.t == t else Operand(f"({conversion(x, t)})", t, x.dims), None, {}, full)
    declare.append(f"{carry} = tl.full([XBLOCK, 1], {reduce_identity(acc.op, t)}, {t.held})")
    if position:
        declare.append(f"{carry}_at = tl.full([XBLOCK, 1], 0, {printer.itype})")
        printer.accs[name] = Operand(name, ttype(torch.int64), full)
        return [
            (
                f"{name}_value, {name}_at = tl.associative_scan(({tile}, tl.broadcast_to(rindex, [XBLOCK, RBLOCK])), 1,"
                f" {combine})"
            ),
            f"{name}_value, {name}_at = {combine}({carry}, {carry}_at, {name}_value, {name}_at)",
            f"{carry} = {_last(name + '_value', t.held)}",
            f"{carry}_at = {_last(name + '_at', printer.itype)}",
            f"{name} = {name}_at.to(tl.int64)",
        ]
    printer.accs[name] = Operand(name, t, full)
    return [
        f"{name} = {combine}({carry}, tl.associative_scan({tile}, 1, {combine}))",
        f"{carry} = {_last(name, t.held)}",
    ]


def _last(name: str, held: str) -> str:
    """The last column of a tile."""
    return f"tl.sum(tl.where(rbase == RBLOCK - 1, {name}, 0), 1)[:, None].to({held})"
