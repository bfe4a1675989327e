"""The runtime stage for a graph on a GPU."""
from __future__ import annotations

from typing import Any, Callable

from ... import events
from ...codegen.generated import Generated
from ...errors import ToolchainError
from ..build import CompiledGraph, _announce, python_plan
from ..program import make_program
from .algorithms import choose_algorithms
from .graphs import CudaGraphs, why_not_captured
from .kernels import load_kernels

__all__ = ["build_gpu"]


def build_gpu(generated: Generated, opts: Any, eager: Callable[..., tuple] | None = None) -> CompiledGraph:
    """Compile the kernels that the disk cache lacks, load them on the device and put the plan together.

    `eager` runs the same graph by torch's own kernels; it serves where triton or the driver is missing, and an event says so.
    """
    index = generated.cuda or 0
    try:
        if generated.kernels and opts.get("max_autotune"):
            from .tune import tune
            generated = tune(generated, opts, index)
        kernels = load_kernels(generated.kernels, generated.target, index, opts) if generated.kernels else []
    except ToolchainError as e:
        if eager is None or "is not installed" not in str(e):
            raise
        events.emit("fallback", what="no triton", reason=str(e), count=1)
        return CompiledGraph(generated, eager, "eager", {})
    by_name = {k.name: c for k, c in zip(generated.kernels, kernels)}
    _announce(generated)
    program = make_program(generated, by_name, opts, choose_algorithms(generated.schedule, opts, index))
    plan, how = (program, "program") if program is not None else (python_plan(generated, by_name), "python")
    if opts.get("cudagraphs"):
        why = why_not_captured(generated.schedule, index)
        if why is None:
            return CompiledGraph(generated, CudaGraphs(plan, generated.schedule, index), "cuda graph", by_name)
        events.emit("fallback", what="CUDA graph", reason=f"plain launches: {why}", count=1)
    return CompiledGraph(generated, plan, how, by_name)
