"""The codegen stage: `generate(schedule, opts) -> Generated`. Each distinct kernel of a schedule once, in either
language, and the host plan that calls it."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .. import events
from ..base.quoting import identifier
from ..fusion.schedule import Launch, Schedule
from .cpp.extent import open_extent, pass_numbers
from .cpp.printer import print_kernel
from .generated import Generated, GeneratedKernel
from .host import host_plan
from .kernel_cost import kernel_cost
from .target import host_target
from .triton.open_numbers import is_number

__all__ = ["cuda_index", "generate", "generate_kernels", "generate_triton"]


def generate(schedule: Schedule, opts: Any) -> Generated:
    """Source text for every distinct kernel of the schedule (repeated layers share one) and the host plan.

    Raises InternalError where a kernel holds what C++ has no form for.
    """
    index = cuda_index(schedule)
    if index is not None:
        return generate_triton(schedule, opts, index)
    for step in schedule.steps:
        if isinstance(step, Launch):
            open_extent(step)
    return generate_kernels(schedule, "c++", host_target(opts), print_kernel)


def generate_triton(schedule: Schedule, opts: Any, index: int | None, target: Any = None) -> Generated:
    """Source text for every distinct kernel and the host plan. `index`: the CUDA device (None, with a target: text
    alone, as tests want it). Raises InternalError where a kernel holds what Triton has no form for."""
    from .triton.gpu_target import target_of
    from .triton.print_kernel import print_kernel

    chosen = target if target is not None else target_of(index or 0, opts)
    exact = bool(opts.get("emulate_precision", False))
    return generate_kernels(schedule, "triton", chosen, print_kernel, index, exact=exact, open_numbers=True)


def cuda_index(schedule: Schedule) -> int | None:
    """The device of the schedule's kernels; None: the CPU. Raises NotImplementedError where they are on several."""
    devices: dict[torch.device, str] = {}
    for step in schedule.steps:
        if isinstance(step, Launch):
            for buffer in (*step.inputs, *step.outputs):
                devices.setdefault(
                    torch.device(buffer.device) if buffer.device is not None else torch.device("cpu"), buffer.name
                )
    if not devices:
        for buffer in schedule.inputs:
            device = getattr(buffer, "device", None)
            if device is not None:
                devices.setdefault(torch.device(device), buffer.name)
        cuda = [device for device in devices if device.type == "cuda"]
        return (cuda[0].index or 0) if cuda else None
    if len(devices) > 1:
        where = ", ".join(f"{name} on {key}" for key, name in devices.items())
        raise NotImplementedError(f"one kernel would need tensors on several devices ({where})")
    device = next(iter(devices))
    return None if device.type == "cpu" else device.index or 0


_printed: dict[tuple, Any] = {}  # kernels of earlier graphs in this process
_PRINTED_LIMIT = 2048


def generate_kernels(
    schedule: Schedule, language: str, target: Any, printer: Callable[..., Any], cuda: int | None = None, **how: Any
) -> Generated:
    """Every distinct kernel of the schedule by `printer(kernel, target, name=, **how)`, and the host plan: the
    same for each language.
    """
    kernels: list[GeneratedKernel] = []
    position: dict[Any, int] = {}
    kernel_of: dict[int, int] = {}
    taken: set[str] = set()
    for step in schedule.steps:
        if not isinstance(step, Launch):
            continue
        key = step.kernel.key()
        at = position.get(key)
        if at is None:
            at = position[key] = len(kernels)
            name = _unique(identifier(step.kernel.name[:80], "kernel"), taken)
            n_bytes, flops = kernel_cost(step.kernel)
            kernel = step.kernel
            hints = tuple(sorted(kernel.hints.items()))
            known = (language, target, *how.items(), key, repr(kernel.lines), repr(kernel.origins), hints, name)
            source = _printed.get(known)
            if source is None:
                if len(_printed) >= _PRINTED_LIMIT:
                    _printed.clear()
                source = _printed[known] = printer(kernel, target, name=name, **how)
            kernels.append(GeneratedKernel(name, step.kernel, source, n_bytes, flops))
            events.emit(
                "kernel",
                name=name,
                kernel=step.kernel,
                source=source.text,
                language=language,
                bytes=n_bytes,
                flops=flops,
                origins=list(step.kernel.origins),
                choices=dict(source.choices),
                names=source.names,
            )
        kernel_of[id(step)] = at
    for step in schedule.steps:
        if isinstance(step, Launch):
            kernel = kernels[kernel_of[id(step)]]
            if (
                kernel.source.numbers
                or language == "triton"
                and any(is_number(str(size)) for size in step.kernel.sizes)
            ):
                pass_numbers(step, kernel.source.numbers)
                kernel.kernel = step.kernel
    names = {i: kernels[value].name for i, value in kernel_of.items()}
    return Generated(schedule, kernels, kernel_of, host_plan(schedule, names, cuda), target, cuda=cuda)


def _unique(name: str, taken: set[str]) -> str:
    n, out = 1, name
    while out in taken:
        n, out = n + 1, f"{name}_{n}"
    taken.add(out)
    return out
