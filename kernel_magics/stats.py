"""Medians with bootstrap intervals, of samples that were taken in turn."""

from __future__ import annotations

from typing import Sequence

import torch

__all__ = ["Bootstrap", "interval_of", "LEVEL"]

LEVEL = 0.95
_RESAMPLES = 1000


class Bootstrap:
    """Resampled medians of several engines, round by round, so that what disturbs a round disturbs all engines alike.

    `rounds[i]` holds one figure per engine. With few rounds the interval is the samples' own range.
    """

    def __init__(self, rounds: Sequence[dict[str, float]], engines: Sequence[str], seed: int = 0):
        self.medians: dict[str, torch.Tensor] = {}
        self.point: dict[str, float] = {}
        generator = torch.Generator().manual_seed(seed)  # its own: the user's random numbers stay where they are
        n = len(rounds)
        index = torch.randint(0, n, (_RESAMPLES, n), generator=generator) if n else None
        for e in engines:
            x = torch.tensor([r[e] for r in rounds], dtype=torch.float64)
            if n:
                self.point[e] = float(x.quantile(0.5))
                self.medians[e] = x[index].quantile(0.5, dim=1)

    def interval(self, engine: str) -> tuple[float, float, float]:
        """Median with its interval."""
        return (self.point[engine], *interval_of(self.medians[engine]))

    def ratio(self, over: str, engine: str) -> tuple[float, float, float]:
        """Time of `over` by time of `engine`: how many times as fast `engine` is, with its interval."""
        return (self.point[over] / self.point[engine], *interval_of(self.medians[over] / self.medians[engine]))


def interval_of(values: torch.Tensor) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    lo, hi = values.quantile(torch.tensor([tail, 1 - tail], dtype=values.dtype)).tolist()
    return lo, hi
