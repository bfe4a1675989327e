"""What a GradScaler does with gradients and its scale, as operators that fuse.

torch has one kernel that multiplies a list of gradients by a number and says whether any of their elements was infinite
or no number. Recorded tensor by tensor, both are done where a gradient is made, or in one pass over it."""

from __future__ import annotations

from typing import Any, Callable

import torch

__all__ = ["INSTEAD"]

aten = torch.ops.aten


def _check_and_unscale(grads: list, found_inf: Any, inv_scale: Any) -> None:
    scale, found = aten.reshape(inv_scale, []), aten.reshape(found_inf, [])
    for grad in grads:
        computed = torch.float64 if grad.dtype == torch.float64 else torch.float32
        bad = aten.logical_not(aten.all(aten.isfinite(grad)))
        found = aten.maximum(found, bad.to(found.dtype))
        aten.copy_(grad, aten.mul(grad.to(computed), scale.to(computed)))
    aten.copy_(found_inf, aten.expand(found, found_inf.shape))


def _update_scale(scale: Any, growth_tracker: Any, found_inf: Any, growth: float, backoff: float, interval: int) -> Any:
    """The next scale: less after an infinite gradient, more after `interval` steps without one, while it is finite."""
    bad, steps = aten.ne(found_inf, 0), aten.add(growth_tracker, 1)
    due = aten.eq(steps, interval)
    wide = scale.to(torch.float64)
    grown = aten.mul(wide, growth).to(scale.dtype)
    grown = aten.where(aten.logical_and(due, aten.isfinite(grown)), grown, scale)
    aten.copy_(scale, aten.where(bad, aten.mul(wide, backoff).to(scale.dtype), grown))
    aten.copy_(growth_tracker, aten.where(aten.logical_or(bad, due), aten.zeros_like(steps), steps))
    return scale


# operator -> function of the same arguments and results, on other operators
INSTEAD: dict[Any, Callable[..., Any]] = {
    aten._amp_foreach_non_finite_check_and_unscale_.default: _check_and_unscale,
    aten._amp_update_scale_.default: _update_scale,
}
