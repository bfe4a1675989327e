"""The codegen stage: `generate(schedule, opts) -> Generated`."""
from __future__ import annotations

import re
from typing import Any, Callable

from .. import events
from ..fusion.schedule import Launch, Schedule
from ..lowering.grouped import in_groups
from ..lowering.ir import Kernel, walk
from ..symbolic.expr import as_expr
from .cpp.extent import open_extent, pass_numbers
from .cpp.layout import numel
from .cpp.printer import KernelSource, print_kernel
from .cpp.support import Target
from .generated import Generated, GeneratedKernel
from .host import host_plan
from .target import host_target

__all__ = ["generate", "kernel_cost"]

_NOT_ARITHMETIC = frozenset(("load", "const", "param", "acc", "cast", "index", "where", "masked", "check_index"))
_printed: dict[tuple[str, str, Target], KernelSource] = {}      # kernels of earlier graphs in this process
_PRINTED_LIMIT = 2048


def generate(schedule: Schedule, opts: Any) -> Generated:
    """Source text for every distinct kernel of the schedule (repeated layers share one) and the host plan.

    Raises InternalError where a kernel holds what C++ has no form for.
    """
    from .triton.generate import cuda_index, generate_triton
    index = cuda_index(schedule)
    if index is not None:
        return generate_triton(schedule, opts, index)
    target = host_target(opts)
    for step in schedule.steps:
        if isinstance(step, Launch):
            open_extent(step)
    return generate_kernels(schedule, "c++", target, lambda kernel, key, name: _print(kernel, key, name, target))


def generate_kernels(schedule: Schedule, language: str, target: Any, source_of: Callable[[Kernel, Any, str], Any],
                     cuda: int | None = None) -> Generated:
    """Every distinct kernel of the schedule by `source_of(kernel, key, name)`, and the host plan: the same for each language."""
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
            name = _unique(_identifier(step.kernel.name), taken)
            n_bytes, flops = kernel_cost(step.kernel)
            source = source_of(step.kernel, key, name)
            kernels.append(GeneratedKernel(name, step.kernel, source, n_bytes, flops))
            events.emit("kernel", name=name, kernel=step.kernel, source=source.text, language=language, bytes=n_bytes, flops=flops,
                        origins=list(step.kernel.origins), choices=dict(source.choices), names=source.names)
        kernel_of[id(step)] = at
    for step in schedule.steps:
        if isinstance(step, Launch):
            k = kernels[kernel_of[id(step)]]
            if language == "c++" and k.source.numbers:
                pass_numbers(step, k.source.numbers)
                k.kernel = step.kernel
    names = {i: kernels[p].name for i, p in kernel_of.items()}
    return Generated(schedule, kernels, kernel_of, host_plan(schedule, names, cuda), target, cuda=cuda)


def _print(kernel: Kernel, key: str, name: str, target: Target) -> KernelSource:
    k = (key + repr(kernel.lines) + repr(kernel.origins) + repr(sorted(kernel.hints.items())), name, target)
    source = _printed.get(k)
    if source is None:
        if len(_printed) >= _PRINTED_LIMIT:
            _printed.clear()
        source = _printed[k] = print_kernel(kernel, target, name=name)
    return source


def _identifier(name: str) -> str:
    text = re.sub(r"\W", "_", name)[:80] or "kernel"
    return text if not text[0].isdigit() else "k" + text


def _unique(name: str, taken: set[str]) -> str:
    n, out = 1, name
    while out in taken:
        n, out = n + 1, f"{name}_{n}"
    taken.add(out)
    return out


def kernel_cost(kernel: Kernel) -> tuple[int, int]:
    """(bytes moved, floating point operations) of one launch at the size hints: every buffer once, sums over a group each element of one."""
    def at_hints(e: Any) -> int:
        try:
            return int(as_expr(e).eval(kernel.hints))
        except KeyError:
            return 0
    n_bytes = 0
    for b in (*kernel.inputs, *kernel.outputs):
        n = b.dtype.itemsize
        for size, stride in zip(b.shape, b.stride):
            if as_expr(stride) is not as_expr(0):          # a broadcast dimension is read once
                n *= at_hints(size)
        n_bytes += n
    outer = at_hints(numel(kernel.outer))
    flops = 0
    if kernel.template is not None:
        flops = at_hints(kernel.template.flops)
    for stage in kernel.stages:
        roots = [a.value for a in stage.accs] + [s.value for s in stage.stores]
        ops = sum(v.op not in _NOT_ARITHMETIC and v.dtype.is_floating_point for v in walk(roots)) + len(stage.accs)
        flops += ops * outer * at_hints(numel(stage.axes)) // max((found[1].count for a in stage.accs for v in walk([a.value])
                                                                   if (found := in_groups(v)) is not None and found[3] is not None), default=1)
    return n_bytes, flops
