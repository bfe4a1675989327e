"""The names that the parameters of every kernel have (in0, out0, n0), so that repeated layers give equal kernels."""

from __future__ import annotations

from typing import Container, Sequence

from ..lowering.ir import Buffer, Value, load, walk
from ..symbolic.expr import Expr, as_expr, is_signed, maybe_int, symbol

__all__ = ["FormalNames", "scalars_and_checks"]


class FormalNames:
    """Buffers and sizes under formal names, numbered as they appear. `axes`: names of the symbols that are no sizes."""

    def __init__(self, axes: Container[str]):
        self.axes = axes
        self.sizes: dict[str, Expr] = {}  # of the graph -> the kernel's
        self.inputs: dict[Buffer, Buffer] = {}
        self.outputs: dict[Buffer, Buffer] = {}

    def size(self, expr: Expr) -> Expr:
        """An expression with its size symbols renamed."""
        unknown = [
            name
            for name in sorted(expr.symbol_names())
            if name not in self.sizes and name not in self.axes and not name.startswith("ind")
        ]
        for s in unknown:
            self.sizes[s] = symbol(f"{'z' if is_signed(s) else 'n'}{len(self.sizes)}")
        return expr.subs(self.sizes) if self.sizes else expr

    def input(self, buffer: Buffer) -> Buffer:
        return self._of(buffer, self.inputs, "in", "input")

    def output(self, buffer: Buffer) -> Buffer:
        return self._of(buffer, self.outputs, "out", "output")

    def load(self, buffer: Buffer, expr: Expr) -> Value:
        """What a load of the graph's buffer is in the kernel (`on_load` of a Rewriter)."""
        return load(self.input(buffer), expr)

    def _of(self, buffer: Buffer, formal: dict[Buffer, Buffer], prefix: str, kind: str) -> Buffer:
        f = formal.get(buffer)
        if f is None:
            shape, stride = (
                tuple(maybe_int(self.size(as_expr(dim))) for dim in dims) for dims in (buffer.shape, buffer.stride)
            )
            f = formal[buffer] = Buffer(
                f"{prefix}{len(formal)}", buffer.dtype, shape, stride, "global", buffer.device, kind, bits=buffer.bits
            )
        return f

    def hints(self, hints: dict[str, int]) -> dict[str, int]:
        return {f.name: hints[key] for key, f in self.sizes.items() if key in hints}


def scalars_and_checks(values: Sequence[Value]) -> tuple[list, list[str]]:
    """((name, dtype) of each scalar argument, messages of checks) that values use, in order."""
    params: dict = {}
    checks: dict[str, None] = {}
    for value in walk(values):
        if value.op == "param":
            params[value.attr] = value.dtype
        elif value.op == "check_index":
            checks[value.attr] = None
    return list(params.items()), list(checks)
