"""The codegen stage: `generate(schedule, opts) -> Generated`."""

from __future__ import annotations

from typing import Any

from ..fusion.schedule import Launch, Schedule
from ..lowering.ir import Kernel
from .cpp.extent import open_extent
from .cpp.printer import KernelSource, print_kernel
from .cpp.support import Target
from .generated import Generated
from .distinct_kernels import generate_kernels
from .target import host_target

__all__ = ["generate"]

_printed: dict[tuple[str, str, Target], KernelSource] = {}  # kernels of earlier graphs in this process
_PRINTED_LIMIT = 2048


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
    return generate_kernels(schedule, "c++", target, lambda kernel, key, name: _print(kernel, key, name, target))


def _print(kernel: Kernel, key: str, name: str, target: Target) -> KernelSource:
    k = (key + repr(kernel.lines) + repr(kernel.origins) + repr(sorted(kernel.hints.items())), name, target)
    source = _printed.get(k)
    if source is None:
        if len(_printed) >= _PRINTED_LIMIT:
            _printed.clear()
        source = _printed[k] = print_kernel(kernel, target, name=name)
    return source
