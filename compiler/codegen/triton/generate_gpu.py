"""Code generation for a schedule whose kernels run on a GPU."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch

from ...fusion.schedule import Launch, Schedule
from ..distinct_kernels import generate_kernels
from ..generated import Generated
from .layout import GpuTarget
from .print_kernel import print_kernel

__all__ = ["cuda_index", "generate_triton"]


def cuda_index(schedule: Schedule) -> int | None:
    """The device of the schedule's kernels; None: the CPU. Raises NotImplementedError where they are on several."""
    devices: dict[torch.device, str] = {}
    for step in schedule.steps:
        if isinstance(step, Launch):
            for b in (*step.inputs, *step.outputs):
                devices.setdefault(torch.device(b.device) if b.device is not None else torch.device("cpu"), b.name)
    if not devices:
        for b in schedule.inputs:
            device = getattr(b, "device", None)
            if device is not None:
                devices.setdefault(torch.device(device), b.name)
        cuda = [d for d in devices if d.type == "cuda"]
        return (cuda[0].index or 0) if cuda else None
    if len(devices) > 1:
        where = ", ".join(f"{name} on {d}" for d, name in devices.items())
        raise NotImplementedError(f"one kernel would need tensors of several devices ({where})")
    device = next(iter(devices))
    return None if device.type == "cpu" else device.index or 0


@functools.cache
def _device(index: int) -> GpuTarget:
    p = torch.cuda.get_device_properties(index)
    return GpuTarget("cuda", 10 * p.major + p.minor, 32, p.multi_processor_count)


def target_of(index: int, opts: Any) -> GpuTarget:
    """The target of one CUDA device."""
    target = _device(index)
    return replace(target, early=True) if opts.get("early_launch") and target.arch >= 90 else target


def generate_triton(schedule: Schedule, opts: Any, index: int | None, target: GpuTarget | None = None) -> Generated:
    """Source text for every distinct kernel and the host plan. `index`: the CUDA device (None, with a target: text
    alone, as tests want it). Raises InternalError where a kernel holds what Triton has no form for."""
    chosen = target if target is not None else target_of(index or 0, opts)
    exact = bool(opts.get("emulate_precision", False))
    return generate_kernels(schedule, "triton", chosen, print_kernel, index, exact=exact, open_numbers=True)
