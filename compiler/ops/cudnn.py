"""cuDNN's operators as those that every device has.

On CUDA torch's composite operators choose cudnn_batch_norm for float32, and cudnn_grid_sampler where it can. They
compute what native_batch_norm and grid_sampler_2d do (batch norm keeps the same statistics, mean and inverse
deviation), so they are recorded as
those: one rule and one decomposition serve both, forward and backward.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

__all__ = ["INSTEAD"]

aten = torch.ops.aten


def _batch_norm(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float, eps: float
) -> tuple:
    out, mean, invstd = aten.native_batch_norm.default(
        x, weight, bias, running_mean, running_var, training, momentum, eps
    )
    reserve = x.new_empty([0], dtype=torch.uint8)  # cuDNN's workspace, which backward is given
    return out, mean, invstd, reserve


def _batch_norm_backward(
    x: Any, g: Any, weight: Any, running_mean: Any, running_var: Any, mean: Any, invstd: Any, eps: float, reserve: Any
) -> tuple:
    return aten.native_batch_norm_backward.default(
        g, x, weight, running_mean, running_var, mean, invstd, True, eps, [True, True, True]
    )


def _grid_sampler(x: Any, grid: Any) -> Any:
    # bilinear, zeros outside, aligned corners: all that cuDNN has
    return aten.grid_sampler_2d.default(x, grid, 0, 0, True)


def _grid_sampler_backward(x: Any, grid: Any, g: Any) -> tuple:
    return aten.grid_sampler_2d_backward.default(g, x, grid, 0, 0, True, [True, True])


# operator -> function of the same arguments and results, on other operators
INSTEAD: dict[Any, Callable[..., Any]] = {
    aten.cudnn_batch_norm.default: _batch_norm,
    aten.cudnn_batch_norm_backward.default: _batch_norm_backward,
    aten.cudnn_grid_sampler.default: _grid_sampler,
    aten.cudnn_grid_sampler_backward.default: _grid_sampler_backward,
    aten._use_cudnn_ctc_loss.default: lambda *_: False,
    aten._use_cudnn_ctc_loss.Tensor: lambda *_: False,
}
if hasattr(aten, "_use_miopen_ctc_loss"):  # (not in every torch)
    INSTEAD[aten._use_miopen_ctc_loss.default] = lambda *_: False
