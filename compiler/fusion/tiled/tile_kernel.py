"""A template, and what becomes of its results, as the step that fusion puts in the place of others.

`TileNames` names what a kernel reads and writes; each matcher of this folder rebuilds its axes, values and stores with
it. `ATTENTION_KERNEL` and `CHAIN_KERNEL` are the kernels that there are, as reports name them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable

from ...lowering.ir import Axis, Buffer, Kernel, Stage, Store, Template as Computed, Value
from ...lowering.lowered import Extern
from ...lowering.rewrite import Rewriter
from ...symbolic.expr import Expr, as_expr, maybe_int, symbol
from ..parameter_names import FormalNames, scalars_and_checks
from ..schedule import Launch, Template

__all__ = ["ATTENTION_KERNEL", "CHAIN_KERNEL", "TileNames", "tile_kernel"]


@dataclass(frozen=True)
class Kind:
    """What a report says: of the kernel's name, of the step that became one, of why its parts are one kernel."""

    name: str
    reason: str
    why: str


ATTENTION_KERNEL = Kind("attention", "attention", "attention: its scores are never in memory")
CHAIN_KERNEL = Kind("chain", "chain of products", "a chain of products: those within are never in memory")


class TileNames(FormalNames):
    """The names in a kernel over `axes`: `value` rebuilds a value of the graph with them."""

    def __init__(self, axes: Iterable[Axis]):
        super().__init__({axis.symbol.name for axis in axes})
        self.value = Rewriter(self.size, self.load)

    def sized(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        return tuple([Axis(axis.symbol, maybe_int(self.size(as_expr(axis.size)))) for axis in axes])

    def store(self, buffer: Buffer, at: Expr, value: Value) -> Store:
        return Store(self.output(buffer), self.size(at), self.value(value))


def tile_kernel(
    kind: Kind,
    template: Computed,
    stages: list[Stage],
    names: TileNames,
    hints: dict[str, int],
    place: Extern,
    origins: Iterable[str],
    lines: Iterable[tuple],
) -> Template:
    """The step, which stands for `place`."""
    params, checks = scalars_and_checks([*template.roots(), *(v for stage in stages for v in stage.roots())])
    kernel = Kernel(
        kind.name,
        template.outer,
        stages,
        list(names.inputs.values()),
        list(names.outputs.values()),
        [],
        list(names.sizes.values()),
        params,
        list(dict.fromkeys(filter(None, origins))),
        list(dict.fromkeys(tuple(line) for line in lines)),
        [kind.why],
        names.hints(hints),
        checks,
        template,
    )
    inputs, outputs = list(names.inputs), list(names.outputs)
    launch = Launch(kernel, inputs, outputs, [symbol(size) for size in names.sizes], [n for n, _ in params])
    return Template(
        place.op, tuple(inputs), {}, outputs, reason=kind.reason, origin=place.origin, lines=place.lines, launch=launch
    )
