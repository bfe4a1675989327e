"""op_db through the whole compiler: capture, guards, graph, lowering, fusion, C++, launch; with and without gradients."""
from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import torch

import tcompile
from tcompile.compiler.errors import FullGraphError

from ..oracles.opdb import Outcome, check

__all__ = ["compile_sample", "run", "Row"]


def compile_sample(fn: Callable, tensors: list) -> Callable:
    """What the oracle asks for: a callable of the tensors."""
    return tcompile.compile(fn, fullgraph=True, dynamic=False)


class Row:
    """What became of one operator: `kind` lowered | composed | eager | break, and the oracle's outcome."""

    def __init__(self, name: str, dtype: torch.dtype, outcome: Outcome, kernels: int, calls: list[str]):
        self.name, self.dtype, self.outcome, self.kernels, self.calls = name, dtype, outcome, kernels, calls

    @property
    def kind(self) -> str:
        if not self.outcome.agreed and not self.outcome.failed:
            return "break"
        if self.calls:
            return "composed" if self.kernels else "eager"
        return "lowered"

    @property
    def result(self) -> str:
        return "wrong" if self.outcome.failed else "right" if self.outcome.agreed else "refused"


def run(info: Any, dtype: torch.dtype, limit: int | None = None) -> Row:
    """Every sample (or the first `limit`) of an operator."""
    kernels, calls = 0, []
    with warnings.catch_warnings(), tcompile.record() as r:
        warnings.simplefilter("ignore")
        outcome = check(info, dtype, compile_sample, refusals=(NotImplementedError, FullGraphError), limit=limit)
    report = r.report()
    kernels = len(report.kernels)
    for g in report.graphs:
        calls += g.library_calls if hasattr(g, "library_calls") else []
    return Row(info.name, dtype, outcome, kernels, calls)


def describe(row: Row, lines: int = 3) -> str:
    out = io.StringIO()
    for f in row.outcome.failed[:lines]:
        print("  " + f[:300], file=out)
    return out.getvalue()
