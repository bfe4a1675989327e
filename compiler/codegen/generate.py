"""The codegen stage: `generate(schedule, opts) -> Generated`."""

from __future__ import annotations

from typing import Any

from ..fusion.schedule import Launch, Schedule
from .cpp.extent import open_extent
from .cpp.printer import print_kernel
from .generated import Generated
from .distinct_kernels import generate_kernels
from .target import host_target

__all__ = ["generate"]


def generate(schedule: Schedule, opts: Any) -> Generated:
    """Source text for every distinct kernel of the schedule (repeated layers share one) and the host plan.

    Raises InternalError where a kernel holds what C++ has no form for.
    """
    from .triton.generate_gpu import cuda_index, generate_triton

    index = cuda_index(schedule)
    if index is not None:
        return generate_triton(schedule, opts, index)
    target = host_target(opts)
    for step in schedule.steps:
        if isinstance(step, Launch):
            open_extent(step)
    return generate_kernels(schedule, "c++", target, print_kernel)
