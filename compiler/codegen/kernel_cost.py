"""What a launch of a kernel moves and computes: bytes and floating point operations."""

from __future__ import annotations

from typing import Any

from ..lowering.ir import Kernel, loads, numel, symbols_of, walk
from ..lowering.product_groups import in_groups
from ..symbolic.expr import as_expr

__all__ = ["kernel_cost"]

_NOT_ARITHMETIC = frozenset(("load", "const", "param", "acc", "cast", "index", "where", "masked", "check_index"))


def _gathered(kernel: Kernel) -> dict[str, list[tuple]]:
    """Buffers that are read at computed positions alone: of each such read the axes that it is repeated over."""
    reads: dict[str, list[tuple]] = {}
    whole = {output.name for output in kernel.outputs}
    if kernel.template is not None:
        return {}
    for stage in kernel.stages:
        axes = (*kernel.outer, *stage.axes)
        for value in loads(stage.roots()):
            buffer, index = value.attr
            if not value.args:  # at positions that the axes give
                whole.add(buffer.name)
                continue
            names = index.symbol_names() | symbols_of(value.args)
            reads.setdefault(buffer.name, []).append(tuple(axis for axis in axes if axis.symbol.symbol_names() & names))
    return {name: rows for name, rows in reads.items() if name not in whole}


def kernel_cost(kernel: Kernel) -> tuple[int, int]:
    """(bytes moved, floating point operations) of one launch at the size hints: every buffer once, of a buffer that is
    read at computed positions alone as many elements as are read; sums over a group each element of one.
    """

    def at_hints(expr: Any) -> int:
        try:
            return int(as_expr(expr).eval(kernel.hints))
        except KeyError:
            return 0

    n_bytes, gathered = 0, _gathered(kernel)
    for buffer in (*kernel.inputs, *kernel.outputs):
        n = buffer.dtype.itemsize
        for size, stride in zip(buffer.shape, buffer.stride):
            if as_expr(stride) is not as_expr(0):  # a broadcast dimension is read once
                n *= at_hints(size)
        if buffer.name in gathered:
            n = min(n, sum(at_hints(numel(axes)) for axes in gathered[buffer.name]) * buffer.dtype.itemsize)
        n_bytes += n
    outer = at_hints(numel(kernel.outer))
    flops = 0
    if kernel.template is not None:
        flops = at_hints(kernel.template.flops)
    for stage in kernel.stages:
        roots = [acc.value for acc in stage.accs] + [store.value for store in stage.stores]
        ops = sum(value.op not in _NOT_ARITHMETIC and value.dtype.is_floating_point for value in walk(roots)) + len(
            stage.accs
        )
        flops += (
            ops
            * outer
            * at_hints(numel(stage.axes))
            // max(
                (
                    found[1].count
                    for acc in stage.accs
                    for value in walk([acc.value])
                    if (found := in_groups(value)) is not None and found[3] is not None
                ),
                default=1,
            )
        )
    return n_bytes, flops
