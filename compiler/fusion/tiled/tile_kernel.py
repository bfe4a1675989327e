"""A template, and what becomes of its results, as the step that fusion puts in the place of others."""

from __future__ import annotations

from typing import Iterable

from ...lowering.ir import Axis, Kernel, Stage, Template as Computed
from ...lowering.lowered import Extern
from ...symbolic.expr import as_expr, maybe_int, symbol
from ..parameter_names import FormalNames, scalars_and_checks
from ..schedule import Launch, Template

__all__ = ["formal_axes", "tile_kernel"]


def formal_axes(formal: FormalNames, axes: Iterable[Axis]) -> tuple[Axis, ...]:
    return tuple([Axis(a.symbol, maybe_int(formal.size(as_expr(a.size)))) for a in axes])


def tile_kernel(
    template: Computed,
    stages: list[Stage],
    formal: FormalNames,
    hints: dict[str, int],
    place: Extern,
    name: str,
    reason: str,
    why: str,
    origins: Iterable[str],
    lines: Iterable[tuple],
) -> Template:
    """The step, which stands for `place`. `reason`, `why`: what the report says of the step and of its kernel."""
    params, checks = scalars_and_checks([*template.roots(), *(v for s in stages for v in s.roots())])
    kernel = Kernel(
        name,
        template.outer,
        stages,
        list(formal.inputs.values()),
        list(formal.outputs.values()),
        [],
        list(formal.sizes.values()),
        params,
        list(dict.fromkeys(filter(None, origins))),
        list(dict.fromkeys(tuple(x) for x in lines)),
        [why],
        formal.hints(hints),
        checks,
        template,
    )
    inputs, outputs = list(formal.inputs), list(formal.outputs)
    launch = Launch(kernel, inputs, outputs, [symbol(n) for n in formal.sizes], [n for n, _ in params])
    return Template(
        place.op, tuple(inputs), {}, outputs, reason=reason, origin=place.origin, lines=place.lines, launch=launch
    )
