"""The GPU that kernels are generated for, by its index."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch

from ...base.generations import has
from .layout import GpuTarget

__all__ = ["target_of"]


@functools.cache
def _device(index: int) -> GpuTarget:
    properties = torch.cuda.get_device_properties(index)
    return GpuTarget("cuda", 10 * properties.major + properties.minor, 32, properties.multi_processor_count)


def target_of(index: int, opts: Any) -> GpuTarget:
    """The target of one CUDA device."""
    target = _device(index)
    return replace(target, early=True) if opts.get("early_launch") and has("early launch", target.arch) else target
