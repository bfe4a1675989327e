"""What a call of an entry gains, by counts: operators that eager would call one by one, against what the entry itself
costs.

Times of small cells differ from run to run, and are known only after some runs. Counts are the same in every run, and
known as soon as the entry is made. They tell the clear cases alone: a turn of a loop that breaks after each second
operator, a handful of small operators between lines of Python.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..graph.tensor import TraceTensor

__all__ = ["counted_gain"]

# Nanoseconds on a CPU, measured roughly; decisions keep a factor of two from them.
_OPERATOR = 1500  # a call of torch's for small tensors, from Python
_RECORDED = 3  # with its record for gradients, and the backward pass, so many times that
_ENTRY = 5000  # guards, the call, the results
_BREAK = 10_000  # what follows is a function of its own, made and looked up anew
_BYTES = 4  # that eager writes in a nanosecond


def counted_gain(result: Any) -> float | None:
    """Seconds by estimate, below zero where a call loses; None where nothing is known: on other devices than a CPU."""
    cost = _ENTRY + _BREAK * len(result.breaks)
    if result.graph is None:
        return -cost * 1e-9
    saved = 0
    for node in result.graph.graph_module.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        value = node.meta.get("val")
        made = value if isinstance(value, (list, tuple)) else (value,)
        tensors = [t for t in made if type(t) is TraceTensor]
        if any(t.device.type != "cpu" for t in tensors):
            return None
        recorded = any(t.requires_grad for t in tensors) or node.target in ("backward", torch.autograd.backward)
        saved += (_OPERATOR + sum(map(_bytes, tensors)) // _BYTES) * (_RECORDED if recorded else 1)
    return (saved - cost) * 1e-9


def _bytes(t: TraceTensor) -> int:
    """Of a fixed size; what varies in size may be large."""
    sizes = list(t.shape)
    return math.prod(sizes) * t.dtype.itemsize if all(type(n) is int for n in sizes) else 1 << 16
