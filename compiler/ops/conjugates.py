"""Conjugates inside the formulas of gradients. Autograd takes them as views with a bit that says so; these are read by
the formula alone, and are computed here. A view that the program takes is not: it shares memory with what it is of.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

__all__ = ["INSTEAD"]

aten = torch.ops.aten


def _computed(op: torch._ops.OpOverload) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        if torch._C._current_autograd_node() is None:
            raise NotImplementedError("conj and neg views are not traced")
        return op(x)

    return call


INSTEAD: dict[Any, Callable[[Any], Any]] = {
    aten._conj.default: _computed(aten.conj_physical.default),
    aten._neg_view.default: _computed(aten.neg.default),
}
