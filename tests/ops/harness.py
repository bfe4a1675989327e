"""op_db through the whole compiler: capture, guards, graph, lowering, fusion, C++, launch; with and without
gradients.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import torch

import tcompile
from tcompile.compiler.errors import FullGraphError

from ..oracles.opdb import Outcome, check

__all__ = ["compile_sample", "run", "describe", "Row"]


def compile_sample(fn: Callable, tensors: list) -> Callable:
    """What the oracle asks for: a callable of the tensors."""
    return tcompile.compile(fn, fullgraph=True, dynamic=False)


class Row:
    """What became of one operator.

    kernels   generated kernels over all samples
    calls     operators that ran with torch's own kernels from the plan -> why
    eager     reasons why a whole graph ran with torch's kernels
    """

    def __init__(
        self, name: str, dtype: torch.dtype, outcome: Outcome, kernels: int, calls: dict[str, str], eager: list[str]
    ):
        self.name, self.dtype, self.outcome = name, dtype, outcome
        self.kernels, self.calls, self.eager = kernels, calls, eager

    @property
    def kind(self) -> str:
        """lowered: kernels of ours (or views) alone | composed: with calls of torch's kernels | eager call: those alone
        | break.
        """
        if not self.outcome.agreed and not self.outcome.failed:
            return "break"
        if self.calls or self.eager:
            return "composed" if self.kernels else "eager call"
        return "lowered"

    @property
    def result(self) -> str:
        """wrong | crashed | right (some samples may be refused) | refused (all of them)."""
        if len(self.outcome.failed) > len(self.outcome.crashed):
            return "wrong"
        if self.outcome.crashed:
            return "crashed"
        return "right" if self.outcome.agreed else "refused"


def run(
    info: Any, dtype: torch.dtype, limit: int | None = None, spread: bool = False, change: Callable | None = None
) -> Row:
    """Every sample of an operator, or `limit` of them (the first, or from all over)."""
    with warnings.catch_warnings(), tcompile.record() as r:
        warnings.simplefilter("ignore")
        outcome = check(
            info,
            dtype,
            compile_sample,
            refusals=(NotImplementedError, FullGraphError),
            limit=limit,
            spread=spread,
            change=change,
        )
    report = r.report()
    calls = {e.op: e.reason for e in report.externs}
    eager = list(dict.fromkeys(f"{f.what}: {f.reason}" for f in report.fallbacks))
    return Row(info.name, dtype, outcome, len(report.kernels), calls, eager)


def describe(row: Row, lines: int = 3) -> str:
    out = io.StringIO()
    for f in row.outcome.failed[:lines]:
        print("  " + f[:300], file=out)
    return out.getvalue()
