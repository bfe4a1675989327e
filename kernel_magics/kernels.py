"""Seconds of each kernel of a report, measured on the inputs of the calls that made it."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ..compiler.report.calls import EntryCall
from ..compiler.runtime.profile import profile
from .limits import machine_limits
from .timing import preserved

__all__ = ["time_kernels"]

_SHARE = 0.1  # of the timing budget


def time_kernels(calls: Sequence[EntryCall], report: Any, budget: float) -> None:
    """Fill `seconds` (one launch) of the report's kernels, and what the machine can do at best. Graphs that write to an input keep None: the report says
    that they were not timed."""
    if any(k.bytes for k in report.kernels):
        report.environment.update(machine_limits("cuda" if any(k.language == "triton" for k in report.kernels) else "cpu"))
    todo = [(c, g) for c in calls for g in c.graphs if g.number is not None and not g.changed()]
    for call, g in todo:
        compiled: Any = getattr(g.compiled, "forward", g.compiled)  # with gradients: the forward graph
        rows = [report.kernels[k] for k in report.graphs[g.number].kernels]
        try:
            with preserved([a for a in call.args]), torch.no_grad():
                measured = profile(compiled, g.inputs, budget * _SHARE / max(1, len(todo)))
        except ValueError:
            continue
        for k in rows:
            if k.name in measured.kernels:
                k.seconds = measured.kernels[k.name] / max(1, k.launches)
