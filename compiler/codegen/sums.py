"""Kernels that are one sum and what is computed from it: what a product of matrices looks like before it has tiles."""

from __future__ import annotations

import torch

from ..lowering.ir import Acc, Kernel, Stage

__all__ = ["sum_of_products"]


def sum_of_products(kernel: Kernel) -> tuple[Stage, Acc] | None:
    """(the first stage, its sum) of a kernel that sums products in float32, and then only reads the sums; else None."""
    if len(kernel.stages) < 2:
        return None
    first, rest = kernel.stages[0], kernel.stages[1:]
    if not first.axes or len(first.accs) != 1 or first.stores or any(stage.axes or stage.accs for stage in rest):
        return None
    acc = first.accs[0]
    return (first, acc) if acc.op == "sum" and acc.dtype == torch.float32 and acc.value.op == "mul" else None
