"""Seconds of each kernel of a report, measured on the inputs of the calls that made it."""

from __future__ import annotations

import re
from typing import Any, Sequence

import torch

from ..compiler.frontend.entry_calls import EntryCall
from ..compiler.runtime.profile import profile
from .limits import machine_limits
from .timing import MOST_COPIES, busy_words, preserved

__all__ = ["time_kernels"]

_SHARE = 0.1  # of the timing budget


def time_kernels(calls: Sequence[EntryCall], report: Any, budget: float) -> None:
    """Fill `seconds` (one launch) of the report's kernels, and what the machine can do at best. What a graph writes to
    is put back, if it is small enough to keep copies of; else its kernels keep None."""
    if report.externs or any(k.bytes for k in report.kernels):
        report.environment.update(
            machine_limits(
                "cuda" if any(k.language in ("triton", "cuda") for k in report.kernels) else "cpu", bool(busy_words())
            )
        )
    todo = [(c, g, g.changed()) for c in calls for g in c.graphs if g.number is not None]
    todo = [x for x in todo if sum(t.nbytes for t in x[2]) <= MOST_COPIES]
    for call, g, written in todo:
        compiled: Any = getattr(g.compiled, "forward", g.compiled)  # with gradients: the forward graph
        rows = [report.kernels[k] for k in report.graphs[g.number].kernels]
        try:
            with preserved(call.args, written), torch.no_grad():
                measured = profile(compiled, g.inputs, budget * _SHARE / max(1, len(todo)))
        except ValueError:
            continue
        for x in report.externs:
            if x.graph == g.number:
                x.seconds = _of(x.op, measured.library)
        for k in rows:
            if k.name in measured.kernels:
                k.seconds = measured.kernels[k.name] / max(1, k.launches)


def _of(op: str, library: dict[str, float]) -> float | None:
    """Seconds of the functions in a plan that stand for an operator: `aten.mm.default` may be called as `mm_out`."""
    packet = op.removeprefix("aten.").split(".")[0]
    found = [
        t for name, t in library.items() if name == packet or re.match(rf"{re.escape(packet)}_(out|default|\\d+)", name)
    ]
    return sum(found) if found else None
