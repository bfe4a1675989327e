"""Medians with bootstrap intervals, of samples that were taken in turn."""

from __future__ import annotations

from typing import Sequence

import torch

__all__ = ["Bootstrap", "interval_of", "LEVEL"]

LEVEL = 0.95
_FEW = 8  # below that many rounds the interval is the samples' own range
# What stays the same within one run is not sampled: where buffers lie, the clock's frequency. No interval is tighter
# than that share.
_UNSAMPLED = 0.01
_RESAMPLES = 1000


class Bootstrap:
    """Resampled medians of several engines, round by round, so that what disturbs a round disturbs all engines alike.

    `rounds[i]` holds one figure per engine. Rounds that follow each other are alike, so blocks of them are resampled,
    not single rounds. With few rounds the interval is the samples' own range.
    """

    def __init__(self, rounds: Sequence[dict[str, float]], engines: Sequence[str], seed: int = 0):
        self.medians: dict[str, torch.Tensor] = {}
        self.point: dict[str, float] = {}
        generator = torch.Generator().manual_seed(seed)  # its own: the user's random numbers stay where they are
        n = len(rounds)
        index = _blocks(n, generator) if n else None
        for e in engines:
            x = torch.tensor([r[e] for r in rounds], dtype=torch.float64)
            if n:
                self.point[e] = float(x.quantile(0.5))
                self.medians[e] = x[index].quantile(0.5, dim=1)

    def interval(self, engine: str) -> tuple[float, float, float]:
        """Median with its interval."""
        return (self.point[engine], *interval_of(self.point[engine], self.medians[engine]))

    def ratio(self, over: str, engine: str) -> tuple[float, float, float]:
        """Time of `over` by time of `engine`: how many times as fast `engine` is, with its interval."""
        point = self.point[over] / self.point[engine]
        return (point, *interval_of(point, self.medians[over] / self.medians[engine]))


def _blocks(n: int, generator: torch.Generator) -> torch.Tensor:
    """Indices of rounds, one row per resample: blocks of about the square root of n neighbours, at random places on a
    circle.
    """
    if n < _FEW:
        return (torch.arange(_RESAMPLES) % n).unsqueeze(1)
    length = round(n**0.5)
    starts = torch.randint(0, n, (_RESAMPLES, -(-n // length), 1), generator=generator)
    return ((starts + torch.arange(length)) % n).reshape(_RESAMPLES, -1)[:, :n]


def interval_of(point: float, values: torch.Tensor) -> tuple[float, float]:
    """The interval of a figure from its resampled values; it also holds what one run cannot see. A single sample has
    none.
    """
    tail = (1 - LEVEL) / 2
    lo, hi = values.quantile(torch.tensor([tail, 1 - tail], dtype=values.dtype)).tolist()
    if lo == hi:
        return lo, hi
    return min(lo, point * (1 - _UNSAMPLED)), max(hi, point * (1 + _UNSAMPLED))
