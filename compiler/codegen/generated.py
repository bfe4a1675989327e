"""What code generation hands to the runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..fusion.schedule import Launch, Schedule
from ..lowering.ir import Kernel

__all__ = ["GeneratedKernel", "HostPlan", "Generated"]


@dataclass
class GeneratedKernel:
    """One distinct kernel. `bytes` and `flops` are those of one launch at the size hints."""

    name: str
    kernel: Kernel
    source: Any  # KernelSource (C++) or TritonSource
    bytes: int = 0
    flops: int = 0

    @property
    def n_buffers(self) -> int:
        return len(self.kernel.inputs) + len(self.kernel.outputs)


@dataclass
class HostPlan:
    """The Python text that runs the schedule: it defines `run(*inputs) -> tuple`. `names`: objects that the text needs
    as globals, beside the kernels; `extern_calls`: how many calls of torch's own kernels it makes."""

    source: str
    names: dict[str, Any] = field(default_factory=dict)
    extern_calls: int = 0


@dataclass
class Generated:
    schedule: Schedule
    kernels: list[GeneratedKernel]
    kernel_of: dict[int, int]  # id of a Launch -> position in `kernels`
    host: HostPlan
    target: Any  # cpp.support.Target or triton.layout.GpuTarget
    threads: dict[str, int] = field(default_factory=dict)  # kernel name -> most threads, where a search found a number
    cuda: int | None = None  # index of the GPU that the plan runs on; None: the CPU

    def of(self, launch: Launch) -> GeneratedKernel:
        return self.kernels[self.kernel_of[id(launch)]]

    def __str__(self) -> str:
        return "\n".join([*(kernel.source.text for kernel in self.kernels), self.host.source])
