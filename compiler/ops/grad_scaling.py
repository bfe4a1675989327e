"""What a GradScaler does with gradients, as operators that fuse.

torch has one kernel that multiplies a list of gradients by a number and says whether any of their elements was infinite
or no number. Recorded tensor by tensor, both are done where a gradient is made, or in one pass over it."""

from __future__ import annotations

from typing import Any, Callable

import torch

__all__ = ["INSTEAD"]

aten = torch.ops.aten


def _check_and_unscale(grads: list, found_inf: Any, inv_scale: Any) -> None:
    scale, found = aten.reshape(inv_scale, []), aten.reshape(found_inf, [])
    for g in grads:
        computed = torch.float64 if g.dtype == torch.float64 else torch.float32
        bad = aten.logical_not(aten.all(aten.isfinite(g)))
        found = aten.maximum(found, bad.to(found.dtype))
        aten.copy_(g, aten.mul(g.to(computed), scale.to(computed)))
    aten.copy_(found_inf, aten.expand(found, found_inf.shape))


# operator -> function of the same arguments and results, on other operators
INSTEAD: dict[Any, Callable[..., Any]] = {aten._amp_foreach_non_finite_check_and_unscale_.default: _check_and_unscale}
