"""What the GPU of a graph is, and whether its kernels can be launched here."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ...base.generations import generation_of, has
from ...errors import RejectedKernel
from ...native import native
from ..cpu_kernels import native_ready
from ..plan_parts import DTYPE_CODES

__all__ = ["why_not", "why_no_launch", "allocate"]

_dtypes = {code: dtype for dtype, code in DTYPE_CODES.items()}


def allocate(shape: tuple, stride: tuple, code: int, index: int) -> torch.Tensor:
    """torch's own allocation: it frees what it can, and raises with its own words."""
    return torch.empty_strided(shape, stride, dtype=_dtypes[code], device=torch.device("cuda", index))


@functools.cache
def why_not() -> str | None:
    """Why generated kernels can't run on this machine's GPU; None where they can."""
    from .workers import triton_version

    if torch.version.hip is not None:
        return "kernels are launched through NVIDIA's driver, and this torch is for AMD"
    if triton_version() is None:
        return "triton is not installed (pip install triton)"
    return why_no_launch()


@functools.cache
def why_no_launch() -> str | None:
    """The same of kernels that are compiled already."""
    if native is None or not hasattr(native, "CudaKernel"):
        return "the C extension is missing or older than these sources: its launcher runs kernels on the GPU"
    if not native_ready():
        return "the C launcher does not know this torch"
    torch.cuda.init()
    if not has("generated kernels", generation_of()):
        return f"{torch.cuda.get_device_name()} is older than what triton compiles for"
    said: Any = native.cuda_setup(allocate, RejectedKernel)
    return said
