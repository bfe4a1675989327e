"""What values a graph's nodes have on given inputs: range, mean, NaN and infinity, and a few of them. torch's own
kernels compute them, node by node: what a fused kernel keeps in registers can be seen so."""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch

from ..graph.aten import AtenGraph
from ..graph.aten_interpreter import interpret
from .numerics import visible_nodes, with_all_results

__all__ = ["describe", "values_of"]

_SAMPLE = 8
_NEAR = 0.25  # of the largest number of a dtype of 16 bits or less: from there on a value is told to be near overflow


def values_of(aten: AtenGraph, inputs: Sequence[Any]) -> list[dict[str, Any]]:
    """A row of plain data for each node, in the graph's order, of as many as can be held at once. Inputs are read,
    never written."""
    aten = aten.whole or aten
    nodes = visible_nodes(aten)
    with torch.no_grad():
        probe, _ = with_all_results(aten, nodes)
        return [{"node": n.name, **describe(v)} for n, v in zip(nodes, interpret(probe, inputs))]


def describe(x: torch.Tensor) -> dict[str, Any]:
    """Range, mean, how many NaN, infinities and zeros, the first values; `mark` says what is wrong with them: "nan",
    "inf", "large" (near the end of its dtype's range), or nothing."""
    x = x.detach()
    out: dict[str, Any] = {"dtype": str(x.dtype).removeprefix("torch."), "count": x.numel()}
    flat = x.reshape(-1)[:_SAMPLE].cpu()
    out["sample"] = [str(v) if x.is_complex() else _plain(v) for v in flat.tolist()]
    if x.is_complex() or not x.numel():
        return {**out, "min": None, "max": None, "mean": None, "nan": 0, "inf": 0, "zero": 0, "mark": ""}
    wide = x.double()
    finite = wide[wide.isfinite()]
    out["nan"], out["inf"] = int(wide.isnan().sum()), int(wide.isinf().sum())
    out["zero"] = int((wide == 0).sum())
    known = (finite.min(), finite.max(), finite.mean()) if finite.numel() else (None, None, None)
    for name, value in zip(("min", "max", "mean"), known):
        out[name] = None if value is None else _plain(float(value))
    largest = torch.finfo(x.dtype).max if x.is_floating_point() and x.dtype.itemsize < 4 else math.inf
    near = finite.numel() and float(finite.abs().max()) > _NEAR * largest
    out["mark"] = "nan" if out["nan"] else "inf" if out["inf"] else "large" if near else ""
    return out


def _plain(v: Any) -> Any:
    return v if not isinstance(v, float) or math.isfinite(v) else str(v)
